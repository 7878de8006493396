"""Batches as tensors on a device, copied there while the last ones are computed on.

On a GPU each batch crosses in one asynchronous copy of its block, on a stream of its own. If the block is a ring's, it
goes back to the producers when that copy is done: the driver calls native code then, and no Python thread waits for it.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

import numpy as np
import torch

from rollway._core import Sample
from rollway.device.batches import DeviceBatches
from rollway.device.block import Array, BatchSource, HostBatch
from rollway.errors import InvalidArgument
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


class _CudaBatches(DeviceBatches):
    def __init__(self, source: BatchSource, device: torch.device, depth: int) -> None:
        super().__init__(source, depth)
        # A number, because torch looks up what a `torch.device` means at every call.
        self._device = torch.cuda.current_device() if device.index is None else device.index
        self._copies: Any = torch.cuda.Stream(device)
        # Room goes back on a stream beside that of the copies, and holds none of them up.
        self._returns: Any = torch.cuda.Stream(device)
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._free_events: list[Any] = []  # Making one takes longer than recording it.
        self._pins = True
        try:
            source.pin()
        except RuntimeError as error:
            _warn_of_slow_copies(error)

    def _allocate(self, nbytes: int) -> Array:
        """Page-locked memory. Torch uses it again when it is garbage and its copy is done."""
        if self._pins:
            try:
                block: Array = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
                return block
            except RuntimeError as error:
                self._pins = False
                _warn_of_slow_copies(error)
        return np.empty(nbytes, np.uint8)

    def _started(self, host: HostBatch) -> tuple[Any, torch.Tensor, Any]:
        tensors, source = BlockTensors.of(host.layout), _tensor_of(host.block)
        copied = self._free_events.pop() if self._free_events else torch.cuda.Event()
        users = torch.cuda.current_stream(self._device)
        torch.cuda.set_stream(self._copies)  # As `with torch.cuda.stream(…)`, which takes as long as all the rest.
        try:
            block = torch.empty(host.layout.nbytes, dtype=torch.uint8, device=self._device)
            block.copy_(source, non_blocking=True)
            copied.record(self._copies)
        finally:
            torch.cuda.set_stream(users)
        if host.sample is not None:
            self._release_after(copied, host.sample)
        return tensors.over(block), block, copied

    def _arrived(self, started: tuple[Any, torch.Tensor, Any]) -> Any:
        batch, block, copied = started
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copied)
        block.record_stream(stream)  # Its memory is not used again before that stream is done with it.
        self._free_events.append(copied)
        return batch

    def _release_after(self, copied: Any, sample: Sample) -> None:
        """Gives the room back when the copy is done."""
        call = sample._release_later()
        if call is None:
            return
        function, argument = map(ctypes.c_void_p, call)
        self._returns.wait_event(copied)
        code = self._driver.cuLaunchHostFunc(ctypes.c_void_p(self._returns.cuda_stream), function, argument)
        if code != 0:
            warnings.warn(
                f"the GPU's driver takes no host functions (error {code}): copies are waited for", stacklevel=3
            )
            copied.synchronize()
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(call[0])(argument)


def _warn_of_slow_copies(error: RuntimeError) -> None:
    warnings.warn(f"batches are not in page-locked memory, so copies to the GPU are slower: {error}", stacklevel=6)
