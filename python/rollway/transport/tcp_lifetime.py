"""TcpLifetime: how a client over TCP waits and is closed, also when it is dropped; the same for samples and records."""

from __future__ import annotations

import atexit
import logging
import sys
import weakref
from collections.abc import Callable

from rollway._core import TcpConnection
from rollway.errors import RollwayError, WaitTimeout
from rollway.segment.closes_on_exit import FlushesOnExit
from rollway.waiting.notifier import LoopNotifier, WeakCall
from rollway.waiting.peer_watch import LearnerWatch, deadline_of, notified

_log = logging.getLogger(__name__)
_open_clients: weakref.WeakSet[TcpLifetime] = weakref.WeakSet()
_UNCLOSED_WAIT_S = 2.0  # how long to wait for the acknowledgements of a client that was not closed


class TcpLifetime(FlushesOnExit, TcpConnection):
    """Delivers what was sent before a client ends, also one that was not closed, or logs what is lost."""

    _notifier: LoopNotifier  # notifies when there may be room
    _settled_notifier: LoopNotifier  # notifies when `wait` would not wait
    _unit: str
    _learner_watch: LearnerWatch | None = None  # not needed: the connection itself notices

    blocks = True
    """Whether `send` waits when there is no room: always, because the learner chooses what to drop."""

    def _open(self, notifier: LoopNotifier) -> None:
        self._notifier = notifier
        self._settled_notifier = LoopNotifier(WeakCall(self, TcpConnection._settled_eventfd_waiter))
        _open_clients.add(self)

    async def wait_async(self, timeout: float | None = None) -> None:
        """As `wait`, for asyncio. A cancelled wait cancels no message."""
        deadline = deadline_of(timeout)
        while True:
            try:
                return self.wait(0.0)
            except WaitTimeout:
                if not await notified(self._settled_notifier, deadline, self._learner_watch):
                    raise WaitTimeout(self._no_room(timeout)) from None

    def close(self, timeout: float | None = 10.0) -> None:
        """Waits until everything is acknowledged, at most ``timeout`` seconds, and disconnects. Safe to call twice.

        `ConnectionClosedError` says how much was not acknowledged; the client is closed nevertheless. Ctrl-C ends the
        wait and closes at once, and the log says how much was not acknowledged.
        """
        try:
            super().close(timeout)
        except (RollwayError, ValueError, TypeError):  # the latter two: there is no such timeout
            raise
        except BaseException as interruption:
            try:
                super().close(0.0)
            except RollwayError as error:
                _log.error("%s ended the close of a %s: %s", type(interruption).__name__, type(self).__name__, error)
            raise
        finally:
            if self.closed:
                self._notifier.close()
                self._settled_notifier.close()
                _open_clients.discard(self)

    def __del__(self, too_late: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_notifier") and not too_late():  # at interpreter exit, `_close_all` has done it
            _close_quietly(self, _UNCLOSED_WAIT_S)

    def __repr__(self) -> str:
        state = "connected" if self.connected else "connecting"
        state = "closed" if self.closed else "lost" if self.over else state
        return f"<rollway.{type(self).__name__} {self.address} {state}>"

    def _no_room(self, timeout: float | None) -> str:
        why = "" if self.last_error is None else f" ({self.last_error})"
        state = "connected" if self.connected else f"no connection now{why}"
        return (
            f"{self.address} did not take everything within {timeout} s: {self.unacknowledged} {self._unit} are not "
            f"acknowledged, {state}. Wait longer, or see whether the learner still takes them"
        )


def _close_quietly(client: TcpLifetime, timeout: float) -> None:
    """Delivers what a client that was not closed still has, or logs what is lost."""
    if client.closed or client.unacknowledged == 0:
        return
    try:
        client.close(timeout)
    except RollwayError as error:
        # As text: a log that keeps the error would keep its frames, and so the client.
        _log.error(
            "a %s was not closed, and had %s s to deliver what was not acknowledged: %s. Close a client before its "
            "process ends, or use it in a `with` block",
            type(client).__name__,
            timeout,
            str(error),
        )


def _close_all() -> None:
    timeout = _UNCLOSED_WAIT_S
    for client in list(_open_clients):
        try:
            _close_quietly(client, timeout)
        except KeyboardInterrupt:  # the user does not want to wait; losses are logged nevertheless
            timeout = 0.0


# At interpreter exit, also after Ctrl-C; so it does not wait for long.
atexit.register(_close_all)
