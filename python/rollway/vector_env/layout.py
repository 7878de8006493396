"""Where the data of a vector environment lies in shared memory. Caller and workers derive the same arrays from it.

A space is flattened into parts. A part of fixed size (Box, Discrete, MultiDiscrete, MultiBinary) is one array in shared
memory with a row for each environment. A part of any size (Text, Sequence, Graph, OneOf, a space of your own) is
*loose*: it travels step by step in a letter. Nothing here waits or writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces

Array = npt.NDArray[Any]
_FIXED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_ALIGN = 64


@dataclass(frozen=True)
class Part:
    """One leaf of a space."""

    path: str
    shape: tuple[int, ...]
    dtype: str | None
    """``None``: loose."""

    @property
    def loose(self) -> bool:
        """Whether it travels in letters."""
        return self.dtype is None

    def bytes(self, rows: int) -> int:
        """What so many rows of it take up."""
        return 0 if self.dtype is None else rows * math.prod(self.shape) * np.dtype(self.dtype).itemsize


class SpaceLayout:
    """The parts of one space, and the way from a value to its parts and back.

    >>> layout = SpaceLayout(spaces.Dict({"eye": spaces.Box(0, 1, (2,)), "said": spaces.Text(5)}))
    >>> [(part.path, part.loose) for part in layout.parts]
    [("['eye']", False), ("['said']", True)]
    >>> layout.build(layout.split({"eye": 1, "said": "hi"}))
    {'eye': 1, 'said': 'hi'}
    """

    def __init__(self, space: Space[Any]) -> None:
        self.parts: list[Part] = []
        self._tree = self._grow(space, "")
        self.loose = [index for index, part in enumerate(self.parts) if part.loose]
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

    def bytes(self, rows: int) -> int:
        """What so many rows take up."""
        return sum(_aligned(part.bytes(rows)) for part in self.parts)

    def arrays(self, memory: memoryview, offset: int, rows: int) -> list[Array | None]:
        """One array of so many rows for each part, from ``offset`` on; ``None`` for a loose one."""
        arrays: list[Array | None] = []
        for part in self.parts:
            if part.dtype is None:
                arrays.append(None)
                continue
            count = rows * math.prod(part.shape)
            flat: Array = np.frombuffer(memory, np.dtype(part.dtype), count, offset)
            arrays.append(flat.reshape(rows, *part.shape))
            offset += _aligned(part.bytes(rows))
        return arrays


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


def _aligned(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN


@dataclass(frozen=True)
class Buffer:
    """Where the results of one step lie."""

    observations: list[Array | None]
    rewards: Array
    terminations: Array
    truncations: Array


@dataclass(frozen=True)
class Blueprint:
    """All that lies in the data of a vector environment. Travels to the workers once, when they are started."""

    observation: SpaceLayout
    action: SpaceLayout
    num_envs: int
    num_workers: int
    letter_bytes: int
    """Room for what an environment says beside its arrays; longer letters take a pipe."""

    BUFFERS = 2
    """Results are written to them in turn: those of one step stay until the one after the next."""

    def _buffer_bytes(self) -> int:
        return self.observation.bytes(self.num_envs) + _aligned(8 * self.num_envs) + 2 * _aligned(self.num_envs)

    @property
    def bytes(self) -> int:
        """The size of the data."""
        words = 2 * _aligned(8 * self.num_workers) + _aligned(4 * self.num_envs)
        actions = self.action.bytes(self.num_envs)
        return words + actions + self.BUFFERS * self._buffer_bytes() + self.num_envs * self.letter_bytes

    def floor(self, memory: memoryview) -> Floor:
        """The arrays, over the shared memory."""
        rows = self.num_envs
        in_hand: Array = np.frombuffer(memory, np.int64, self.num_workers)
        offset = _aligned(8 * self.num_workers)
        posted: Array = np.frombuffer(memory, np.int64, self.num_workers, offset)
        offset += _aligned(8 * self.num_workers)
        lengths: Array = np.frombuffer(memory, np.uint32, rows, offset)
        offset += _aligned(4 * rows)
        actions = self.action.arrays(memory, offset, rows)
        offset += self.action.bytes(rows)
        buffers = []
        for _ in range(self.BUFFERS):
            observations = self.observation.arrays(memory, offset, rows)
            at = offset + self.observation.bytes(rows)
            rewards: Array = np.frombuffer(memory, np.float64, rows, at)
            flags = [
                np.frombuffer(memory, np.bool_, rows, at + _aligned(8 * rows) + n * _aligned(rows)) for n in (0, 1)
            ]
            buffers.append(Buffer(observations, rewards, *flags))
            offset += self._buffer_bytes()
        letters = memory[offset : offset + rows * self.letter_bytes]
        return Floor(actions, buffers, in_hand, posted, lengths, letters)


@dataclass(frozen=True)
class Floor:
    """The arrays of a vector environment, in this process."""

    actions: list[Array | None]
    buffers: list[Buffer]
    in_hand: Array
    """By worker: the environment that it is busy with, plus one; 0: none. For reports about the dead and the hung."""
    posted: Array
    """By worker: the number of the last message on its pipe, as a `posted_word`."""
    lengths: Array
    """By environment: of its letter; or the number of the parcel that comes in place of one."""
    letters: memoryview
