"""The limit of a network layer: the same samples over a bare TCP connection on loopback, both ends looping in C.

`message` is one blocking call per sample, its leaves as the parts of it: the limit for whoever sends one by one.
`coalesced` sends up to 64 KiB per call, leaf by leaf, from memory in which they lie side by side already: the limit for
whoever gathers. TCP_NODELAY in both; there is no header and no acknowledgement. One process reads all connections,
straight into memory of the ring's geometry, up to 64 KiB of whole messages per call (one message per call was slower),
and adds up the first element of every leaf of every sample, in C. Nobody is handed anything. Python is called once for
some megabytes.
"""

from __future__ import annotations

import ctypes
import os
import socket
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from contenders.base import Consumer, Contender, Producer, free_port
from harness import cc
from harness.workloads import Item, Workload

_WRITE_BYTES = _READ_BYTES = 64 << 10
_READ_PARTS = 64  # more of them cost more than they bring
_CALL_BYTES = 8 << 20  # sent per call into C: some milliseconds, so that the call itself does not count
_CALL_WRITES = 4096  # and at most so many writes
_KINDS = {"float32": "f", "int32": "i", "int8": "b", "bool": "b"}
Way = Literal["message", "coalesced"]


@dataclass(frozen=True)
class _Plan:
    """How the samples of a workload are cut into messages and writes. Both ends make the same."""

    rows: int  #: samples in a message
    messages: int  #: in a write
    per_read: int  #: messages that one read asks for
    writes: int  #: distinct ones, of one sender
    rounds: int  #: of all these writes, in one call

    @classmethod
    def of(cls, workload: Workload, way: Way) -> _Plan:
        rows = messages = 1
        if way == "coalesced":
            while 2 * rows <= workload.batch and 2 * rows * workload.item_bytes <= _WRITE_BYTES:
                rows *= 2  # all batches are powers of two
            messages = max(1, _WRITE_BYTES // (rows * workload.item_bytes))
        per_read = min(_READ_BYTES // (rows * workload.item_bytes), _READ_PARTS // len(workload.leaves))
        writes = max(1, workload.distinct // (rows * messages))
        rounds = min(_CALL_BYTES // (writes * rows * messages * workload.item_bytes), _CALL_WRITES // writes)
        return cls(rows, messages, max(1, per_read), writes, max(1, rounds))

    @property
    def call_items(self) -> int:
        return self.rows * self.messages * self.writes * self.rounds

    def sources(self, workload: Workload, items: list[Item]) -> list[list[np.ndarray]]:
        """The parts of each write: the leaves of a sample where they are, or one block."""
        if self.rows * self.messages == 1:
            return [list(item.values()) for item in items]
        return [[self._block(workload, items, write)] for write in range(self.writes)]

    def _block(self, workload: Workload, items: list[Item], write: int) -> np.ndarray:
        parts = []
        for message in range(self.messages):
            start = (write * self.messages + message) * self.rows
            rows = workload.stacked([items[(start + row) % len(items)] for row in range(self.rows)])
            parts += [leaf.tobytes() for leaf in rows.values()]
        return np.frombuffer(b"".join(parts), np.uint8)


class _Part(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


class _Leaf(ctypes.Structure):
    """`struct leaf` of loopback.c."""

    _fields_ = (("bytes", ctypes.c_uint64), ("kind", ctypes.c_uint64))


class _Ring(ctypes.Structure):
    """`struct ring` of loopback.c."""

    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("leaves", ctypes.POINTER(_Leaf)),
        ("leaf_count", ctypes.c_uint64),
        ("batch_bytes", ctypes.c_uint64),
        ("batch_size", ctypes.c_uint64),
        ("slots", ctypes.c_uint64),
        ("rows", ctypes.c_uint64),
        ("per_read", ctypes.c_uint64),
        ("next", ctypes.c_uint64),
        ("received", ctypes.c_uint64),
        ("touched", ctypes.c_double),
    )


class _Link(NamedTuple):
    library: str
    port: int


class _Producer(Producer):
    def __init__(self, link: _Link, workload: Workload, index: int, way: Way) -> None:
        super().__init__(workload, index)
        self._library = ctypes.CDLL(link.library)
        plan = _Plan.of(workload, way)
        self.burst_items = plan.call_items
        self._sources = plan.sources(workload, self.items)  # kept: C reads from them
        parts = [_Part(part.ctypes.data, part.nbytes) for write in self._sources for part in write]
        self._socket = socket.create_connection(("127.0.0.1", link.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._writes = (
            self._socket.fileno(),
            (_Part * len(parts))(*parts),
            ctypes.c_uint64(plan.writes),
            ctypes.c_uint64(len(self._sources[0])),
        )
        self._rounds = ctypes.c_uint64(plan.rounds)

    def burst(self) -> None:
        _check(self._library.loopback_send(*self._writes, self._rounds))

    def send_paced(self, count: int, period_ns: int) -> None:
        _check(self._library.loopback_send_paced(*self._writes, ctypes.c_uint64(count), ctypes.c_int64(period_ns)))

    def close(self) -> None:
        self._socket.close()


class _Consumer(Consumer):
    def __init__(self, link: _Link, workload: Workload, producers: int, way: Way) -> None:
        self._library = ctypes.CDLL(link.library)
        plan = _Plan.of(workload, way)
        self._gulp = plan.call_items
        self._producers = producers
        self._listener = socket.create_server(("127.0.0.1", link.port))
        self._sockets: list[socket.socket] = []
        self._connections: Any = None
        self._memory = np.zeros(workload.capacity * workload.item_bytes, np.uint8)
        self._memory.fill(0)  # every page exists
        leaves = [_Leaf(leaf.nbytes, ord(_KINDS[leaf.dtype])) for leaf in workload.leaves]
        self._ring = _Ring(
            memory=self._memory.ctypes.data,
            leaves=(_Leaf * len(leaves))(*leaves),
            leaf_count=len(leaves),
            batch_bytes=workload.batch * workload.item_bytes,
            batch_size=workload.batch,
            slots=workload.capacity,
            rows=plan.rows,
            per_read=plan.per_read,
        )

    def receive(self) -> int:
        """As many as one call of a sender: what was announced and is not here is a multiple of that, or more."""
        before = self._ring.received
        until = before - before % self._gulp + self._gulp
        count = ctypes.c_uint64(self._producers)
        _check(
            self._library.loopback_receive(ctypes.byref(self._ring), self._accepted(), count, ctypes.c_uint64(until))
        )
        self.touched = self._ring.touched
        return int(self._ring.received - before)

    def receive_stamps(self, count: int) -> list[int]:
        waits = (ctypes.c_int64 * count)()
        _check(
            self._library.loopback_receive_stamps(
                ctypes.byref(self._ring), self._accepted(), ctypes.c_uint64(count), waits
            )
        )
        return list(waits)

    def _accepted(self) -> Any:
        """The connections, once all senders have come; they do so before they send anything."""
        if self._connections is None:
            self._sockets = [self._listener.accept()[0] for _ in range(self._producers)]
            size = int(ctypes.c_uint64.in_dll(self._library, "loopback_connection_bytes").value)
            self._connections = ctypes.create_string_buffer(size * self._producers)
            for index, one in enumerate(self._sockets):
                ctypes.c_int64.from_buffer(self._connections, size * index).value = one.fileno()
        return self._connections

    def close(self) -> None:
        for one in (*self._sockets, self._listener):
            one.close()


class Loopback(Contender):
    key = "loopback"

    def __init__(self, way: Way = "message") -> None:
        self.way = way
        self.label = {"message": "raw loopback socket (limit)", "coalesced": "raw loopback, 64 KiB writes (limit)"}[way]

    def missing(self) -> str | None:
        return None if cc.available() else cc.NO_COMPILER

    def link(self, workload: Workload, producers: int) -> _Link:
        return _Link(cc.shared_object("loopback"), free_port())

    def producer(self, link: _Link, workload: Workload, index: int) -> Producer:
        return _Producer(link, workload, index, self.way)

    def consumer(self, link: _Link, workload: Workload, producers: int) -> Consumer:
        return _Consumer(link, workload, producers, self.way)


def _check(error: int) -> None:
    if error:
        raise OSError(error, os.strerror(error))
