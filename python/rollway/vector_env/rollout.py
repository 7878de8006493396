"""Target: the arrays of a rollout in somebody else's shared memory, as places for workers to write their results to.

A slot of a ring is such a place. Caller and workers map the same segment at different addresses, so what travels
between them is offsets and strides. Rows of a rollout are steps: the results of step ``t`` go to row ``t``, the
observations after it to row ``t + 1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from rollway.errors import InvalidArgument
from rollway.vector_env.layout import Array, Buffer, SpaceLayout


class Memory(Protocol):
    """Whose slot it is: a `ShmClient`, or anything that knows its segment."""

    @property
    def name(self) -> str:
        """Of the segment."""

    @property
    def owner(self) -> int:
        """Who claims its slots, as the segment knows it."""

    @property
    def closed(self) -> bool:
        """Whether it has no slots any more."""

    def memory(self) -> tuple[int, int]:
        """Address and size of the segment's body in this process."""


@dataclass(frozen=True)
class Place:
    """Where one array lies in a segment."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array: Array, memory: tuple[int, int], what: str) -> Place:
        """Of an array that lies there."""
        start, size = memory
        low, high = np.lib.array_utils.byte_bounds(array)
        if low < start or high > start + size:
            raise InvalidArgument(f"{what} does not lie in the shared memory of the client: is it a slot's own array?")
        offset = int(array.__array_interface__["data"][0]) - start
        return cls(offset, array.shape, array.strides, array.dtype.str)

    def array(self, memory: memoryview) -> Array:
        """The array, in this process."""
        return np.ndarray(self.shape, np.dtype(self.dtype), memory, self.offset, self.strides)


@dataclass(frozen=True)
class Target:
    """The places of one rollout. Its steps have the buffer numbers from ``first`` on."""

    segment: str
    client: int
    """Which client's: another one of the same name may have another segment."""
    owner: int
    """Who claimed the slot. Workers hold a delegated lease for it: others do not get it while a worker may write."""
    first: int
    steps: int
    observations: tuple[Place, ...]
    rewards: Place
    terminations: Place
    truncations: Place

    SPARE: ClassVar[int] = 1
    """The buffer for observations that have no row. Not the one where the newest are when a rollout begins: an
    environment that fails in its first step is shown with those."""

    def buffers(self, memory: memoryview, spare: Buffer) -> list[Buffer]:
        """A buffer for each step. Where there is no row for the last observations, they go to a spare one."""
        observations = [place.array(memory) for place in self.observations]
        rewards, terminations = self.rewards.array(memory), self.terminations.array(memory)
        truncations = self.truncations.array(memory)
        buffers = []
        for step in range(self.steps):
            has_room = step + 1 < observations[0].shape[0]
            rows: list[Array | None] = [array[step + 1] for array in observations] if has_room else spare.observations
            buffers.append(Buffer(rows, rewards[step], terminations[step], truncations[step]))
        return buffers


def check_rollout(layout: SpaceLayout, num_envs: int, observations: Sequence[Array], others: dict[str, Array]) -> int:
    """How many steps the arrays have room for. Says what is wrong with them, if anything is."""
    if layout.loose:
        loose = ", ".join(layout.parts[index].path or "the observation" for index in layout.loose)
        raise InvalidArgument(f"{loose} has no fixed size, and cannot be written into a slot")
    named = [(f"observations{part.path}", array) for part, array in zip(layout.parts, observations, strict=True)]
    for what, array in [*others.items(), *named]:
        if not isinstance(array, np.ndarray):
            raise InvalidArgument(f"{what} is a {type(array).__name__}; it must be an array of the slot")
    steps = others["rewards"].shape[0] if others["rewards"].ndim else 0
    if steps < 1:
        raise InvalidArgument("rewards must have a row for each step, at least one")
    for what, array in others.items():
        if array.shape != (steps, num_envs):
            raise InvalidArgument(
                f"{what} has shape {array.shape}; it must be (steps, environments) = {(steps, num_envs)}"
            )
    for part, array in zip(layout.parts, observations, strict=True):
        wanted = (num_envs, *part.shape)
        if array.shape[1:] != wanted or array.shape[0] not in (steps, steps + 1):
            raise InvalidArgument(
                f"observations{part.path} has shape {array.shape}; it must be {(steps, *wanted)}, or one row longer"
            )
        if not np.can_cast(np.dtype(part.dtype), array.dtype, "same_kind"):
            raise InvalidArgument(f"observations{part.path} is {array.dtype}, which cannot hold {np.dtype(part.dtype)}")
    if len({array.shape[0] for array in observations}) > 1:
        raise InvalidArgument("all observations must have the same number of rows")
    return steps
