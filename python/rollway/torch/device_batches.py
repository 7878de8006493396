"""Batches as tensors on a device, copied there while the last ones are computed on.

On a GPU each batch crosses in one asynchronous copy of its block, on a stream of its own. If the block is a ring's, it
goes back to the producers when that copy is done: a native thread waits for it, and no Python code does.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any

import numpy as np
import torch

from rollway._core import Sample, Upload, Uploads
from rollway.device.batches import DeviceBatches
from rollway.device.block import Array, BatchSource, BlockLayout, HostBatch
from rollway.errors import DeviceFailed, InvalidArgument
from rollway.torch.tensors import BlockTensors


def torch_batches(source: BatchSource, device: Any, depth: int) -> DeviceBatches:
    """The batches of ``source`` as tensors on ``device``. Without a GPU, ``"cuda"`` means the CPU."""
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgument(f"device is {device!r}, which torch does not have: {error}") from None
    if where.type == "cuda" and torch.cuda.is_available():
        return _CudaBatches(source, where, depth)
    return _HostBatches(source, torch.device("cpu") if where.type == "cuda" else where)


def _tensor_of(block: Array) -> torch.Tensor:
    """The block as a tensor: the one that it was made of, if it is torch's own page-locked memory."""
    return block.base if isinstance(block.base, torch.Tensor) else torch.from_numpy(block)


class _HostBatches(DeviceBatches):
    """For the CPU, and for devices without streams that we know: one batch at a time."""

    def __init__(self, source: BatchSource, device: torch.device) -> None:
        super().__init__(source, depth=1)
        self._device = device

    def _started(self, host: HostBatch) -> Any:
        tensors, block = BlockTensors.of(host.layout), _tensor_of(host.block)
        if host.sample is not None or self._device.type != "cpu":
            block = block.to(self._device, copy=True)
        if host.sample is not None:
            host.sample.release()
        return tensors.over(block)


_SHARED = 16 << 20
"""Bytes of device memory that small batches share: to ask torch for memory and for tensors takes a while."""
_ALIGNMENT = 512  # of blocks on the device, as torch aligns them


class _DeviceMemory:
    """Memory for the blocks of batches that lie alike, one after the other."""

    def __init__(self, tensors: BlockTensors, stride: int, blocks: int, device: int) -> None:
        self.tensors = tensors
        self.memory = torch.empty(blocks * stride, dtype=torch.uint8, device=device)
        self.streams: set[int] = set()  # that torch knows to use it
        first = self.memory.data_ptr()
        batches = tensors.batches(self.memory, stride, blocks)
        self.unused = [(first + number * stride, batch) for number, batch in enumerate(batches)]
        """The blocks: the address of each, and the batch in it."""


class _CudaBatches(DeviceBatches):
    def __init__(self, source: BatchSource, device: torch.device, depth: int) -> None:
        super().__init__(source, depth)
        # A number, because torch looks up what a `torch.device` means at every call.
        self._device = torch.cuda.current_device() if device.index is None else device.index
        self._uploads = Uploads(self._device)
        self._copies = torch.cuda.ExternalStream(self._uploads.stream, self._device)
        self._memory: _DeviceMemory | None = None
        self._whole: BlockLayout | None = None  # of a ring's batch
        self._being_copied: deque[tuple[Upload, Array]] = deque()  # blocks that were gathered
        self._pins = True
        try:
            source.pin()
        except DeviceFailed as error:
            _warn_of_slow_copies(error)

    def _allocate(self, nbytes: int) -> Array:
        """Page-locked memory. Torch uses it again when it is garbage."""
        if self._pins:
            try:
                block: Array = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
                return block
            except RuntimeError as error:
                self._pins = False
                _warn_of_slow_copies(error)
        return np.empty(nbytes, np.uint8)

    def _start_next(self, wait: bool) -> Any:
        """As the base. Once a whole batch of a ring was seen, one native call takes the next and starts its copy."""
        consumer = self._source.consumer
        if consumer is None or self._whole is None:
            return super()._start_next(wait)
        nbytes = self._whole.nbytes
        memory = self._memory_for(self._whole)
        address, batch = memory.unused[-1]
        upload = self._uploads.start_next(consumer, address, nbytes, wait)
        if isinstance(upload, Sample):
            return self._started_or_released(self._source.host_batch(upload, self._allocate))
        if upload is None:  # None came in a moment.
            return super()._start_next(wait) if wait else None
        memory.unused.pop()
        return batch, memory, upload

    def _started(self, host: HostBatch) -> tuple[Any, _DeviceMemory, Upload]:
        layout = host.layout
        memory = self._memory_for(layout)
        address, batch = memory.unused.pop()
        there = host.block.ctypes.data if host.address is None else host.address
        upload = self._uploads.start(there, address, layout.nbytes, host.sample)
        if host.sample is not None:
            self._whole = layout
        else:
            while self._being_copied and self._being_copied[0][0].is_done:
                self._being_copied.popleft()
            self._being_copied.append((upload, host.block))
        return batch, memory, upload

    def _memory_for(self, layout: BlockLayout) -> _DeviceMemory:
        """Memory with a block for a batch, and with more of them once such a batch was seen."""
        memory, tensors = self._memory, BlockTensors.of(layout)
        if memory is None or memory.tensors is not tensors:
            memory = self._memory = self._more_memory(tensors, layout.nbytes, 1)
        elif not memory.unused:
            memory = self._memory = self._more_memory(tensors, layout.nbytes, _SHARED)
        return memory

    def _more_memory(self, tensors: BlockTensors, nbytes: int, at_most: int) -> _DeviceMemory:
        """From torch, for the stream of the copies: torch gives it again only when all streams are done with it."""
        stride = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        users = torch.cuda.current_stream(self._device)
        torch.cuda.set_stream(self._copies)  # As `with torch.cuda.stream(…)`, which takes as long as all the rest.
        try:
            return _DeviceMemory(tensors, stride, max(1, at_most // stride), self._device)
        finally:
            torch.cuda.set_stream(users)

    def _arrived(self, started: tuple[Any, _DeviceMemory, Upload]) -> Any:
        batch, memory, upload = started
        stream = _current_stream(self._device)
        upload.wait(stream)
        if stream not in memory.streams:
            memory.memory.record_stream(torch.cuda.current_stream(self._device))
            memory.streams.add(stream)
        return batch


def _current_stream(device: int) -> int:
    """The caller's stream, as the driver knows it. `torch.cuda.current_stream` takes 20 times as long."""
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream


def _warn_of_slow_copies(error: RuntimeError) -> None:
    warnings.warn(f"batches are not in page-locked memory, so copies to the GPU are slower: {error}", stacklevel=6)
