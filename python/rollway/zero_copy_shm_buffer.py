"""ZeroCopySHMBuffer: the buffer proposed for Atropos, with its constructor and calls, on records.

What the proposal lost or cut is kept here: any number of writers and readers, whole ids, metadata and tokens, and a
buffer that is full says so. For everything else (keys, groups, batches, TCP) use `RecordServer` and its clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np

from rollway._core import RecordConsumer
from rollway.errors import ConnectionClosedError, InvalidArgument, RingFull, SchemaMismatch, WaitTimeout
from rollway.record_key import RecordKey
from rollway.record_schema import RecordSchema
from rollway.shm_record_client import ShmRecordClient

_SCHEMA = RecordSchema({"tokens": "int32[*]", "score": "float64[]"})
_OVERHEAD = 128  # of one entry, besides its tokens, id and metadata
_WRITERS = 64
_SMALLEST, _LARGEST = -(2**31), 2**31 - 1


class ZeroCopySHMBuffer:
    """Moves scored token sequences between processes: any number of writers, any number of readers.

    Each entry is read once, by one of the readers. An entry takes the room that it needs, not that of the largest; one
    that is larger than ``entry_size`` tokens, ``instance_id_len`` or ``metadata_len`` bytes fits as well, as long as
    the writer's whole share has room for it. Nothing is ever cut.

    Args:
        name: What the others attach to.
        size: Entries that each writer may have in the buffer, rounded up to a power of two.
        entry_size: Tokens of one entry. With the two below it says how much room a writer may take; memory is taken
            only as it is used.
        instance_id_len: Bytes of its id.
        metadata_len: Bytes of its metadata, as JSON.
        create: Make it. A stale buffer of that name is replaced; a live one is an error, and so is attaching to none.
        write_timeout_s: How long `write_trajectory` waits for room: not at all (it returns False), so many seconds, or
            for ever (``None``).

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
        for what, value in {"size": size, "entry_size": entry_size}.items():
            if value < 1:
                raise InvalidArgument(f"{what} = {value} is out of range: at least 1")
        self.name = name
        self._write_timeout_s = write_timeout_s
        self._plan = _SCHEMA.plan()
        self._writer: ShmRecordClient | None = None
        self._reader: RecordConsumer | None = None
        self._closed = False
        self._created = create
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
            RecordConsumer.check(self._plan, name)

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
        if self._writer is None:
            self._check_open()
            self._writer = ShmRecordClient(self.name, _SCHEMA, connect_timeout_s=0.0)
        try:
            entry = {"tokens": tokens, "score": float(score)}
            return self._writer.send(entry, key=key, metadata=metadata, timeout=self._write_timeout_s)
        except SchemaMismatch:
            if type(tokens) is not list:
                raise
            return self.write_trajectory(_as_tokens(tokens), score, instance_id, repetition_id, metadata)
        except (RingFull, WaitTimeout):
            return False

    def read_next(self) -> dict[str, Any] | None:
        """The next entry, or ``None`` when there is none. Never waits.

        ``tokens`` is a view into shared memory, whose room goes back to its writer when the array is garbage.
        """
        if self._reader is None:
            self._check_open()
            self._reader = RecordConsumer.attach(self._plan, self.name, None)
        try:
            record = self._reader.take(0.0)
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
            "metadata": record.metadata or {},
        }

    def close(self, unlink: bool = False) -> None:
        """Leaves the buffer. With ``unlink`` its name is removed: nobody can attach any more, who is in it goes on.

        Without, what is in it stays for the next reader, also when nobody is attached; `rollway gc` removes it then. A
        ``with`` block unlinks in the process that created the buffer. Safe to call twice.
        """
        if self._closed:
            return
        self._closed = True
        writer, self._writer = self._writer, None
        reader, self._reader = self._reader, None
        if writer is not None:
            writer.close()
        if unlink:
            reader = reader or RecordConsumer.attach(self._plan, self.name, None)
            reader.unlink()
        if reader is not None:
            reader.detach()

    def __enter__(self) -> ZeroCopySHMBuffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close(unlink=self._created)

    def __repr__(self) -> str:
        return f"<rollway.ZeroCopySHMBuffer {self.name} {'closed' if self._closed else 'open'}>"

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"this handle of buffer '{self.name}' is closed")


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
