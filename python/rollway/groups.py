"""GroupAssembler: puts the records of a group together, and decides what becomes of those that stay incomplete.

It holds records and hands them out again; it reads nothing, waits for nothing and starts no thread. Give it what
`RecordServer.read` gives you, and ask it for what is ready.
"""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from rollway._core import Record
from rollway.errors import InvalidArgument
from rollway.record_key import WHOLE_GROUP, GroupKey, RecordKey


@dataclass(frozen=True)
class Group:
    """The records of one group.

    Attributes:
        key: What they have in common.
        records: By repetition, in order. Release them, or let go of them, when you are done.
        missing: Repetitions that are not there: tombstones, or not come in time.
        tombstones: Why some of those will never come, as their workers said.
        staleness: How many versions the oldest record was behind the newest weights when the group was handed over.
    """

    key: GroupKey
    records: list[Record]
    missing: list[int]
    tombstones: dict[int, str]
    staleness: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every repetition is there."""
        return not self.missing

    def release(self) -> None:
        """Gives the room of all its records back."""
        for record in self.records:
            record.release()


class _Pending:
    __slots__ = ("records", "since", "tombstones")

    def __init__(self, since: float) -> None:
        self.since = since
        self.records: dict[int, Record] = {}
        self.tombstones: dict[int, str] = {}


@dataclass
class GroupCounts:
    """What became of the records and groups so far. A group counts as complete, partial or dead when it is popped."""

    complete: int = 0
    partial: int = 0
    dropped: int = 0
    dead: int = 0
    stale: int = 0
    withheld: int = 0
    duplicates: int = 0
    late: int = 0
    evicted: int = 0


class GroupAssembler:
    """Yields whole groups from records that come in any order.

    Each record must have a `RecordKey`; its group is the key without the repetition, so instances of other epochs,
    phases and runs never mix. The second record of a key is a duplicate: it is released and counted. A tombstone
    settles its repetition, or the rest of the group (`GroupKey.whole`). A group that is settled and not complete is
    handed over as it is, even empty, when ``on_incomplete`` is ``"partial"``, and dropped otherwise. Whatever was
    dropped or handed over is remembered for a while (``memory``), so that a straggler does not begin it anew.

    Args:
        size: Records per group.
        on_incomplete: What to do with a group that was not complete ``deadline_s`` after its first record: ``"wait"``
            on, ``"drop"`` it, or hand over what is there (``"partial"``).
        deadline_s: Seconds; needed for ``"drop"`` and ``"partial"`` to mean more than tombstones.
        max_groups: Unfinished groups at most. One more, and the oldest is treated as if its deadline were over (with
            ``"wait"``: dropped, for there is no room to wait in). Counted as ``evicted``. Withheld groups have a
            bound of the same size: one more, and the oldest is dropped, and counted likewise.
        max_staleness: How many versions behind the newest weights (`set_version`) a record may be; ``None``: any. Asked
            when a record comes, when its group is finished, and whenever there is a newer version until it is popped.
        on_stale: What to do with older ones: ``"drop"`` them (as if they were tombstones), ``"withhold"`` whole groups
            with one until `pop_withheld`, or only ``"report"`` it in `Group.staleness`.
        memory: How many finished groups are remembered.
        clock: Tells the time in seconds.

    >>> import rollway
    >>> with rollway.RecordServer({"tokens": "int32[*]"}) as server:
    ...     for repetition in (1, 0):
    ...         key = rollway.RecordKey("run1", "train", 0, "task-7", repetition)
    ...         _ = server.submit({"tokens": [repetition]}, key=key)
    ...     assembler = GroupAssembler(size=2)
    ...     for record in server.read_many(2):
    ...         assembler.add(record)
    ...     group = assembler.pop()
    ...     group.key.instance_id, [record["tokens"].tolist() for record in group.records]
    ('task-7', [[0], [1]])
    """

    def __init__(
        self,
        size: int,
        *,
        on_incomplete: Literal["wait", "drop", "partial"] = "wait",
        deadline_s: float | None = None,
        max_groups: int = 4096,
        max_staleness: int | None = None,
        on_stale: Literal["drop", "withhold", "report"] = "drop",
        memory: int = 65_536,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        size = operator.index(size)
        if size < 1 or max_groups < 1 or memory < 0:
            raise InvalidArgument(f"size = {size}, max_groups = {max_groups}, memory = {memory}: one is out of range")
        if on_incomplete not in ("wait", "drop", "partial"):
            raise InvalidArgument(f"on_incomplete is {on_incomplete!r}; it must be 'wait', 'drop' or 'partial'")
        if on_stale not in ("drop", "withhold", "report"):
            raise InvalidArgument(f"on_stale is {on_stale!r}; it must be 'drop', 'withhold' or 'report'")
        if on_incomplete == "wait" and deadline_s is not None:
            raise InvalidArgument(
                "a deadline needs on_incomplete='drop' or 'partial': with 'wait' it would mean nothing"
            )
        if deadline_s is not None and not deadline_s >= 0:
            raise InvalidArgument(f"deadline_s = {deadline_s} is out of range: seconds from 0 on, or None")
        if max_staleness is not None and not max_staleness >= 0:
            raise InvalidArgument(f"max_staleness = {max_staleness} is out of range: versions from 0 on, or None")
        self.size = size
        self.counts = GroupCounts()
        self._on_incomplete = on_incomplete
        self._deadline_s = deadline_s
        self._max_groups = max_groups
        self._max_staleness = max_staleness
        self._on_stale = on_stale
        self._memory = memory
        self._clock = clock
        self._version = 0
        self._pending: dict[GroupKey, _Pending] = {}  # the oldest first
        self._ready: deque[Group] = deque()
        self._withheld: deque[Group] = deque()
        self._finished: dict[GroupKey, None] = {}  # the oldest first

    def set_version(self, version: int) -> None:
        """Says which weights are the newest; staleness is counted from there, also of groups that are ready."""
        if version == self._version:
            return
        self._version = version
        ready, self._ready = self._ready, deque()
        for group in ready:
            self._judge(group)

    def add(self, record: Record) -> None:
        """Takes one record. It is released here if nobody will want it."""
        key = record.key
        if key is None:
            raise InvalidArgument("a record of a group needs a key: send it with key=RecordKey(...)")
        for_all = record.is_tombstone and key.repetition_id == WHOLE_GROUP
        if not for_all and not 0 <= key.repetition_id < self.size:
            raise InvalidArgument(f"{key} has a repetition outside a group of {self.size}")
        group = key.group
        if group in self._finished:
            self.counts.late += 1
            record.release()
            return
        pending = self._pending.get(group)
        if pending is None:
            if len(self._pending) >= self._max_groups and not for_all:  # one that is over at once needs no room
                self._evict()
            pending = self._pending[group] = _Pending(self._clock())
        if for_all:
            self.give_up(key, tombstone_reason(record))
            record.release()
            return
        if key.repetition_id in pending.records or key.repetition_id in pending.tombstones:
            self.counts.duplicates += 1
            if pending.records.get(key.repetition_id) is not record:  # the very same is held here
                record.release()
        elif record.is_tombstone:
            pending.tombstones[key.repetition_id] = tombstone_reason(record)
            record.release()
        elif self._on_stale == "drop" and self._is_stale(record):
            pending.tombstones[key.repetition_id] = self._drop_stale(record)
        else:
            pending.records[key.repetition_id] = record
        if len(pending.records) + len(pending.tombstones) == self.size:
            self._finish(group)

    def give_up(self, key: RecordKey | GroupKey, reason: str = "given up") -> None:
        """Treats a group as if the rest of it were tombstones. Does nothing for one that is unknown or finished."""
        group = key.group if isinstance(key, RecordKey) else key
        if (pending := self._pending.get(group)) is not None:
            for repetition in range(self.size):
                if repetition not in pending.records:
                    pending.tombstones.setdefault(repetition, reason)
            self._finish(group)

    def pop(self) -> Group | None:
        """The next group that is ready, or ``None``. Looks at the deadlines first."""
        self._expire()
        if not self._ready:
            return None
        group = self._ready.popleft()
        self.counts.complete += group.is_complete
        self.counts.partial += bool(group.records) and not group.is_complete
        self.counts.dead += not group.records
        return group

    def pop_withheld(self) -> Group | None:
        """The next group that was withheld because it is stale, or ``None``."""
        if not self._withheld:
            return None
        group = self._withheld.popleft()
        return replace(group, staleness=self._behind(group.records))

    def __iter__(self) -> Iterator[Group]:
        """The groups that are ready now."""
        while (group := self.pop()) is not None:
            yield group

    @property
    def next_deadline_s(self) -> float | None:
        """Seconds until an unfinished group's deadline is over: wait no longer than that for the next record."""
        if self._deadline_s is None or not self._pending:
            return None
        oldest = next(iter(self._pending.values()))
        return max(oldest.since + self._deadline_s - self._clock(), 0.0)

    @property
    def pending(self) -> int:
        """Unfinished groups."""
        return len(self._pending)

    @property
    def held(self) -> int:
        """Records in its hands: of unfinished groups, and of those that nobody has popped yet."""
        finished = sum(len(group.records) for group in (*self._ready, *self._withheld))
        return finished + sum(len(pending.records) for pending in self._pending.values())

    def missing(self) -> dict[GroupKey, list[int]]:
        """The repetitions that each unfinished group waits for."""
        return {
            key: [r for r in range(self.size) if r not in pending.records and r not in pending.tombstones]
            for key, pending in self._pending.items()
        }

    def close(self) -> None:
        """Releases everything that is held."""
        for pending in self._pending.values():
            for record in pending.records.values():
                record.release()
        for group in (*self._ready, *self._withheld):
            group.release()
        self._pending.clear()
        self._ready.clear()
        self._withheld.clear()

    def __repr__(self) -> str:
        return f"<rollway.GroupAssembler size={self.size} pending={len(self._pending)} ready={len(self._ready)}>"

    def _is_stale(self, record: Record) -> bool:
        return self._max_staleness is not None and self._version - record.version > self._max_staleness

    def _behind(self, records: list[Record]) -> int:
        """How old the oldest is. A record may be newer than what `set_version` was told of last."""
        return max(self._version - min([record.version for record in records], default=self._version), 0)

    def _drop_stale(self, record: Record) -> str:
        """Releases it, and says why it will never come."""
        self.counts.stale += 1
        behind = self._version - record.version
        record.release()
        return f"stale: {behind} versions behind"

    def _expire(self) -> None:
        if self._deadline_s is None:
            return
        over = self._clock() - self._deadline_s
        while self._pending:
            key, oldest = next(iter(self._pending.items()))
            if oldest.since > over:
                return
            self._finish(key)

    def _evict(self) -> None:
        self.counts.evicted += 1
        self._finish(next(iter(self._pending)))

    def _finish(self, key: GroupKey) -> None:
        pending = self._pending.pop(key)
        self._finished[key] = None
        if len(self._finished) > self._memory:
            del self._finished[next(iter(self._finished))]
        found, missing = pending.records, []
        if len(found) < self.size:
            missing = [repetition for repetition in range(self.size) if repetition not in found]
        records = [found[repetition] for repetition in sorted(found)]
        self._judge(Group(key, records, missing, pending.tombstones))

    def _judge(self, group: Group) -> None:
        """Puts a group where it belongs by the newest weights: to those that are ready, or withheld, or nowhere."""
        behind = self._behind(group.records)
        is_stale = self._max_staleness is not None and behind > self._max_staleness
        if is_stale and self._on_stale == "drop":
            group = self._without_stale(group)
            behind = self._behind(group.records)
        if behind != group.staleness:
            group = replace(group, staleness=behind)
        if not group.is_complete and self._on_incomplete != "partial":
            self.counts.dropped += bool(group.records)
            self.counts.dead += not group.records
            group.release()
        elif is_stale and self._on_stale == "withhold":
            self.counts.withheld += 1
            self._withheld.append(group)
            if len(self._withheld) > self._max_groups:
                self.counts.evicted += 1
                self._withheld.popleft().release()
        else:
            self._ready.append(group)

    def _without_stale(self, group: Group) -> Group:
        """Makes tombstones of its stale records."""
        tombstones = dict(group.tombstones)
        records = [record for record in group.records if not self._is_stale(record)]
        for record in group.records:
            if self._is_stale(record):
                repetition = record.key.repetition_id
                tombstones[repetition] = self._drop_stale(record)
        missing = sorted({*group.missing, *tombstones})
        return Group(group.key, records, missing, tombstones)


def tombstone_reason(tombstone: Record) -> str:
    """Why its worker says that it will never come; empty if it does not say."""
    said = tombstone.metadata
    return str(said.get("reason", "")) if isinstance(said, dict) else ""
