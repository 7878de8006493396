"""Wire and Outlet: the caller's end of a worker's pipe, and what the worker says into the other end.

A pipe has room for some 200 KB. A worker does not wait until more than that is read: its caller may be asleep until
other environments of this worker have answered. `Crew` and `worker` use it; workers read the `Connection` itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import Any

FOREVER_S = 1e6
"""Eleven days. `poll` takes no more than twice that."""


class WorkerGone(Exception):
    """A worker's process has ended. Never reaches the user."""


class WorkerSilent(Exception):
    """A worker has not answered, or not read, in time. Never reaches the user."""


class Wire:
    """Messages to one worker, and from it."""

    def __init__(self, pipe: Connection, pidfd: int) -> None:
        self._pipe, self._pidfd = pipe, pidfd
        self._socket = _socket_of(pipe)
        self._unsent: deque[memoryview] = deque()
        self._heard: deque[Any] = deque()

    def send(self, letter: bytes, deadline: float | None) -> None:
        """Sends a message. What is not sent in time is kept, for `flush`."""
        self._unsent.append(_framed(letter))
        self.flush(deadline)

    def flush(self, deadline: float | None) -> None:
        """Sends what is left of earlier messages."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._make_room(deadline)
            except (BrokenPipeError, ConnectionResetError):
                raise WorkerGone from None
            else:
                self._unsent[0] = self._unsent[0][sent:]
                if not self._unsent[0]:
                    self._unsent.popleft()

    def _make_room(self, deadline: float | None) -> None:
        """Sleeps until the worker has read something; keeps what it says meanwhile."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN | select.POLLOUT)
        poll.register(self._pidfd, select.POLLIN)
        left = _left(deadline)
        ready = dict(poll.poll(None if left is None else 1000 * left))
        if not ready:
            raise WorkerSilent
        if ready.get(self._pipe.fileno(), 0) & select.POLLIN:
            self._heard.append(self._hear())
        elif self._pidfd in ready:
            raise WorkerGone

    def receive(self, deadline: float | None) -> Any:
        """The next message. What the worker sent before it died is still heard."""
        if self._heard:
            return self._heard.popleft()
        ready = wait([self._pipe, self._pidfd], _left(deadline))
        if not ready:
            raise WorkerSilent
        if self._pipe not in ready and not self._pipe.poll(0):
            raise WorkerGone
        return self._hear()

    def _hear(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, OSError):  # the last word may be half a word
            raise WorkerGone from None

    def estate(self) -> list[Any]:
        """What a worker had sent before it ended, and nobody has received yet."""
        left = list(self._heard)
        self._heard.clear()
        try:
            while self._pipe.poll(0):
                left.append(self._hear())
        except (WorkerGone, OSError):
            pass
        return left

    def close(self) -> None:
        """No more of it."""
        self._pipe.close()
        self._socket.close()


class Outlet:
    """What a worker says. What the pipe has no room for is left to a thread, which is started when it is needed."""

    def __init__(self, pipe: Connection) -> None:
        self._socket = _socket_of(pipe)
        self._unsent: SimpleQueue[memoryview] | None = None

    def say(self, message: Any) -> None:
        """Says it, and does not wait."""
        data = _framed(packed(message))
        if self._unsent is None:
            with contextlib.suppress(BlockingIOError):
                data = data[self._socket.send(data, socket.MSG_DONTWAIT) :]
            if not data:
                return
            self._unsent = SimpleQueue()
            threading.Thread(target=self._send_all, args=(self._unsent,), daemon=True).start()
        self._unsent.put(data)

    def _send_all(self, unsent: SimpleQueue[memoryview]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the caller has closed
            while True:
                self._socket.sendall(unsent.get())


def packed(message: Any) -> bytes:
    """A message as it travels, to be sent once nothing can go wrong any more."""
    return bytes(ForkingPickler.dumps(message))


def _framed(letter: bytes) -> memoryview:
    """In the frame of a `Connection`, which reads it."""
    frame = struct.pack("!i", len(letter)) if len(letter) < 1 << 31 else struct.pack("!iQ", -1, len(letter))
    return memoryview(frame + letter)


def _socket_of(pipe: Connection) -> socket.socket:
    """What a duplex pipe is."""
    own = socket.socket(fileno=os.dup(pipe.fileno()))
    own.setblocking(True)  # for the pipe's sake, whatever `socket.setdefaulttimeout` says
    return own


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else min(FOREVER_S, max(0.0, deadline - time.monotonic()))
