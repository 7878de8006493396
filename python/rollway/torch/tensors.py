"""Tensors over the memory of arrays: no copy, no warning for read-only arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import torch

from rollway._core import writable_view
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


def as_tensordict(tree: Any, size: int) -> Any:
    """The same as a `TensorDict` of ``size`` rows. Needs the package tensordict."""
    try:
        from tensordict import TensorDict
    except ImportError:
        raise MissingExtra("a TensorDict needs the package tensordict: pip install tensordict") from None
    if not isinstance(tree, dict):
        raise SchemaMismatch(f"a TensorDict is made of a dict of arrays; these samples are a {type(tree).__name__}")
    return TensorDict(as_tensors(tree), batch_size=[size])


def _tensor(path: tuple[Any, ...], array: Any) -> Any:
    if not isinstance(array, np.ndarray):
        return array
    if not array.flags.writeable and type(array.base).__module__.startswith("rollway"):
        array = writable_view(array)  # torch has no read-only tensors, and warns of them; this memory may be written
    try:
        if array.dtype.name == "bfloat16":  # numpy's name for it is ml_dtypes'; torch has its own
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)
    except (TypeError, ValueError):  # another dtype, or another byte order
        raise SchemaMismatch(f"leaf '{path_text(path)}' is {array.dtype}, which torch does not have") from None
