"""Leaves: the four forms that describe one array of a schema, for samples, records, replay and rollouts.

```text
np.zeros((84, 84), np.uint8)       an example; its values do not matter
"uint8[84,84]"                     text; in records "int32[*]" has any length, and all "int32[n]" have the same one
((84, 84), np.uint8)               a shape and a dtype
gymnasium.spaces.Box(…)            a space: Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them
```

`read_leaves` returns flat, named leaves; `as_example` puts arrays in place of the leaves of a tree that are no arrays.
Gymnasium is imported only for its own objects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import optree

from rollway.errors import SchemaMismatch
from rollway.schema.arrays import as_array, describe

FORMS = (
    "an example array, text like 'uint8[84,84]', a pair like ((84, 84), np.uint8), or a Gymnasium space (Box, "
    "Discrete, MultiDiscrete, MultiBinary, or Dict or Tuple of them)"
)
"""The forms of a leaf, for messages."""

WHOLE = "(the sample itself)"
"""The name of a leaf that is not in a dict, tuple or the like."""

_NOTATION = re.compile(r"(\w+)\[([^\]]*)\]")
_LETTER = re.compile("[A-Za-z]")
_VOID = re.compile(r"void(\d{1,12})")  # numpy's name of a dtype of plain bytes, with their bits


class Leaf(NamedTuple):
    """One array of a schema. ``ragged``: its first dimension differs from record to record; ``shape`` is the rest."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    ragged: bool = False
    tie: str | None = None
    """The letter of the first dimension of a ragged leaf: all leaves of a record with this letter are equally long."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a ragged leaf, or of the whole of a fixed one."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def dims(self) -> tuple[int | str, ...]:
        """The shape, with ``"*"`` or a letter as the first dimension of a ragged leaf."""
        return (self.tie or "*", *self.shape) if self.ragged else self.shape

    def __str__(self) -> str:
        return describe(self.dtype, self.dims)


def read_leaves(given: Any) -> dict[str, Leaf]:
    """The leaves of a dict or Dict space, whose values have any of the forms. Those of a part are called ``part/leaf``.

    >>> {name: str(leaf) for name, leaf in read_leaves({"obs": "uint8[84,84]", "act": ((2,), np.float32)}).items()}
    {'obs': 'uint8[84,84]', 'act': 'float32[2]'}
    """
    leaves: dict[str, Leaf] = {}
    for name, part in _parts(given):
        for leaf in _spread(str(name), part):
            if leaf.name in leaves:
                raise SchemaMismatch(f"two leaves are called '{leaf.name}': rename one of them")
            leaves[leaf.name] = leaf
    return leaves


def as_example(tree: Any, namespace: str) -> Any:
    """The tree with an array in place of each leaf that is text, a pair or a space. These arrays take no memory."""
    paths, values, treedef = optree.tree_flatten_with_path(tree, _is_form, namespace=namespace)
    if not any(map(_is_form, values)):
        return tree
    examples = [
        _example_of("/".join(map(str, path)), value) if _is_form(value) else value
        for path, value in zip(paths, values, strict=True)
    ]
    return optree.tree_unflatten(treedef, examples)


def _example_of(name: str, form: Any) -> Any:
    """An array of zeros that takes no memory; for a Dict or Tuple space, a dict or tuple of them."""
    space = _space_kind(form)
    if space == "Dict":
        return {key: _example_of(_joined(name, key), part) for key, part in form.items()}
    if space == "Tuple":
        return tuple(_example_of(_joined(name, number), part) for number, part in enumerate(form))
    leaf = read_leaf(name or WHOLE, form)
    if leaf.ragged:
        raise SchemaMismatch(
            f"leaf '{leaf.name}' is {leaf}: samples have one shape. For arrays of any length use `RecordServer`"
        )
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)


def _spread(name: str, given: Any) -> Iterator[Leaf]:
    """The leaves of one part of a schema."""
    if isinstance(given, dict) or _space_kind(given) in ("Dict", "Tuple"):
        for key, part in _parts(given):
            yield from _spread(_joined(name, key), part)
    else:
        yield read_leaf(name, given)


def _parts(given: Any) -> list[tuple[Any, Any]]:
    return list(given.items()) if isinstance(given, Mapping) else list(enumerate(given))


def _joined(name: str, key: Any) -> str:
    return f"{name}/{key}" if name else str(key)


def read_leaf(name: str, given: Any) -> Leaf:
    """One array, in any of the forms. Raises `SchemaMismatch` that names the leaf and shows the forms."""
    if isinstance(given, str) and not isinstance(given, np.generic):
        match = _NOTATION.fullmatch(given.replace(" ", ""))
        if match is None:
            raise _no_form(name, given)
        return _leaf(name, match[1], match[2].split(",") if match[2] else [])
    if _is_pair(given):
        shape, dtype = given
        return _leaf(name, dtype, list(shape) if isinstance(shape, tuple | list) else [shape])
    if kind := _space_kind(given):
        if kind not in ("Box", "Discrete", "MultiDiscrete", "MultiBinary"):
            raise _no_form(name, given)
        return _leaf(name, given.dtype, list(given.shape))
    if given is None or isinstance(given, type | bool | int | float | complex | list | tuple | set | bytes):
        raise _no_form(name, given)
    array = as_array(given, name, None)
    return _leaf(name, array.dtype, list(array.shape))


def _leaf(name: str, dtype_form: Any, dims: list[Any]) -> Leaf:
    dtype = _dtype(name, dtype_form)
    if dtype.hasobject or dtype.itemsize == 0:
        raise SchemaMismatch(f"leaf '{name}' has dtype {dtype}, which has no fixed size in memory")
    tie = dims[0] if dims and isinstance(dims[0], str) and _LETTER.fullmatch(dims[0]) else None
    ragged = tie is not None or dims[:1] == ["*"]
    fixed = dims[ragged:]
    if not all(str(dim).isdecimal() for dim in fixed):
        raise SchemaMismatch(
            f"leaf '{name}' is {describe(dtype, dims)!r}; only its first dimension may be '*' or a letter, instead of "
            "a number"
        )
    shape = tuple(map(int, fixed))
    if dtype.itemsize * math.prod(dim or 1 for dim in shape) >= 2**63:
        raise SchemaMismatch(f"leaf '{name}' is {describe(dtype, dims)}, which is larger than an address space")
    return Leaf(name, dtype, shape, ragged, tie)


def _dtype(name: str, given: Any) -> np.dtype[Any]:
    """The dtype of a user's notation: numpy's, torch's or that of ml_dtypes."""
    text = str(given).removeprefix("torch.") if _is_torch_dtype(given) else given
    try:
        if not isinstance(text, str):
            numpys: np.dtype[Any] = np.dtype(text)
            return numpys
        if (void := _VOID.fullmatch(text)) and int(void[1]) % 8 == 0:
            return np.dtype(f"V{int(void[1]) // 8}")
        try:
            return np.dtype(text)
        except TypeError:
            import ml_dtypes  # bfloat16 and float8

            dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, text))
            return dtype
    except (TypeError, ValueError, AttributeError, ImportError):
        raise SchemaMismatch(f"leaf '{name}' has the unknown dtype '{text}'") from None


