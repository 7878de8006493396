"""Stash: records that came and are not used yet, as groups, in the order in which the groups became complete.

With ``match="stream"`` a group goes to the next request of its phase; with ``"id"`` to the next request of its phase
and instance. The whole key (run, phase, step and instance) identifies a group, so groups of different epochs, or of
training and evaluation, never mix. A stash holds the records themselves: they return to the ring if this process dies.
`Stash.detach` copies them when an environment has no other room. Nothing here waits.
"""

from __future__ import annotations

import operator
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rollway import GroupAssembler
from rollway.integrations.atropos.encoding import group_size, metadata_beginning
from rollway.integrations.skyrl.errors import TrajectoryMissing, TrajectoryUnusable
from rollway.integrations.skyrl.request import GroupRequest
from rollway.integrations.skyrl.trajectory import UNTRAINED_MASK
from rollway.records import Group, GroupKey, Record
from rollway.records.groups import tombstone_reason

Match = Literal["stream", "id"]

_HELD = operator.attrgetter("held")
_DROPPED = "the environment dropped it"
_NAMED = 4  # how many of something an error names


@dataclass(slots=True, frozen=True)
class Missing:
    """A group that will never come, and why."""

    key: GroupKey
    reason: str
    records: tuple[Record, ...] = ()


class Slot(NamedTuple):
    """One group of a request: the queue in which to look, and how many trajectories are wanted of it."""

    queue: tuple[str, str]
    size: int


class _Phase(NamedTuple):
    """Where the records of a phase go."""

    assembler: GroupAssembler
    mark: bytes
    """How the metadata of its records begins."""


