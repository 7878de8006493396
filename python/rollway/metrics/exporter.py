"""Exporter: the metrics of the segments of this machine over HTTP, for Prometheus. Needs the extra ``metrics``.

It listens on loopback, or with a token elsewhere. `rollway metrics` runs one.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import socket
import ssl
import sys
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import urlsplit

from rollway.errors import AddressUnavailable, InvalidArgument, RollwayError, TlsFailed, TokenRequired
from rollway.metrics.segments import SegmentCollector
from rollway.segment.closes_on_exit import ClosesOnExit
from rollway.transport.tcp import Tls
from rollway.transport.tcp_options import token_bytes

PORT = 9464
_SHORTEST_TOKEN = 16
_REQUEST_TIMEOUT_S = 10.0
_MOST_REQUESTS = 32
_POLL_S = 0.1
"""How often the server of the standard library looks whether it is to end."""


class Exporter(ClosesOnExit):
    """Serves ``/metrics`` from a thread of its own, from construction until `close`.

    Args:
        host: The address to listen on. Any address but loopback needs a token.
        port: 0 takes a free one; `url` says which.
        names: Which segments; all of this user if there are none.
        token: A secret of at least 16 bytes that requests must have, as ``Authorization: Bearer TOKEN``.
        tls: Encrypt, with this certificate. Without it the token can be read on the way.

    >>> from urllib.request import urlopen
    >>> with Exporter(port=0) as exporter:
    ...     urlopen(exporter.url).status
    200
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = PORT,
        *,
        names: Sequence[str] = (),
        token: str | bytes | None = None,
        tls: Tls | None = None,
    ) -> None:
        collector = SegmentCollector(*names)
        address, family, is_loopback = _resolved(host, port)
        secret = token_bytes(token)
        if secret is None and not is_loopback:
            raise TokenRequired(
                f"refusing to listen on {host}:{port} without a token: any process that reaches it could see what runs "
                "here. Set a token, or listen on 127.0.0.1 and use a tunnel"
            )
        if secret is not None and len(secret) < _SHORTEST_TOKEN:
            raise InvalidArgument(f"token length = {len(secret)} is out of range: at least {_SHORTEST_TOKEN} bytes")
        context = None if tls is None else _context(tls)
        try:
            self._server = _Server(address, family, collector, secret, context)
        except OSError as error:
            raise AddressUnavailable(
                f"cannot listen on {host}:{port}: {error.strerror}. Choose another port (0: any that is free) or host"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'http' if tls is None else 'https'}://{shown}:{self._server.server_address[1]}/metrics"
        """Where the metrics are."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="rollway-metrics", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Returns when it is closed. Ctrl-C ends the wait."""
        self._thread.join()

    def close(self) -> None:
        """Stops listening. Safe to call twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __repr__(self) -> str:
        return f"<rollway.metrics.Exporter {self.url}{'' if self._thread.is_alive() else ' (closed)'}>"


def _resolved(host: str, port: int) -> tuple[tuple[Any, ...], socket.AddressFamily, bool]:
    """The address, its family, and whether only this machine reaches it."""
    if not 0 <= port <= 65535:
        raise InvalidArgument(f"port = {port} is out of range: 0 to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AddressUnavailable(f"cannot listen on {host}:{port}: {error}. Choose another host") from error
    family, _, _, _, address = found[0]
    addresses = [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found]
    return address, family, all(each.is_loopback for each in addresses)


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(os.fspath(tls.cert), os.fspath(tls.key))
    except OSError as error:
        raise TlsFailed(
            f"cannot use certificate {os.fspath(tls.cert)} with key {os.fspath(tls.key)}: {error}"
        ) from error
    return context


class _Server(ThreadingMixIn, TCPServer):
    """A thread for each request, and no more than `_MOST_REQUESTS` at once."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = _MOST_REQUESTS

    def __init__(
        self,
        address: tuple[Any, ...],
        family: socket.AddressFamily,
        collector: SegmentCollector,
        token: bytes | None,
        context: ssl.SSLContext | None,
    ) -> None:
        from prometheus_client import CollectorRegistry

        self.address_family = family
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(collector)
        self._token = token
        self._room = threading.Semaphore(_MOST_REQUESTS)
        super().__init__(address, _Handler)
        if context is not None:
            # The thread of the request does the handshake, because a slow peer must not stop the others.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def knows(self, host: str) -> bool:
        """Whether a request without a token names loopback: a page of another site comes under a name of its own."""
        name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.rpartition(":")[0] or host
        if self._token is not None or name.lower() in ("", "localhost"):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def admits(self, authorization: str) -> bool:
        """Whether a request may see the metrics."""
        if self._token is None:
            return True
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._token)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the thread of a request."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers, and gives the room back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that went away, or that speaks no TLS, is no error here."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_TIMEOUT_S
    server_version, sys_version = "rollway", ""

    def setup(self) -> None:
        super().setup()
        # A peer that sends a byte now and then would keep its room for ever.
        self._limit = threading.Timer(_REQUEST_TIMEOUT_S, self._cut)
        self._limit.daemon = True
        self._limit.start()

    def finish(self) -> None:
        self._limit.cancel()
        super().finish()

    def _cut(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        from prometheus_client.exposition import choose_encoder

        if not self.server.knows(self.headers.get("Host", "")):
            self._answer(HTTPStatus.FORBIDDEN, b"these metrics are on loopback: ask for them as 127.0.0.1\n")
        elif not self.server.admits(self.headers.get("Authorization", "")):
            self._answer(HTTPStatus.UNAUTHORIZED, b"a token is needed: Authorization: Bearer TOKEN\n")
        elif urlsplit(self.path).path not in ("/", "/metrics"):
            self._answer(HTTPStatus.NOT_FOUND, b"the metrics are at /metrics\n")
        else:
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            try:
                text = encode(self.server.registry)
            except RollwayError as error:
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}\n".encode())
            else:
                self._answer(HTTPStatus.OK, text, content_type)

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
