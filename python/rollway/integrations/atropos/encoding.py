"""Encoding: a `ScoredDataGroup` as records, one for each trajectory, and back without loss.

Numbers are sent as arrays (`ATROPOS_SCHEMA`), which a trainer reads in place. Everything else (messages, images,
overrides, unknown keys) is sent as the JSON metadata of the records.

```text
a list with one entry for each trajectory ── entry i is in record i: as an array if the schema has one for it and the
                                              entry fits it exactly, otherwise as JSON under "own"
anything else, None too ──────────────────── as JSON under "whole", in every record
```
"""

from __future__ import annotations

import base64
import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from rollway.errors import InvalidArgument, SchemaMismatch
from rollway.records.metadata import encode

ATROPOS_SCHEMA: dict[str, str] = {
    "tokens": "int32[*]",
    "masks": "int32[*]",
    "score": "float64[]",
    "advantages": "float64[*]",
    "ref_logprobs": "float64[*]",
    "inference_logprobs": "float64[*]",
    "distill_token_ids": "int32[*]",
    "distill_logprobs": "float64[*]",
}
"""The schema of a trajectory of Atropos as a record.

As in Atropos, ``masks`` holds token ids, and −100 where nothing is trained. Numbers with a fraction are doubles, as in
JSON, so nothing is rounded. A field that the group does not have is empty; a missing ``score`` is NaN. Fields with more
than one dimension are flattened; `decode_group` restores them.
"""

LARGEST_GROUP = 1 << 16
"""The largest number of trajectories in a group. Another process sends the number, and a reader counts up to it."""

_LEAF_OF = {"scores": "score", **{name: name for name in ATROPOS_SCHEMA if name != "score"}}
_DTYPES = {name: np.dtype(notation.partition("[")[0]) for name, notation in ATROPOS_SCHEMA.items()}
_NEEDED = ("tokens", "masks", "scores")
_EXACT = 2.0**53  # whole numbers up to here are exact as doubles
_FORMAT = 1
_SAID = {"group_size": int, "whole": dict, "own": dict, "leaves": dict, "bytes": str}  # in the metadata of every record

Array = np.ndarray[Any, Any]


class EncodedRecord(NamedTuple):
    """One trajectory, ready to be sent: ``client.send(data, metadata=metadata, …)``."""

    data: dict[str, Array]
    metadata: dict[str, Any]


class RecordLike(Protocol):
    """What `decode_group` reads: a `rollway.records.Record`, or an object with these members."""

    @property
    def metadata(self) -> Any:
        """As `encode_group` made it."""

    @property
    def key(self) -> Any:
        """A `RecordKey`."""

    def __getitem__(self, leaf: str) -> Array: ...


def encode_group(group: Mapping[str, Any]) -> list[EncodedRecord]:
    """The trajectories of a `ScoredDataGroup`, in order.

    Raises `SchemaMismatch` if tokens or masks are not one list of 32-bit whole numbers for each trajectory, and
    `InvalidArgument` if a field holds a value that neither JSON nor an array can hold. The group is not changed.

    >>> group = {"tokens": [[1, 2, 3], [1, 4]], "masks": [[-100, 2, 3], [-100, 4]], "scores": [1.0, 0.0]}
    >>> records = encode_group({**group, "images": None})
    >>> records[1].data["tokens"].tolist(), records[1].metadata["whole"]
    ([1, 4], {'images': None})
    """
    size = _size(group)
    shared, own = _split(group, size)
    marker = f"bytes:{uuid.uuid4().hex}"
    whole = {name: _plain(name, value, marker) for name, value in shared.items()}
    return [_encode_one(size, index, whole, own, marker) for index in range(size)]


def group_size(record: RecordLike) -> int | None:
    """How many trajectories the group of a record has; ``None`` if `encode_group` did not make it."""
    said = record.metadata
    if not isinstance(said, dict) or said.get("atropos") != _FORMAT:
        return None
    if [type(said.get(name)) for name in _SAID] != [*_SAID.values()]:
        return None
    size: int = said["group_size"]
    return size if 0 < size <= LARGEST_GROUP else None


def metadata_beginning(size: int) -> bytes:
    """How the metadata of each record of a group of this size begins, as bytes."""
    return encode({"atropos": _FORMAT, "group_size": size}).removesuffix(b"}") + b","


def decode_trajectory(record: RecordLike) -> dict[str, Any]:
    """One trajectory: its own entry of each field, and the fields of the whole group.

    Arrays with one dimension are views of the record; copy what must outlive it. ``scores`` is a float.
    """
    said = _description(record)
    with _sensible(record):
        fields: dict[str, Any] = _restored(said["whole"], said["bytes"])
        fields |= _restored(said["own"], said["bytes"])
        for name, shape in said["leaves"].items():
            array = record[_LEAF_OF[name]]
            fields[name] = array if shape is None else array.reshape(shape)
        if "scores" in said["leaves"]:
            fields["scores"] = float(fields["scores"])
    return fields


