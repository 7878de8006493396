"""GroupReader: whole groups of trajectories from a `RecordServer` of `ATROPOS_SCHEMA`. For a trainer, and for the hub.

Groups may differ in size: every record says how many belong to its group. A group that an environment gave up is
skipped as soon as its tombstone is read, and a group whose environment was killed in the middle after a timeout.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rollway.deprecation import renamed_arguments
from rollway.errors import InvalidArgument, WaitTimeout
from rollway.integrations.atropos.encoding import LARGEST_GROUP
from rollway.records.groups import GroupAssembler
from rollway.transport.server_base import describe_refusals

if TYPE_CHECKING:
    from rollway._core import Group, Record
    from rollway.records.key import RecordKey
    from rollway.records.server import RecordServer

_MOST = 64  # records per read


class GroupReader:
    """Reads groups that are complete. Not for several threads.

    A record that does not come from an Atropos environment (no key, no group size, a repetition outside its group) is
    released, and `read` raises `InvalidArgument` that names it. The next `read` continues with the other records.

    Args:
        server: Where records are read. You close it, and you publish the step on it: environments wait for it.
        group_timeout_s: How long the rest of a group may take after its first record. An environment sends a group at
            once, so only a dead environment or a full lane takes long.
        max_groups: How many incomplete groups to hold.
        max_staleness: Groups that began more than this many steps before the published step are dropped; ``None``:
            none is.

    >>> import rollway
    >>> from rollway.integrations.atropos import ATROPOS_SCHEMA, decode_group, encode_group
    >>> group = {"tokens": [[1, 2], [1, 3]], "masks": [[-100, 2], [-100, 3]], "scores": [1.0, 0.0]}
    >>> with rollway.RecordServer(ATROPOS_SCHEMA) as server:
    ...     for repetition, (data, metadata) in enumerate(encode_group(group)):
    ...         key = rollway.RecordKey("run1", "train", 0, "task-7", repetition)
    ...         _ = server.submit(data, key=key, metadata=metadata)
    ...     decode_group(GroupReader(server).read().records) == group
    True
    """

    @renamed_arguments(deadline_s="group_timeout_s")
    def __init__(
        self,
        server: RecordServer,
        *,
        group_timeout_s: float = 60.0,
        max_groups: int = 4096,
        max_staleness: int | None = None,
    ) -> None:
        self._server = server
        self._assembler = functools.partial(
            GroupAssembler,
            on_incomplete="drop",
            group_timeout_s=group_timeout_s,
            max_groups=max_groups,
            max_staleness=max_staleness,
        )
        self._assembler(size=1)  # checks the arguments now, not when the first record comes
        self._by_size: dict[int, GroupAssembler] = {}
        self._at_once = 1  # records to read, up to the end of a group: more would not count as waiting any more
        self.tombstones = 0
        """How many groups environments gave up."""

    def read(self, timeout: float | None = None) -> Group | None:
        """Waits for a group. ``None`` once the server is shut down; `WaitTimeout` when the time is over.

        Its records keep their memory until ``group.release()``, or until they are garbage.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (group := self._pop()) is None:
            with self._until(deadline):
                records = self._server.read_many(self._at_once, self._wait_s(deadline))
                if not records:
                    return None
                self._add(records)
        return group

    async def read_async(self, timeout: float | None = None) -> Group | None:
        """As `read`, for asyncio. A cancelled wait takes nothing."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (group := self._pop()) is None:
            with self._until(deadline):
                records = await self._server.read_many_async(self._at_once, self._wait_s(deadline))
                if not records:
                    return None
                self._add(records)
        return group

    @property
    def pending(self) -> int:
        """How many groups are incomplete."""
        return sum(assembler.pending for assembler in self._by_size.values())

    def close(self) -> None:
        """Releases the records of incomplete groups."""
        for assembler in self._by_size.values():
            assembler.close()

    def _add(self, records: list[Record]) -> None:
        """Adds all usable records, and then raises the error of the first unusable one."""
        wrong: list[InvalidArgument] = []
        for record in records:
            try:
                self._add_one(record)
            except InvalidArgument as error:
                wrong.append(error)
                record.release()
        if wrong:
            raise wrong[0]

    def _add_one(self, record: Record) -> None:
        key, size = _place(record)
        if record.is_tombstone:
            # It comes after the records of its group that were sent: a lane keeps its order.
            self.tombstones += 1
            for assembler in self._by_size.values():
                assembler.give_up(key)
            record.release()
            return
        if size not in self._by_size:
            self._by_size[size] = self._assembler(size)
        self._by_size[size].add(record)
        left = size - 1 - key.repetition_id  # a lane has them in order
        self._at_once = min(left or size, _MOST)

    def _pop(self) -> Group | None:
        """The next group that is complete and not too old; drops groups that are late."""
        version = self._server.published_version
        for size, assembler in self._by_size.items():
            assembler.set_version(version)
            if (group := assembler.pop()) is not None:
                self._by_size[size] = self._by_size.pop(size)  # the others come first next time
                return group
        return None

    def _wait_s(self, deadline: float | None) -> float | None:
        """Seconds until the caller's deadline, or that of a group."""
        ends = [assembler.next_deadline_s for assembler in self._by_size.values()]
        if deadline is not None:
            ends.append(max(deadline - time.monotonic(), 0.0))
        return min((end for end in ends if end is not None), default=None)

    @contextmanager
    def _until(self, deadline: float | None) -> Iterator[None]:
        """Ends the block at a timeout, which may be that of a group. Raises once the caller's deadline is over."""
        try:
            yield
        except WaitTimeout:
            if deadline is None or time.monotonic() < deadline:
                return
            stats = self._server.stats()
            dropped = sum(one.counts.dropped + one.counts.dead for one in self._by_size.values())
            raise WaitTimeout(
                f"no complete group in time: {self.pending} are incomplete; {self.tombstones} were given up by their "
                f"environments so far, {dropped} that had begun to come were dropped (given up, late, too old). "
                f"{stats['reserved_records']} records are being written, {stats['taken_records']} held by learners; "
                f"{stats['producers_alive']} producers attached, {stats['producers_died']} died."
                f"{self._server.lane_pressure()}{describe_refusals(self._server.refusals)}"
            ) from None


def _place(record: Record) -> tuple[RecordKey, int]:
    """The key of a record and the size of its group; 0 for a tombstone."""
    key, said = record.key, record.metadata
    if key is None:
        raise InvalidArgument(
            f"a record without a key came from producer {record.producer_id}, so its group is unknown"
        )
    if record.is_tombstone:
        return key, 0
    size = said.get("group_size") if isinstance(said, dict) else None
    if not isinstance(size, int) or not 0 <= key.repetition_id < size <= LARGEST_GROUP:
        raise InvalidArgument(
            f"the record {tuple(key)} does not come from an Atropos environment: its metadata is {said!r:.200}"
        )
    return key, size
