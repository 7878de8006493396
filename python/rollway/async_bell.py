"""AsyncBell: lets coroutines wait for something that only a thread can wait for.

One thread per handle, started by the first coroutine that has to wait, asleep in native code while anybody does. It
takes nothing: it only tells the coroutines to look, so a cancelled one loses nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from rollway.errors import ConnectionClosedError

_LOOK_AGAIN_S = 1.0


class AsyncBell:
    """``await bell.rung()`` returns when ``wait`` says there is something, or when the handle is closed."""

    def __init__(self, wait: Callable[[float], bool]) -> None:
        self._wait = wait
        self._changed = threading.Condition()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[bool]]] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    async def rung(self, timeout: float | None = None) -> bool:
        """Waits for the next time that it is worth looking. False when ``timeout`` seconds were over first.

        Not by `asyncio.wait_for`, which would make a task of each wait and need two more turns of the loop to end it.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        with self._changed:
            if self._closed:
                return True
            self._waiters.append((loop, waiter))
            if self._thread is None or not self._thread.is_alive():  # not alive: this is a forked child
                self._thread = threading.Thread(target=self._run, name="rollway-async", daemon=True)
                self._thread.start()
            self._changed.notify()
        timer = None if timeout is None else loop.call_later(timeout, _settle, waiter, False)
        rung = False
        try:
            rung = await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if not rung:
                with self._changed:
                    self._waiters = [one for one in self._waiters if one[1] is not waiter]
        return rung

    def close(self) -> None:
        """Wakes everybody and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiters or self._closed)
                if self._closed:
                    break
            try:
                if not self._wait(_LOOK_AGAIN_S) and not self._closed:
                    continue
            except ConnectionClosedError:
                break
            self._wake()
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            waiters, self._waiters = self._waiters, []
        for loop, waiter in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, waiter, True)


def _settle(waiter: asyncio.Future[bool], rung: bool) -> None:
    if not waiter.done():
        waiter.set_result(rung)
