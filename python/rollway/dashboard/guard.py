"""Guard: which requests the dashboard answers. It stands before every page, file and WebSocket.

With a token, a request needs the token: in the URL once, afterwards in a cookie. Without one the dashboard listens on
loopback only, and answers processes of its own user and of root. On loopback the Host header must name loopback, so
that a foreign site cannot reach the dashboard through a DNS name of its own. Pages of other origins may not connect.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
"""The first also keeps the browser from loading anything from elsewhere."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address, or a name that stands for it.

    >>> [is_loopback(host) for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """An ASGI application in front of another one.

    Args:
        app: What answers the requests that are let through.
        host: The address that the dashboard listens on.
        port: Its port.
        token: What a request must show; ``None``: only processes of this user on loopback are answered.
    """

    def __init__(self, app: App, host: str, port: int, token: str | None) -> None:
        self.app = app
        self._host, self._token = host, token
        self._cookie = f"rollway-dashboard-{port}"  # browsers send a cookie to all ports of a host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request or lets it through."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._foreign(headers) or self._stranger(scope, headers)
        if refusal is None:
            await self.app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refusal[1][:100]})
        elif refusal[0] == 401 and self._knows(_query_token(scope)):
            await self._enter(scope, send)
        else:
            await _answer(send, *refusal)

    def _foreign(self, headers: dict[str, str]) -> tuple[int, str] | None:
        """Why a request is refused for where its page comes from: status and reason."""
        named = _without_port(headers.get("host", ""))
        if is_loopback(self._host) and not is_loopback(named) and named != self._host:
            return 403, f"This dashboard is on loopback, and knows no host {named!r}. Open it as http://127.0.0.1."
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            return 403, "This dashboard answers no page of another origin."
        return None

    def _stranger(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Why a request is refused for who asks: status and reason."""
        if self._token is not None:
            if self._knows(_cookie(headers.get("cookie", ""), self._cookie)) and _query_token(scope) is None:
                return None
            return 401, "This dashboard needs its token. Open the URL that `rollway dashboard` printed."
        if not _is_own(scope.get("client"), scope.get("server")):
            user = "This dashboard answers its own user only, and the request is from another user of this machine."
            return 403, f"{user} Start it with --token-file to let others in."
        return None

    def _knows(self, shown: str | None) -> bool:
        token = (self._token or "").encode()
        return shown is not None and hmac.compare_digest(shown.encode(errors="replace"), token)

    async def _enter(self, scope: Scope, send: Send) -> None:
        """Keeps the token in a cookie, and goes on without it in the URL."""
        cookie = f"{self._cookie}={quote(self._token or '', safe='')}; Path=/; HttpOnly; SameSite=Lax"
        location = "/" + quote(scope["path"].lstrip("/"))
        more = [(b"location", location.encode()), (b"set-cookie", cookie.encode())]
        await _answer(send, 303, "", more)


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_HEADERS]
        await send(message)

    return sending


async def _answer(send: Send, status: int, text: str, more: list[tuple[bytes, bytes]] | None = None) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store"), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *(more or [])]})
    await send({"type": "http.response.body", "body": text.encode()})


def _query_token(scope: Scope) -> str | None:
    found = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token")
    return found[0] if found else None


def _cookie(header: str, name: str) -> str | None:
    try:
        morsel = SimpleCookie(header).get(name)
    except CookieError:
        return None
    return unquote(morsel.value) if morsel else None


def _without_port(host: str) -> str:
    """The name or address in a Host header.

    >>> _without_port("127.0.0.1:8090"), _without_port("[::1]:8090"), _without_port("localhost")
    ('127.0.0.1', '::1', 'localhost')
    """
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.rpartition(":")[0] or host


def _is_own(client: tuple[str, int] | None, server: tuple[str, int] | None) -> bool:
    """Whether a process of this user, or of root, is at the other end of a connection over loopback."""
    return client is not None and server is not None and owner_of(client, server) in (os.getuid(), 0)


def owner_of(client: tuple[str, int], server: tuple[str, int], root: Path = Path("/proc/net")) -> int | None:
    """The user id of the process at the client's end of a connection within this machine; ``None``: not known."""
    ends = {"tcp": (_hex(socket.AF_INET, client), _hex(socket.AF_INET, server))}
    ends["tcp6"] = (_hex(socket.AF_INET6, client), _hex(socket.AF_INET6, server))
    for table, (local, remote) in ends.items():
        try:
            lines = (root / table).read_text().splitlines()[1:] if local and remote else []
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1] == local and fields[2] == remote and fields[3] == "01":  # established
                return int(fields[7])
    return None


def _hex(family: int, end: tuple[str, int]) -> str | None:
    """An address and port as /proc/net/tcp and tcp6 write them: words in the machine's byte order."""
    try:
        packed = socket.inet_pton(family, end[0])
    except OSError:
        return None
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{end[1]:04X}"
