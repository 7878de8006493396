"""Batches for a trainer: records as padded or packed arrays, copied once by native code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rollway._core import Record, RecordTable, plan_budget
from rollway.errors import InvalidArgument, SchemaMismatch
from rollway.schema.arrays import as_array, convert, describe
from rollway.schema.leaves import Leaf
from rollway.schema.record import RecordSchema

Array = np.ndarray[Any, Any]
_MAX_TOKENS = 2**31 - 1  # what int32 counts to
_MAX_BYTES = 2**63 - 1  # of an array
_INT8 = np.dtype(np.int8)


@dataclass(frozen=True)
class PaddedBatch:
    """Records of different lengths as rectangles.

    Attributes:
        fields: Ragged leaves as ``[B, T, …]``, fixed ones as ``[B, …]``: numpy arrays, or what ``out`` was.
        mask: ``[B, T]`` int8: 1 for data, 0 for padding, of the leaf ``by``.
        lengths: ``[B]`` int64: how long each record is in that leaf.
    """

    fields: dict[str, Any]
    mask: Any
    lengths: Array

    def torch(self) -> PaddedBatch:
        """The same memory as torch tensors."""
        return PaddedBatch(*_torch(self.fields, self.mask, self.lengths))

    def tensordict(self) -> Any:
        """The same memory as a `TensorDict` of B rows: the fields, ``mask`` and ``lengths``. Needs tensordict."""
        from rollway.torch import as_tensordict

        return as_tensordict(_merged(self.fields, mask=self.mask, lengths=self.lengths), len(self.lengths))

    def jax(self, device: Any = None) -> PaddedBatch:
        """Copies as arrays of JAX on a device, which never change."""
        return PaddedBatch(*_jax(device, self.fields, self.mask, self.lengths))

    def _arrays(self) -> list[Any]:
        return [*self.fields.values(), self.mask, self.lengths]

    def _of(self, arrays: list[Any]) -> PaddedBatch:
        """The same batch of other arrays, in the order of `_arrays`."""
        *fields, mask, lengths = arrays
        return PaddedBatch(dict(zip(self.fields, fields, strict=True)), mask, lengths)


@dataclass(frozen=True)
class PackedBatch:
    """Records one after the other, for variable-length attention kernels.

    Attributes:
        fields: Ragged leaves as ``[sum of lengths, …]``, fixed ones as ``[B, …]``.
        cu_seqlens: ``[B + 1]`` int32: where each record begins, and where the last one ends.
        max_length: The longest of them.
    """

    fields: dict[str, Any]
    cu_seqlens: Array
    max_length: int

    def torch(self) -> PackedBatch:
        """The same memory as torch tensors."""
        fields, cu_seqlens = _torch(self.fields, self.cu_seqlens)
        return PackedBatch(fields, cu_seqlens, self.max_length)

    def tensordict(self) -> Any:
        """The same memory as a `TensorDict` of the fields and ``cu_seqlens``. Needs tensordict.

        It has no batch dimension, because its tensors have different numbers of rows.
        """
        from rollway.torch import as_tensordict

        return as_tensordict(_merged(self.fields, cu_seqlens=self.cu_seqlens))

    def jax(self, device: Any = None) -> PackedBatch:
        """Copies as arrays of JAX on a device, which never change."""
        fields, cu_seqlens = _jax(device, self.fields, self.cu_seqlens)
        return PackedBatch(fields, cu_seqlens, self.max_length)

    def _arrays(self) -> list[Any]:
        return [*self.fields.values(), self.cu_seqlens]

    def _of(self, arrays: list[Any]) -> PackedBatch:
        """The same batch of other arrays, in the order of `_arrays`."""
        *fields, cu_seqlens = arrays
        return PackedBatch(dict(zip(self.fields, fields, strict=True)), cu_seqlens, self.max_length)


def pad(
    records: Sequence[Record],
    *,
    leaves: Sequence[str] | None = None,
    length: int | None = None,
    side: Literal["right", "left"] = "right",
    fill: Mapping[str, Any] | None = None,
    by: str | None = None,
    out: Mapping[str, Any] | None = None,
) -> PaddedBatch:
    """Records as ``[B, T]`` arrays with a mask.

    Args:
        records: Records of one schema that were not released. They may be released when this returns. A tombstone is
            an empty row.
        leaves: Which leaves; by default all.
        length: T; by default that of the longest record, for each leaf. A longer record is an error. With it the shape
            of ``out`` depends only on the number of records.
        side: Where the padding is: after the data (``"right"``) or before it.
        fill: The padding by ragged leaf, one value or one row; by default zero.
        by: The leaf of the mask and the lengths; by default the first ragged one.
        out: Arrays or torch tensors (pinned ones too) to write into, by leaf, and under ``"mask"`` for the mask. The
            others are made.

    >>> import rollway
    >>> with rollway.RecordServer({"tokens": "int32[*]"}) as server:
    ...     for n in (1, 3):
    ...         _ = server.submit({"tokens": list(range(n))})
    ...     batch = pad(server.read_many(2), fill={"tokens": -1})
    >>> batch.fields["tokens"].tolist(), batch.mask.tolist()
    ([[0, -1, -1], [0, 1, 2]], [[1, 0, 0], [1, 1, 1]])
    """
    if side not in ("right", "left"):
        raise InvalidArgument(f"side is {side!r}; it must be 'right' or 'left'")
    if fill is not None and not isinstance(fill, Mapping):
        raise InvalidArgument(f"fill is {fill!r:.50}; give it by leaf, like {{'tokens': -1}}")
    table = RecordRows(records, leaves)
    table.check_ragged(fill or ())
    measure = table.ragged(by)
    made, fields = _Outputs(out), {}
    packed: list[tuple[int, Array]] = []
    padded: list[tuple[int, Array, bytes]] = []
    for leaf in table.leaves:
        index = table.index(leaf)
        if leaf.ragged:
            value = _fill(leaf, fill[leaf.name]) if fill and leaf.name in fill else b"\0"
            shape = (len(table), table.width(leaf, length), *leaf.shape)
            fields[leaf.name], array = made.take(leaf.name, leaf.dtype, shape)
            padded.append((index, array, value))
        else:
            fields[leaf.name], array = made.take(leaf.name, leaf.dtype, (len(table), *leaf.shape))
            packed.append((index, array))
    mask, array = made.take("mask", _INT8, (len(table), table.width(measure, length)))
    made.check_all_used()
    batch = PaddedBatch(fields, mask, table.lengths(measure))
    # Last, because the copy displaces the interpreter from the caches.
    table.native.assemble(packed, padded, (table.index(measure), array), side == "left")
    return batch


def pack(
    records: Sequence[Record],
    *,
    leaves: Sequence[str] | None = None,
    by: str | None = None,
    out: Mapping[str, Any] | None = None,
) -> PackedBatch:
    """Records one after the other, with ``cu_seqlens``. Arguments as for `pad`.

    With ``out``, an array may be longer than the records need: the batch holds its first part.

    >>> import rollway
    >>> with rollway.RecordServer({"tokens": "int32[*]"}) as server:
    ...     for n in (1, 3):
    ...         _ = server.submit({"tokens": list(range(n))})
    ...     batch = pack(server.read_many(2))
    >>> batch.fields["tokens"].tolist(), batch.cu_seqlens.tolist()
    ([0, 0, 1, 2], [0, 1, 4])
    """
    table = RecordRows(records, leaves)
    measure = table.ragged(by)
    longest, total = table.native.extent(table.index(measure))
    if total > _MAX_TOKENS:
        raise InvalidArgument(f"{total} tokens are more than cu_seqlens (int32) can count: pack fewer records")
    made, fields = _Outputs(out), {}
    packed: list[tuple[int, Array]] = []
    for leaf in table.leaves:
        index, rows = table.index(leaf), len(table)
        if leaf.ragged:
            rows = total if leaf is measure else table.native.extent(index)[1]
        fields[leaf.name], array = made.take(leaf.name, leaf.dtype, (rows, *leaf.shape), longer=leaf.ragged)
        packed.append((index, array))
    made.check_all_used()
    cu_seqlens = np.empty(len(table) + 1, np.int32)
    table.native.cu_seqlens(table.index(measure), cu_seqlens)
    batch = PackedBatch(fields, cu_seqlens, longest)
    table.native.assemble(packed, [], None, False)  # last, as in `pad`
    return batch


def token_batches(
    records: Sequence[Record], budget: int, *, layout: Literal["padded", "packed"], by: str | None = None
) -> list[list[Record]]:
    """Splits records, in order, into batches of at most ``budget`` tokens: ``B * T`` padded, or the sum packed.

    A record that is longer than the budget is an error that names it.
    """
    if layout not in ("padded", "packed"):
        raise InvalidArgument(f"layout is {layout!r}; it must be 'padded' or 'packed'")
    if not records:
        return []
    table = RecordRows(records, None)
    spans = plan_budget(table.lengths(table.ragged(by)).tolist(), budget, layout == "packed")
    return [table.records[first:end] for first, end in spans]


class RecordRows:
    """Records of one schema, and the leaves that the batch has."""

    schema: RecordSchema

    def __init__(self, records: Sequence[Record], leaves: Sequence[str] | None) -> None:
        self.records = records if isinstance(records, list) else list(records)
        self.native = RecordTable(self.records)
        self.schema = self.native.plan.schema
        if isinstance(leaves, str):
            raise InvalidArgument(f"leaves is the text {leaves!r}; give a list, like [{leaves!r}]")
        unknown = [name for name in leaves or () if name not in self.schema]
        if unknown:
            raise InvalidArgument(
                f"there is no leaf {', '.join(map(repr, unknown))}; there are {', '.join(self.schema)}"
            )
        self.leaves = self.schema.leaves if leaves is None else tuple(self.schema[name] for name in leaves)

    def index(self, leaf: Leaf) -> int:
        """The place of a leaf in the schema."""
        return self.schema.leaves.index(leaf)

    def ragged(self, by: str | None) -> Leaf:
        """The leaf of the mask and the lengths."""
        for leaf in self.leaves:
            if leaf.ragged and by in (None, leaf.name):
                return leaf
        raise InvalidArgument(f"{by!r} is no ragged leaf of the batch" if by else "the batch has no ragged leaf")

    def check_ragged(self, names: Iterable[str]) -> None:
        """Checks that these are ragged leaves of the schema, whether the batch has them or not."""
        for name in names:
            if name not in self.schema or not self.schema[name].ragged:
                ragged = ", ".join(leaf.name for leaf in self.schema.leaves if leaf.ragged)
                raise InvalidArgument(f"fill has {name!r}, which is no ragged leaf; those are {ragged}")

    def __len__(self) -> int:
        return len(self.records)

    def lengths(self, leaf: Leaf) -> Array:
        """How long each record is in a leaf."""
        lengths = np.empty(len(self.records), np.int64)
        self.native.lengths(self.index(leaf), lengths)
        return lengths

    def width(self, leaf: Leaf, length: int | None) -> int:
        """T of a padded leaf. Longer records are an error."""
        longest, _ = self.native.extent(self.index(leaf))
        if length is None:
            return longest
        most = _MAX_BYTES // (len(self) * max(leaf.row_bytes, 1))
        if not 0 <= length <= most:
            raise InvalidArgument(f"length = {length} is out of range: 0 to {most:,} for {len(self)} records of {leaf}")
        if longest > length:
            row = int(self.lengths(leaf).argmax())
            raise InvalidArgument(f"record {row} has {longest} rows of '{leaf.name}', more than length = {length}")
        return length


class _Outputs:
    """The arrays of a batch: those of the caller, or new ones."""

    def __init__(self, given: Mapping[str, Any] | None) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise InvalidArgument(f"out is a {type(given).__name__}; give a dict by leaf, like {{'tokens': tensor}}")
        self._given = dict(given or {})

    def take(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], longer: bool = False) -> tuple[Any, Array]:
        """The object for the batch, and the array over the same memory to copy into."""
        if name not in self._given:
            made = np.empty(shape, dtype)
            return made, made
        kept = self._given.pop(name)
        array = _memory(name, kept)
        if longer and array.ndim and array.shape[1:] == shape[1:] and array.shape[0] > shape[0]:
            kept, array = kept[: shape[0]], array[: shape[0]]
        if array.dtype != dtype or array.shape != shape:
            given = describe(array.dtype, array.shape)
            raise InvalidArgument(f"out['{name}'] is {given}, but the batch needs {describe(dtype, shape)}")
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise InvalidArgument(f"out['{name}'] must be contiguous, and writable")
        return kept, array

    def check_all_used(self) -> None:
        if self._given:
            raise InvalidArgument(f"out has {', '.join(map(repr, self._given))}, which the batch does not")


def _memory(name: str, given: Any) -> Array:
    """The array over the memory of the caller's object."""
    try:
        return as_array(given, name, None)
    except SchemaMismatch:
        where = f"on {given.device}" if hasattr(given, "device") else f"a {type(given).__name__}"
        raise InvalidArgument(
            f"out['{name}'] is {where}; it must be a numpy array or a CPU tensor, pinned or not"
        ) from None


def _fill(leaf: Leaf, value: Any) -> bytes:
    """One item or one row of the padding, as bytes."""
    try:
        given = np.asarray(value)
        item = convert(given, leaf.dtype) if given.shape in ((), leaf.shape) else None
    except (TypeError, ValueError, OverflowError):
        item = None
    if item is None:
        row = f" or a row of {list(leaf.shape)}" if leaf.shape else ""
        raise InvalidArgument(f"fill['{leaf.name}'] is {value!r}, which is no {leaf.dtype}{row}")
    return item.tobytes()


def _torch(*trees: Any) -> Iterator[Any]:
    from rollway.torch import as_tensors

    return map(as_tensors, trees)


def _jax(device: Any, *trees: Any) -> Iterator[Any]:
    from rollway.jax import as_arrays

    return (as_arrays(tree, device) for tree in trees)


def _merged(fields: dict[str, Any], **others: Any) -> dict[str, Any]:
    """The fields and what the batch has beside them, in one dict."""
    if taken := sorted(fields.keys() & others.keys()):
        raise SchemaMismatch(
            f"leaf '{taken[0]}' has the name that the batch's own {taken[0]} gets in the TensorDict: leave it out with "
            "leaves=…, or use torch()"
        )
    return {**fields, **others}
