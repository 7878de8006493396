"""Batches of records and of groups for a device: native code gathers them into one block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from rollway._core import Record
from rollway.device.block import Allocate, Array, BatchSource, BlockLayout, HostBatch, Path
from rollway.errors import ConnectionClosedError, InvalidArgument, WaitTimeout
from rollway.records.batches import PackedBatch, PaddedBatch, RecordRows, pack, pad

if TYPE_CHECKING:
    from rollway.records.groups import GroupAssembler
    from rollway.records.server import RecordServer

Layout = Literal["padded", "packed"]
_AT_ONCE = 64  # records read by one call


class BatchOptions(TypedDict, total=False):
    """Options of `pad` and `pack`; ``length``, ``side`` and ``fill`` are for padded batches only."""

    leaves: Sequence[str] | None
    by: str | None
    length: int | None
    side: Literal["right", "left"]
    fill: Mapping[str, Any] | None


class RecordGatherer:
    """Makes padded or packed batches, each in one block."""

    def __init__(self, layout: Layout, options: BatchOptions) -> None:
        if layout not in ("padded", "packed"):
            raise InvalidArgument(f"layout is {layout!r}; it must be 'padded' or 'packed'")
        known = BatchOptions.__annotations__.keys() if layout == "padded" else ("leaves", "by")
        if unknown := [name for name in options if name not in known]:
            raise InvalidArgument(f"{unknown[0]} is no option of {layout} batches; those are {', '.join(known)}")
        self._layout, self._options = layout, options

    def gather(self, records: list[Record], allocate: Allocate, wrap: Any = None) -> HostBatch:
        """Records as one batch; ``wrap`` makes what the caller gets of it."""
        rows = RecordRows(records, self._options.get("leaves"))
        measure, leaves = rows.ragged(self._options.get("by")), list(dict.fromkeys(rows.leaves))
        forms: list[tuple[Path, np.dtype[Any], tuple[int, ...]]] = []
        for leaf in leaves:
            shape: tuple[int, ...] = (len(records),)
            if leaf.ragged:
                width, total = rows.width(leaf, self._options.get("length")), rows.native.extent(rows.index(leaf))[1]
                shape = (len(records), width) if self._layout == "padded" else (total,)
            forms.append(((leaf.name,), leaf.dtype, (*shape, *leaf.shape)))
        if self._layout == "padded":
            mask = (len(records), rows.width(measure, self._options.get("length")))
            forms.append((("mask",), np.dtype(np.int8), mask))
            forms.append((("lengths",), np.dtype(np.int64), (len(records),)))
        else:
            forms.append((("cu_seqlens",), np.dtype(np.int32), (len(records) + 1,)))
        made: list[PaddedBatch | PackedBatch] = []

        def build(arrays: list[Any]) -> Any:
            batch = made[0]._of(arrays)
            return batch if wrap is None else wrap(batch)

        layout = BlockLayout.one_after_the_other(forms, build)
        block = allocate(layout.nbytes)
        places = layout.over(block)
        out = {leaf.name: place for leaf, place in zip(leaves, places, strict=False)}
        if self._layout == "padded":
            made.append(pad(records, out={"mask": places[-2], **out}, **self._options))
        else:
            made.append(pack(records, out=out, **self._options))  # type: ignore[misc] # checked above
        _copy_the_others(made[0]._arrays(), places)
        return HostBatch(block, layout)


def _copy_the_others(arrays: list[Array], places: list[Array]) -> None:
    """Copies what was not written where it belongs: lengths, and a mask beside a leaf of that name."""
    for array, place in zip(arrays, places, strict=True):
        if array.ctypes.data != place.ctypes.data:
            place[...] = array


class RecordSource(BatchSource):
    """Batches of so many records, without tombstones. The last one, when the records are shut down, may be smaller."""

    def __init__(self, server: RecordServer, batch_size: int, gatherer: RecordGatherer) -> None:
        if batch_size < 1:
            raise InvalidArgument(f"batch_size = {batch_size} is out of range: at least 1")
        self._server, self._batch_size, self._gatherer = server, batch_size, gatherer
        self._held: list[Record] = []

    def take(self, allocate: Allocate, *, wait: bool) -> HostBatch | None:
        """The next batch; see `BatchSource`."""
        try:
            while len(self._held) < self._batch_size:
                records = self._read(wait)
                if not records:
                    return None
                self._held += [record for record in records if not record.is_tombstone]
        except ConnectionClosedError:
            if not self._held:
                raise
        records, self._held = self._held, []
        return self._gatherer.gather(records, allocate)

    def _read(self, wait: bool) -> list[Record]:
        missing = self._batch_size - len(self._held)
        records = self._server.try_read_many(missing)
        if records or not wait:
            return records
        for record in self._held:
            record.detach()  # A worker with a full lane could not send the rest of the batch.
        records = self._server.read_many(missing)
        if not records:
            raise ConnectionClosedError("the records are shut down")
        return records


class GroupSource(BatchSource):
    """Groups that an assembler makes of a server's records: pairs of the group and its batch."""

    def __init__(self, server: RecordServer, assembler: GroupAssembler, gatherer: RecordGatherer) -> None:
        self._server, self._assembler, self._gatherer = server, assembler, gatherer

    def take(self, allocate: Allocate, *, wait: bool) -> HostBatch | None:
        """The next group that has records; see `BatchSource`."""
        while True:
            if version := self._server.published_version:
                self._assembler.set_version(version)
            group = self._assembler.pop()
            if group is None:
                if not self._read(wait):
                    return None
            elif group.records:
                return self._gatherer.gather(group.records, allocate, lambda batch, group=group: (group, batch))

    def _read(self, wait: bool) -> bool:
        """Adds records to the assembler. False when there is none yet and ``wait`` is false."""
        records = self._server.try_read_many(_AT_ONCE)
        if not records:
            if not wait:
                return False
            self._assembler.detach()  # A worker with a full lane could not send the rest of a group.
            try:
                records = self._server.read_many(_AT_ONCE, self._assembler.next_deadline_s)
            except WaitTimeout:  # of a group
                return True
            if not records:
                raise ConnectionClosedError("the records are shut down")
        wrong: list[InvalidArgument] = []
        for record in records:
            try:
                self._assembler.add(record)
            except InvalidArgument as error:  # It has no key. The others are added before this is raised.
                wrong.append(error)
        if wrong:
            raise wrong[0]
        return True
