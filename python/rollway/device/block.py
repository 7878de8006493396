"""A batch in one block of host memory, so that one copy takes it to a device. The memory of a ring, or gathered."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rollway._core import Consumer, Sample

Array = np.ndarray[Any, Any]
Path = tuple[Any, ...]
"""The keys that lead to an array in its batch."""
Build = Callable[[list[Any]], Any]
"""Makes a batch of its arrays, or of the tensors in their place."""
Allocate = Callable[[int], Array]
"""Gives a block of so many bytes that nobody else uses."""

_ALIGNMENT = 64  # of gathered arrays
_LARGEST_ITEM = 16  # bytes: a block is whole items of every dtype


class PlacedArray(NamedTuple):
    """Where an array lies in a block; strides and offset are in bytes."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class BlockLayout:
    """Where the arrays of a batch lie in a block, and how the batch is made of them."""

    __slots__ = ("arrays", "build", "nbytes", "tensors")

    def __init__(self, arrays: Sequence[PlacedArray], nbytes: int, build: Build) -> None:
        self.arrays = arrays
        self.nbytes = _rounded(nbytes, _LARGEST_ITEM)  # in a ring, padding follows
        self.build = build
        self.tensors: Any = None  # of torch: worked out once for each layout

    @classmethod
    def one_after_the_other(
        cls, forms: Sequence[tuple[Path, np.dtype[Any], tuple[int, ...]]], build: Build
    ) -> BlockLayout:
        """For arrays of these dtypes and shapes that are to be copied into a block."""
        arrays, end = [], 0
        for path, dtype, shape in forms:
            steps = [dtype.itemsize]
            for dim in reversed(shape[1:]):
                steps.append(steps[-1] * dim)
            strides = tuple(reversed(steps)) if shape else ()
            arrays.append(PlacedArray(path, dtype, shape, strides, end))
            end = _rounded(end + dtype.itemsize * math.prod(shape), _ALIGNMENT)
        return cls(arrays, end, build)

    @classmethod
    def found(cls, arrays: list[Array], paths: Sequence[Path], build: Build) -> tuple[BlockLayout, Array]:
        """For arrays that lie in one piece of memory already: the layout and the block. Keep the arrays beside it."""
        places = [array.__array_interface__["data"][0] for array in arrays]
        first = min(places)
        end = max(place + array.nbytes for place, array in zip(places, arrays, strict=True))
        placed = [
            PlacedArray(path, array.dtype, array.shape, array.strides, place - first)
            for path, array, place in zip(paths, arrays, places, strict=True)
        ]
        layout = cls(placed, end - first, build)
        memory: Any = (ctypes.c_uint8 * layout.nbytes).from_address(first)
        return layout, np.frombuffer(memory, np.uint8)

    def over(self, block: Array) -> list[Array]:
        """The arrays in a block."""
        return [np.ndarray(array.shape, array.dtype, block, array.offset, array.strides) for array in self.arrays]


class HostBatch(NamedTuple):
    """A batch that is ready to be copied."""

    block: Array
    layout: BlockLayout
    sample: Sample | None = None
    """What has the room of the block, and gives it back after the copy; ``None`` where nobody else uses the block."""
    address: int | None = None
    """Of the block, where it is known."""


class BatchSource:
    """Where batches come from."""

    consumer: Consumer | None = None
    """Of a ring: its whole batches lie alike, so that native code may take and copy them."""

    def pin(self) -> None:
        """Page-locks the memory of batches that are not gathered. `DeviceFailed` says why it cannot be done."""

    def take(self, allocate: Allocate, *, wait: bool) -> HostBatch | None:
        """The next batch; ``None`` when there is none yet and ``wait`` is false.

        `ConnectionClosedError` when none will come.
        """
        raise NotImplementedError

    def host_batch(self, sample: Sample, allocate: Allocate) -> HostBatch:
        """A batch that was taken from `consumer`."""
        raise NotImplementedError


def gathered(arrays: list[Array], paths: Sequence[Path], build: Build, allocate: Allocate) -> HostBatch:
    """Copies arrays, wherever they are, into one block."""
    forms = [(path, array.dtype, array.shape) for path, array in zip(paths, arrays, strict=True)]
    layout = BlockLayout.one_after_the_other(forms, build)
    block = allocate(layout.nbytes)
    for there, here in zip(layout.over(block), arrays, strict=True):
        there[...] = here
    return HostBatch(block, layout)


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
