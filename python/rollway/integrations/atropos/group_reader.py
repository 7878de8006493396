"""GroupReader: whole groups of trajectories from a `RecordServer` of `ATROPOS_SCHEMA`. For a trainer, and for the hub.

Groups may differ in size, as Atropos lets them: every record says how many belong to its group. A group that an
environment gave up is skipped as soon as its tombstone is read; one whose environment was killed in the middle, after a
deadline.
"""

from __future__ import annotations

import functools
import time
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

    A record that no Atropos environment sends (no key, no group size, a repetition outside its group) is released, and
    `read` raises `InvalidArgument` that names it. The others are kept: the next `read` goes on with them.

    Args:
        server: Reads records; stays yours to close. Publish the step on it, or the environments stand still.
        group_timeout_s: How long the rest of a group may take from its first record. An environment sends a group at
            once, so only a dead one, or a full lane, takes longer than a moment.
        max_groups: Unfinished groups that are held at most.
        max_staleness: Groups that began more steps than this before the published one are dropped, at the latest
            when it is their turn to be read; ``None``: none is too old.

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
        self._assembler(size=1)  # refuses what means nothing now, and not when the first record comes
        self._by_size: dict[int, GroupAssembler] = {}
        self._at_once = 1  # records to read: to the end of a group. Those taken in advance would not count as waiting
        self.tombstones = 0
        """Groups of which an environment said that they will not come, or not in full."""

    def read(self, timeout: float | None = None) -> Group | None:
        """Waits for a group. ``None`` once the server is shut down; `WaitTimeout` when the time is over.

        Its records hold their room until ``group.release()``, or until they are forgotten.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (group := self._pop()) is None:
            try:
                records = self._server.read_many(self._at_once, self._wait_s(deadline))
            except WaitTimeout:
                self._raise_if_over(deadline)
                continue
            if not records:
                return None
            self._add(records)
        return group

    async def read_async(self, timeout: float | None = None) -> Group | None:
        """As `read`, for asyncio. A cancelled wait takes nothing."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (group := self._pop()) is None:
            try:
                records = await self._server.read_many_async(self._at_once, self._wait_s(deadline))
            except WaitTimeout:
                self._raise_if_over(deadline)
                continue
            if not records:
                return None
            self._add(records)
        return group

    @property
    def pending(self) -> int:
        """Groups of which some records are there, but not all."""
        return sum(assembler.pending for assembler in self._by_size.values())

    def close(self) -> None:
        """Gives back what is held."""
        for assembler in self._by_size.values():
            assembler.close()

    def _add(self, records: list[Record]) -> None:
        """Takes all that can be taken, and then raises what is wrong with the first that cannot."""
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
            # It comes after those records of its group that did go out: a lane keeps its order.
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
        """The next group that is complete, and young enough now; looks at the deadlines, too."""
        version = self._server.published_version
        for size, assembler in self._by_size.items():
            assembler.set_version(version)
            if (group := assembler.pop()) is not None:
                self._by_size[size] = self._by_size.pop(size)  # the others come first next time
                return group
        return None

    def _wait_s(self, deadline: float | None) -> float | None:
        """Until the caller's time is over, or some group's."""
        ends = [assembler.next_deadline_s for assembler in self._by_size.values()]
        if deadline is not None:
            ends.append(max(deadline - time.monotonic(), 0.0))
        return min((end for end in ends if end is not None), default=None)

    def _raise_if_over(self, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() >= deadline:
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
    """The key of a record and the size of its group; of a tombstone, which has none, 0."""
    key, said = record.key, record.metadata
    if key is None:
        raise InvalidArgument(
            f"a record without a key came from producer {record.producer_id}: nobody knows to which group it belongs"
        )
    if record.is_tombstone:
        return key, 0
    size = said.get("group_size") if isinstance(said, dict) else None
    if not isinstance(size, int) or not 0 <= key.repetition_id < size <= LARGEST_GROUP:
        raise InvalidArgument(
            f"the record {tuple(key)} is not what an Atropos environment sends: its metadata is {said!r:.200}"
        )
    return key, size
