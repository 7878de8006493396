"""Layout of the shared memory of a vector environment. Caller and workers derive the same arrays from it.

A space is flattened into parts. A part of fixed size (Box, Discrete, MultiDiscrete, MultiBinary) is one array in shared
memory with a row for each environment. A part of *variable* size (Text, Sequence, Graph, OneOf, a space of your own) is
pickled into the message of each step.

`RolloutTarget` describes arrays in the slot of a ring, to which workers write results. Caller and workers map the
same segment at different addresses, so they exchange offsets and strides. Rows of a rollout are steps: the results of
step ``t`` go to row ``t``, the observations after it to row ``t + 1``. Nothing here waits or writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces

from rollway.errors import InvalidArgument

Array = npt.NDArray[Any]
_FIXED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_VARIABLE = (spaces.Text, spaces.Sequence, spaces.Graph, spaces.OneOf)
_ALIGN = 64


@dataclass(frozen=True)
class Part:
    """One leaf of a space."""

    path: str
    shape: tuple[int, ...]
    dtype: str | None
    """``None``: of variable size."""

    @property
    def is_variable(self) -> bool:
        """Whether its size differs from value to value."""
        return self.dtype is None


class SpaceLayout:
    """The parts of one space; splits a value into its parts, and builds it from them.

    >>> layout = SpaceLayout(spaces.Dict({"eye": spaces.Box(0, 1, (2,)), "said": spaces.Text(5)}))
    >>> [(part.path, part.is_variable) for part in layout.parts]
    [("['eye']", False), ("['said']", True)]
    >>> layout.build(layout.split({"eye": 1, "said": "hi"}))
    {'eye': 1, 'said': 'hi'}
    """

    def __init__(self, space: Space[Any]) -> None:
        self.parts: list[Part] = []
        self._tree = self._grow(space, "")
        self.variable_parts = [index for index, part in enumerate(self.parts) if part.is_variable]
        """The indices of the parts that have no fixed size."""
        self.single = len(self.parts) == 1 and self._tree == 0
        """Whether the value is its only part."""

    def _grow(self, space: Space[Any], path: str) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self._grow(child, f"{path}[{key!r}]") for key, child in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self._grow(child, f"{path}[{index}]") for index, child in enumerate(space.spaces))
        if isinstance(space, _FIXED) and space.dtype is not None and space.shape is not None:
            self.parts.append(Part(path, space.shape, np.dtype(space.dtype).str))
        else:
            self.parts.append(Part(path, (), None))
        return len(self.parts) - 1

    def split(self, value: Any) -> list[Any]:
        """The parts of a value."""
        return [value] if self.single else list(_walk(self._tree, value))

    def build(self, parts: Sequence[Any]) -> Any:
        """The value with these parts."""
        return parts[0] if self.single else _assemble(self._tree, parts)

    def arrays(self, memory: _Allocator, rows: int) -> list[Array | None]:
        """One array of this many rows for each part; ``None`` for a variable one."""
        return [None if part.dtype is None else memory.take(part.dtype, rows, *part.shape) for part in self.parts]


def custom_space(space: Space[Any]) -> Space[Any] | None:
    """A space in this one that is none of Gymnasium's.

    >>> custom_space(spaces.Dict({"eye": spaces.Box(0, 1, (2,)), "said": spaces.Text(5)}))
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        children = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return next((custom for child in children if (custom := custom_space(child)) is not None), None)
    return None if isinstance(space, (*_FIXED, *_VARIABLE)) else space


def _walk(tree: Any, value: Any) -> Iterator[Any]:
    if isinstance(tree, int):
        yield value
    elif isinstance(tree, dict):
        for key, child in tree.items():
            yield from _walk(child, value[key])
    else:
        for child, item in zip(tree, value, strict=True):
            yield from _walk(child, item)


def _assemble(tree: Any, parts: Sequence[Any]) -> Any:
    if isinstance(tree, int):
        return parts[tree]
    if isinstance(tree, dict):
        return {key: _assemble(child, parts) for key, child in tree.items()}
    return tuple(_assemble(child, parts) for child in tree)


