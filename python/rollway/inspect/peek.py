"""Peek: the newest samples, records, rows or weights of a segment, not consumed, and a summary of each leaf."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollway._core import read_schema, read_weight_schema
from rollway.errors import InvalidArgument, RollwayError
from rollway.inspect.look import Inspection
from rollway.records.key import RecordKey
from rollway.records.metadata import decode
from rollway.replay.batch import RowLayout
from rollway.schema.arrays import describe
from rollway.schema.pytree import known_dtype
from rollway.schema.record import RecordSchema
from rollway.weights.tree import numpy_dtype

Array = np.ndarray[Any, Any]

_BUCKETS = 8
_TOMBSTONE, _JSON = 1, 2  # bits of a record's kind
_POLL_S = 0.002
_MOST_VALUES = 1000  # of an array, in JSON


@dataclass(frozen=True)
class LeafSummary:
    """One leaf over all items that were copied. Of arrays that are not numbers, only the counts are known."""

    name: str
    form: str
    """``float32[4]``: dtype and shape, as in the schema."""
    values: int
    """How many numbers were looked at."""
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    """These three are of the finite values."""
    nans: int = 0
    infinities: int = 0
    zeros: int = 0
    histogram: tuple[int, ...] = ()
    """How many finite values lie in each eighth from the minimum to the maximum."""


@dataclass(frozen=True)
class Item:
    """One sample, record, row, or version of the weights."""

    number: int
    """Of its batch, of its lane's records, of the row, or of the version."""
    age_s: float | None
    """Seconds since it was committed; ``None`` for rows, which do not say so."""
    producer_id: int
    sequence: int
    version: int
    """Of the weights that it was made with."""
    leaves: dict[str, Array] = field(repr=False)
    """Copies, which belong to you. A leaf of weights of more than 16 MB is flat, and only its beginning."""
    key: RecordKey | None = None
    metadata: Any = None
    tombstone: bool = False


@dataclass(frozen=True)
class Peek:
    """What `peek` found."""

    name: str
    kind: str
    schema: dict[str, str]
    items: tuple[Item, ...]
    """The newest first."""
    leaves: tuple[LeafSummary, ...]


def peek(name: str, count: int = 3, *, timeout: float = 0.0) -> Peek:
    """Copies the newest ``count`` samples, records or rows of a segment, or its newest weights, and consumes nothing.

    Samples can be seen until their slot is written again, also after the learner released them. Records can be seen
    until the learner releases them: where it is faster than the workers, ``timeout`` says for how many seconds to look
    for one.

    >>> import numpy as np, rollway
    >>> with rollway.Server({"reward": np.float32(0)}, batch_size=4, transport=rollway.ShmTransport()) as server:
    ...     for reward in (1.0, 2.0, float("nan")):
    ...         _ = server.submit({"reward": np.float32(reward)})
    ...     seen = peek(server.name)
    ...     ready = server.stats()["ready_samples"]
    >>> seen.schema, [float(item.leaves["reward"]) for item in seen.items], seen.leaves[0].nans, ready
    ({'reward': 'float32[]'}, [nan, 2.0, 1.0], 1, 3)
    """
    if count < 1:
        raise InvalidArgument(f"count = {count} is out of range: at least 1")
    inspection = Inspection(name)
    reader = _READERS.get(inspection.kind)
    if reader is None:
        kinds = ", ".join(_READERS)
        raise InvalidArgument(
            f"segment '{name}' is a {inspection.kind}: there is nothing to peek at. It works for {kinds}"
        )
    deadline = time.monotonic() + timeout
    while True:
        schema, items = reader(inspection, count)
        if items or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    items.sort(key=lambda item: item.age_s or 0.0)
    leaves = tuple(_summary(leaf, form, items) for leaf, form in schema.items())
    return Peek(name, inspection.kind, schema, tuple(items), leaves)


_Found = tuple[dict[str, str], list[Item]]


def _samples(inspection: Inspection, count: int) -> _Found:
    leaves = [(name, known_dtype(dtype), dims) for name, dtype, dims in read_schema(inspection.native.schema)]
    items = []
    for row in inspection.native.newest(count):
        parts = zip(leaves, row.pop("parts"), strict=True)
        items.append(_item(row, {name: _array(part, dtype, dims) for (name, dtype, dims), part in parts}))
    return {name: describe(dtype, dims) for name, dtype, dims in leaves}, items


def _records(inspection: Inspection, count: int) -> _Found:
    schema = RecordSchema.from_text(inspection.native.schema)
    plan = schema.plan()
    items = []
    for row in inspection.native.newest(count):
        (record,) = row.pop("parts")
        (key, _), (metadata, _), *parts = inspection.native.record_parts(plan, record)
        kind = row["kind"]
        leaves = {
            leaf.name: _array(part, leaf.dtype, (rows, *leaf.shape) if leaf.ragged else leaf.shape)
            for leaf, (part, rows) in zip(schema.leaves, parts, strict=True)
        }
        items.append(
            _item(
                row,
                {} if kind & _TOMBSTONE else leaves,
                key=RecordKey.unpack(key) if key else None,
                metadata=_metadata(metadata, kind),
                tombstone=bool(kind & _TOMBSTONE),
            )
        )
    return {name: str(leaf) for name, leaf in schema.items()}, items