def _is_form(value: Any) -> bool:
    """Whether it is text, a pair or a space, which describe arrays."""
    is_text = isinstance(value, str) and not isinstance(value, np.generic)
    return is_text or _is_pair(value) or _space_kind(value) is not None


def _is_pair(value: Any) -> bool:
    """Whether it is a shape and a dtype. Two leaves of an example are never both."""
    if type(value) is not tuple or len(value) != 2:
        return False
    shape, dtype = value
    dims = shape if isinstance(shape, tuple | list) else (shape,)
    if not all(type(dim) in (int, str) or isinstance(dim, np.integer) for dim in dims):
        return False
    return isinstance(dtype, np.dtype | type) or (type(dtype) is str and "[" not in dtype) or _is_torch_dtype(dtype)


def _is_torch_dtype(value: Any) -> bool:
    return type(value).__module__ == "torch" and type(value).__name__ == "dtype"


def _space_kind(value: Any) -> str | None:
    """The class name of a Gymnasium space; ``None`` for anything else."""
    if all(cls.__module__.partition(".")[0] != "gymnasium" for cls in type(value).__mro__):
        return None
    from gymnasium import spaces

    kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Dict, spaces.Tuple)
    kind = next((kind.__name__ for kind in kinds if isinstance(value, kind)), None)
    return kind or (type(value).__name__ if isinstance(value, spaces.Space) else None)


def _no_form(name: str, given: Any) -> SchemaMismatch:
    shown = f"{given!r}" if len(repr(given)) <= 80 else f"a {type(given).__name__}"
    return SchemaMismatch(f"leaf '{name}' is {shown}; give {FORMS}")
