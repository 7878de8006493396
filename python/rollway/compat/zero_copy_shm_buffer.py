"""ZeroCopySHMBuffer: the buffer proposed for Atropos, with its constructor and calls, on records.

Unlike the proposal it has many writers and readers, keeps ids, metadata and tokens whole, and says when it is full. For
everything else (keys, groups, batches, TCP) use `RecordServer` and its clients.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np

from rollway._core import RecordConsumer, RecordProducer
from rollway.errors import (
    ConnectionClosedError,
    InvalidArgument,
    NoLaneLeft,
    RecordTooLarge,
    RingFull,
    SchemaMismatch,
    SegmentNotFound,
    WaitTimeout,
)
from rollway.records.key import RecordKey
from rollway.schema.pytree import explained
from rollway.schema.record import RecordSchema

_SCHEMA = RecordSchema({"tokens": "int32[*]", "score": "float64[]"})
_OVERHEAD = 128  # of one entry, besides its tokens, id and metadata
_WRITERS = 64
_SMALLEST, _LARGEST = -(2**31), 2**31 - 1


class ZeroCopySHMBuffer:
    """Moves scored token sequences between processes: up to 64 writers, and 896 readers beside them.

    A handle is a writer from its first `write_trajectory` until it is closed; threads may share one. Each entry is read
    once, by one of the readers. An entry takes the room that it needs, and is never cut: one with more than
    ``entry_size`` tokens, ``instance_id_len`` or ``metadata_len`` bytes fits as well, if the writer's whole share has
    room for it.

    Args:
        name: What the others attach to.
        size: Entries that each writer may have in the buffer, rounded up to a power of two. Only the creator's value
            counts, as with the next three.
        entry_size: Tokens of one entry. With the next two it limits the room of a writer; memory is taken only as it is
            used.
        instance_id_len: Bytes of its id.
        metadata_len: Bytes of its metadata, as JSON.
        create: Make it. A stale buffer of that name is replaced; a live one is an error. Otherwise attach to it.
        write_timeout_s: How long `write_trajectory` waits for room: not at all (it returns False), so many seconds, or
            for ever (``None``), also when no reader is alive.

    >>> with ZeroCopySHMBuffer("doc-buffer", create=True) as buffer:
    ...     _ = buffer.write_trajectory([1, 2, 3], 0.5, "task-7", repetition_id=1, metadata={"stop": "eos"})
    ...     entry = buffer.read_next()
    ...     entry["tokens"].tolist(), entry["score"], entry["instance_id"], entry["repetition_id"], entry["metadata"]
    ([1, 2, 3], 0.5, 'task-7', 1, {'stop': 'eos'})
    """

    def __init__(
        self,
        name: str,
        size: int = 1000,
        entry_size: int = 4096,
        instance_id_len: int = 64,
        metadata_len: int = 256,
        create: bool = False,
        *,
        write_timeout_s: float | None = 0.0,
    ) -> None:
        ranges = {"size": (size, 1, 2**24), "entry_size": (entry_size, 1, 2**31)}
        ranges |= {"instance_id_len": (instance_id_len, 0, 2**31), "metadata_len": (metadata_len, 0, 2**31)}
        for what, (value, least, most) in ranges.items():
            if not least <= value <= most:
                raise InvalidArgument(f"{what} = {value} is out of range: {least:,} to {most:,}")
        if not isinstance(name, str):
            raise InvalidArgument(f"name is {name!r}; it must be text, for others to attach to")
        if write_timeout_s is not None and not write_timeout_s >= 0:
            raise InvalidArgument(f"write_timeout_s = {write_timeout_s} is out of range: seconds from 0 on, or None")
        self.name = name
        self._write_timeout_s = write_timeout_s
        self._plan = _SCHEMA.plan()
        self._writer: RecordProducer | None = None
        self._becoming = threading.Lock()
        self._reader: RecordConsumer | None
        self._forgotten: weakref.finalize[[], ZeroCopySHMBuffer] | None = None
        self._creator = os.getpid() if create else None
        entry_bytes = 4 * entry_size + instance_id_len + metadata_len + _OVERHEAD
        if create:
            self._reader = RecordConsumer(
                self._plan,
                name,
                lanes=_WRITERS,
                lane_bytes=size * entry_bytes,
                max_records=max(size, 2),
                auto_named=False,
                if_exists="replace",
                max_peers=1024,
                on_full="block",
                preallocate=False,
                peer_timeout_s=None,
            )
        else:
            with explained(_SCHEMA):
                self._reader = RecordConsumer.attach(self._plan, name, None)
            # The last consumer that is dropped removes the name. A handle that attached must not: it detaches.
            self._forgotten = weakref.finalize(self, self._reader.detach)

    def write_trajectory(
        self,
        tokens: Any,
        score: float,
        instance_id: str = "",
        repetition_id: int = 0,
        metadata: Mapping[str, Any] | None = None,
    ) -> bool:
        """Copies one entry in. False when there is no room for it: then nothing was written."""
        if type(tokens) is not list and not (isinstance(tokens, np.ndarray) and tokens.dtype == np.int32):
            tokens = _as_tokens(tokens)
        key = RecordKey("", "", 0, instance_id, repetition_id)
        writer = self._writer or self._become_writer()
        try:
            entry = {"tokens": tokens, "score": float(score)}
            return writer.send(entry, key=key, metadata=metadata, timeout=self._write_timeout_s)
        except SchemaMismatch:
            if type(tokens) is not list:
                raise
            return self.write_trajectory(_as_tokens(tokens), score, instance_id, repetition_id, metadata)
        except (RingFull, WaitTimeout):
            return False
        except RecordTooLarge:
            share = self._open().stats()["lane_bytes"]
            raise RecordTooLarge(
                f"an entry of {len(tokens)} tokens, with its id and metadata, is larger than a writer's whole share of "
                f"buffer '{self.name}', {share:,} bytes. Create it with a larger size, entry_size or metadata_len"
            ) from None

    def read_next(self) -> dict[str, Any] | None:
        """The next entry, or ``None`` when there is none. Never waits.

        ``tokens`` is a view into shared memory, whose room goes back to its writer when the array is garbage.
        """
        reader = self._open()
        try:
            record = reader.take(0.0)
        except ConnectionClosedError:
            return None
        if record is None:
            return None
        key = record.key
        return {
            "instance_id": key.instance_id,
            "repetition_id": key.repetition_id,
            "score": record["score"].item(),
            "tokens": record["tokens"],
            "metadata": {} if (metadata := record.metadata) is None else metadata,
        }

    def close(self, unlink: bool = False) -> None:
        """Closes this handle. With ``unlink`` its name is removed: no process can attach any more. Handles that are
        attached can still read, and write if they have written before.

        Without ``unlink`` the entries stay for the next reader, also when no process is attached; `rollway gc` removes
        them then. A ``with`` block unlinks in the process that created the buffer, not in its children. Safe to call
        twice.
        """
        writer, self._writer = self._writer, None
        reader, self._reader = self._reader, None
        if reader is None:
            return
        if writer is not None:
            writer.close()
        if self._forgotten is not None:
            self._forgotten.detach()
        try:
            if unlink:
                reader.unlink()
        finally:
            reader.detach()

    def __enter__(self) -> ZeroCopySHMBuffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close(unlink=self._creator == os.getpid())

    def __repr__(self) -> str:
        return f"<rollway.ZeroCopySHMBuffer {self.name} {'closed' if self._reader is None else 'open'}>"

    def _open(self) -> RecordConsumer:
        if self._reader is None:
            raise ConnectionClosedError(f"this handle of buffer '{self.name}' is closed")
        return self._reader

    def _become_writer(self) -> RecordProducer:
        """Takes a lane, for all threads, of this handle's buffer, even if another buffer has its name by now."""
        try:
            with self._becoming:
                self._writer = writer = self._writer or RecordProducer._beside(self._open(), self._plan)
        except NoLaneLeft:
            raise NoLaneLeft(
                f"buffer '{self.name}' has {_WRITERS} writers, and no room for one more. Close a handle that no longer "
                "writes, let threads share one, or use several buffers"
            ) from None
        except SegmentNotFound:
            raise SegmentNotFound(
                f"buffer '{self.name}' was unlinked before this handle wrote into it: it can only read what is there"
            ) from None
        return writer


def _as_tokens(tokens: Any) -> np.ndarray[Any, Any]:
    """Token ids of any integer type as int32, if they fit."""
    array = np.asarray(tokens)
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InvalidArgument(f"tokens must be a sequence of whole numbers, not {array.dtype}{list(array.shape)}")
    if array.min() < _SMALLEST or array.max() > _LARGEST:
        raise InvalidArgument("a token id does not fit into 32 bits")
    return array.astype(np.int32)
