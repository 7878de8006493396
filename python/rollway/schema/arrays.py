"""Arrays: what a value is as an array (`as_array`), and how messages show an array (`describe`).

Everything that takes arrays from a user calls it: samples, records, weights, statistics. It knows nothing of schemas.
"""

from __future__ import annotations

import cmath
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollway.errors import SchemaMismatch


def describe(dtype: np.dtype[Any] | str, shape: Sequence[int | str]) -> str:
    """``float32[4,2]``: a dtype and a shape, as the error messages show them."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def as_array(value: Any, path: str, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    """What the value is as an array: no copy where there is a way without."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, type):
        raise SchemaMismatch(f"leaf '{path}' is the class {value.__name__}: give an instance of it, or an array")
    if isinstance(value, bool | int | float | complex):
        return _scalar(value, path, dtype)
    if hasattr(value, "detach"):  # a torch tensor
        try:
            return np.asarray(value.numpy())
        except (TypeError, RuntimeError):  # it wants gradients, lies on a device, or has a dtype that numpy has not
            return _tensor(value.detach(), path)
    try:
        if hasattr(value, "__array__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise SchemaMismatch(f"leaf '{path}' ({type(value).__name__}) gives no array: {error}") from error
    raise SchemaMismatch(
        f"leaf '{path}' is a {type(value).__name__}; it must be a numpy array, a torch CPU tensor, "
        "or have __array__ or __dlpack__"
    )


def _scalar(value: complex, path: str, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    """A Python number takes the dtype of its leaf, if that can hold it: float32 takes 1.5, but not 1e300."""
    if dtype is None:
        return np.asarray(value)
    try:
        if dtype.kind in "biufc" and np.result_type(value, dtype) == dtype:
            with np.errstate(over="ignore"):
                array = np.asarray(value, dtype)
            if cmath.isfinite(array.item()) or not cmath.isfinite(value):
                return array
    except (OverflowError, TypeError):
        pass
    raise SchemaMismatch(f"leaf '{path}' is the Python {type(value).__name__} {value!r}, which does not fit {dtype}")


def _tensor(tensor: Any, path: str) -> np.ndarray[Any, Any]:
    if tensor.device.type != "cpu":
        raise SchemaMismatch(f"leaf '{path}' is on {tensor.device}: call .cpu() before sending it")
    if str(tensor.dtype) == "torch.bfloat16":  # numpy has no name for it; ml_dtypes has
        import ml_dtypes
        import torch

        return np.asarray(tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    try:
        return np.asarray(tensor.numpy())
    except (TypeError, RuntimeError) as error:  # sparse, quantised, or of a dtype that numpy has not
        raise SchemaMismatch(f"leaf '{path}' is a tensor of {tensor.dtype} that gives no array: {error}") from None
