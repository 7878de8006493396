"""ReplayTables: steps and tables of items in shared memory; TableView: one of the tables."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from rollway._core import Tables, read_schema
from rollway.errors import InvalidArgument, WaitTimeout
from rollway.schema.pytree import Schema, explained, known_dtype
from rollway.segment.naming import auto_name
from rollway.tables.batch import TableBatch
from rollway.tables.table import Table
from rollway.tables.writer import Writer
from rollway.transport.learner_end import EndsWithBlock, LearnerEnd, check_keep
from rollway.transport.policies import REPLACE, IfExists, Keep

_MAX_PEERS = 1024
_CHUNK_BYTES = 64 << 10
_MOST_CHUNK_STEPS = 64
_SLACK_CHUNKS = 64
"""Chunks that writers hold besides what items need."""


class ReplayTables(EndsWithBlock, Mapping[str, "TableView"]):
    """Steps, stored once, and tables of items that are windows of them; in shared memory, for any number of processes.

    Writers append steps and make items of the last of them. Items that overlap share their steps. A step stays as long
    as an item needs it. Any process may be killed at any moment: items that were inserted stay, nothing is torn, and
    what the dead held is taken back.

    Args:
        example: One step, whose values do not matter: any tree of arrays and numbers.
        tables: What the tables are.
        max_steps: Steps that there is room for. When all are needed, tables that do not hold their writers back lose
            items, as their remover chooses. Left out: as many as the tables have items, and some more.
        name: What others attach to. Left out, it is automatic, and the memory is freed with its last user.
        seed: Draw the same batches from the same content. Left out, each process draws its own.
        if_exists: For a name that is taken: ``"resume"``, ``"replace"`` or ``"error"``; as in `ShmTransport`.
        keep: When the tables stay for the next learner; as in `ShmTransport`.
        huge_pages: As in `ShmTransport`.
        max_peers: How many handles there may be at once, at most 1024.

    >>> from rollway.tables import Prioritised
    >>> with ReplayTables({"obs": np.zeros(3)}, [Table("main", 1000, Prioritised(0.6))], seed=0) as tables:
    ...     with tables.writer() as writer:
    ...         for number in range(10):
    ...             writer.append({"obs": np.full(3, number)})
    ...             key = writer.insert("main", priority=float(number))
    ...     batch = tables["main"].sample(32)
    ...     found = tables["main"].update_priorities(batch.keys, np.ones(32))
    ...     len(tables["main"]), batch.data["obs"].shape, found
    (10, (32, 1, 3), 32)
    """

    def __init__(
        self,
        example: Any,
        tables: Sequence[Table],
        *,
        max_steps: int | None = None,
        name: str | None = None,
        seed: int | None = None,
        if_exists: IfExists = "resume",
        keep: Keep = "on_error",
        huge_pages: bool | None = None,
        max_peers: int = _MAX_PEERS,
    ) -> None:
        check_keep(keep)
        schema = Schema.of(example, casting="same_kind")
        names = [table.name for table in tables]
        if not names or len(set(names)) < len(names):
            raise InvalidArgument(f"the tables are {names}: give one or more, with different names")
        step_bytes = sum(leaf.row_bytes for leaf in schema.leaves)
        chunk_steps = max(1, min(_MOST_CHUNK_STEPS, _CHUNK_BYTES // max(step_bytes, 1)))
        if max_steps is None:
            chunks = -(-sum(table.max_size for table in tables) // chunk_steps) + _SLACK_CHUNKS
        elif max_steps < 1:
            raise InvalidArgument(f"max_steps = {max_steps} is out of range: 1 and more")
        else:
            chunks = -(-max_steps // chunk_steps)
        with explained(schema, REPLACE):
            core = Tables(
                name or auto_name(),
                schema.plan(),
                [table.native for table in tables],
                chunks,
                chunk_steps,
                auto_named=name is None,
                if_exists=if_exists,
                max_peers=max_peers,
                huge_pages=huge_pages,
                seed=seed,
            )
        self._start(core, schema, keep)

    @classmethod
    def attach(
        cls, name: str, example: Any = None, *, seed: int | None = None, connect_timeout_s: float = 10.0
    ) -> Self:
        """Opens the tables that another process makes.

        ``example``: one step, for its structure. Left out, steps are dicts, and dicts in them.
        """
        if example is None:
            example = _example_of(Tables.schema_of(name, connect_timeout_s))
        schema = Schema.of(example, casting="same_kind")
        with explained(schema):
            core = Tables.attach(name, schema.plan(), seed, connect_timeout_s)
        self = cls.__new__(cls)
        self._start(core, schema, "on_error")
        return self

    def _start(self, core: Tables, schema: Schema, keep: Keep) -> None:
        self._core = core
        self._schema = schema
        self._leaves = [leaf.name for leaf in schema.leaves]
        tables = [Table.of_native(native) for native in core.configs()]
        self._views = {table.name: TableView(self, number, table) for number, table in enumerate(tables)}
        self._leave = LearnerEnd(core.close, core.abandon, keep)
        self._close_core = weakref.finalize(self, self._leave)  # also at interpreter exit

    @property
    def name(self) -> str:
        """What others attach to."""
        return self._core.name

    def writer(self, history: int = 1) -> Writer:
        """A stream of steps of this process. Items can be made of its last ``history`` steps."""
        if history < 1:
            raise InvalidArgument(f"history = {history} is out of range: 1 and more")
        return Writer(self._core, list(self._views), self._leaves, history, self._waiting)

    def __getitem__(self, table: str) -> TableView:
        return self._views[table]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def note_version(self, version: int) -> None:
        """Tells all tables, in all processes, that there are weights of this version: for limiters and staleness."""
        self._core.note_version(version)

    def info(self) -> dict[str, Any]:
        """The room for steps, and the `TableView.info` of each table."""
        steps, free = self._core.steps()
        tables = {name: view.info() for name, view in self._views.items()}
        return {"name": self.name, "bytes": self._core.nbytes, "max_steps": steps, "free_steps": free, "tables": tables}

    def audit(self) -> list[str]:
        """Counts everything anew, and says what does not fit: nothing, unless memory was damaged."""
        return self._core.audit()

    def close(self) -> None:
        """Leaves; the last learner takes the name away, and ends the calls of all others."""
        self._finish(failed=False)

    def _finish(self, *, failed: bool) -> None:
        self._leave.failed = failed
        self._close_core()

    def _waiting(self, number: int, what: str) -> str:
        """Why a call on a table waits."""
        view = list(self._views.values())[number]
        info = view.info()
        limiter = view.table.limiter
        said = [f"{what} in table '{view.table.name}' of '{self.name}': {info['size']:,} items, "]
        said.append(f"{info['inserts']:,} inserted and {info['samples']:,} sampled so far. ")
        if limiter.samples_per_insert:
            said.append(
                f"Its limiter has diff = {info['diff']:,.1f} between {limiter.min_diff:,.1f} and "
                f"{limiter.max_diff:,.1f}: {limiter.samples_per_insert} samples for each insert"
            )
        elif limiter.items_per_version:
            said.append(
                f"Its limiter lets {limiter.items_per_version} items be made with each version of the weights, and "
                f"{limiter.versions_ahead} versions ahead; the weights have version {info['version']}"
            )
        else:
            said.append(f"Its limiter waits for {limiter.min_size:,} items")
        return "".join(said)


class TableView:
    """One table of `ReplayTables`."""

    def __init__(self, tables: ReplayTables, number: int, table: Table) -> None:
        self._tables = tables
        self._number = number
        self.table = table
        """What it was made as."""
        in_it = table.max_size * table.max_times_sampled or math.inf
        self._most = min(table.limiter.most_at_once, in_it)

    def sample(self, batch_size: int, *, timeout: float | None = None) -> TableBatch:
        """Chooses items, and copies their steps.

        Waits until the limiter admits all of them. `WaitTimeout` says what is missing when that takes longer than
        ``timeout`` seconds; then nothing was sampled.
        """
        if batch_size < 1:
            raise InvalidArgument(f"batch_size = {batch_size} is out of range: 1 and more")
        if batch_size > self._most:
            raise InvalidArgument(
                f"batch_size = {batch_size}: table '{self.table.name}' can never give more than {self._most:,.0f} "
                f"items at once, with {self.table.limiter}, max_size={self.table.max_size} and "
                f"max_times_sampled={self.table.max_times_sampled}"
            )
        core = self._tables._core
        sampled = core.sample(self._number, batch_size, timeout)
        if sampled is None:
            raise WaitTimeout(self._tables._waiting(self._number, f"{batch_size} items were not there for {timeout} s"))
        names, arrays, keys, probabilities, priorities, times_sampled, lengths = sampled
        is_whole = names == self._tables._leaves
        data = self._tables._schema.unflatten(arrays) if is_whole else dict(zip(names, arrays, strict=True))
        by_name = None if lengths is None else dict(zip(names, lengths, strict=True))
        size = core.counts(self._number)[0]
        return TableBatch(data, keys, probabilities, priorities, times_sampled, by_name, size)

    def batches(self, batch_size: int, *, timeout: float | None = None) -> Iterator[TableBatch]:
        """One batch after the other."""
        while True:
            yield self.sample(batch_size, timeout=timeout)

    def update_priorities(self, keys: Any, priorities: Any) -> int:
        """Gives items new priorities. Says how many were still there: those that were removed are passed over."""
        keys = np.ascontiguousarray(keys, np.uint64).reshape(-1)
        priorities = np.ascontiguousarray(priorities, np.float64).reshape(-1)
        if keys.shape != priorities.shape:
            raise InvalidArgument(f"there are {len(keys)} keys and {len(priorities)} priorities")
        if not (np.isfinite(priorities).all() and (priorities >= 0).all()):
            raise InvalidArgument("priorities must be numbers of at least 0")
        return self._tables._core.update_priorities(self._number, keys, priorities)

    def delete(self, keys: Any) -> int:
        """Removes items; says how many were there."""
        return self._tables._core.delete(self._number, np.ascontiguousarray(keys, np.uint64).reshape(-1))

    def clear(self) -> None:
        """Removes all items, and begins to count anew."""
        self._tables._core.clear(self._number)

    def __len__(self) -> int:
        return self._tables._core.counts(self._number)[0]

    def info(self) -> dict[str, Any]:
        """What is in the table, and what happened so far."""
        size, inserts, samples, deletes, version = self._tables._core.counts(self._number)
        diff = inserts * self.table.limiter.samples_per_insert - samples
        return {
            "size": size,
            "max_size": self.table.max_size,
            "inserts": inserts,
            "samples": samples,
            "deletes": deletes,
            "diff": diff,
            "version": version,
        }


def _example_of(text: bytes) -> Any:
    """One step with the leaves of a schema, in dicts."""
    example: dict[str, Any] = {}
    for name, dtype, shape in read_schema(text):
        *path, last = name.split("/")
        place = example
        for key in path:
            place = place.setdefault(key, {})
        place[last] = np.zeros(shape, known_dtype(dtype))
    return example
