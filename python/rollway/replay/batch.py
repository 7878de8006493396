"""The memory of a sampled batch: one block of packed rows, with a view for each field; and its copy to a device.

`TransitionBuffer` and `ReplayPipeline` use it. It draws nothing. Torch is imported on use.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rollway.device.block import BlockLayout, PlacedArray
from rollway.errors import InvalidArgument
from rollway.schema.record import RecordSchema

Fill = Callable[[int, "np.ndarray[Any, Any]"], None]
"""Fills a block with so many rows: `Table.sample`."""


class RowLayout:
    """Where each field is in a row: at a multiple of its item size, so that a block can be viewed as arrays."""

    def __init__(self, schema: RecordSchema) -> None:
        self.schema = schema
        self.offsets: list[int] = []
        end = 0
        for leaf in schema.values():
            end = _rounded(end, leaf.dtype.itemsize)
            self.offsets.append(end)
            end += leaf.row_bytes
        self.row_bytes = _rounded(end, math.lcm(*(leaf.dtype.itemsize for leaf in schema.values())))
        self._last: tuple[int, BlockLayout] | None = None  # most callers ask for the same number of rows again

    @property
    def native(self) -> list[tuple[np.dtype[Any], list[int], int, int]]:
        """The fields, for the core."""
        leaves = zip(self.schema.values(), self.offsets, strict=True)
        return [(leaf.dtype, list(leaf.shape), leaf.row_bytes, offset) for leaf, offset in leaves]

    def of_rows(self, rows: int) -> BlockLayout:
        """Where the fields are in a block of so many rows."""
        if self._last is not None and self._last[0] == rows:
            return self._last[1]
        placed = []
        for leaf, offset in zip(self.schema.values(), self.offsets, strict=True):
            strides = (self.row_bytes, *_inner(leaf.shape, leaf.dtype.itemsize))
            placed.append(PlacedArray((leaf.name,), leaf.dtype, (rows, *leaf.shape), strides, offset))
        layout = BlockLayout(placed, rows * self.row_bytes, self._named)
        self._last = rows, layout
        return layout

    def _named(self, arrays: list[Any]) -> dict[str, Any]:
        return dict(zip(self.schema, arrays, strict=True))

    def arrays(self, block: np.ndarray[Any, Any]) -> dict[str, Any]:
        """The fields of a block of bytes, as numpy arrays."""
        return self._named(self.of_rows(len(block) // self.row_bytes).over(block))

    def tensors(self, block: Any) -> dict[str, Any]:
        """The fields of a tensor of bytes."""
        from rollway.torch.tensors import BlockTensors

        fields: dict[str, Any] = BlockTensors.of(self.of_rows(len(block) // self.row_bytes)).over(block)
        return fields


class Batch(dict[str, Any]):
    """A sampled batch: an array for each field, all of them views into one ``block`` of packed rows on the host.

    The caller may replace fields. A copy of a batch, or a pickled one, has no block.
    """

    __slots__ = ("_layout", "_views", "block")

    def __init__(
        self, fields: dict[str, Any], layout: RowLayout | None = None, block: np.ndarray[Any, Any] | None = None
    ) -> None:
        super().__init__(fields)
        self._layout = layout
        self._views = fields
        self.block = np.empty(0, np.uint8) if block is None else block

    @classmethod
    def empty(cls, layout: RowLayout, rows: int, device: str | None) -> Batch:
        """Room for so many rows that go to ``device``: numpy arrays for ``None``, or where torch is not installed."""
        nbytes = rows * layout.row_bytes
        if device is None or not has_torch():
            block = np.empty(nbytes, np.uint8)
            return cls(layout.arrays(block), layout, block)
        tensor = _torch().empty(nbytes, dtype=_torch().uint8, pin_memory=device.startswith("cuda"))
        return cls(layout.tensors(tensor), layout, tensor.numpy())

    def torch(self) -> dict[str, Any]:
        """The same memory as torch tensors."""
        from rollway.torch import as_tensors

        tensors: dict[str, Any] = as_tensors(dict(self))
        return tensors

    def tensordict(self) -> Any:
        """The same memory as a `TensorDict` with a row for each transition. Needs the package tensordict."""
        from rollway.torch import as_tensordict

        return as_tensordict(dict(self), len(next(iter(self.values()))))

    def jax(self, device: Any = None) -> dict[str, Any]:
        """Copies as arrays of JAX on a device, which never change."""
        from rollway.jax import as_arrays

        arrays: dict[str, Any] = as_arrays(dict(self), device)
        return arrays

    def takes(self, layout: RowLayout, rows: int) -> bool:
        """Whether so many rows of this layout, written to the block, are what the fields show."""
        if self._layout is not layout or len(self.block) != rows * layout.row_bytes:
            return False
        return all(self.get(name) is view for name, view in self._views.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (dict(self),)


def fill_field_by_field(out: dict[str, Any], layout: RowLayout, rows: int, fill: Fill) -> None:
    """Fills host arrays of any strides, by way of a block. Refuses, before it draws, what does not fit."""
    batch = Batch.empty(layout, rows, None)
    pairs = []
    for name, field in batch.items():
        there = as_host_array(out.get(name))
        fits = isinstance(there, np.ndarray) and there.shape == field.shape and there.dtype == field.dtype
        if not fits or not there.flags.writeable:
            raise InvalidArgument(f"out['{name}'] must be an array of {field.dtype}, {list(field.shape)}")
        pairs.append((there, field))
    fill(rows, batch.block)
    for there, here in pairs:
        there[...] = here


class StagedCopies:
    """Copies batches to one device, each by one copy out of pinned memory, on the caller's stream."""

    def __init__(self, layout: RowLayout, device: str) -> None:
        self._layout = layout
        self._device = _torch().device(device)
        self._stage: Batch | None = None
        self._copied: Any = None

    def copy(self, rows: int, fill: Fill, out: dict[str, Any] | None) -> dict[str, Any]:
        """Fills the staging memory and starts the copy; the caller's stream may use the tensors at once."""
        torch = _torch()
        if self._copied is not None:
            self._copied.synchronize()  # The last copy may still read the stage.
        if self._stage is None or not self._stage.takes(self._layout, rows):
            self._stage = Batch.empty(self._layout, rows, str(self._device))
        stage = self._stage
        if out is not None:
            _check_tensors(out, stage)
        fill(rows, stage.block)
        if out is None:
            block = torch.from_numpy(stage.block).to(self._device, non_blocking=True, copy=True)
            sent: dict[str, Any] = Batch(self._layout.tensors(block))
        else:
            for name, tensor in stage.items():
                out[name].copy_(tensor, non_blocking=True)
            sent = out
        if self._device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(self._device))
        return sent


