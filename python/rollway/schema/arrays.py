"""Arrays: a user's value as an array (`as_array`, `as_leaf`), and an array as text for messages (`describe`).

Samples, records, weights and statistics use it. Native code converts most values itself, by the rule of `as_leaf`.
"""

from __future__ import annotations

import cmath
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rollway.errors import InvalidArgument, SchemaMismatch

Casting = Literal["no", "same_kind"]
"""Whether arrays of another dtype are converted: not at all, or like numpy's ``same_kind`` where all numbers fit."""

_OF_ML_DTYPES = 2  # `isbuiltin` of dtypes that are not numpy's own


def describe(dtype: np.dtype[Any] | str, shape: Sequence[int | str]) -> str:
    """``float32[4,2]``: a dtype and a shape, as the error messages show them."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def as_array(value: Any, path: str, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    """The value as an array, without a copy if possible."""
    if isinstance(value, np.ndarray | np.generic):
        if hasattr(value, "filled") and np.ma.is_masked(value):
            raise SchemaMismatch(f"leaf '{path}' is an array with masked values. Give them one: array.filled(0)")
        return np.asarray(value)
    if isinstance(value, type):
        raise SchemaMismatch(f"leaf '{path}' is the class {value.__name__}: give an instance of it, or an array")
    if isinstance(value, bool | int | float | complex):
        return _scalar(value, path, dtype)
    if hasattr(value, "detach"):  # a torch tensor
        try:
            array = np.asarray(value.numpy())
        except (TypeError, RuntimeError):  # it has gradients, is on a device, or has a dtype that numpy does not have
            return _tensor(value.detach(), path)
        if array.size and hasattr(value, "data_ptr") and value.data_ptr() == 0:
            raise SchemaMismatch(f"leaf '{path}' is a tensor without memory of its own. Send it outside of torch.func")
        return array
    try:
        if hasattr(value, "__array__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise SchemaMismatch(f"leaf '{path}' ({type(value).__name__}) gives no array: {error}") from error
    raise SchemaMismatch(
        f"leaf '{path}' is a {type(value).__name__}; it must be an array of numpy, torch or JAX, a number, a list of "
        "numbers, or have __array__ or __dlpack__"
    )


def as_leaf(
    value: Any, path: str, dtype: np.dtype[Any], dims: Sequence[int | str], casting: Casting = "no"
) -> np.ndarray[Any, Any]:
    """The value as an array for a leaf: single numbers and lists of numbers take its dtype.

    Arrays keep theirs, unless ``casting`` is ``"same_kind"``. Numbers convert like numpy's ``same_kind``: [1, 2] fits
    float32, but [1.5] does not fit int32. A number that is out of range is refused.
    """
    if isinstance(value, list | tuple):
        return _listed(value, path, dtype, dims)
    array = as_array(value, path, dtype)
    if array.dtype == dtype or (array.ndim and casting == "no"):
        return array
    converted = _of_same_kind(array, dtype)
    if converted is None:
        given = f"has values of {array.dtype}" if array.ndim else f"is the {array.dtype} {array.item()!r}"
        raise SchemaMismatch(f"leaf '{path}' {given}, which {'do' if array.ndim else 'does'} not fit {dtype}")
    return converted


def check_casting(casting: str) -> None:
    """Raises `InvalidArgument` for a word that is no `Casting`."""
    if casting not in ("no", "same_kind"):
        raise InvalidArgument(f"casting = {casting!r}; it must be 'no' or 'same_kind'")


def _of_same_kind(numbers: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """The numbers in another dtype; ``None`` if it is of another kind, or one of them does not fit."""
    integers = numbers.dtype.kind in "iu" and dtype.kind in "iu"
    if not (integers or np.can_cast(numbers.dtype, dtype, "same_kind")):
        return None
    return convert(numbers, dtype)


def convert(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """The values in another dtype; ``None`` if one would be cut off, wrap or become infinite. Rounding is allowed.

    Raises `TypeError`, `ValueError` or `OverflowError` for values that cannot be converted at all.
    """
    if dtype.type is np.void:  # plain bytes: there is nothing to convert
        return values if values.dtype == dtype else None
    if (values.dtype.kind == "c" and dtype.kind != "c") or (dtype.kind in "SU" and values.dtype.kind != dtype.kind):
        return None
    with np.errstate(all="ignore"):
        converted = values.astype(dtype)
        if dtype.kind in "iubSU":
            same = np.array_equal(converted, values)
        elif dtype.isbuiltin == _OF_ML_DTYPES:
            same = _are_kept(values, converted)
        else:
            finite = np.isfinite(converted)
            same = bool(finite.all() or (finite | ~np.isfinite(values)).all())
    return converted if same else None


def _are_kept(values: np.ndarray[Any, Any], converted: np.ndarray[Any, Any]) -> bool:
    """Whether numbers fit a dtype of ml_dtypes. In some, those that do not become the largest one, or NaN."""
    import ml_dtypes

    finfo: Any = ml_dtypes.finfo
    back = converted.astype(np.float64)
    try:
        largest = float(finfo(converted.dtype).max)
    except ValueError:  # integers
        return values.dtype.kind in "biu" and np.array_equal(back, values)
    numbers = values.astype(np.float64)
    cut = np.isfinite(numbers) & (np.abs(numbers) > largest) & (np.abs(back) >= largest)
    kept = (np.isnan(numbers) == np.isnan(back)) & (np.isinf(numbers) == np.isinf(back)) & ~cut
    return bool(kept.all())


def fitted(values: np.ndarray[Any, Any], dtype: np.dtype[Any], what: str) -> np.ndarray[Any, Any]:
    """The values in a dtype of the same or a more general kind; `SchemaMismatch` if they do not fit."""
    if values.dtype == dtype:
        return values
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        raise SchemaMismatch(f"{what} is {values.dtype}, which does not become {dtype} without loss. Cast it first")
    converted = convert(values, dtype)
    if converted is None:
        raise SchemaMismatch(f"{what} has values of {values.dtype} that do not fit {dtype}")
    return converted


def _listed(value: Sequence[Any], path: str, dtype: np.dtype[Any], dims: Sequence[int | str]) -> np.ndarray[Any, Any]:
    if not value:
        return np.empty((0, *(dim for dim in dims[1:] if isinstance(dim, int))), dtype)
    try:
        natural = np.asarray(value)
        converted = _of_same_kind(natural, dtype)
    except (OverflowError, ValueError, TypeError) as error:
        raise SchemaMismatch(f"leaf '{path}' is a list that cannot become {describe(dtype, dims)}: {error}") from None
    if natural.dtype.kind == "f" and np.isnan(natural).any() and _holds_masked(value):
        raise SchemaMismatch(f"leaf '{path}' is a list with masked values. Give them one: array.filled(0)")
    if converted is None:
        raise SchemaMismatch(
            f"leaf '{path}' is a list of {natural.dtype}, with values that do not fit {describe(dtype, dims)}"
        )
    return converted


def _holds_masked(value: Sequence[Any]) -> bool:
    return any(_holds_masked(one) if isinstance(one, list | tuple) else one is np.ma.masked for one in value)


def _scalar(value: complex, path: str, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    """A Python number in the dtype of its leaf, if that can hold it: float32 takes 1.5, but not 1e300."""
    if dtype is None:
        return np.asarray(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = int(value)  # of a subclass, as in an IntEnum
    elif isinstance(value, float):
        value = float(value)
    try:
        if dtype.isbuiltin == _OF_ML_DTYPES:
            converted = _of_same_kind(np.asarray(value), dtype)
            if converted is not None:
                return converted
        elif dtype.kind in "biufc" and np.result_type(value, dtype) == dtype:
            with np.errstate(over="ignore"):
                array = np.asarray(value, dtype)
            if cmath.isfinite(array.item()) or not cmath.isfinite(value):
                return array
    except (OverflowError, TypeError):
        pass
    # Python refuses to write out thousands of digits.
    shown = f"of {value.bit_length():,} bits" if isinstance(value, int) and value.bit_length() > 64 else f"{value!r}"
    raise SchemaMismatch(f"leaf '{path}' is the Python {type(value).__name__} {shown}, which does not fit {dtype}")


def _tensor(tensor: Any, path: str) -> np.ndarray[Any, Any]:
    if tensor.device.type != "cpu":
        raise SchemaMismatch(f"leaf '{path}' is on {tensor.device}: call .cpu() before sending it")
    if str(tensor.dtype) == "torch.bfloat16":  # numpy has no name for it; ml_dtypes has
        import ml_dtypes
        import torch

        return np.asarray(tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    try:
        return np.asarray(tensor.numpy())
    except (TypeError, RuntimeError) as error:  # sparse, quantised, or of a dtype that numpy does not have
        raise SchemaMismatch(f"leaf '{path}' is a tensor of {tensor.dtype} that gives no array: {error}") from None
