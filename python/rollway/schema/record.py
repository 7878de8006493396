"""RecordSchema: what a record looks like: named arrays, some of which have a length of their own in every record.

It checks and converts what is sent, and words the errors. Native code asks it only for records
that are not dicts of exact arrays. It knows nothing of lanes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rollway._core import RecordPlan, read_schema
from rollway.errors import ForeignSchema, SchemaMismatch
from rollway.schema.arrays import as_array, describe
from rollway.schema.leaves import RaggedLeaf, read_leaves
from rollway.schema.pytree import dtype_text, explain, known_dtype, leaves_differ, short

_EXAMPLE = "{'tokens': 'int32[*]'}"


class RecordSchema(Mapping[str, RaggedLeaf]):
    """The leaves of a record, by name, in the order given.

    Args:
        leaves: ``{"tokens": "int32[*]", "score": "float32[]", "image": "uint8[84,84]"}``. ``*`` stands in front only.
            A leaf may also be an example array, a pair like ``((84, 84), np.uint8)`` or a Gymnasium space. The leaves
            of a Dict or Tuple space, and of a dict, are called ``part/leaf``.

    >>> schema = RecordSchema({"tokens": "int32[*]", "score": "float32[]"})
    >>> [f"{leaf.name}: {leaf}" for leaf in schema.values()]
    ['tokens: int32[*]', 'score: float32[]']
    """

    def __init__(self, leaves: Mapping[str, Any]) -> None:
        if not isinstance(leaves, Mapping):
            raise SchemaMismatch(f"the schema is a {type(leaves).__name__}; it must be a dict, like {_EXAMPLE}")
        self._hold(read_leaves(leaves))
        if not self.leaves:
            raise SchemaMismatch(f"the schema has no leaves: give at least one, like {_EXAMPLE}")

    def _hold(self, leaves: dict[str, RaggedLeaf]) -> None:
        self._leaves = leaves
        self.leaves = tuple(leaves.values())
        """The same, in order."""

    @classmethod
    def of(cls, schema: RecordSchema | Mapping[str, Any]) -> RecordSchema:
        """The schema, if it is not one yet."""
        return schema if isinstance(schema, RecordSchema) else cls(schema)

    @classmethod
    def from_text(cls, text: bytes) -> RecordSchema:
        """The schema that stands in a segment."""
        try:
            parsed = read_schema(text)
            leaves = {name: _leaf_from_text(name, dtype, dims) for name, dtype, dims in parsed}
        except SchemaMismatch as error:
            raise SchemaMismatch(f"these are no records that can be read here: {error}") from None
        if len(leaves) != len(parsed):
            raise SchemaMismatch("these are no records that can be read here: two leaves have the same name")
        schema = cls.__new__(cls)
        schema._hold(leaves)
        return schema

    def __getitem__(self, name: str) -> RaggedLeaf:
        return self._leaves[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def __repr__(self) -> str:
        return f"RecordSchema({ {name: str(leaf) for name, leaf in self._leaves.items()} })"

    @functools.cached_property
    def text(self) -> bytes:
        """The schema as it stands in a segment."""
        rows = [[leaf.name, dtype_text(leaf.dtype), list(leaf.dims)] for leaf in self.leaves]
        return json.dumps(rows, separators=(",", ":")).encode()

    def plan(self) -> RecordPlan:
        """The schema, compiled for native code."""
        leaves = [(leaf.name, leaf.dtype, list(leaf.shape), leaf.row_bytes, leaf.ragged) for leaf in self.leaves]
        return RecordPlan(self, self.text, leaves)

    def conform(self, data: Any) -> list[np.ndarray[Any, Any]]:
        """The leaves of ``data`` as exact, contiguous arrays. Raises `SchemaMismatch` that names what does not fit."""
        if not isinstance(data, Mapping):
            raise SchemaMismatch(f"a record is a dict of {', '.join(self)}; this is a {type(data).__name__}")
        if data.keys() != self._leaves.keys():
            raise leaves_differ("record", self.keys(), {str(name) for name in data})
        return [_fit(leaf, data[leaf.name]) for leaf in self.leaves]

    def explain(self, foreign: ForeignSchema) -> SchemaMismatch:
        """Says how a schema elsewhere differs from this one."""
        return explain(self.text, foreign, "schema")


def _leaf_from_text(name: str, described: Any, dims: tuple[Any, ...]) -> RaggedLeaf:
    """A leaf that the core read from a text."""
    try:
        dtype = known_dtype(described)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SchemaMismatch(f"leaf '{short(name)}' has a dtype that is not known here: {error}") from None
    ragged = dims[:1] == ("*",)
    return RaggedLeaf(name, dtype, dims[ragged:], ragged)


def _fit(leaf: RaggedLeaf, value: Any) -> np.ndarray[Any, Any]:
    if type(value) is np.ndarray and _is_exact(leaf, value):
        return value
    array = _listed(leaf, value) if isinstance(value, list | tuple) else as_array(value, leaf.name, leaf.dtype)
    shape = array.shape[1:] if leaf.ragged and array.ndim else array.shape
    if array.dtype != leaf.dtype or shape != leaf.shape or (leaf.ragged and array.ndim == 0):
        raise SchemaMismatch(
            f"leaf '{leaf.name}' is {describe(array.dtype, array.shape)} here but {leaf} in the schema. "
            "Cast or reshape it before sending, or change the schema on both sides"
        )
    return np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray makes 0-d arrays 1-d


def _is_exact(leaf: RaggedLeaf, array: np.ndarray[Any, Any]) -> bool:
    fits = array.ndim == len(leaf.dims) and array.shape[leaf.ragged :] == leaf.shape
    return fits and array.dtype == leaf.dtype and array.flags.c_contiguous


def convert(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """The values in another dtype; ``None`` if one would be cut, wrapped or become infinite. Rounding is none of these.

    Raises `TypeError`, `ValueError` or `OverflowError` for what makes no numbers or text of that dtype at all.
    """
    if dtype.type is np.void:  # plain bytes: there is nothing to convert
        return values if values.dtype == dtype else None
    if (values.dtype.kind == "c" and dtype.kind != "c") or (dtype.kind in "SU" and values.dtype.kind != dtype.kind):
        return None
    with np.errstate(all="ignore"):
        converted = values.astype(dtype)
        if dtype.kind in "iubSU":
            same = np.array_equal(converted, values)
        else:
            finite = np.isfinite(converted)
            same = bool(finite.all() or (finite | ~np.isfinite(values)).all())
    return converted if same else None


def _listed(leaf: RaggedLeaf, value: list[Any] | tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """Plain lists take the dtype of their leaf, if that can hold them: [1, 2] fits float32, but [1.5] not int32."""
    if not value:
        return np.empty((0, *(leaf.shape if leaf.ragged else leaf.shape[1:])), leaf.dtype)
    try:
        natural = np.asarray(value)
        if np.can_cast(natural.dtype, leaf.dtype, "same_kind") or (natural.dtype.kind, leaf.dtype.kind) == ("i", "u"):
            converted = convert(natural, leaf.dtype)
            if converted is not None:
                return converted
    except (OverflowError, ValueError, TypeError) as error:
        raise SchemaMismatch(f"leaf '{leaf.name}' is a list that makes no {leaf} array: {error}") from None
    raise SchemaMismatch(f"leaf '{leaf.name}' is a list of {natural.dtype}, with values that do not fit {leaf}")