def decode_group(records: Iterable[RecordLike]) -> dict[str, Any]:
    """The `ScoredDataGroup` of these records, in plain lists.

    The records may come in any order, but must be all of one group; otherwise `InvalidArgument`.
    """
    ordered = sorted(records, key=lambda record: record.key.repetition_id)
    if not ordered:
        raise InvalidArgument("a group has at least one record")
    described = [_description(record) for record in ordered]
    size = described[0]["group_size"]
    if [record.key.repetition_id for record in ordered] != list(range(size)):
        there = [record.key.repetition_id for record in ordered]
        raise InvalidArgument(f"the group {ordered[0].key.group} has {size} trajectories; these are {there}")
    if len({record.key.group for record in ordered}) != 1:
        raise InvalidArgument(f"records of different groups: {sorted({record.key.group for record in ordered})}")
    with _sensible(ordered[0]):
        group: dict[str, Any] = _restored(described[0]["whole"], described[0]["bytes"])
        for name in (*described[0]["leaves"], *described[0]["own"]):
            group[name] = [_entry(record, said, name) for record, said in zip(ordered, described, strict=True)]
    return group


def _size(group: Mapping[str, Any]) -> int:
    for name in _NEEDED:
        if not _listed(group.get(name)):
            raise SchemaMismatch(
                f"a group needs '{name}', one entry for each trajectory; here it is {group.get(name)!r}"
            )
    sizes = {name: len(group[name]) for name in _NEEDED}
    if len(set(sizes.values())) != 1 or not sizes["tokens"]:
        raise SchemaMismatch(f"tokens, masks and scores must have one entry for each trajectory; they have {sizes}")
    if sizes["tokens"] > LARGEST_GROUP:
        raise SchemaMismatch(f"a group of {sizes['tokens']:,} trajectories; it may have {LARGEST_GROUP:,}")
    return sizes["tokens"]


def _split(group: Mapping[str, Any], size: int) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
    """The fields of the group as a whole, and those with one entry for each trajectory."""
    own = {name: value for name, value in group.items() if _listed(value) and len(value) == size}
    return {name: value for name, value in group.items() if name not in own}, own


def _listed(value: Any) -> bool:
    return isinstance(value, list | tuple) or (hasattr(value, "tolist") and getattr(value, "ndim", 0) > 0)


def _encode_one(
    size: int, index: int, whole: dict[str, Any], own: dict[str, Sequence[Any]], marker: str
) -> EncodedRecord:
    data = {leaf: np.empty(0, dtype) for leaf, dtype in _DTYPES.items()}
    data["score"] = np.array(np.nan)
    shapes: dict[str, list[int] | None] = {}
    free: dict[str, Any] = {}
    for name, entries in own.items():
        leaf = _LEAF_OF.get(name)
        array = None if leaf is None else _exact(entries[index], _DTYPES[leaf])
        if leaf is None or array is None or (name == "scores" and array.ndim):
            if name in ("tokens", "masks"):
                raise SchemaMismatch(f"'{name}' of trajectory {index} must be a list of whole numbers of 32 bits")
            free[name] = _plain(name, entries[index], marker)
            continue
        shapes[name] = None if array.ndim == 1 or name == "scores" else list(array.shape)
        data[leaf] = array if name == "scores" else array.reshape(-1)
    metadata = {"atropos": _FORMAT, "group_size": size, "whole": whole, "own": free, "leaves": shapes, "bytes": marker}
    return EncodedRecord(data, metadata)


def _exact(value: Any, dtype: np.dtype[Any]) -> Array | None:
    """The value as an array of this dtype; ``None`` if that would change it."""
    try:
        natural = np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError):  # lists of uneven length; a tensor on a device
        return None
    if natural.size == 0 and natural.dtype.kind in "biuf":
        return natural.astype(dtype)
    if dtype.kind == "i":
        if natural.dtype.kind not in "biu":
            return None
        limits = np.iinfo(dtype)
        fits = natural.min() >= limits.min and natural.max() <= limits.max
    else:
        if natural.dtype.kind not in "biuf":
            return None
        # Large whole numbers may have been rounded by `asarray`: JSON keeps them.
        fits = not np.any(np.isfinite(natural) & (np.abs(natural) >= _EXACT))
    return np.ascontiguousarray(natural, dtype).reshape(natural.shape) if fits else None


def _plain(name: str, value: Any, marker: str) -> Any:
    """The value in JSON types. Tuples become lists and keys become text, as over HTTP."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {key: _plain(name, entry, marker) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, entry, marker) for entry in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {marker: base64.b64encode(value).decode("ascii")}
    if hasattr(value, "tolist"):  # numpy's arrays and scalars, torch's tensors
        return _plain(name, value.tolist(), marker)
    raise InvalidArgument(
        f"field '{name}' holds a {type(value).__name__}, which cannot be sent. Make it text, bytes, numbers, or lists "
        "and dicts of them"
    )


def _restored(value: Any, marker: str) -> Any:
    """The inverse of `_plain`."""
    if isinstance(value, dict):
        if value.keys() == {marker}:
            return base64.b64decode(value[marker])
        return {key: _restored(entry, marker) for key, entry in value.items()}
    if isinstance(value, list):
        return [_restored(entry, marker) for entry in value]
    return value


def _description(record: RecordLike) -> dict[str, Any]:
    if group_size(record) is None:
        raise InvalidArgument(f"record {record.key} does not come from an Atropos environment (format {_FORMAT})")
    said: dict[str, Any] = record.metadata
    return said


@contextlib.contextmanager
def _sensible(record: RecordLike) -> Iterator[None]:
    """Raises `InvalidArgument` for metadata that this module did not write."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"the metadata of record {record.key} does not describe a group of an Atropos environment: {error!r}"
        ) from error


def _entry(record: RecordLike, said: dict[str, Any], name: str) -> Any:
    if name in said["own"]:
        return _restored(said["own"][name], said["bytes"])
    array, shape = record[_LEAF_OF[name]], said["leaves"][name]
    return array.tolist() if shape is None else array.reshape(shape).tolist()
