"""The ends of the pipe between caller and worker: `CallerPipe`; at the worker `receive_from_caller` and `WorkerSender`.

A pipe has room for some 200 KB. A worker never waits for room, because its caller may sleep until other environments of
this worker have answered. `WorkerProcesses` and `worker` use this module.
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
_MOST_UNRECEIVED = 1 << 16
"""A worker never has more messages to receive: its caller waits for answers in between."""


class WorkerGone(Exception):
    """A worker's process has ended. Never reaches the user."""


class WorkerTimeout(Exception):
    """A worker has not answered, or not read, in time. Never reaches the user."""


class CallerPipe:
    """Messages to and from one worker. Ctrl-C may come at any time: no byte is lost, sent twice or read twice.

    Python handles signals between two calls; hence one call sends and counts bytes, or reads and keeps them.
    """

    def __init__(self, connection: Connection, pidfd: int) -> None:
        self._connection, self._pidfd = connection, pidfd
        self._socket = _socket_of(connection)
        self._numbers = itertools.count(1)
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()  # with the byte counts that were sent of each
        self._incoming = bytearray()
        self._received: deque[Any] = deque()

    def put(self, payload: bytes) -> int:
        """Queues a message for `flush`, and returns its number. Numbers grow; some may be skipped."""
        number = next(self._numbers)
        self._unsent.append((_framed(_NUMBER.pack(number), payload), []))
        return number

    def flush(self, deadline: float | None) -> None:
        """Sends what was put. What is not sent before the deadline is kept for the next `flush`."""
        while self._unsent:
            message, sent = self._unsent[0]
            left = message[sum(sent) :]
            if not left:
                self._unsent.popleft()
                continue
            try:
                sent.extend(map(self._socket.send, (left,), (socket.MSG_DONTWAIT,)))
            except BlockingIOError:
                self._wait_for_room(deadline)
            except (BrokenPipeError, ConnectionResetError):
                raise WorkerGone from None

    def _wait_for_room(self, deadline: float | None) -> None:
        """Sleeps until the worker has read something; keeps what it sends meanwhile."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN | select.POLLOUT)
        poll.register(self._pidfd, select.POLLIN)
        left = _remaining_s(deadline)
        ready = dict(poll.poll(None if left is None else 1000 * left))
        if not ready:
            raise WorkerTimeout
        if ready.get(self._connection.fileno(), 0) & select.POLLIN:
            self._read_available()
        elif self._pidfd in ready:
            raise WorkerGone

    def receive(self, deadline: float | None) -> Any:
        """The next message, which stays the next until `pop_received`. Also what a worker sent before it died.

        The same message may be returned twice, if Ctrl-C comes in between.
        """
        while not self._received:
            ready = wait([self._connection, self._pidfd], _remaining_s(deadline))
            if not ready:
                raise WorkerTimeout
            if self._connection not in ready and not self._connection.poll(0):
                raise WorkerGone
            self._read_available()
        return self._received[0]

    def pop_received(self) -> None:
        """Drops the message that `receive` returned last."""
        self._received.popleft()

    def _read_available(self) -> None:
        """Reads what has arrived of the next message."""
        while (missing := _missing(self._incoming)) > 0:
            known = len(self._incoming)
            try:
                any(map(self._incoming.extend, map(self._socket.recv, (min(missing, _CHUNK),), (socket.MSG_DONTWAIT,))))
            except BlockingIOError:
                return
            except ConnectionResetError:
                raise WorkerGone from None
            if len(self._incoming) == known:  # end of file; the last message may be cut off
                raise WorkerGone
        with memoryview(self._incoming) as message:
            self._received.append(pickle.loads(message[_header_bytes(message) :]))
        self._incoming = bytearray()

    def unread_messages(self) -> list[Any]:
        """Takes what a worker had sent before it ended and was not received yet."""
        with contextlib.suppress(WorkerGone, OSError):
            while self._connection.poll(0):
                self._read_available()
        left = list(self._received)
        self._received.clear()
        return left

    def close(self) -> None:
        """Closes this end."""
        self._connection.close()
        self._socket.close()


def receive_from_caller(connection: Connection) -> tuple[int, Any]:
    """At the worker: the next message of the caller, and its number."""
    data = connection.recv_bytes()
    return _NUMBER.unpack_from(data)[0], pickle.loads(memoryview(data)[_NUMBER.size :])


class WorkerSender:
    """The worker's end for messages to the caller. A thread, started on need, sends what the pipe has no room for."""

    def __init__(self, connection: Connection) -> None:
        self._socket = _socket_of(connection)
        self._unsent: SimpleQueue[memoryview] | None = None

    def send(self, message: Any) -> None:
        """Sends a message, and does not wait."""
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
        """Closes this end. A thread that is still sending goes on as long as the process lives."""
        if self._unsent is None:
            self._socket.close()

    def _send_all(self, unsent: SimpleQueue[memoryview]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the caller has closed
            while True:
                self._socket.sendall(unsent.get())


def sent_word(number: int) -> int:
    """The number of a message as shared memory has it: with a check, because a worker waits for the message.

    >>> last_sent_number(sent_word(7), received=5)
    7
    """
    return number << 16 | _check(number)


def last_sent_number(word: int, received: int) -> int:
    """The number in such a word, for a worker that has received all messages up to `received`.

    Raises:
        SegmentDamaged: No caller has written this word.
    """
    number = word >> 16
    if word & 0xFFFF != _check(number) or not 0 <= number - received <= _MOST_UNRECEIVED:
        raise SegmentDamaged(
            "the segment of this vector environment is damaged: the word with the number of messages for a worker "
            "was overwritten. Close the vector environment, and make it again"
        )
    return number


def _check(number: int) -> int:
    return (number * 0x9E37 ^ 0x5A5A) & 0xFFFF


def packed(message: Any) -> bytes:
    """Pickles a message. Done before anything is sent, so that an error leaves no half-made request."""
    return bytes(ForkingPickler.dumps(message))


def _framed(*pieces: bytes) -> memoryview:
    """Bytes in the frame of a `Connection`: the length in four bytes, or -1 and the length in eight."""
    size = sum(map(len, pieces))
    frame = struct.pack("!i", size) if size < 1 << 31 else struct.pack("!iQ", -1, size)
    return memoryview(b"".join((frame, *pieces)))


def _header_bytes(data: bytearray | memoryview) -> int:
    """The size of the frame's header, by its first four bytes."""
    return 12 if bytes(data[:4]) == b"\xff\xff\xff\xff" else 4


def _missing(data: bytearray) -> int:
    """How many bytes to read next, for the rest of the header or of the message; 0 when it is complete."""
    if len(data) < 4:
        return 4 - len(data)
    head = _header_bytes(data)
    if len(data) < head:
        return head - len(data)
    (size,) = struct.unpack_from("!i", data) if head == 4 else struct.unpack_from("!Q", data, 4)
    return int(head + size - len(data))


def _socket_of(connection: Connection) -> socket.socket:
    """A duplex pipe as the socket that it is."""
    own = socket.socket(fileno=os.dup(connection.fileno()))
    own.setblocking(True)  # overrides `socket.setdefaulttimeout`: the pipe shares this setting
    return own


def _remaining_s(deadline: float | None) -> float | None:
    return None if deadline is None else min(FOREVER_S, max(0.0, deadline - time.monotonic()))
