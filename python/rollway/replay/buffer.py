"""TransitionBuffer: transitions in shared memory, added by any number of processes, sampled at random by the learner.

It names and converts the fields; the core's table stores, draws and copies the rows. `ReplayPipeline` keeps the next
batch ready.
"""

from __future__ import annotations

import operator
import time
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Self

import numpy as np

from rollway._core import Table, table_bytes
from rollway.device import Framework, device_batches
from rollway.errors import InvalidArgument, SchemaMismatch, SegmentDamaged, WaitTimeout
from rollway.replay.batch import Batch, RowLayout, StagedCopies, as_host_array, device_name, fill_field_by_field
from rollway.replay.device_source import TransitionSource
from rollway.schema.arrays import fitted
from rollway.schema.leaves import Leaf
from rollway.schema.pytree import explained
from rollway.schema.record import RecordSchema
from rollway.segment.naming import auto_name
from rollway.transport.earlier_run import warn_of_earlier_run
from rollway.transport.learner_end import EndsWithBlock, LearnerEnd, check_keep
from rollway.transport.policies import REPLACE, IfExists, Keep

_MAX_PEERS = 1024
_PATIENCE_S = 30.0
"""How long an add waits while every row of the buffer is being written by others."""


class TransitionBuffer(EndsWithBlock):
    """Moves transitions from any number of adding processes to those that sample them.

    When it is full, the oldest transitions are overwritten. Only whole ones are ever sampled: of a process that is
    killed in the middle of an `add`, the transitions that it had completed stay. A process that is stopped there delays
    no other. Only `wait_for` blocks, and an `add` while other processes write every row of the buffer.

    A pickled buffer is its name: a spawned child attaches to the same memory. A forked child uses the handle it has.

    Args:
        capacity: Transitions.
        obs_dim: Numbers in an observation.
        action_dim: Numbers in an action.
        device: Where `sample` puts its batches, as torch tensors: a name, or a `torch.device`. It is not touched before
            the first one. Left out, batches are numpy arrays.
        critic_dim: Numbers in an observation for the critic; 0 for none.
        name: What others attach to. Left out, it is automatic, and the memory is freed with its last user.
        fields: More fields, or another dtype and shape for a usual one: ``{"obs": "uint8[84,84]", "step": "int64[]"}``.
            A field may also be an example array, a pair like ``((84, 84), np.uint8)`` or a Gymnasium space.
        seed: Draw the same batches from the same content. Left out, each process draws its own.
        if_exists: For a name that is taken: ``"resume"`` continues with its transitions, ``"replace"`` starts anew
            unless a process is attached to it, ``"error"`` refuses. Left out, it is ``"resume"`` with a warning if
            there are transitions of an earlier run.
        keep: When the buffer stays for the next learner; as in `ShmTransport`.
        huge_pages: As in `ShmTransport`.
        max_peers: How many handles there may be at once, at most 1024.

    >>> import numpy as np
    >>> with TransitionBuffer(1000, obs_dim=3, action_dim=1, seed=0) as buffer:
    ...     ones, zeros = np.ones((8, 3), np.float32), np.zeros(8, np.float32)
    ...     buffer.add(ones, ones[:, :1], zeros, 2 * ones, zeros, zeros)
    ...     batch = buffer.sample(32)
    ...     len(buffer), sorted(batch), tuple(batch["obs"].shape), float(batch["next_obs"].mean())
    (8, ['actions', 'dones', 'next_obs', 'obs', 'rewards', 'truncated'], (32, 3), 2.0)
    """

    def __init__(
        self,
        capacity: int,
        obs_dim: int,
        action_dim: int,
        device: Any = None,
        *,
        critic_dim: int = 0,
        name: str | None = None,
        fields: Mapping[str, Any] | None = None,
        seed: int | None = None,
        if_exists: IfExists | None = None,
        keep: Keep = "on_error",
        huge_pages: bool | None = None,
        max_peers: int = _MAX_PEERS,
    ) -> None:
        check_keep(keep)
        device = device_name(device)
        schema = _schema(obs_dim, action_dim, critic_dim, fields or {})
        layout = RowLayout(schema)
        with explained(schema, REPLACE):
            table = Table(
                name or auto_name(),
                schema.text,
                layout.native,
                layout.row_bytes,
                _positive("capacity", capacity),
                auto_named=name is None,
                if_exists=if_exists or "resume",
                max_peers=_positive("max_peers", max_peers),
                huge_pages=huge_pages,
                seed=_seed(seed),
            )
        self._start(table, layout, device, keep)
        if if_exists is None:
            warn_of_earlier_run(table.name, "transitions", table.found())

    @classmethod
    def attach(cls, name: str, device: Any = None, *, seed: int | None = None, connect_timeout_s: float = 10.0) -> Self:
        """Opens a buffer that another process makes, with the fields and the capacity that it has.

        ``connect_timeout_s``: how long to wait for the learner to appear.
        """
        device = device_name(device)
        deadline = time.monotonic() + connect_timeout_s
        text = Table.schema_of(name, connect_timeout_s)
        schema = RecordSchema.from_text(text)
        layout = RowLayout(schema)
        if layout.row_bytes >= 2**63:
            raise SegmentDamaged(f"segment '{name}' is damaged: its schema says rows of {layout.row_bytes} bytes")
        with explained(schema):
            left = max(deadline - time.monotonic(), 0.0)
            table = Table.attach(name, text, layout.native, layout.row_bytes, _seed(seed), left)
        self = cls.__new__(cls)
        self._start(table, layout, device, "on_error")
        return self

    def _start(self, table: Table, layout: RowLayout, device: str | None, keep: Keep) -> None:
        self._table = table
        self._layout = layout
        self._schema = layout.schema
        self._plain = tuple(layout.schema) == _USUAL
        self._staged: StagedCopies | None = None
        self.capacity = table.capacity
        self.device = device
        self._leave = LearnerEnd(partial(table.close, False), table.abandon, keep)
        self._close_table = weakref.finalize(self, self._leave)  # also at interpreter exit

    # ── adding ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(
        self,
        obs: Any,
        actions: Any,
        rewards: Any,
        next_obs: Any,
        dones: Any,
        truncated: Any,
        terminal_mask: Any = None,
        terminal_next_obs: Any = None,
        critic: Any = None,
        next_critic: Any = None,
        terminal_next_critic: Any = None,
        **more: Any,
    ) -> None:
        """Copies n transitions in: every argument has a first dimension of n.

        ``dones`` is ``terminated | truncated``, and ``truncated`` is ``truncated & ~terminated``: a learner bootstraps
        where ``1 - dones + truncated`` is not 0, and a step may both terminate its episode and reach the time limit.

        Where ``terminal_mask`` is set, ``terminal_next_obs`` is stored instead of ``next_obs``, which an environment
        that resets itself has replaced already; likewise ``terminal_next_critic``. Other real dtypes are converted to
        the field's, also tensors of a device. What does not fit, as a number that would wrap or become infinite, raises
        `SchemaMismatch`, and nothing is added.

        ``more`` are the fields that the constructor was given.

        >>> terminated, truncated = np.array([False, True]), np.array([True, True])  # as env.step returned them
        >>> with TransitionBuffer(1000, obs_dim=3, action_dim=1) as buffer:
        ...     obs, actions, rewards = np.zeros((2, 3)), np.zeros((2, 1)), np.arange(2)
        ...     buffer.add(obs, actions, rewards, obs, terminated | truncated, truncated & ~terminated)
        ...     batch = buffer.sample(32)
        >>> bool((1 - batch["dones"] + batch["truncated"] == 1 - batch["rewards"]).all())  # bootstraps the first only
        True
        """
        if self._plain and terminal_mask is None and critic is None and next_critic is None and not more:
            columns: tuple[Any, ...] = (obs, actions, rewards, next_obs, dones, truncated)
            mask = patches = None
        else:
            given = dict(zip(_USUAL, (obs, actions, rewards, next_obs, dones, truncated), strict=True)) | more
            given |= {
                key: value for key, value in zip(_CRITIC, (critic, next_critic), strict=True) if value is not None
            }
            columns = self._columns(given)
            mask, patches = self._patches(terminal_mask, terminal_next_obs, terminal_next_critic)
        rows = self._table.add(columns, mask, patches, _PATIENCE_S)
        if rows is None:
            columns, mask, patches = self._converted(columns, mask, patches)
            rows = self._table.add(columns, mask, patches, _PATIENCE_S)
        if rows != len(columns[0]):
            raise self._no_room(rows or 0, len(columns[0]))

    def _columns(self, given: dict[str, Any]) -> tuple[Any, ...]:
        if given.keys() != set(self._schema):
            missing, surplus = sorted(self._schema.keys() - given.keys()), sorted(given.keys() - self._schema.keys())
            raise SchemaMismatch(
                f"the fields are {', '.join(self._schema)}; missing here: {', '.join(missing) or 'none'}, "
                f"unknown: {', '.join(surplus) or 'none'}"
            )
        return tuple(given[field] for field in self._schema)

    def _patches(self, mask: Any, next_obs: Any, next_critic: Any) -> tuple[Any, tuple[Any, ...] | None]:
        """The mask, and for each column what replaces it there. As in UniLab: none without a mask or observations."""
        if mask is None or next_obs is None:
            return None, None
        patch = {"next_obs": next_obs, "next_critic": next_critic if "next_critic" in self._schema else None}
        return mask, tuple(patch.get(field) for field in self._schema)

    def _converted(
        self, columns: tuple[Any, ...], mask: Any, patches: tuple[Any, ...] | None
    ) -> tuple[tuple[Any, ...], Any, tuple[Any, ...] | None]:
        """The same values as exact arrays; `SchemaMismatch` names the argument that does not fit."""
        leaves = list(self._schema.values())
        columns = tuple(_column(leaf, value, leaf.name) for leaf, value in zip(leaves, columns, strict=True))
        rows = {leaf.name: len(column) for leaf, column in zip(leaves, columns, strict=True)}
        if mask is not None and patches is not None:
            mask = _mask(mask)
            rows["terminal_mask"] = len(mask)
            names = [f"terminal_{leaf.name}" for leaf in leaves]
            patches = tuple(
                None if value is None else _column(leaf, value, name)
                for leaf, value, name in zip(leaves, patches, names, strict=True)
            )
            rows |= {name: len(value) for name, value in zip(names, patches, strict=True) if value is not None}
        if len(set(rows.values())) > 1:
            raise SchemaMismatch(f"the fields hold different numbers of transitions: {rows}")
        return columns, mask, patches

    def _no_room(self, added: int, asked: int) -> WaitTimeout:
        writers = ", ".join(f"pid {pid} ({rows} rows)" for pid, rows in self._table.writers()) or "others"
        error = WaitTimeout(
            f"{added} of {asked} transitions were added to '{self.name}': for {_PATIENCE_S:.0f} s, all of its "
            f"{self.capacity} rows were being written by {writers}. Look whether they are stopped, or make the "
            "buffer larger"
        )
        error.sent = added
        return error

    # ── sampling ───────────────────────────────────────────────────────────────────────────────────────────────────

    def sample(self, batch_size: int, out: dict[str, Any] | None = None) -> dict[str, Any]:
        """Draws transitions uniformly, with replacement, and copies them out: ``batch_size`` of each field.

        The arrays are numpy's, or torch tensors on the buffer's ``device``: views into one block of packed rows, which
        one copy takes to a GPU. ``sample(…).torch()``, ``.tensordict()`` and ``.jax()`` give the same to those
        libraries; only JAX gets a copy. ``out`` takes the result of an earlier call and fills it again, which saves the
        allocation, also the arrays that you have put into it; or a dict of contiguous arrays, one for each field. An
        empty buffer raises `BufferEmpty`.
        """
        on_host = self.device is None or self.device == "cpu"
        if type(out) is Batch and on_host and out.takes(self._layout, batch_size):
            self._table.sample(batch_size, out.block)
            return out
        batch_size = _positive("batch_size", batch_size)
        if not on_host:
            if self._staged is None:
                self._staged = StagedCopies(self._layout, str(self.device))
            return self._staged.copy(batch_size, self._table.sample, out)
        if out is None:
            batch = Batch.empty(self._layout, batch_size, self.device)
            self._table.sample(batch_size, batch.block)
            return batch
        if type(out) is Batch:  # of another layout, or a copy, or with fields that the caller replaced
            fill_field_by_field(out, self._layout, batch_size, self._table.sample)
            return out
        if out.keys() != self._schema.keys():
            raise InvalidArgument(
                f"out has the fields {', '.join(map(str, out))}; it must have {', '.join(self._schema)}"
            )
        self._table.sample_fields(batch_size, tuple(as_host_array(out[field]) for field in self._schema))
        return out

    def contents(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies every whole transition out, about the oldest first: to save them in a file, say. Draws nothing.

        >>> with TransitionBuffer(4, obs_dim=1, action_dim=1) as buffer:
        ...     for step in range(6):
        ...         one = np.full((1, 1), step)
        ...         buffer.add(one, one, one[0], one, [False], [False])
        ...     buffer.contents()["rewards"].tolist()
        [2.0, 3.0, 4.0, 5.0]
        """
        head, row_bytes = self._table.head, self._layout.row_bytes
        block = np.empty(max(1, min(head, self.capacity)) * row_bytes, np.uint8)
        oldest = head % self.capacity if head > self.capacity else 0
        part = (self.capacity - oldest) * row_bytes
        rows = self._table.read(oldest, block[:part])
        rows += self._table.read(0, block[rows * row_bytes :][: oldest * row_bytes])
        return {name: field[:rows] for name, field in self._layout.arrays(block).items()}

    def device_iter(
        self, batch_size: int, device: Any = "cuda", *, depth: int = 3, framework: Framework = "torch"
    ) -> Iterator[Any]:
        """Yields drawn batches on ``device``, until the buffer is closed. You may keep them.

        Each is drawn into page-locked memory, and crosses to a GPU in one asynchronous copy while you compute on the
        last one: see `Server.device_iter` for the other arguments. It draws up to ``depth`` batches ahead of their use.
        An empty buffer raises `BufferEmpty`: call `wait_for` before.

        >>> import numpy as np
        >>> with TransitionBuffer(100, obs_dim=2, action_dim=1) as buffer:
        ...     ones = np.ones((4, 2), np.float32)
        ...     buffer.add(ones, ones[:, :1], ones[:, 0], ones, ones[:, 0], ones[:, 0])
        ...     batch = next(buffer.device_iter(8, "cpu"))
        ...     batch["obs"].shape, batch["obs"].sum()
        (torch.Size([8, 2]), tensor(16.))
        """
        source = TransitionSource(self, _positive("batch_size", batch_size))
        return device_batches(source, device, depth, framework)

    def reseed(self, seed: int | None) -> None:
        """Begins a new sequence of draws."""
        self._table.reseed(_seed(seed))

    def wait_for(self, rows: int, timeout: float | None = None) -> bool:
        """Waits until there are so many transitions; False when the time is over. Sleeps meanwhile.

        `ConnectionClosedError` when the last learner has left, or another thread closed this handle.
        """
        return self._table.wait_for_rows(_positive("rows", rows), timeout)

    # ── what it is ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def name(self) -> str:
        """What others attach to."""
        return self._table.name

    @property
    def schema(self) -> RecordSchema:
        """The fields of a transition."""
        return self._schema

    @property
    def layout(self) -> RowLayout:
        """Where the fields are in a packed row."""
        return self._layout

    def fill(self, rows: int, block: np.ndarray[Any, Any]) -> None:
        """Draws rows into a block of bytes, packed. `ReplayPipeline` calls it."""
        self._table.sample(rows, block)

    @property
    def rows_reserved(self) -> int:
        """How many rows adders have reserved so far, also those that were overwritten since."""
        return self._table.head

    @property
    def resumed(self) -> bool:
        """Whether the buffer was there already."""
        return self._table.resumed

    def stats(self) -> dict[str, int]:
        """Counts over all processes: rows ``added``, whole ones ``overwritten``, rows ``sampled``; draws ``redrawn``
        because the row was being written, rows that adders ``skipped`` for the same reason, and rows ``recovered`` from
        dead processes. ``rows`` are whole at this moment and ``writing`` are not.

        It reads every row, so do not call it in each step.
        """
        return self._table.stats()

    def __len__(self) -> int:
        """Transitions that can be sampled, with those that are being replaced."""
        return len(self._table)

    def __repr__(self) -> str:
        if self._table.closed:
            return f"<{type(self).__name__} '{self.name}' closed>"
        return f"<{type(self).__name__} '{self.name}' {len(self)} of {self.capacity} on {self.device or 'cpu'}>"

    # ── life ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Closes this handle. In the process that made the buffer it also removes the name, and ends adding.

        ``keep`` says when the buffer stays.
        """
        self._finish(failed=False)

    def _finish(self, *, failed: bool) -> None:
        self._staged = None
        self._leave.failed = failed
        self._close_table()

    def cleanup(self) -> None:
        """Closes this handle and removes the name, whichever process made the buffer."""
        self._staged = None
        self._close_table.detach()
        self._table.close(True)

    def __reduce__(self) -> tuple[Any, tuple[str, str | None]]:
        return partial(type(self).attach, connect_timeout_s=0.0), (self.name, self.device)


_USUAL = ("obs", "actions", "rewards", "next_obs", "dones", "truncated")
_CRITIC = ("critic", "next_critic")


def _schema(obs_dim: int, action_dim: int, critic_dim: int, more: Mapping[str, Any]) -> RecordSchema:
    obs, action = _positive("obs_dim", obs_dim), _positive("action_dim", action_dim)
    shapes = (f"float32[{obs}]", f"float32[{action}]", "float32[]", f"float32[{obs}]", "float32[]", "float32[]")
    usual = dict(zip(_USUAL, shapes, strict=True))
    if critic_dim != 0:
        usual |= dict.fromkeys(_CRITIC, f"float32[{_positive('critic_dim', critic_dim)}]")
    schema = RecordSchema(usual | dict(more))
    if parted := sorted(usual.keys() - schema.keys()):
        raise SchemaMismatch(f"field '{parted[0]}' is one array: a dict, or a Dict or Tuple space, is several")
    reserved = {"terminal_mask", "terminal_next_obs", "terminal_next_critic"} | (
        set(_CRITIC) if critic_dim == 0 else set()
    )
    for leaf in schema.values():
        if leaf.ragged:
            raise SchemaMismatch(f"field '{leaf.name}' is {leaf}; the rows of a replay buffer all have one size")
        if leaf.name in reserved:
            raise SchemaMismatch(f"'{leaf.name}' cannot be a field: it is an argument of add()")
    return schema


def replay_bytes(capacity: int, obs_dim: int, action_dim: int, *, critic_dim: int = 0) -> int:
    """How large the segment of a `TransitionBuffer` with these arguments is."""
    schema = _schema(obs_dim, action_dim, critic_dim, {})
    return table_bytes(RowLayout(schema).row_bytes, _positive("capacity", capacity), len(schema.text), _MAX_PEERS)


def _positive(what: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{what} is {value!r}; it must be a whole number") from None
    if not 1 <= number < 2**32:
        raise InvalidArgument(f"{what} = {number} is out of range: 1 to 2**32 - 1")
    return number


def _seed(seed: int | None) -> int | None:
    if seed is not None and not 0 <= operator.index(seed) < 2**64:
        raise InvalidArgument(f"seed = {seed} is out of range: 0 to 2**64 - 1")
    return seed


def _column(leaf: Leaf, value: Any, name: str) -> np.ndarray[Any, Any]:
    """One column as an exact array."""
    array = _as_array(value, name)
    if array.ndim == 0 or array.shape[1:] != leaf.shape:
        rows = ",".join(map(str, ("n", *leaf.shape)))
        hint = " Add a first dimension: x[None]" if array.shape == leaf.shape else ""
        raise SchemaMismatch(f"'{name}' is {array.dtype}{list(array.shape)}; it must be {leaf.dtype}[{rows}].{hint}")
    # An equal dtype that came in a pickle becomes the leaf's own, too.
    return np.ascontiguousarray(fitted(array, leaf.dtype, f"'{name}'"), leaf.dtype)


def _mask(value: Any) -> np.ndarray[Any, Any]:
    array = _as_array(value, "terminal_mask")
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise SchemaMismatch(f"'terminal_mask' is {array.dtype}{list(array.shape)}; it must be bool[n]")
    return array.astype(bool)


def _as_array(value: Any, name: str) -> np.ndarray[Any, Any]:
    if hasattr(value, "detach"):  # a torch tensor, of any device
        try:
            value = value.detach().cpu()
        except (NotImplementedError, RuntimeError) as error:  # on the device "meta", or sparse
            raise SchemaMismatch(f"'{name}' is a tensor that gives no array: {error}") from None
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
    if np.ma.is_masked(value):
        raise SchemaMismatch(f"'{name}' is an array with masked values. Give them one: array.filled(0)")
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise SchemaMismatch(f"'{name}' ({type(value).__name__}) makes no array: {error}") from None
