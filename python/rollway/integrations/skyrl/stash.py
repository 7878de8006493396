"""Stash: records that have come and are not yet used, as whole groups, in the order in which they became whole.

With ``match="stream"`` a group waits for the next place of its phase; with ``"id"`` for the next place of its phase
that names its instance. Groups are told apart by their whole key (run, phase, step and instance), so neither another
epoch's nor an evaluation's group of the same instance can replace one. A stash holds the records themselves, not
copies: until they are taken out they go back to the ring if this process dies. It is plain: no waiting, no asyncio.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rollway import Group, GroupAssembler, GroupKey, Record, RecordKey
from rollway.groups import tombstone_reason
from rollway.integrations.atropos.encoding import group_size
from rollway.integrations.skyrl.ask import Ask, Place
from rollway.integrations.skyrl.errors import TrajectoryMissing, TrajectoryUnusable
from rollway.integrations.skyrl.trajectory import trainable

Match = Literal["stream", "id"]

_DROPPED = "the environment dropped it"
_NAMED = 4  # how many of something an error names


@dataclass(slots=True)
class Settled:
    """A group of which nothing more will come: all its records, or the reason why there are none."""

    key: GroupKey
    records: tuple[Record, ...]
    reason: str | None = None

    @property
    def version(self) -> int:
        """The oldest weights in it."""
        return min([record.version for record in self.records])


class Stash:
    """Where records wait for somebody who asks for them.

    Args:
        match: How a place finds its group.
        sizes: How many trajectories a group has, by phase.
        substitutes: Whether the next group takes the place of one that is missing. Only a stream can.
        deadline_s: After how long a group that is still not whole counts as missing; ``None``: never.
    """

    def __init__(
        self, match: Match, sizes: Mapping[str, int], *, substitutes: bool, deadline_s: float | None = None
    ) -> None:
        self._match = match
        self._substitutes = substitutes
        self._assemblers = {
            phase: GroupAssembler(size, on_incomplete="partial", deadline_s=deadline_s) for phase, size in sizes.items()
        }
        self._queues: defaultdict[tuple[str, str], deque[Settled]] = defaultdict(deque)
        self._unused: Counter[str] = Counter()
        self.phases: set[str] = set()
        """Those of which anything has come so far."""

    def __len__(self) -> int:
        """Records held, and one for each group of which there is only the reason why it will not come."""
        return self.whole + sum(assembler.held for assembler in self._assemblers.values())

    @property
    def whole(self) -> int:
        """What `len` counts, without groups that may yet become whole."""
        return sum(len(settled.records) or 1 for queue in self._queues.values() for settled in queue)

    @property
    def in_order(self) -> bool:
        """Whether places are filled in the order in which they are asked for."""
        return self._match == "stream"

    @property
    def next_deadline_s(self) -> float | None:
        """When to call `settle` even if nothing comes."""
        return min(
            (left for one in self._assemblers.values() if (left := one.next_deadline_s) is not None), default=None
        )

    def add(self, record: Record) -> None:
        """Takes in a record, or a tombstone: one is enough to end its group."""
        key, assembler = self._where(record)
        self.phases.add(key.phase)
        reason = tombstone_reason(record) if record.is_tombstone else None
        if reason is not None and key.repetition_id >= assembler.size:  # its group was too large; the others say so too
            record.release()
            return
        assembler.add(record)
        if reason is not None:
            assembler.give_up(key, reason)
        self._settle(assembler)

    def settle(self) -> None:
        """Looks which groups have become whole, or never will."""
        for assembler in self._assemblers.values():
            self._settle(assembler)

    def take(self, ask: Ask, oldest: int) -> list[Settled] | None:
        """The groups for an ask, in its order, of weights ``oldest`` or later; None if not all of them are here.

        Raises `TrajectoryMissing` when one of them will never come.
        """
        names = [self._queue_name(ask.phase, places[0].instance_id) for places in ask.groups]
        found = dict.fromkeys(names, 0)  # by queue, how many of its groups are spoken for
        try:
            for name, places in zip(names, ask.groups, strict=True):
                queue, at = self._queues[name], found[name]
                while at < len(queue) and not self._fits(queue, at, places, oldest):
                    del queue[at]
                if at == len(queue):
                    return None
                found[name] += 1
            return [self._queues[name].popleft() for name in names]
        finally:
            for name in found:
                if not self._queues[name]:
                    del self._queues[name]  # with match="id" there would be one more for each instance

    def put_back(self, groups: Sequence[Settled]) -> None:
        """Takes back what was taken for somebody who has gone, to where it was."""
        for settled in reversed(groups):
            self._queue(settled.key.phase, settled.key.instance_id).appendleft(settled)

    def counts(self) -> dict[str, int]:
        """What was not used, by why, since the beginning."""
        refused = {
            "records_duplicate": sum(assembler.counts.duplicates for assembler in self._assemblers.values()),
            "records_late": sum(assembler.counts.late for assembler in self._assemblers.values()),
        }
        return {"groups_missing": self._unused["missing"], "groups_stale": self._unused["stale"], **refused}

    def describe(self, ask: Ask) -> str:
        """What is here and what is not, in words."""
        wanted = Counter(self._queue_name(ask.phase, places[0].instance_id) for places in ask.groups)
        lacking = {name: count - len(self._queues.get(name, ())) for name, count in wanted.items()}
        lacking = {name: count for name, count in lacking.items() if count > 0}
        instances = f" (instance {_some([name[1] for name in lacking])})" if self._match == "id" else ""
        text = f"{sum(lacking.values())} of {len(ask.groups)} groups of phase '{ask.phase}'{instances} are missing"
        parts = [
            f"{group_text(key)} lacks repetitions {repetitions}"
            for assembler in self._assemblers.values()
            for key, repetitions in assembler.missing().items()
        ]
        others = [group_text(queue[0].key) for name, queue in self._queues.items() if queue and name not in wanted]
        return (
            text
            + (f"; {_never(ask.phase)}" if ask.phase not in self.phases else "")
            + (f"; not whole: {_some(parts)}" if parts else "")
            + (f"; here, but not asked for: {_some(others)}" if others else "")
        )

    def _where(self, record: Record) -> tuple[RecordKey, GroupAssembler]:
        key = record.key
        if key is None:
            raise TrajectoryUnusable(
                f"a record without a key came from producer {record.producer_id}: nobody knows to which group it "
                "belongs. Send it with key=RecordKey(…)"
            )
        assembler = self._assemblers.get(key.phase)
        if assembler is None:
            raise TrajectoryUnusable(
                f"{group_text(key.group)}: SkyRL has only the phases {_some(list(self._assemblers))}"
            )
        if record.is_tombstone:
            return key, assembler
        size = group_size(record)
        if size is None or not 0 <= key.repetition_id < size:
            raise TrajectoryUnusable(f"the record {tuple(key)} is not what an Atropos environment sends")
        if size != assembler.size:
            raise TrajectoryUnusable(
                f"the group of {group_text(key.group)} has {size} trajectories, but SkyRL asks for {assembler.size}: "
                "the environment's group_size must be generator.n_samples_per_prompt (in evaluation "
                "generator.eval_n_samples_per_prompt)"
            )
        return key, assembler

    def _queue_name(self, phase: str, instance_id: str) -> tuple[str, str]:
        return (phase, instance_id if self._match == "id" else "")

    def _queue(self, phase: str, instance_id: str) -> deque[Settled]:
        return self._queues[self._queue_name(phase, instance_id)]

    def _settle(self, assembler: GroupAssembler) -> None:
        while (group := assembler.pop()) is not None:
            self._file(Settled(group.key, tuple(group.records), _reason(group)))

    def _file(self, settled: Settled) -> None:
        if settled.reason is not None:
            self._let_go(settled, "missing")
            settled = Settled(settled.key, (), settled.reason)
        if settled.reason is None or not self._substitutes:
            self._queue(settled.key.phase, settled.key.instance_id).append(settled)

    def _fits(self, queue: deque[Settled], at: int, places: list[Place], oldest: int) -> bool:
        """Whether this group may fill these places. False: drop it, and look at the next."""
        settled = queue[at]
        if settled.reason is not None:
            del queue[at]
            raise TrajectoryMissing(
                f"the group of {group_text(settled.key)} will never come: {settled.reason}. {self._advice}"
            )
        if len(settled.records) != len(places):
            raise TrajectoryUnusable(
                f"SkyRL asks for {len(places)} of the {len(settled.records)} trajectories of a group"
            )
        if settled.version >= oldest:
            return True
        self._let_go(settled, "stale")
        if self._substitutes:
            return False
        del queue[at]
        raise TrajectoryMissing(
            f"the group of {group_text(settled.key)} was made with weights of version {settled.version}, and "
            f"max_staleness asks for {oldest} or later. {self._advice}"
        )

    def _let_go(self, settled: Settled, why: str) -> None:
        self._unused[why] += 1
        for record in settled.records:
            record.release()

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
    """Why it cannot be trained on; None if it can."""
    if group.tombstones:
        return next(iter(group.tombstones.values())) or _DROPPED
    if group.missing:
        return f"repetitions {group.missing} did not come in time"
    empty = [at for at, record in enumerate(group.records) if not trainable(record["masks"])]
    return f"repetition {empty[0]} has nothing to train on, its mask is −100 throughout" if empty else None


def _never(phase: str) -> str:
    hint = (
        " (Atropos evaluates inside the environment and sends none: trainer.eval_interval=-1 "
        "trainer.eval_before_train=false)"
    )
    return f"no environment has sent a record of phase '{phase}' so far{hint if phase == 'eval' else ''}"


def _some(texts: Sequence[str]) -> str:
    return "; ".join(texts[:_NAMED]) + (" …" if len(texts) > _NAMED else "")
