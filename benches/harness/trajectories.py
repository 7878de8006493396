"""LLM trajectories of one length, numbered and marked: a receiver can tell which it has got, and whether it is whole.

A trajectory is `tokens`, `logprobs` and `masks` of that length, a `score`, an instance id and a small object of
metadata. The score is its number: the producer's index and a counter. A producer rotates through a few sources, and the
first and the last token of each name it, so number and marks must agree; what was torn between two writers does not.
`Arrivals` keeps these three of every record and compares them when the clock is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from harness.workloads import Item, Leaf, Workload

_LIFE = 1 << 32  # numbers of one producer
_SOURCES = 1 << 12  # marks of one producer
_VOCABULARY = 150_000


class Note(NamedTuple):
    """What goes with the arrays."""

    instance_id: str
    repetition_id: int
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Trajectories(Workload):
    """Trajectories of one length; `capacity` is how many a producer may be ahead."""

    length: int = 0

    def samples(self, seed: int, count: int | None = None) -> list[Item]:
        """The sources of one producer; all scores are places of one array, see `renumber`."""
        count = count or self.distinct
        rng = np.random.default_rng(seed)
        scores = np.arange(count, dtype=np.float64) + seed * _LIFE - count  # the first `renumber` makes it 0
        found = []
        for k in range(count):
            tokens = rng.integers(0, _VOCABULARY, self.length, dtype=np.int32)
            tokens[[0, -1]] = seed * _SOURCES + k
            whole = {
                "tokens": tokens,
                "logprobs": -rng.standard_exponential(self.length, dtype=np.float32),
                "masks": rng.integers(0, 2, self.length, dtype=np.int8),
                "score": scores[k, ...],
            }
            found.append({leaf.name: whole[leaf.name] for leaf in self.leaves})
        return found

    def notes(self, seed: int, count: int | None = None) -> list[Note]:
        """What goes with each source."""
        metadata = {"environment": "gsm8k", "turns": 3, "finish_reason": "stop"}
        return [
            Note(f"problem-{seed}-{k // 8}", k % 8, {**metadata, "source": k}) for k in range(count or self.distinct)
        ]


def renumber(items: list[Item]) -> None:
    """Gives the sources their next numbers: one addition, since all scores are places of one array."""
    items[0]["score"].base[...] += len(items)


@dataclass
class Arrivals:
    """Everything one consumer received: number, first and last token of each; and how many were wrong word by word."""

    workload: Trajectories
    numbers: list[float] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    compared: int = 0
    wrong: int = 0
    _sources: dict[int, tuple[list[Item], list[Note]]] = field(default_factory=dict)

    def compare(self, number: float, got: Item, note: tuple[str, Any] | None) -> None:
        """Compares every word of one record with its source; instance id and metadata too, if it was sent with them."""
        producer, counter = divmod(int(number), _LIFE)
        if producer not in self._sources:
            self._sources[producer] = (self.workload.samples(producer), self.workload.notes(producer))
        k = counter % self.workload.distinct
        item, sent = (of[k] for of in self._sources[producer])
        same = all(np.array_equal(got[name], array) for name, array in item.items() if name != "score")
        self.compared += 1
        self.wrong += not (same and note in (None, (sent.instance_id, sent.metadata)))

    def faults(self, announced: int) -> dict[str, int]:
        """How many were lost, came twice, or are not what their number says."""
        numbers = np.array(self.numbers, np.int64)
        producers, counters = np.divmod(numbers, _LIFE)
        marks = producers * _SOURCES + counters % self.workload.distinct
        torn = int(((marks != self.firsts) | (marks != self.lasts)).sum())
        different = len(np.unique(numbers))
        return {
            "lost": announced - different,
            "repeated": len(numbers) - different,
            "torn": torn + self.wrong,
            "compared": self.compared,
        }


def _trajectories(length: int) -> Trajectories:
    leaves = (
        Leaf("tokens", "int32", (length,)),
        Leaf("logprobs", "float32", (length,)),
        Leaf("masks", "int8", (length,)),
        Leaf("score", "float64", ()),
    )
    return Trajectories(f"{length}-token", leaves, batch=32, buffers=3, length=length)


PACED = _trajectories(2048)
BUFFER = Trajectories(  # what the proposal's buffer carries, and as it was measured there
    "512-buffer",
    (Leaf("tokens", "int32", (512,)), Leaf("score", "float64", ())),
    batch=32,
    buffers=3,
    length=512,
)
TRAJECTORIES = {workload.name: workload for workload in (_trajectories(512), PACED, _trajectories(16_384), BUFFER)}
