"""Wire, Inlet and Outlet: the caller's end of a worker's pipe, and what the worker hears and says at the other end.

A pipe has room for some 200 KB. A worker does not wait until more than that is read: its caller may be asleep until
other environments of this worker have answered. `Crew` and `worker` use it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
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

from rollway.errors import SegmentDamaged

FOREVER_S = 1e6
"""Eleven days. `poll` takes no more than twice that."""
_NUMBER = struct.Struct("!Q")
_CHUNK = 1 << 18
_MOST_UNHEARD = 1 << 16
"""More messages than ever wait for a worker: its caller waits for answers in between."""


class WorkerGone(Exception):
    """A worker's process has ended. Never reaches the user."""


class WorkerSilent(Exception):
    """A worker has not answered, or not read, in time. Never reaches the user."""


class Wire:
    """Messages to one worker, and from it. Ctrl-C may come at any time: no byte is sent or read twice, none is lost.

    Signals are handled between two calls; hence bytes are sent and counted, or read and kept, in one.
    """

    def __init__(self, pipe: Connection, pidfd: int) -> None:
        self._pipe, self._pidfd = pipe, pidfd
        self._socket = _socket_of(pipe)
        self._numbers = itertools.count(1)
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()  # and how many bytes of each are sent
        self._coming = bytearray()
        self._heard: deque[Any] = deque()

    def put(self, letter: bytes) -> int:
        """The number of a message that `flush` will send. Numbers grow; some may be left out."""
        number = next(self._numbers)
        self._unsent.append((_framed(_NUMBER.pack(number), letter), []))
        return number

    def flush(self, deadline: float | None) -> None:
        """Sends what was put. What is not sent in time is kept, for the next time."""
        while self._unsent:
            message, sent = self._unsent[0]
            left = message[sum(sent) :]
            if not left:
                self._unsent.popleft()
                continue
            try:
                sent.extend(map(self._socket.send, (left,), (socket.MSG_DONTWAIT,)))
            except BlockingIOError:
                self._make_room(deadline)
            except (BrokenPipeError, ConnectionResetError):
                raise WorkerGone from None

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
            self._hear()
        elif self._pidfd in ready:
            raise WorkerGone

    def receive(self, deadline: float | None) -> Any:
        """The next message, which stays the next until it is `done`. What a worker sent before it died is still heard.

        One may be heard twice, if Ctrl-C comes in between.
        """
        while not self._heard:
            ready = wait([self._pipe, self._pidfd], _left(deadline))
            if not ready:
                raise WorkerSilent
            if self._pipe not in ready and not self._pipe.poll(0):
                raise WorkerGone
            self._hear()
        return self._heard[0]

    def done(self) -> None:
        """Nothing will be asked of that message any more."""
        self._heard.popleft()

    def _hear(self) -> None:
        """Reads what there is of the next message."""
        while (missing := _missing(self._coming)) > 0:
            known = len(self._coming)
            try:
                any(map(self._coming.extend, map(self._socket.recv, (min(missing, _CHUNK),), (socket.MSG_DONTWAIT,))))
            except BlockingIOError:
                return
            except ConnectionResetError:
                raise WorkerGone from None
            if len(self._coming) == known:  # the last word may be half a word
                raise WorkerGone
        with memoryview(self._coming) as message:
            self._heard.append(pickle.loads(message[_head(message) :]))
        self._coming = bytearray()

    def estate(self) -> list[Any]:
        """What a worker had sent before it ended, and nobody has received yet."""
        with contextlib.suppress(WorkerGone, OSError):
            while self._pipe.poll(0):
                self._hear()
        left = list(self._heard)
        self._heard.clear()
        return left

    def close(self) -> None:
        """No more of it."""
        self._pipe.close()
        self._socket.close()


class Inlet:
    """What a worker hears."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def hear(self) -> tuple[int, Any]:
        """The next message, and its number."""
        data = self._pipe.recv_bytes()
        return _NUMBER.unpack_from(data)[0], pickle.loads(memoryview(data)[_NUMBER.size :])


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

    def close(self) -> None:
        """Says no more. What a thread is still sending it sends on, as long as the process lives."""
        if self._unsent is None:
            self._socket.close()

    def _send_all(self, unsent: SimpleQueue[memoryview]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the caller has closed
            while True:
                self._socket.sendall(unsent.get())


def posted_word(number: int) -> int:
    """The number of a message as shared memory has it: with a check, because a worker waits for the message.

    >>> number_posted(posted_word(7), heard=5)
    7
    """
    return number << 16 | _check(number)


def number_posted(word: int, heard: int) -> int:
    """The number in such a word, for a worker that has heard all messages up to `heard`.

    Raises:
        SegmentDamaged: Nobody has written this word.
    """
    number = word >> 16
    if word & 0xFFFF != _check(number) or not 0 <= number - heard <= _MOST_UNHEARD:
        raise SegmentDamaged(
            "the segment of this vector environment is damaged: the word that tells a worker how many messages there "
            "are for it was overwritten. Close the vector environment, and make it again"
        )
    return number


def _check(number: int) -> int:
    return (number * 0x9E37 ^ 0x5A5A) & 0xFFFF


def packed(message: Any) -> bytes:
    """A message as it travels, to be sent once nothing can go wrong any more."""
    return bytes(ForkingPickler.dumps(message))


def _framed(*pieces: bytes) -> memoryview:
    """In the frame of a `Connection`: its length, in four bytes; or -1, and its length in eight."""
    size = sum(map(len, pieces))
    frame = struct.pack("!i", size) if size < 1 << 31 else struct.pack("!iQ", -1, size)
    return memoryview(b"".join((frame, *pieces)))


def _head(data: bytearray | memoryview) -> int:
    """How long its frame is, of which the first four bytes are known."""
    return 12 if bytes(data[:4]) == b"\xff\xff\xff\xff" else 4


def _missing(data: bytearray) -> int:
    """How many bytes to read next, for the rest of a frame or of a message; 0: it is whole."""
    if len(data) < 4:
        return 4 - len(data)
    head = _head(data)
    if len(data) < head:
        return head - len(data)
    (size,) = struct.unpack_from("!i", data) if head == 4 else struct.unpack_from("!Q", data, 4)
    return int(head + size - len(data))


def _socket_of(pipe: Connection) -> socket.socket:
    """What a duplex pipe is."""
    own = socket.socket(fileno=os.dup(pipe.fileno()))
    own.setblocking(True)  # for the pipe's sake, whatever `socket.setdefaulttimeout` says
    return own


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else min(FOREVER_S, max(0.0, deadline - time.monotonic()))
