"""What a learner is fed with, as numpy samples: an LLM trajectory, a transition, a rollout, a step of an environment.

A workload fixes the shapes, the ring geometry (batch, buffers) and how many distinct source samples a
producer rotates through, so that every contender reads the same amount of memory. It knows nothing of how
samples travel. The first element of every leaf is 1: a consumer that adds up what it touches can tell that
the data arrived.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

Item = dict[str, np.ndarray]


@dataclass(frozen=True)
class Leaf:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class Workload:
    """One kind of sample and the geometry of the ring it goes through."""

    name: str
    leaves: tuple[Leaf, ...]
    batch: int
    buffers: int

    @property
    def item_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.leaves)

    @property
    def capacity(self) -> int:
        """Slots in the ring."""
        return self.batch * self.buffers

    @property
    def distinct(self) -> int:
        """Source samples of one producer; also the samples in one burst, so it is a multiple of the batch."""
        return 2 * self.batch

    def one_by_one(self) -> Workload:
        """The same sample in batches of 1, for latency; so deep that a late receiver blocks nobody."""
        return replace(self, batch=1, buffers=64)

    def example(self) -> Item:
        return {leaf.name: np.zeros(leaf.shape, leaf.dtype) for leaf in self.leaves}

    def samples(self, seed: int, count: int | None = None) -> list[Item]:
        """`count` separate samples (default: `distinct`), each leaf its own array, first element 1."""
        rng = np.random.default_rng(seed)
        return [{leaf.name: _filled(rng, leaf) for leaf in self.leaves} for _ in range(count or self.distinct)]

    def stacked(self, samples: list[Item]) -> Item:
        """The samples as one dict of arrays with a leading dimension."""
        return {leaf.name: np.stack([sample[leaf.name] for sample in samples]) for leaf in self.leaves}


def _filled(rng: np.random.Generator, leaf: Leaf) -> np.ndarray:
    array = rng.integers(0, 100, leaf.shape).astype(leaf.dtype)
    array.flat[0] = 1
    return array


TRAJECTORY = Workload(
    "trajectory",
    (
        Leaf("tokens", "int32", (2048,)),
        Leaf("masks", "int32", (2048,)),
        Leaf("logprobs", "float32", (2048,)),
        Leaf("score", "float32", (1,)),
    ),
    batch=32,
    buffers=3,
)
TRANSITION = Workload(
    "transition",
    (Leaf("obs", "float32", (4,)), Leaf("reward", "float32", (1,))),
    batch=256,
    buffers=8,
)
ROLLOUT = Workload(
    "rollout",
    (
        Leaf("obs", "float32", (64, 84)),
        Leaf("action", "float32", (64, 8)),
        Leaf("reward", "float32", (64,)),
        Leaf("done", "int8", (64,)),
    ),
    batch=32,
    buffers=3,
)
ENV_STEP = Workload(
    "env_step",
    (
        Leaf("obs", "float32", (4,)),
        Leaf("reward", "float32", ()),
        Leaf("terminated", "bool", ()),
        Leaf("truncated", "bool", ()),
        Leaf("lives", "int32", ()),
    ),
    batch=256,
    buffers=8,
)
"""What `env.step` gives, as arrays. `harness.forms` has it as a user has it, with `lives` in a dict of its own."""
WORKLOADS = {workload.name: workload for workload in (TRAJECTORY, TRANSITION, ROLLOUT, ENV_STEP)}
