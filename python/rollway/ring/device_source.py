"""SampleSource: the batches of a ring for a device, copied from where they lie."""

from __future__ import annotations

import functools
from collections.abc import Callable

import optree

from rollway._core import Consumer, Sample
from rollway.device.block import Allocate, Array, BatchSource, BlockLayout, HostBatch, gathered
from rollway.schema.pytree import NAMESPACE


class SampleSource(BatchSource):
    """Whole batches lie in one piece of the ring. Batches that were closed early are gathered.

    Args:
        take: The next sample; ``None`` when there is none yet, and its argument, whether to wait, is false.
            `ConnectionClosedError` when none will come.
        pin: Page-locks the ring, if it is not yet.
        size: Samples in a whole batch.
        consumer: What the samples are taken from, if another taker of it is welcome.
        row: Give only the first sample of each batch, without its first dimension.
    """

    def __init__(
        self,
        take: Callable[[bool], Sample | None],
        pin: Callable[[], None],
        size: int,
        *,
        consumer: Consumer | None = None,
        row: bool = False,
    ) -> None:
        self._take, self._size, self._row = take, size, row
        self._pin, self.consumer = pin, consumer
        self._layout: BlockLayout | None = None
        self._found: dict[int, tuple[BlockLayout, Array, int, list[Array]]] = {}  # by buffer of the ring

    def pin(self) -> None:
        """Page-locks the ring."""
        self._pin()

    def take(self, allocate: Allocate, *, wait: bool) -> HostBatch | None:
        """The next batch; see `BatchSource`."""
        sample = self._take(wait)
        return None if sample is None else self.host_batch(sample, allocate)

    def host_batch(self, sample: Sample, allocate: Allocate) -> HostBatch:
        """A batch that was taken."""
        if len(sample) != self._size:  # Its rows may have been put together elsewhere.
            with sample:
                paths, arrays, treedef = optree.tree_flatten_with_path(sample.batch, namespace=NAMESPACE)
                return gathered(arrays, paths, functools.partial(optree.tree_unflatten, treedef), allocate)
        found = self._found.get(sample.info.buffer)
        if found is None:
            paths, arrays, treedef = optree.tree_flatten_with_path(sample.batch, namespace=NAMESPACE)
            if self._row:
                arrays = [array[0, ...] for array in arrays]
            layout, block = BlockLayout.found(arrays, paths, functools.partial(optree.tree_unflatten, treedef))
            if self._layout is None or (layout.arrays, layout.nbytes) != (self._layout.arrays, self._layout.nbytes):
                self._layout = layout
            layout = self._layout  # The same for all buffers, which lie alike.
            # The arrays keep the memory mapped, and their room was given back by the sample.
            found = self._found.setdefault(sample.info.buffer, (layout, block, block.ctypes.data, arrays))
        layout, block, address, _ = found
        return HostBatch(block, layout, sample, address)
