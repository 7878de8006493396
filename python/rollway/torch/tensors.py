"""Tensors over the memory of arrays: no copy, no warning for read-only arrays."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import optree
import torch

from rollway._core import writable_view
from rollway.device.block import BlockLayout
from rollway.errors import MissingExtra, SchemaMismatch
from rollway.schema.pytree import NAMESPACE, path_text


def as_tensors(tree: Any) -> Any:
    """The same tree with a tensor in place of each array. The tensors lie where the arrays lie, and keep that memory.

    >>> import numpy as np
    >>> array = np.arange(3.0)
    >>> as_tensors({"x": array})["x"].data_ptr() == array.ctypes.data
    True
    """
    return optree.tree_map_with_path(_tensor, tree, namespace=NAMESPACE)


def as_tensordict(tree: Any, *batch_size: int) -> Any:
    """The same as a `TensorDict`, whose tensors all begin with the dimensions ``batch_size``. Needs tensordict."""
    try:
        from tensordict import TensorDict
    except ImportError:
        raise MissingExtra("a TensorDict needs the package tensordict: pip install tensordict") from None
    if not isinstance(tree, dict):
        raise SchemaMismatch(f"a TensorDict is made of a dict of arrays; these samples are a {type(tree).__name__}")
    if (found := _other_container(tree, ())) is not None:
        path, kind = found
        raise SchemaMismatch(f"a TensorDict is made of dicts of arrays; '{path_text(path)}' is a {kind}: use .torch()")
    return TensorDict(as_tensors(tree), batch_size=batch_size)


def _other_container(tree: dict[str, Any], path: tuple[Any, ...]) -> tuple[tuple[Any, ...], str] | None:
    """The first value in a dict of dicts that is neither an array nor a dict."""
    for key, value in tree.items():
        inside = (*path, key)
        if isinstance(value, dict):
            if (found := _other_container(value, inside)) is not None:
                return found
        elif not isinstance(value, np.ndarray | np.generic):
            return inside, type(value).__name__
    return None


def torch_dtype(dtype: np.dtype[Any], path: tuple[Any, ...]) -> torch.dtype:
    """Torch's name for a dtype; `SchemaMismatch` names the leaf if there is none."""
    found = _dtype(dtype)
    if found is None:
        raise SchemaMismatch(
            f"leaf '{path_text(path)}' is {dtype}, which torch does not have: leave it out, or send it in another dtype"
        )
    return found


@functools.cache
def _dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    found = getattr(torch, dtype.name, None) if dtype.isnative else None
    # Of the dtypes that are not numpy's own (they are ml_dtypes') torch has those in memory as they are.
    usable = dtype.isbuiltin == 1 or dtype.name.startswith(("bfloat16", "float8"))
    return found if usable and isinstance(found, torch.dtype) else None


class BlockTensors:
    """The tensors of a batch that lies in one block."""

    def __init__(self, layout: BlockLayout) -> None:
        self._build = layout.build
        self._placed = []
        for path, dtype, shape, strides, offset in layout.arrays:
            size = dtype.itemsize
            steps = tuple(stride // size for stride in strides)
            self._placed.append((torch_dtype(dtype, path), shape, steps, offset // size))
        self._dtypes = {dtype for dtype, *_ in self._placed}

    @classmethod
    def of(cls, layout: BlockLayout) -> BlockTensors:
        """Those of a layout, worked out once."""
        if layout.tensors is None:
            layout.tensors = cls(layout)
        tensors: BlockTensors = layout.tensors
        return tensors

    def over(self, block: torch.Tensor) -> Any:
        """The batch in a block of bytes, on any device."""
        return self.batches(block, len(block), 1)[0]

    def batches(self, memory: torch.Tensor, stride: int, blocks: int) -> list[Any]:
        """The batches in so many blocks, one every ``stride`` bytes. Autograd sees no tensor change with another."""
        flat = {dtype: memory.view(dtype) for dtype in self._dtypes}
        leaves = []
        for dtype, shape, steps, first in self._placed:
            stacked = flat[dtype].as_strided((blocks, *shape), (stride // dtype.itemsize, *steps), first)
            leaves.append([tensor.data for tensor in stacked.unbind()])
        return [self._build(list(of_block)) for of_block in zip(*leaves, strict=True)]


def _tensor(path: tuple[Any, ...], array: Any) -> Any:
    if not isinstance(array, np.ndarray):
        return array
    if not array.flags.writeable and _is_ours(array):
        array = writable_view(array)  # torch has no read-only tensors, and warns of them; this memory may be written
    dtype = torch_dtype(array.dtype, path)
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"i{array.itemsize}")).view(dtype)


def _is_ours(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array, or what it is a view of, lies in memory of Rollway's."""
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return type(base).__module__.startswith("rollway")
