"""GroupAssembler: puts the records of a group together, and decides what becomes of those that stay incomplete.

It holds records and hands them out again; it reads nothing, waits for nothing and starts no thread. Give it what
`RecordServer.read` gives you, and ask it for what is ready. The work is native: `Assembler`.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from rollway._core import Assembler, Group, Record
from rollway.deprecation import renamed_arguments
from rollway.errors import InvalidArgument
from rollway.records.key import GroupKey, RecordKey


@dataclass(frozen=True)
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


class GroupAssembler(Assembler):
    """Yields whole groups from records that come in any order.

    Each record must have a `RecordKey`; its group is the key without the repetition, so instances of other epochs,
    phases and runs never mix. The second record of a key is a duplicate: it is released and counted. A tombstone
    settles its repetition, or the rest of the group (`GroupKey.whole`). A group that is settled and not complete is
    handed over as it is, even empty, when ``on_incomplete`` is ``"partial"``, and dropped otherwise. Whatever was
    dropped or handed over is remembered for a while (``memory``), so that a straggler does not begin it anew.

    Args:
        size: Records per group.
        on_incomplete: What to do with a group that was not complete ``group_timeout_s`` after its first record:
            ``"wait"`` on, ``"drop"`` it, or hand over what is there (``"partial"``).
        group_timeout_s: Seconds; needed for ``"drop"`` and ``"partial"`` to mean more than tombstones.
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
    ...         _ = assembler.add(record)
    ...     group = assembler.pop()
    ...     group.key.instance_id, [record["tokens"].tolist() for record in group.records]
    ('task-7', [[0], [1]])
    """

    @renamed_arguments(deadline_s="group_timeout_s")
    def __new__(
        cls,
        size: int,
        *,
        on_incomplete: Literal["wait", "drop", "partial"] = "wait",
        group_timeout_s: float | None = None,
        max_groups: int = 4096,
        max_staleness: int | None = None,
        on_stale: Literal["drop", "withhold", "report"] = "drop",
        memory: int = 65_536,
        clock: Callable[[], float] = time.monotonic,
    ) -> GroupAssembler:
        """Begins with nothing."""
        size = operator.index(size)
        if size < 1 or max_groups < 1 or memory < 0:
            raise InvalidArgument(f"size = {size}, max_groups = {max_groups}, memory = {memory}: one is out of range")
        if on_incomplete == "wait" and group_timeout_s is not None:
            raise InvalidArgument(
                "group_timeout_s needs on_incomplete='drop' or 'partial': with 'wait' it would mean nothing"
            )
        if group_timeout_s is not None and not group_timeout_s >= 0:
            raise InvalidArgument(f"group_timeout_s = {group_timeout_s} is out of range: seconds from 0 on, or None")
        own_clock = None if clock is time.monotonic else clock  # the native one tells the same
        return super().__new__(
            cls, size, on_incomplete, group_timeout_s, max_groups, max_staleness, on_stale, memory, own_clock
        )

    @property
    def counts(self) -> GroupCounts:
        """What became of the records and groups so far."""
        return GroupCounts(**self.count())

    def give_up(self, key: RecordKey | GroupKey, reason: str = "given up") -> None:
        """Treats a group as if the rest of it were tombstones. Does nothing for one that is unknown or finished."""
        group = key.group if isinstance(key, RecordKey) else key
        self.tombstone_rest(group.whole.pack(), reason)

    def __iter__(self) -> Iterator[Group]:
        """The groups that are ready now."""
        while (group := self.pop()) is not None:
            yield group

    def __repr__(self) -> str:
        return f"<rollway.GroupAssembler size={self.size} pending={self.pending} ready={self.ready}>"


def tombstone_reason(tombstone: Record) -> str:
    """Why its worker says that it will never come; empty if it does not say."""
    said = tombstone.metadata
    return str(said.get("reason", "")) if isinstance(said, dict) else ""
