"""GroupAssembler: collects the records of a group, and decides what happens to incomplete groups.

Add what `RecordServer.read` returns, and pop the groups that are ready. Only `device_iter` reads and waits by itself.
`Assembler` is native.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack

from rollway._core import Assembler, Group, Record
from rollway.deprecation import renamed_arguments
from rollway.device import Framework, device_batches
from rollway.errors import InvalidArgument
from rollway.records.device_source import BatchOptions, GroupSource, Layout, RecordGatherer
from rollway.records.key import GroupKey, RecordKey

if TYPE_CHECKING:
    from rollway.records.server import RecordServer


@dataclass(frozen=True)
class GroupCounts:
    """What happened to the records and groups so far. A group counts as complete, partial or dead when it is popped."""

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
    popped as it is, even empty, when ``on_incomplete`` is ``"partial"``, and dropped otherwise. The last ``memory``
    groups that were dropped or popped are remembered, so that a late record does not start one again.

    Args:
        size: Records per group.
        on_incomplete: What to do with a group that was not complete ``group_timeout_s`` after its first record:
            ``"wait"`` on, ``"drop"`` it, or pop what is there (``"partial"``).
        group_timeout_s: Seconds. Without it, ``"drop"`` and ``"partial"`` concern groups with tombstones only.
        max_groups: How many incomplete groups to hold. When there is one more, the oldest is treated as if its time
            were over (with ``"wait"``: dropped), and counted as ``evicted``. The same limit holds for withheld groups.
        max_staleness: How many versions behind the newest weights (`set_version`) a record may be; ``None``: any.
            Checked when a record comes, when its group is finished, and for each newer version until it is popped.
        on_stale: What to do with older ones: ``"drop"`` them (as if they were tombstones), ``"withhold"`` whole groups
            with one until `pop_withheld`, or only ``"report"`` it in `Group.staleness`.
        memory: How many finished groups to remember.
        clock: Returns the time in seconds.

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
        """Makes an empty assembler."""
        size = operator.index(size)
        if size < 1 or max_groups < 1 or memory < 0:
            raise InvalidArgument(f"size = {size}, max_groups = {max_groups}, memory = {memory}: one is out of range")
        if on_incomplete == "wait" and group_timeout_s is not None:
            raise InvalidArgument(
                "group_timeout_s needs on_incomplete='drop' or 'partial': with 'wait' nothing reads it"
            )
        if group_timeout_s is not None and not group_timeout_s >= 0:
            raise InvalidArgument(f"group_timeout_s = {group_timeout_s} is out of range: seconds from 0 on, or None")
        own_clock = None if clock is time.monotonic else clock  # native code has the same clock
        return super().__new__(
            cls, size, on_incomplete, group_timeout_s, max_groups, max_staleness, on_stale, memory, own_clock
        )

    @property
    def counts(self) -> GroupCounts:
        """What happened to the records and groups so far."""
        return GroupCounts(**self.count())

    def give_up(self, key: RecordKey | GroupKey, reason: str = "given up") -> None:
        """Treats the rest of a group as tombstones. Does nothing for an unknown or finished group."""
        group = key.group if isinstance(key, RecordKey) else key
        self.tombstone_rest(group.whole.pack(), reason)

    def device_iter(
        self,
        server: RecordServer,
        device: Any = "cuda",
        *,
        layout: Layout = "padded",
        depth: int = 3,
        framework: Framework = "torch",
        **options: Unpack[BatchOptions],
    ) -> Iterator[tuple[Group, Any]]:
        """Reads a server's records, and yields pairs: a group, and its batch on ``device``; until they are shut down.

        As `RecordServer.device_iter`, with one group for each batch. The group has the keys and the metadata; its
        records stay where they are until you let go of it. Groups without records are left out. The newest version is
        the one that the server has published, if it has.

        >>> import rollway
        >>> with rollway.RecordServer({"tokens": "int32[*]"}) as server:
        ...     for repetition in (1, 0):
        ...         key = rollway.RecordKey("run1", "train", 0, "task-7", repetition)
        ...         _ = server.submit({"tokens": [repetition]}, key=key)
        ...     group, batch = next(GroupAssembler(size=2).device_iter(server, "cpu"))
        ...     group.key.instance_id, batch.fields["tokens"].tolist()
        ('task-7', [[0], [1]])
        """
        return device_batches(GroupSource(server, self, RecordGatherer(layout, options)), device, depth, framework)

    def __iter__(self) -> Iterator[Group]:
        """The groups that are ready now."""
        while (group := self.pop()) is not None:
            yield group

    def __repr__(self) -> str:
        return f"<rollway.GroupAssembler size={self.size} pending={self.pending} ready={self.ready}>"


def tombstone_reason(tombstone: Record) -> str:
    """The reason in a tombstone; empty without one."""
    said = tombstone.metadata
    return str(said.get("reason", "")) if isinstance(said, dict) else ""
