"""The memory of a sampled batch: one block, field after field, on the host; and its way to a device by one copy.

Used by `ReplayBuffer` and its pipelines. It knows sizes and dtypes; it draws nothing. Torch is imported on use.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from rollway.errors import InvalidArgument
from rollway.record_schema import RecordSchema

_ALIGNED = 64

Fill = Callable[[int, tuple[Any, ...]], None]
"""Fills arrays with so many rows: `Table.sample`."""


class BatchLayout:
    """Where each field of a batch lies in its block."""

    def __init__(self, schema: RecordSchema) -> None:
        self.schema = schema
        self._row_bytes = [leaf.row_bytes for leaf in schema.values()]

    def offsets(self, rows: int) -> tuple[list[int], int]:
        """Where the fields of so many rows start, and where the last one ends."""
        starts, end = [], 0
        for row_bytes in self._row_bytes:
            starts.append(end)
            end += -(-row_bytes * rows // _ALIGNED) * _ALIGNED
        return starts, end

    def arrays(self, block: np.ndarray[Any, Any], rows: int) -> tuple[np.ndarray[Any, Any], ...]:
        """The fields of a block of bytes."""
        starts, _ = self.offsets(rows)
        return tuple(
            np.ndarray((rows, *leaf.shape), leaf.dtype, block, start)
            for leaf, start in zip(self.schema.values(), starts, strict=True)
        )

    def tensors(self, block: Any, rows: int) -> dict[str, Any]:
        """The fields of a tensor of bytes."""
        starts, _ = self.offsets(rows)
        fields = {}
        for leaf, start in zip(self.schema.values(), starts, strict=True):
            one = block[start : start + leaf.row_bytes * rows]
            fields[leaf.name] = one.view(_torch_dtype(leaf.dtype)).view(rows, *leaf.shape)
        return fields


class HostBatch:
    """A batch on the host, to be filled: ``arrays`` for the core, `as_dict` for the user."""

    def __init__(self, layout: BatchLayout, rows: int) -> None:
        _, nbytes = layout.offsets(rows)
        self._schema = layout.schema
        self.arrays = layout.arrays(np.empty(nbytes, np.uint8), rows)

    def as_dict(self) -> dict[str, Any]:
        """Torch tensors over the arrays; the arrays themselves where there is no torch."""
        if not _has_torch():
            return dict(zip(self._schema, self.arrays, strict=True))
        return {name: _as_tensor(array) for name, array in zip(self._schema, self.arrays, strict=True)}


class StagedCopies:
    """Batches to one device, each by one copy out of pinned memory, on the stream that the caller works on.

    On the device a batch is ordinary memory of its own: it stays as it is.
    """

    def __init__(self, layout: BatchLayout, device: str) -> None:
        self._layout = layout
        self._device = _torch().device(device)
        self._rows = 0
        self._block: Any = None
        self._arrays: tuple[np.ndarray[Any, Any], ...] = ()
        self._copied: Any = None

    def copy(self, rows: int, fill: Fill, out: dict[str, Any] | None) -> dict[str, Any]:
        """Fills the staging memory and sends it off; the tensors are good on the caller's stream at once."""
        self._make_room(rows)
        fill(rows, self._arrays)
        if out is None:
            sent: dict[str, Any] = self._layout.tensors(self._block.to(self._device, non_blocking=True), rows)
        else:
            staged, sent = self._layout.tensors(self._block, rows), out
            check_tensors(out, staged)
            for name, tensor in staged.items():
                out[name].copy_(tensor, non_blocking=True)
        if self._device.type == "cuda":
            self._copied = _torch().cuda.Event()
            self._copied.record(_torch().cuda.current_stream(self._device))
        return sent

    def _make_room(self, rows: int) -> None:
        if self._copied is not None:
            self._copied.synchronize()  # The last copy may still read the block.
        if rows != self._rows:
            self._block = pinned_block(self._layout.offsets(rows)[1], self._device)
            self._arrays = self._layout.arrays(self._block.numpy(), rows)
            self._rows = rows


def pinned_block(nbytes: int, device: Any) -> Any:
    """A tensor of bytes on the host, page-locked where the device is a GPU."""
    torch = _torch()
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def check_tensors(out: dict[str, Any], like: dict[str, Any]) -> None:
    """Refuses tensors that a batch would not fit into."""
    for name, tensor in like.items():
        there = out.get(name)
        if there is None or there.shape != tensor.shape or there.dtype != tensor.dtype:
            raise InvalidArgument(f"out['{name}'] must be a tensor of {tensor.dtype}, {list(tensor.shape)}")


def as_host_array(value: Any) -> Any:
    """What the core can write to: an array over the memory of a CPU tensor."""
    if isinstance(value, np.ndarray) or not hasattr(value, "data_ptr"):
        return value
    if value.device.type != "cpu":
        raise InvalidArgument(f"out has a tensor on {value.device}, and the buffer is on the CPU")
    if _numpy_knows(value.dtype):
        return value.numpy()
    import ml_dtypes

    name = str(value.dtype).removeprefix("torch.")
    return value.view(_torch().uint8).numpy().view(getattr(ml_dtypes, name)).reshape(tuple(value.shape))


def _numpy_knows(dtype: Any) -> bool:
    name = str(dtype).removeprefix("torch.")
    return not name.startswith(("bfloat", "float8"))


def _as_tensor(array: np.ndarray[Any, Any]) -> Any:
    torch = _torch()
    if array.dtype.kind != "V":
        return torch.from_numpy(array)
    raw = {1: np.int8, 2: np.int16}[array.dtype.itemsize]  # bfloat16 and its kin
    return torch.from_numpy(array.view(raw)).view(_torch_dtype(array.dtype))


def _torch_dtype(dtype: np.dtype[Any]) -> Any:
    return getattr(_torch(), dtype.name)


@functools.cache
def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _torch() -> Any:
    import torch

    return torch
