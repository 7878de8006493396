"""GpuStaging: small weights in one block on a GPU, so that one copy takes all of their leaves.

A copy between a GPU and shared memory takes some microseconds whatever its size. With hundreds of leaves that is longer
than the transfer, so the GPU puts the leaves together first, in a block that is laid out like the buffer.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

from rollway.weights.tree import Places, WeightTree

_LARGEST = 64 << 20
"""Bytes of weights that are put together. Larger ones go leaf by leaf: a block of their size is dear on a GPU."""


class _Handle(Protocol):
    """The native handle."""

    @property
    def leaf_offsets(self) -> list[int]: ...


class GpuStaging:
    """The block of one handle, once its leaves have been on a GPU."""

    def __init__(self, tree: WeightTree) -> None:
        self._tree = tree
        self._nbytes = sum(leaf.nbytes for leaf in tree.leaves)
        self._block: _Block | None = None
        self._lock = threading.Lock()

    def gpu_of(self, values: list[Any]) -> int | None:
        """The GPU that has all of these values, if they are contiguous tensors like the leaves, and small together."""
        torch = sys.modules.get("torch")
        if torch is None or not getattr(values[0], "is_cuda", False) or torch.version.cuda is None:
            return None
        if self._nbytes > _LARGEST or not all(issubclass(kind, torch.Tensor) for kind in set(map(type, values))):
            return None
        gpu: int = values[0].get_device()
        # Hundreds of leaves: a list for each question costs half of what asking them all of each leaf does.
        fits = (
            {value.get_device() for value in values} == {gpu}
            and {value.layout for value in values} == {torch.strided}
            and [value.dtype for value in values] == self._dtypes
            and [value.shape for value in values] == self._shapes
            and all(map(torch.Tensor.is_contiguous, values))
        )
        return gpu if fits else None

    @cached_property
    def _dtypes(self) -> list[Any]:
        torch = sys.modules["torch"]
        return [getattr(torch, leaf.dtype) for leaf in self._tree.leaves]

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [leaf.shape for leaf in self._tree.leaves]

    @contextmanager
    def on(self, gpu: int, handle: _Handle) -> Iterator[_Block | None]:
        """The block on that GPU; ``None`` while another thread uses it."""
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            if self._block is None or self._block.gpu != gpu:
                self._block = _Block(self._tree, handle.leaf_offsets, gpu)
            self._block.enter_stream()
            yield self._block
        finally:
            self._lock.release()


class _Block:
    """All leaves on a GPU, as they lie in a buffer."""

    def __init__(self, tree: WeightTree, offsets: list[int], gpu: int) -> None:
        torch = self._torch = sys.modules["torch"]
        self.gpu = gpu
        ends = [offset + leaf.nbytes for offset, leaf in zip(offsets, tree.leaves, strict=True)]
        self._memory = torch.empty(max(ends), dtype=torch.uint8, device=gpu)
        self._stream: Any = None
        self._leaves = [
            self._memory[offset:end].view(getattr(torch, leaf.dtype)).view(leaf.shape)
            for offset, end, leaf in zip(offsets, ends, tree.leaves, strict=True)
        ]
        alike: dict[str, list[int]] = {}
        for number, leaf in enumerate(tree.leaves):
            alike.setdefault(leaf.dtype, []).append(number)
        self._by_dtype = list(alike.values())
        self._addresses = [self._memory.data_ptr() + offset for offset in offsets]

    def enter_stream(self) -> None:
        """Goes over to the caller's stream, behind what was done with the block on another."""
        stream = self._torch.cuda.current_stream(self.gpu)
        if self._stream is None or stream.cuda_stream != self._stream.cuda_stream:
            if self._stream is not None:
                stream.wait_stream(self._stream)
            self._memory.record_stream(stream)
            self._stream = stream

    @property
    def places(self) -> Places:
        """Where the leaves are."""
        numbers = list(range(len(self._leaves)))
        on_gpus = [(self.gpu, self._stream.cuda_stream, numbers, True)]
        return Places(numbers, self._addresses, [self._memory], {}, on_gpus)

    def gather(self, values: list[Any]) -> None:
        """Copies the leaves into the block."""
        for numbers in self._by_dtype:
            self._copy([self._leaves[number] for number in numbers], [values[number] for number in numbers])

    def scatter(self, values: list[Any], numbers: list[int]) -> None:
        """Copies those leaves out of the block. Autograd does not see it."""
        changed = set(numbers)
        for alike in self._by_dtype:
            copied = [number for number in alike if number in changed]
            if copied:
                self._copy([values[number].data for number in copied], [self._leaves[number] for number in copied])

    def _copy(self, targets: list[Any], sources: list[Any]) -> None:
        """With a few kernels for all of these leaves, which have one dtype."""
        with self._torch.no_grad():
            self._torch._foreach_copy_(targets, sources)
