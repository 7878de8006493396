"""A TCP proxy that cuts connections at chosen bytes. Stands between a client and a server, for faults on purpose.

It forwards both ways, byte for byte. For each connection a *plan* says after how many bytes, and of which way, both
halves are cut at once: by a reset, or by closing them. It knows nothing of what is said. One thread per connection;
`close` ends them all. Used by cuts.py, and for tests to import.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, NamedTuple

_BUFFER_BYTES = 256 << 10
_CONNECT_S = 10.0
_RESET = struct.pack("ii", 1, 0)  # linger for no time: what is under way is thrown away, and the peer is told so
Way = Literal["there", "back"]  # from the client to the server; from the server to the client


class Cut(NamedTuple):
    """Where a connection ends."""

    after: int  #: bytes were forwarded
    way: Way
    by: Literal["reset", "close"]


Plan = Callable[[], Cut | None]  # asked once per connection; None: never


class RandomCuts:
    """A plan, the same for the same seed. One cut in four is counted on the way back.

    Half of the cuts are at any byte, half at any order of magnitude, so that handshakes are hit as well as streams.
    """

    def __init__(self, seed: int, *, there: int, back: int) -> None:
        """``there`` and ``back``: the most bytes of either way."""
        self._random = random.Random(seed)
        self._most: dict[Way, int] = {"there": there, "back": back}

    def __call__(self) -> Cut:
        way: Way = "back" if self._random.random() < 0.25 else "there"
        place = self._random.random()
        most = self._most[way] + 1
        after = most * place if self._random.random() < 0.5 else most**place - 1
        return Cut(int(after), way, self._random.choice(("reset", "close")))


class Proxy:
    """Listens on a port of loopback and forwards to another. Running when made, until `close`.

    Args:
        port: Where the server listens, on loopback.
        plan: What becomes of each connection.
        most: Cuts in all; after these, connections are left alone.
    """

    def __init__(self, port: int, plan: Plan, most: int | None = None) -> None:
        self.cuts: list[Cut] = []  #: those that were made
        self.connections = 0  #: that came
        self._target = ("127.0.0.1", port)
        self._plan = plan
        self._most = most
        self._lock = threading.Lock()
        self._closing = False
        self._pairs: dict[_Pair, threading.Thread] = {}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._door = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._door.start()

    def close(self) -> None:
        """Ends all connections, and returns when its threads are gone. Safe to call twice."""
        with self._lock:
            self._closing = True
            pairs = dict(self._pairs)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._door.join()
        self._listener.close()
        for pair, thread in pairs.items():
            pair.interrupt()
            thread.join()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Proxy :{self.port} → :{self._target[1]}, {len(self.cuts)} cuts, {len(self._pairs)} connections>"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                if self._closing:
                    return
                continue  # the client was gone before it was let in
            self.connections += 1
            pair = _Pair(client, self._plan())
            thread = threading.Thread(target=self._forward, args=(pair,), name="proxy-connection", daemon=True)
            with self._lock:
                if self._closing:
                    client.close()
                    return
                self._pairs[pair] = thread
                thread.start()

    def _forward(self, pair: _Pair) -> None:
        try:
            pair.run(self._target, self._claim)
        finally:
            with self._lock:
                del self._pairs[pair]

    def _claim(self, cut: Cut) -> bool:
        """Whether this one may be made; then it counts."""
        with self._lock:
            if self._most is not None and len(self.cuts) >= self._most:
                return False
            self.cuts.append(cut)
            return True


class _Lane:
    """One way of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket, left: int | None) -> None:
        self.source, self.sink = source, sink
        self.left = left  # bytes until the cut
        self.ended = False
        self.pending = memoryview(b"")
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    @property
    def hungry(self) -> bool:
        return not self.ended and not self.pending

    @property
    def due(self) -> bool:
        return self.left == 0 and not self.pending

    def read(self) -> None:
        room = self._buffer if self.left is None else self._buffer[: self.left]
        count = self.source.recv_into(room)
        self.pending = room[:count]
        if count == 0:
            self.ended = True
            self.sink.shutdown(socket.SHUT_WR)
        elif self.left is not None:
            self.left -= count

    def write(self) -> None:
        self.pending = self.pending[self.sink.send(self.pending) :]


class _Pair:
    """Both halves of a connection. Only its thread closes them."""

    def __init__(self, client: socket.socket, cut: Cut | None) -> None:
        self._client = client
        self._server = socket.socket()
        self._cut = cut
        self._over = False

    def interrupt(self) -> None:
        """From another thread: both halves look as if their peers had gone."""
        self._over = True
        for half in (self._client, self._server):
            with suppress(OSError):
                half.shutdown(socket.SHUT_RDWR)

    def run(self, target: tuple[str, int], claim: Callable[[Cut], bool]) -> None:
        with self._client, self._server:
            try:
                self._server.settimeout(_CONNECT_S)
                self._server.connect(target)
                self._forward(claim)
            except OSError:  # one peer is gone without a word: let the other know in the same way
                self._reset()

    def _forward(self, claim: Callable[[Cut], bool]) -> None:
        for half in (self._client, self._server):
            half.setblocking(False)
            half.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        after: dict[Way, int] = {} if self._cut is None else {self._cut.way: self._cut.after}
        there = _Lane(self._client, self._server, after.get("there"))
        back = _Lane(self._server, self._client, after.get("back"))
        lanes = (there, back)
        while not self._over and not (there.ended and back.ended):
            for lane in lanes:
                if lane.due and self._cut is not None:
                    if claim(self._cut):
                        if self._cut.by == "reset":
                            self._reset()
                        return
                    lane.left = None
            reading = [lane.source for lane in lanes if lane.hungry]
            writing = [lane.sink for lane in lanes if lane.pending]
            readable, _, _ = select.select(reading, writing, ())
            for lane in lanes:
                with suppress(BlockingIOError):
                    if lane.hungry and lane.source in readable:
                        lane.read()
                    if lane.pending:
                        lane.write()

    def _reset(self) -> None:
        for half in (self._client, self._server):
            half.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
