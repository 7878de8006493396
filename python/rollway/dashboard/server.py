"""Dashboard: the web server of the pages, and the background task that looks at the segments."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from urllib.parse import quote

import fastapi
import uvicorn
from nicegui import ui

from rollway.dashboard import pages
from rollway.dashboard.guard import Guard, is_loopback
from rollway.dashboard.history import History
from rollway.errors import AddressUnavailable, RollwayError, TokenRequired

_LEAST_TOKEN_BYTES = 16
_FAVICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'><rect width='16' height='16' rx='3' fill='#2563eb'/>"
    "<path d='M3 11h2V7H3zm4 0h2V4H7zm4 0h2V9h-2z' fill='#fff'/></svg>"
)


class Dashboard:
    """Shows segments of this user to web browsers. It only reads them. One at a time in a process.

    The address is taken at once: `AddressUnavailable` if it cannot be. `run` serves until Ctrl-C.

    Args:
        names: Which segments; all of this user if there are none.
        host: The address to listen on. Beyond loopback a token is needed.
        port: 0 takes any free one.
        token: What browsers must show, at least 16 bytes; beyond loopback one is made if there is none.
        interval_s: Seconds from look to look.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        host: str = "127.0.0.1",
        port: int = 8090,
        token: str | None = None,
        interval_s: float = 1.0,
    ) -> None:
        if token is not None and len(token.encode()) < _LEAST_TOKEN_BYTES:
            raise TokenRequired(f"the token of the dashboard is too short: it needs {_LEAST_TOKEN_BYTES} bytes or more")
        if token is None and not is_loopback(host):
            token = secrets.token_urlsafe(24)
        self._host, self._token = host, token
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._history = History(names, interval_s)
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        """What to open in a browser, with the token if there is one."""
        host = self._host
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        token = f"?token={quote(self._token)}" if self._token is not None else ""
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/{token}"

    def run(self) -> None:
        """Serves until Ctrl-C or SIGTERM, and then raises KeyboardInterrupt or ends as the signal says."""
        app = fastapi.FastAPI(lifespan=self._lifespan, docs_url=None, redoc_url=None, openapi_url=None)
        pages.add(self._history)
        logging.getLogger("nicegui").setLevel(logging.ERROR)  # its warnings show what strangers ask for, as it is
        ui.run_with(
            app,
            title="Rollway",
            favicon=_FAVICON,
            dark=None,  # as the browser wishes
            tailwind=False,
            show_welcome_message=False,
            binding_refresh_interval=None,
            reconnect_timeout=30.0,  # a browser that was slow, or out of sight, keeps its page
        )
        guard = Guard(app, self._host, self.port, self._token)
        config = uvicorn.Config(
            guard,
            log_level="warning",
            access_log=False,  # URLs have the token
            ws="wsproto",
            proxy_headers=False,  # the guard asks who is at the other end, and believes no header
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        with self._socket:
            self._server.run(sockets=[self._socket])
        if self._failure is not None:
            raise self._failure

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: fastapi.FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        task.add_done_callback(self._watched)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _watched(self, task: asyncio.Task[None]) -> None:
        """Ends the server with the exception that ended the background task."""
        if not task.cancelled():
            self._failure = task.exception()
            self._server.should_exit = True

    async def _watch(self) -> None:
        while True:
            try:
                self._history.add(await asyncio.to_thread(self._history.look))
            except RollwayError as error:
                self._history.problem = str(error)
            await asyncio.sleep(self._history.interval_s)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressUnavailable(f"{host}:{port} is not an address to listen on: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        advice = "Choose another --port, 0 for any" if taken else "Is --host an address of this machine?"
        raise AddressUnavailable(f"the dashboard cannot listen on {host}:{port}: {error.strerror}. {advice}") from None
    return listener
