"""RecordSchema: the named arrays of a record. Some have a different length in every record.

It checks and converts what is sent. Native code calls it only for records that are not dicts of exact arrays.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rollway._core import RecordPlan, read_schema
from rollway.errors import ForeignSchema, SchemaMismatch
from rollway.schema.arrays import Casting, as_leaf, check_casting, describe
from rollway.schema.leaves import Leaf, read_leaves
from rollway.schema.pytree import dtype_text, explain, known_dtype, leaves_differ, short

_EXAMPLE = "{'tokens': 'int32[*]'}"


class RecordSchema(Mapping[str, Leaf]):
    """The leaves of a record, by name, in the order given.

    Args:
        leaves: ``{"tokens": "int32[n]", "logprobs": "float32[n]", "score": "float32[]", "image": "uint8[84,84]"}``. A
            first dimension of ``*`` has any length. All leaves with the same letter have the same length in each
            record, which is checked when it is sent. A leaf may also be an example array, a pair like ``((84, 84),
            np.uint8)`` or a Gymnasium space. The leaves of a Dict or Tuple space, and of a dict, are called
            ``part/leaf``.

    >>> schema = RecordSchema({"tokens": "int32[n]", "logprobs": "float32[n]", "score": "float32[]"})
    >>> [f"{leaf.name}: {leaf}" for leaf in schema.values()]
    ['tokens: int32[n]', 'logprobs: float32[n]', 'score: float32[]']
    """

    def __init__(self, leaves: Mapping[str, Any]) -> None:
        if not isinstance(leaves, Mapping):
            raise SchemaMismatch(f"the schema is a {type(leaves).__name__}; it must be a dict, like {_EXAMPLE}")
        self._hold(read_leaves(leaves))
        if not self.leaves:
            raise SchemaMismatch(f"the schema has no leaves: give at least one, like {_EXAMPLE}")

    def _hold(self, leaves: dict[str, Leaf]) -> None:
        self._leaves = leaves
        self.leaves = tuple(leaves.values())
        """The same, in order."""
        self.casting: Casting = "no"

    @classmethod
    def of(cls, schema: RecordSchema | Mapping[str, Any], casting: Casting = "no") -> RecordSchema:
        """A schema; returns one that is given, unless it casts otherwise."""
        check_casting(casting)
        given = schema if isinstance(schema, RecordSchema) else cls(schema)
        if given.casting == casting:
            return given
        casts = copy.copy(given)
        casts.casting = casting
        return casts

    @classmethod
    def from_text(cls, text: bytes) -> RecordSchema:
        """The schema in the header of a segment."""
        try:
            parsed = read_schema(text)
            leaves = {name: _leaf_from_text(name, dtype, dims) for name, dtype, dims in parsed}
        except SchemaMismatch as error:
            raise SchemaMismatch(f"these records cannot be read here: {error}") from None
        if len(leaves) != len(parsed):
            raise SchemaMismatch("these records cannot be read here: two leaves have the same name")
        schema = cls.__new__(cls)
        schema._hold(leaves)
        return schema

    def __getitem__(self, name: str) -> Leaf:
        return self._leaves[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def __repr__(self) -> str:
        return f"RecordSchema({ {name: str(leaf) for name, leaf in self._leaves.items()} })"

    @functools.cached_property
    def text(self) -> bytes:
        """The schema as text, for the header of a segment."""
        rows = [[leaf.name, dtype_text(leaf.dtype), list(leaf.dims)] for leaf in self.leaves]
        return json.dumps(rows, separators=(",", ":")).encode()

    def plan(self) -> RecordPlan:
        """The schema, compiled for native code."""
        leaves = [
            (leaf.name, leaf.dtype, list(leaf.shape), leaf.row_bytes, (leaf.tie or "*") if leaf.ragged else None)
            for leaf in self.leaves
        ]
        return RecordPlan(self, self.text, leaves, self.casting == "same_kind")

    def conform(self, data: Any) -> list[np.ndarray[Any, Any]]:
        """The leaves of ``data`` as exact, contiguous arrays. Raises `SchemaMismatch` that names what does not fit."""
        if not isinstance(data, Mapping):
            raise SchemaMismatch(f"a record is a dict of {', '.join(self)}; this is a {type(data).__name__}")
        if data.keys() != self._leaves.keys():
            raise leaves_differ("record", self.keys(), {str(name) for name in data})
        return [_fit(leaf, data[leaf.name], self.casting) for leaf in self.leaves]

    def explain(self, foreign: ForeignSchema) -> SchemaMismatch:
        """The error that says how another schema differs from this one."""
        return explain(self.text, foreign, "schema")


def _leaf_from_text(name: str, described: Any, dims: tuple[Any, ...]) -> Leaf:
    """A leaf that the core read from a text."""
    try:
        dtype = known_dtype(described)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SchemaMismatch(f"leaf '{short(name)}' has a dtype that is unknown here: {error}") from None
    ragged = isinstance(dims[0], str) if dims else False
    return Leaf(name, dtype, dims[ragged:], ragged, dims[0] if ragged and dims[0] != "*" else None)


def _fit(leaf: Leaf, value: Any, casting: Casting) -> np.ndarray[Any, Any]:
    if type(value) is np.ndarray and _is_exact(leaf, value):
        return value
    array = as_leaf(value, leaf.name, leaf.dtype, leaf.dims, casting)
    shape = array.shape[1:] if leaf.ragged and array.ndim else array.shape
    if array.dtype != leaf.dtype or shape != leaf.shape or (leaf.ragged and array.ndim == 0):
        raise SchemaMismatch(
            f"leaf '{leaf.name}' is {describe(array.dtype, array.shape)} here but {leaf} in the schema. "
            "Cast or reshape it before sending, or change the schema on both sides"
        )
    return np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray makes 0-d arrays 1-d


def _is_exact(leaf: Leaf, array: np.ndarray[Any, Any]) -> bool:
    fits = array.ndim == len(leaf.dims) and array.shape[leaf.ragged :] == leaf.shape
    return fits and array.dtype == leaf.dtype and array.flags.c_contiguous