class _Allocator:
    """Gives out arrays one after the other, each aligned. Without memory it only counts their bytes."""

    def __init__(self, memory: memoryview | None = None) -> None:
        self._memory, self.used = memory, 0

    def take(self, dtype: npt.DTypeLike, *shape: int) -> Array:
        start, count = self.used, math.prod(shape)
        self.used += -(-count * np.dtype(dtype).itemsize // _ALIGN) * _ALIGN
        if self._memory is None:
            return np.empty(0, dtype)
        flat: Array = np.frombuffer(self._memory, dtype, count, start)
        return flat.reshape(shape)


@dataclass(frozen=True)
class Buffer:
    """The arrays for the results of one step."""

    observations: list[Array | None]
    rewards: Array
    terminations: Array
    truncations: Array


@dataclass(frozen=True)
class SharedLayout:
    """The layout of the segment of a vector environment. Every worker gets it once, at its start."""

    observation: SpaceLayout
    action: SpaceLayout
    num_envs: int
    num_workers: int
    inline_bytes: int
    """Room for the message of one environment; longer messages overflow to the pipe."""

    BUFFERS = 2
    """Results go to them in turn, so the results of one step stay until the step after the next."""

    @classmethod
    def of(cls, observation: Space[Any], action: Space[Any], num_envs: int, num_workers: int) -> SharedLayout:
        """The layout for these spaces. An inline message has room for an observation and 2 KiB of infos."""
        layout, one_row = SpaceLayout(observation), _Allocator()
        layout.arrays(one_row, 1)
        inline_bytes = -(-(one_row.used + 2048) // 4096) * 4096
        return cls(layout, SpaceLayout(action), num_envs, num_workers, inline_bytes)

    @property
    def bytes(self) -> int:
        """The size of the data."""
        counter = _Allocator()
        self._place(counter)
        return counter.used

    def arrays(self, memory: memoryview) -> SharedArrays:
        """The arrays, over the shared memory."""
        return self._place(_Allocator(memory))

    def _place(self, memory: _Allocator) -> SharedArrays:
        rows = self.num_envs
        return SharedArrays(
            busy_env=memory.take(np.int64, self.num_workers),
            last_sent=memory.take(np.int64, self.num_workers),
            lengths=memory.take(np.uint32, rows),
            actions=self.action.arrays(memory, rows),
            buffers=[
                Buffer(
                    self.observation.arrays(memory, rows),
                    memory.take(np.float64, rows),
                    memory.take(np.bool_, rows),
                    memory.take(np.bool_, rows),
                )
                for _ in range(self.BUFFERS)
            ],
            inline=memory.take(np.uint8, rows * self.inline_bytes).data,
        )


@dataclass(frozen=True)
class SharedArrays:
    """The arrays of a vector environment, in this process."""

    busy_env: Array
    """By worker: the environment that it is busy with, plus one; 0: none. For messages about dead and hung workers."""
    last_sent: Array
    """By worker: the number of the last message on its pipe, as a `sent_word`."""
    lengths: Array
    """By environment: the length of its inline message, or the number of its overflow message."""
    actions: list[Array | None]
    buffers: list[Buffer]
    inline: memoryview
    """The inline messages of all environments."""


class SlotClient(Protocol):
    """The client that owns a slot: a `ShmClient`, or anything that knows its segment."""

    @property
    def name(self) -> str:
        """The name of the segment."""

    @property
    def _owner(self) -> int:
        """The owner of its slots, as a number that the segment knows."""

    @property
    def closed(self) -> bool:
        """Whether it has no slots any more."""

    def _memory(self) -> tuple[int, int]:
        """Address and size of the segment's body in this process."""


@dataclass(frozen=True)
class ArrayPlace:
    """The place of one array in a segment."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array: Array, memory: tuple[int, int], what: str) -> ArrayPlace:
        """The place of an array in a segment that is mapped here."""
        start, size = memory
        low, high = np.lib.array_utils.byte_bounds(array)
        if low < start or high > start + size:
            raise InvalidArgument(f"{what} is not in the shared memory of the client: is it an array of the slot?")
        offset = int(array.__array_interface__["data"][0]) - start
        return cls(offset, array.shape, array.strides, array.dtype.str)

    def array(self, memory: memoryview) -> Array:
        """The array, in this process."""
        return np.ndarray(self.shape, np.dtype(self.dtype), memory, self.offset, self.strides)


@dataclass(frozen=True)
class RolloutTarget:
    """The arrays of one rollout in a slot. Its steps have the buffer numbers from ``first`` on."""

    segment: str
    client: int
    """The number of the client: another client of the same name may have another segment."""
    owner: int
    """The owner of the slot. Workers hold a lease for it, so it is not given to others while one of them may write."""
    first: int
    steps: int
    observations: tuple[ArrayPlace, ...]
    numbers: tuple[ArrayPlace, ...]
    """Rewards, terminations and truncations."""

    SPARE: ClassVar[int] = 1
    """The buffer for observations that have no row. Buffer 0 has the newest observations when a rollout begins; an
    environment that fails in its first step shows those again."""

    def buffers(self, memory: memoryview, spare: Buffer) -> list[Buffer]:
        """A buffer for each step, over the mapped segment."""
        return rollout_buffers(
            [place.array(memory) for place in self.observations], [place.array(memory) for place in self.numbers], spare
        )


def rollout_buffers(observations: Sequence[Array], numbers: Sequence[Array], spare: Buffer) -> list[Buffer]:
    """A buffer for each step of a rollout. Without a row for the last observations, those go to the spare buffer."""
    buffers = []
    for step in range(len(numbers[0])):
        has_row = step + 1 < len(observations[0])
        rows: list[Array | None] = [array[step + 1] for array in observations] if has_row else spare.observations
        buffers.append(Buffer(rows, *(array[step] for array in numbers)))
    return buffers


def check_rollout(layout: SpaceLayout, num_envs: int, observations: Sequence[Array], others: dict[str, Array]) -> int:
    """How many steps the arrays have room for. Raises `InvalidArgument` when an array does not fit."""
    if layout.variable_parts:
        variable = ", ".join(layout.parts[index].path or "the observation" for index in layout.variable_parts)
        raise InvalidArgument(f"{variable} has no fixed size, and cannot be written into a slot")
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