def _rows(inspection: Inspection, count: int) -> _Found:
    schema = RecordSchema.from_text(inspection.native.schema)
    layout = RowLayout(schema)
    items = []
    for row in inspection.native.newest(count):
        (packed,) = row.pop("parts")
        fields = zip(schema.leaves, layout.native, strict=True)
        leaves = {leaf.name: _array(packed[at : at + size], leaf.dtype, leaf.shape) for leaf, (*_, size, at) in fields}
        items.append(_item(row, leaves))
    return {name: str(leaf) for name, leaf in schema.items()}, items


def _weights(inspection: Inspection, count: int) -> _Found:
    leaves, _ = read_weight_schema(inspection.native.schema)
    items = []
    for row in inspection.native.newest(count):
        parts = zip(leaves, row.pop("parts"), strict=True)
        items.append(_item(row, {name: _array(part, numpy_dtype(dtype), dims) for (name, dtype, dims), part in parts}))
    return {name: describe(dtype, dims) for name, dtype, dims in leaves}, items


_READERS = {"ring": _samples, "records": _records, "replay": _rows, "weights": _weights}


def _array(part: bytes, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """A copy; flat when it is only the beginning of the leaf."""
    array = np.frombuffer(part, dtype).copy()
    return array.reshape(shape) if array.size == int(np.prod(shape, dtype=np.int64)) else array


def _item(row: dict[str, Any], leaves: dict[str, Array], **more: Any) -> Item:
    age = row["age_ns"]
    numbers = {name: row[name] for name in ("number", "producer_id", "sequence", "version")}
    return Item(**numbers, age_s=None if age is None else age / 1e9, leaves=leaves, **more)


def _metadata(packed: bytes, kind: int) -> Any:
    if not packed:
        return None
    try:
        return decode(packed) if kind & _JSON else packed
    except RollwayError:
        return packed


def _summary(name: str, form: str, items: Sequence[Item]) -> LeafSummary:
    arrays = [item.leaves[name] for item in items if name in item.leaves]
    values = np.concatenate([_numbers(array) for array in arrays]) if arrays else np.zeros(0)
    count = sum(array.size for array in arrays)
    if not values.size:
        return LeafSummary(name, form, count)
    finite = values[np.isfinite(values)]
    nans = int(np.isnan(values).sum())
    infinities = int(values.size - finite.size - nans)
    if not finite.size:
        return LeafSummary(name, form, count, nans=nans, infinities=infinities)
    low, high = float(finite.min()), float(finite.max())
    scaled = (finite - low) / (high - low) if high > low else np.zeros_like(finite)
    buckets = np.bincount(np.minimum((scaled * _BUCKETS).astype(int), _BUCKETS - 1), minlength=_BUCKETS)
    zeros = int((finite == 0).sum())
    histogram = tuple(int(bucket) for bucket in buckets)
    return LeafSummary(name, form, count, low, high, float(finite.mean()), nans, infinities, zeros, histogram)


def _numbers(array: Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The values as floats; none of an array that is not of numbers. Of complex ones, the absolute values."""
    if array.dtype.fields is not None or array.dtype.kind in "SUMmO" or array.dtype.type is np.void:
        return np.zeros(0)
    flat = array.ravel()
    return (np.abs(flat) if flat.dtype.kind == "c" else flat).astype(np.float64)


def jsonable(seen: Peek) -> dict[str, Any]:
    """What was found as plain values, for `json.dumps`: of each array the shape and the first values."""
    items = []
    for item in seen.items:
        numbers = {name: value for name, value in vars(item).items() if name not in ("leaves", "key", "metadata")}
        leaves = {name: _jsonable_array(array) for name, array in item.leaves.items()}
        key = item.key._asdict() if item.key else None
        items.append({**numbers, "key": key, "metadata": _jsonable(item.metadata), "leaves": leaves})
    summaries = [{name: _jsonable(value) for name, value in vars(leaf).items()} for leaf in seen.leaves]
    return {"name": seen.name, "kind": seen.kind, "schema": seen.schema, "leaves": summaries, "items": items}


def _jsonable_array(array: Array) -> dict[str, Any]:
    return {"shape": list(array.shape), "values": _jsonable(array.ravel()[:_MOST_VALUES].tolist())}


def _jsonable(value: Any) -> Any:
    """JSON has no NaN, no infinities and no bytes: these are text."""
    if isinstance(value, list | tuple):
        return [_jsonable(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _jsonable(one) for name, one in value.items()}
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