def _check_tensors(out: dict[str, Any], like: Batch) -> None:
    """Refuses tensors that a batch would not fit into."""
    for name, tensor in like.items():
        there = out.get(name)
        if there is None or there.shape != tensor.shape or there.dtype != tensor.dtype:
            raise InvalidArgument(f"out['{name}'] must be a tensor of {tensor.dtype}, {list(tensor.shape)}")


def as_host_array(value: Any) -> Any:
    """An array over the memory of a CPU tensor, which native code can write to."""
    if isinstance(value, np.ndarray) or not hasattr(value, "data_ptr"):
        return value
    if value.device.type != "cpu":
        raise InvalidArgument(f"out has a tensor on {value.device}, and the buffer is on the CPU")
    name = str(value.dtype).removeprefix("torch.")
    if not name.startswith(("bfloat", "float8")):
        return value.detach().numpy()
    import ml_dtypes  # numpy has no name for these

    raw = {1: "int8", 2: "int16"}[value.element_size()]
    return value.detach().view(getattr(_torch(), raw)).numpy().view(getattr(ml_dtypes, name))


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _inner(shape: tuple[int, ...], step: int) -> tuple[int, ...]:
    """The strides of a shape without gaps."""
    strides = []
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def device_name(device: Any) -> str | None:
    """The name of a device, which may be a `torch.device`; ``"cpu"`` for every spelling of it. Touches no device.

    ``None`` is no device: arrays of numpy.
    """
    if device is None:
        return None
    try:
        name = device if isinstance(device, str) else str(_torch().device(device))
    except (ImportError, RuntimeError, TypeError) as error:
        raise InvalidArgument(f"device is {device!r}, which is no device: {error}") from None
    if name.partition(":")[0] == "cpu":
        return "cpu"
    if not has_torch():
        raise InvalidArgument(
            f"device is {name!r}, which needs torch: pip install '.[torch]' in the clone of Rollway, or use 'cpu'"
        )
    return name


@functools.cache
def has_torch() -> bool:
    """Whether torch can be imported."""
    return importlib.util.find_spec("torch") is not None


def _torch() -> Any:
    import torch

    return torch
