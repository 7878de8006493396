"""pyzmq, PUSH to PULL, over ipc or over TCP on loopback: one frame per sample, the leaves joined to bytes.

The quickest of what was tried: pickle protocol 5 in one frame, pickle with out-of-band buffers, one frame per
leaf with and without copy, joined with and without copy; `np.frombuffer` at the end. No copy at the receiver pays for
large frames only. Both ends know the shapes, so nothing describes them on the wire. The socket file of ipc is in a
temporary folder that `discard` removes.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import Any, Literal

import numpy as np

from contenders.base import Consumer, Contender, Producer, free_port, touch
from harness.workloads import Item, Workload

_COPY_BELOW = 4096  # bytes
_IPC, _SOCKET = "ipc://", "/ring"
Scheme = Literal["ipc", "tcp"]


class _Producer(Producer):
    def __init__(self, address: str, workload: Workload, index: int) -> None:
        import zmq

        super().__init__(workload, index)
        self._context = zmq.Context()
        self._socket: Any = self._context.socket(zmq.PUSH)
        self._socket.set_hwm(workload.capacity)
        self._socket.connect(address)

    def burst(self) -> None:
        send = self._socket.send
        join: Any = b"".join
        for item in self.items:
            send(join(item.values()))

    def send_one(self, item: Item) -> None:
        join: Any = b"".join
        self._socket.send(join(item.values()))

    def close(self) -> None:
        self._socket.close()
        self._context.term()


class _Consumer(Consumer):
    def __init__(self, address: str, workload: Workload) -> None:
        import zmq

        self._context = zmq.Context()
        self._socket: Any = self._context.socket(zmq.PULL)
        self._socket.set_hwm(workload.capacity)
        self._socket.bind(address)
        self._gulp = workload.batch
        self._copy = workload.item_bytes < _COPY_BELOW
        self._fields = []
        at = 0
        for leaf in workload.leaves:
            dtype = np.dtype(leaf.dtype)
            self._fields.append((leaf.name, dtype, leaf.nbytes // dtype.itemsize, at, leaf.shape))
            at += leaf.nbytes

    def _receive(self) -> Item:
        frame = self._socket.recv(copy=self._copy)
        if not self._copy:
            frame = frame.buffer
        return {
            name: np.frombuffer(frame, dtype, count, at).reshape(shape)
            for name, dtype, count, at, shape in self._fields
        }

    def receive(self) -> int:
        touched = 0.0
        for _ in range(self._gulp):  # a burst is a whole number of gulps, so none of these waits for ever
            touched += touch(self._receive())
        self.touched += touched
        return self._gulp

    def receive_one(self) -> np.ndarray:
        return self._receive()["tokens"]

    def close(self) -> None:
        self._socket.close()
        self._context.term()


class Zmq(Contender):
    key = "zmq"
    package = "pyzmq"
    module = "zmq"

    def __init__(self, scheme: Scheme = "ipc") -> None:
        self.scheme = scheme
        self.label = f"pyzmq {scheme} PUSH/PULL"

    def link(self, workload: Workload, producers: int) -> str:
        if self.scheme == "tcp":
            return f"tcp://127.0.0.1:{free_port()}"
        return _IPC + tempfile.mkdtemp(prefix="ring-bench-") + _SOCKET

    def producer(self, link: str, workload: Workload, index: int) -> Producer:
        return _Producer(link, workload, index)

    def consumer(self, link: str, workload: Workload, producers: int) -> Consumer:
        return _Consumer(link, workload)

    def discard(self, link: str) -> None:
        if self.scheme == "ipc":
            shutil.rmtree(link.removeprefix(_IPC).removesuffix(_SOCKET), ignore_errors=True)
