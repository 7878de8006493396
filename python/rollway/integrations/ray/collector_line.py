"""CollectorLine: a connection between a learner and a collector on any node: reports up, the order to stop down.

```text
collector ── key ──────────────▶ learner     the key that the learner gave to the actor
collector ── length, message ──▶ learner     its place, then what `Collector` sends
collector ◀── one byte ───────── learner     the order to stop
```

The end of the connection stops the collector, too. Nothing that arrives here is unpickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import select
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from rollway.errors import LearnerUnreachable
from rollway.integrations.ray.lease import KEY_BYTES, ask_when_silent

_LENGTH = struct.Struct("!I")
_STOP = b"S"
_MAX_MESSAGE_BYTES = 64 << 10
_KEY_WAIT_S = 10.0
_CONNECT_WAIT_S = 60.0


class LearnerLines:
    """The learner's end of all lines, and its stop flag. One thread, which waits for the network only.

    Args:
        host: The address to listen on.
    """

    def __init__(self, host: str) -> None:
        self._takers: dict[bytes, Callable[[bytes], None]] = {}
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._collectors: set[asyncio.StreamWriter] = set()
        self._is_set = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollway-collectors", daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, host, 0))
        self.address: tuple[str, int] = (host, self._server.sockets[0].getsockname()[1])
        """Where collectors connect to."""

    def expect(self, take: Callable[[bytes], None]) -> bytes:
        """The key for one collector. ``take`` gets each of its messages, in another thread."""
        key = secrets.token_bytes(KEY_BYTES)
        self._takers[key] = take
        return key

    def forget(self, key: bytes) -> None:
        """Takes no more of the collector with that key."""
        self._takers.pop(key, None)

    def is_set(self) -> bool:
        """Whether collectors were told to stop."""
        return self._is_set

    def set(self) -> None:
        """Tells every collector to stop, also those that connect later."""
        if not self._is_set:
            self._is_set = True
            self._loop.call_soon_threadsafe(self._tell)

    def close(self) -> None:
        """Ends all connections. Safe to call twice."""
        if not self._loop.is_closed():
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _tell(self) -> None:
        for collector in self._collectors:
            collector.write(_STOP)

    async def _end(self) -> None:
        # The server is closed last: asyncio loses a connection that it is accepting just then.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for connection in self._connections:
                connection.close()
            await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = self._loop.create_task(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it ends."""
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, TimeoutError, OSError):
                await self._hear(reader, writer)
        finally:
            del self._connections[writer]
            self._collectors.discard(writer)
            writer.close()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        key = await asyncio.wait_for(reader.readexactly(KEY_BYTES), _KEY_WAIT_S)
        if key not in self._takers:
            return
        ask_when_silent(writer.get_extra_info("socket"))
        self._collectors.add(writer)
        if self._is_set:
            writer.write(_STOP)
        while take := self._takers.get(key):
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            if length > _MAX_MESSAGE_BYTES:
                return
            take(await reader.readexactly(length))


class CollectorLine:
    """The collector's end, as `Collector` and `StopFlag` use it."""

    def __init__(self, address: tuple[str, int], key: bytes) -> None:
        try:
            self._socket = socket.create_connection(address, _CONNECT_WAIT_S)
            self._socket.sendall(key)
        except OSError as error:
            raise LearnerUnreachable(
                f"a collector cannot connect to its learner on {address[0]}:{address[1]}: {error}. Is the port open "
                "between the nodes?"
            ) from error
        ask_when_silent(self._socket)
        self._socket.setblocking(False)
        self._rest = b""
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    def send_bytes(self, data: bytes) -> None:
        """Sends a message; `BlockingIOError` when there is no room. Never waits."""
        if self._send(self._rest):
            raise BlockingIOError
        self._send(_LENGTH.pack(len(data)) + data)

    def _send(self, data: bytes) -> bytes:
        """Sends and returns what is left, which the next message has to wait for."""
        try:
            sent = self._socket.send(data) if data else 0
        except BlockingIOError:
            sent = 0
        except OSError:  # the learner is gone, and `poll` says so
            sent = len(data)
        self._rest = data[sent:]
        return self._rest

    def poll(self, timeout: float | None) -> bool:
        """Whether this collector must stop; waits for it for so many seconds."""
        return bool(self._readable.poll(None if timeout is None else timeout * 1000))

    @property
    def was_cut(self) -> bool:
        """Whether the connection has ended without an order to stop."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != _STOP
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Sends what is left of the last report, and ends the connection."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(1.0)
            self._socket.sendall(self._rest)
        self._socket.close()