class Stash:
    """Holds records until a call requests them.

    Args:
        match: How a request finds its group.
        sizes: How many trajectories a group has, by phase.
        substitutes: Whether the next group takes the place of a missing one. Only with ``"stream"``.
        group_timeout_s: After how long an incomplete group counts as missing; ``None``: never.
    """

    def __init__(
        self, match: Match, sizes: Mapping[str, int], *, substitutes: bool, group_timeout_s: float | None = None
    ) -> None:
        self._match = match
        self.in_order = match == "stream"
        """Whether rows are filled in the order in which they are requested."""
        self._substitutes = substitutes
        self._phases = {
            phase: _Phase(
                GroupAssembler(size, on_incomplete="partial", group_timeout_s=group_timeout_s), metadata_beginning(size)
            )
            for phase, size in sizes.items()
        }
        self._assemblers = [phase.assembler for phase in self._phases.values()]
        self._queues: dict[tuple[str, str], deque[Group | Missing]] = {}
        self._unused: Counter[str] = Counter()
        self.phases: set[str] = set()
        """The phases of the records that came so far."""
        self.whole = 0
        """What `len` counts, without incomplete groups."""

    def __len__(self) -> int:
        """How many records are held, plus one for each missing group."""
        return self.whole + sum(map(_HELD, self._assemblers))

    @property
    def next_deadline_s(self) -> float | None:
        """Seconds until `settle` has something to do even if no record comes."""
        return min((left for one in self._assemblers if (left := one.next_deadline_s) is not None), default=None)

    def add(self, record: Record) -> None:
        """Adds a record, or a tombstone, which ends its group."""
        phase = record.phase or ""
        there = self._phases.get(phase)
        if there is None or record.is_tombstone or not record.metadata_starts(there.mark):
            self._add_odd(record)
        elif there.assembler.add(record):
            self._settle(phase, there.assembler)
        self.phases.add(phase)

    def settle(self) -> None:
        """Queues groups that became complete, or never will."""
        for phase, there in self._phases.items():
            self._settle(phase, there.assembler)

    def slots(self, request: GroupRequest) -> list[Slot]:
        """The slots of a request, for `take`."""
        by_id = self._match == "id"
        return [Slot((request.phase, rows[0].instance_id if by_id else ""), len(rows)) for rows in request.groups]

    def take(self, slots: Sequence[Slot], oldest: int) -> list[Group] | None:
        """A group for each slot, of weights ``oldest`` or later; ``None`` if not all of them are here.

        Raises `TrajectoryMissing` when one of them will never come.
        """
        taken: dict[tuple[str, str], int] = {}  # by queue: how many of its groups
        groups = []
        for slot in slots:
            at = taken.get(slot.queue, 0)
            group = self._find(slot, at, oldest)
            if group is None:
                return None
            groups.append(group)
            taken[slot.queue] = at + 1
        for slot in slots:
            self._take_out(slot.queue, 0)
        return groups

    def put_back(self, groups: Sequence[Group]) -> None:
        """Puts groups back where they were, when the call that took them does not use them."""
        for group in reversed(groups):
            self.whole += len(group.records)
            self._queue(group.key.phase, group).appendleft(group)

    def detach(self) -> None:
        """Copies all that is here into memory of this process: the environments have its room again."""
        for assembler in self._assemblers:
            assembler.detach()
        for queue in self._queues.values():
            for entry in queue:
                for record in entry.records:
                    record.detach()

    def counts(self) -> dict[str, int]:
        """How much was not used since the start, by reason."""
        refused = {
            "records_duplicate": sum(assembler.counts.duplicates for assembler in self._assemblers),
            "records_late": sum(assembler.counts.late for assembler in self._assemblers),
        }
        return {"groups_missing": self._unused["missing"], "groups_stale": self._unused["stale"], **refused}

    def describe(self, request: GroupRequest) -> str:
        """Says which groups are here and which are missing."""
        wanted = Counter(slot.queue for slot in self.slots(request))
        lacking = {name: count - len(self._queues.get(name, ())) for name, count in wanted.items()}
        lacking = {name: count for name, count in lacking.items() if count > 0}
        instances = f" (instance {_some([name[1] for name in lacking])})" if self._match == "id" else ""
        text = (
            f"{sum(lacking.values())} of {len(request.groups)} groups of phase '{request.phase}'{instances} are missing"
        )
        parts = [
            f"{group_text(key)} lacks repetitions {repetitions}"
            for assembler in self._assemblers
            for key, repetitions in assembler.missing().items()
        ]
        others = [group_text(queue[0].key) for name, queue in self._queues.items() if name not in wanted]
        return (
            text
            + (f"; {_never(request.phase)}" if request.phase not in self.phases else "")
            + (f"; not whole: {_some(parts)}" if parts else "")
            + (f"; here, but not asked for: {_some(others)}" if others else "")
        )

    def _add_odd(self, record: Record) -> None:
        """Adds a tombstone, or a record whose metadata begins differently. Raises what is wrong with it."""
        key = record.key
        if key is None:
            raise TrajectoryUnusable(
                f"a record without a key came from producer {record.producer_id}, so its group is unknown. Send it "
                "with key=RecordKey(…)"
            )
        if key.phase not in self._phases:
            raise TrajectoryUnusable(f"{group_text(key.group)}: SkyRL has only the phases {_some(list(self._phases))}")
        assembler = self._phases[key.phase].assembler
        if not record.is_tombstone:
            size = group_size(record)
            if size is None or not 0 <= key.repetition_id < size:
                raise TrajectoryUnusable(f"the record {tuple(key)} does not come from an Atropos environment")
            if size != assembler.size:
                raise TrajectoryUnusable(
                    f"the group of {group_text(key.group)} has {size} trajectories, but SkyRL asks for "
                    f"{assembler.size}: the environment's group_size must be generator.n_samples_per_prompt (in "
                    "evaluation generator.eval_n_samples_per_prompt)"
                )
        reason = tombstone_reason(record) if record.is_tombstone else None
        if reason is not None and key.repetition_id >= assembler.size:  # its group is too large; its records raise that
            record.release()
            return
        assembler.add(record)
        if reason is not None:
            assembler.give_up(key, reason)
        self._settle(key.phase, assembler)

    def _queue(self, phase: str, entry: Group | Missing) -> deque[Group | Missing]:
        """The queue of a group. Reads its key only with match="id", because that takes time."""
        name = (phase, entry.key.instance_id if self._match == "id" else "")
        return self._queues.get(name) or self._queues.setdefault(name, deque())

    def _take_out(self, name: tuple[str, str], at: int) -> None:
        """Removes an entry from its queue, and an empty queue: with match="id" each instance has its own."""
        queue = self._queues[name]
        self.whole -= len(queue[at].records) or 1
        del queue[at]
        if not queue:
            del self._queues[name]

    def _settle(self, phase: str, assembler: GroupAssembler) -> None:
        """Queues the groups that are complete or have ended."""
        while (group := assembler.pop()) is not None:
            entry: Group | Missing = group
            if (reason := _reason(group)) is not None:
                self._let_go(group, "missing")
                if self._substitutes:
                    continue
                entry = Missing(group.key, reason)
            self.whole += len(entry.records) or 1
            self._queue(phase, entry).append(entry)

    def _find(self, slot: Slot, at: int, oldest: int) -> Group | None:
        """The group for a slot, after ``at`` others of its queue. Drops groups that are too old."""
        while (queue := self._queues.get(slot.queue)) is not None and at < len(queue):
            entry = queue[at]
            if isinstance(entry, Missing):
                self._take_out(slot.queue, at)
                raise TrajectoryMissing(
                    f"the group of {group_text(entry.key)} will never come: {entry.reason}. {self._advice}"
                )
            if len(entry.records) != slot.size:
                raise TrajectoryUnusable(
                    f"SkyRL asks for {slot.size} of the {len(entry.records)} trajectories of a group"
                )
            if entry.version >= oldest:
                return entry
            self._take_out(slot.queue, at)
            self._let_go(entry, "stale")
            if not self._substitutes:
                raise TrajectoryMissing(
                    f"the group of {group_text(entry.key)} was made with weights of version {entry.version}, and "
                    f"max_staleness asks for {oldest} or later. {self._advice}"
                )
        return None

    def _let_go(self, group: Group, why: str) -> None:
        self._unused[why] += 1
        group.release()

    @property
    def _advice(self) -> str:
        if self._match == "stream":
            return "on_missing=substitute would take the next group in its place"
        return (
            "With match=id no other group can take its place: keep the environment from dropping groups "
            "(Atropos: ensure_scores_are_not_same=false), allow more staleness, or use match=stream"
        )


def group_text(key: GroupKey) -> str:
    """A group's key, in words."""
    return f"instance '{key.instance_id}', phase '{key.phase}', step {key.step}, run '{key.run}'"


def _reason(group: Group) -> str | None:
    """Why a group cannot be trained on; ``None`` if it can."""
    if group.tombstones:
        return next(iter(group.tombstones.values())) or _DROPPED
    if group.missing:
        return f"repetitions {group.missing} did not come in time"
    empty = group.filled_with("masks", UNTRAINED_MASK)
    return f"repetition {empty[0]} has nothing to train on, its mask is −100 throughout" if empty else None


def _never(phase: str) -> str:
    hint = (
        " (Atropos evaluates inside the environment and sends none: trainer.eval_interval=-1 "
        "trainer.eval_before_train=false)"
    )
    return f"no environment has sent a record of phase '{phase}' so far{hint if phase == 'eval' else ''}"


def _some(texts: Sequence[str]) -> str:
    return "; ".join(texts[:_NAMED]) + (" …" if len(texts) > _NAMED else "")
