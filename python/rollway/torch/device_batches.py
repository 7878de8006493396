"""DeviceBatches: the batches of a server as tensors on a device, copied there while the last ones are computed on.

On a GPU each batch crosses in one asynchronous copy of its room in the ring, on a stream of its own. The room goes back
to the producers when that copy is done: the driver calls native code then, and no Python thread waits for it.
"""

from __future__ import annotations

import ctypes
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import optree
import torch

from rollway._core import Sample
from rollway.errors import ConnectionClosedError, InvalidArgument
from rollway.schema.pytree import NAMESPACE
from rollway.torch.tensors import as_tensors


class _BatchSource(Protocol):
    """A `Server`, as far as its batches are concerned."""

    @property
    def batch_size(self) -> int: ...

    def sample(self) -> Sample | None: ...

    def try_sample(self) -> Sample | None: ...

    def dataset_iter(self) -> Iterator[Sample]: ...

    def _pin_once(self) -> None: ...


def device_batches(server: _BatchSource, device: Any, depth: int) -> Iterator[Any]:
    """The batches of ``server`` on ``device``, of which ``depth`` are under way or ready at a time."""
    if depth < 1:
        raise InvalidArgument(f"depth = {depth} is out of range: at least 1")
    where = torch.device(device)
    if where.type != "cuda":
        return _host_batches(server, where)
    if not torch.cuda.is_available():
        return _host_batches(server, torch.device("cpu"))
    return _CudaBatches(server, where, depth)


def _host_batches(server: _BatchSource, device: torch.device) -> Iterator[Any]:
    for sample in server.dataset_iter():
        with sample:
            tensors = as_tensors(sample.batch)
            batch = optree.tree_map(lambda tensor: tensor.to(device, copy=True), tensors, namespace=NAMESPACE)
            del tensors
        yield batch
        del sample, batch


class _Leaf(NamedTuple):
    """Where a leaf lies in the copy of a batch's room."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int  # in items of its dtype


class _Room(NamedTuple):
    """The room of one buffer of the ring."""

    source: torch.Tensor  # its bytes
    size: int
    leaves: list[_Leaf]
    dtypes: set[torch.dtype]
    mapping: Any  # an array: it keeps the memory mapped


class _CudaBatches(Iterator[Any]):
    def __init__(self, server: _BatchSource, device: torch.device, depth: int) -> None:
        self._server, self._depth = server, depth
        # A number, because torch looks up what a `torch.device` means at every call.
        self._device = torch.cuda.current_device() if device.index is None else device.index
        self._copies: Any = torch.cuda.Stream(device)
        # Room goes back on a stream beside that of the copies, and holds none of them up.
        self._returns: Any = torch.cuda.Stream(device)
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._rooms: dict[int, _Room] = {}
        self._pending: deque[tuple[Any, list[torch.Tensor], Any]] = deque()
        self._free_events: list[Any] = []  # Making one takes longer than recording it.
        self._ended = False
        self._treedef: optree.PyTreeSpec | None = None
        try:
            server._pin_once()
        except RuntimeError as error:
            warnings.warn(f"the ring is not page-locked, so copies to the GPU are slower: {error}", stacklevel=4)

    def __next__(self) -> Any:
        while not self._ended and len(self._pending) < self._depth:
            sample = self._taken(wait=not self._pending)
            if sample is None:
                break
            self._pending.append(self._sent(sample))
        if not self._pending:
            raise StopIteration
        batch, blocks, copied = self._pending.popleft()
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copied)
        for block in blocks:
            block.record_stream(stream)  # Its memory is not used again before that stream is done with it.
        self._free_events.append(copied)
        return batch

    def _taken(self, *, wait: bool) -> Sample | None:
        """The next sample; ``None`` when there is none yet, or none will come."""
        if wait:
            sample = self._server.sample()
            self._ended = sample is None
            return sample
        try:
            return self._server.try_sample()
        except ConnectionClosedError:
            self._ended = True
            return None

    def _sent(self, sample: Sample) -> tuple[Any, list[torch.Tensor], Any]:
        """Starts the copy of a sample."""
        if len(sample) != self._server.batch_size:  # Closed early: its rows may have been put together elsewhere.
            with torch.cuda.stream(self._copies), sample:
                tensors = optree.tree_map(lambda t: t.to(self._device), sample.torch(), namespace=NAMESPACE)
                return tensors, optree.tree_leaves(tensors, namespace=NAMESPACE), self._copies.record_event()
        room = self._room(sample)
        copied = self._free_events.pop() if self._free_events else torch.cuda.Event()
        users = torch.cuda.current_stream(self._device)
        torch.cuda.set_stream(self._copies)  # As `with torch.cuda.stream(…)`, which takes as long as all the rest.
        try:
            block = torch.empty(room.size, dtype=torch.uint8, device=self._device)
            block.copy_(room.source, non_blocking=True)
            copied.record(self._copies)
        finally:
            torch.cuda.set_stream(users)
        self._release_after(copied, sample)
        of_dtype = {dtype: block.view(dtype) for dtype in room.dtypes}
        views = [of_dtype[leaf.dtype].as_strided(leaf.shape, leaf.stride, leaf.start) for leaf in room.leaves]
        assert self._treedef is not None
        return optree.tree_unflatten(self._treedef, views), [block], copied

    def _room(self, sample: Sample) -> _Room:
        """Where the batch lies, found when its buffer is first met."""
        found = self._rooms.get(sample.info.buffer)
        if found is not None:
            return found
        arrays, self._treedef = optree.tree_flatten(sample.batch, namespace=NAMESPACE)
        tensors = optree.tree_leaves(as_tensors(sample.batch), namespace=NAMESPACE)
        places = [array.__array_interface__["data"][0] for array in arrays]
        first = min(places)
        end = max(place + array.nbytes for place, array in zip(places, arrays, strict=True))
        size = -(-(end - first) // 16) * 16  # Whole items of every dtype; a leaf is followed by others, or by padding.
        memory = (ctypes.c_uint8 * size).from_address(first)
        leaves = [
            _Leaf(tensor.dtype, tuple(tensor.shape), tensor.stride(), (place - first) // tensor.element_size())
            for tensor, place in zip(tensors, places, strict=True)
        ]
        room = _Room(
            torch.from_numpy(np.frombuffer(memory, np.uint8)), size, leaves, {leaf.dtype for leaf in leaves}, arrays[0]
        )
        return self._rooms.setdefault(sample.info.buffer, room)

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
