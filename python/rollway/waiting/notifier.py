"""AsyncBell: lets coroutines wait for what a native handle waits for.

For each event loop there is an `EventfdWaiter`: a native thread, asleep while nobody waits, and a descriptor that the
loop watches. No Python runs between the one who rings and the loop that wakes. The bell takes nothing: it only tells
coroutines, or whoever left a call, to look, so a cancelled one loses nothing.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from rollway._core import EventfdWaiter
from rollway.errors import ConnectionClosedError

H = TypeVar("H")
T = TypeVar("T")


class WeakCall(Generic[H, T]):
    """Calls a method of a handle that it does not keep alive.

    For what the handle itself keeps. A bound method would make a reference cycle, and a handle that is dropped without
    `close` would keep its seat until Python's cyclic collector runs.
    """

    def __init__(self, handle: H, method: Callable[[H], T]) -> None:
        self._handle = weakref.ref(handle)
        self._method = method

    def __call__(self) -> T:
        """What the method gives; `ConnectionClosedError` when the handle is gone."""
        handle = self._handle()
        if handle is None:
            raise ConnectionClosedError("this handle was dropped")
        return self._method(handle)


class AsyncBell:
    """``await bell.rung()`` returns when it is worth looking at the handle, or when the handle is closed; `tell` has a
    call made then."""

    def __init__(self, sentry: Callable[[], EventfdWaiter]) -> None:
        self._sentry = sentry
        self._ears: dict[asyncio.AbstractEventLoop, _Ear] = {}
        self._closed = False

    async def rung(self, timeout: float | None = None) -> bool:
        """Waits for the next time that it is worth looking. False when ``timeout`` seconds were over first.

        Not by `asyncio.wait_for`, which would make a task of each wait and need two more turns of the loop to end it.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        settle = partial(_settle, waiter, True)
        if not self.tell(loop, settle):
            return True
        timer = None if timeout is None else loop.call_later(timeout, _settle, waiter, False)
        rung = False
        try:
            rung = await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if not rung:
                self.forget(settle)
        return rung

    def tell(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> bool:
        """Has ``loop``, which is the running one, make a call the next time that it is worth looking, and no more.

        False when nothing is worth waiting for, as the handle is closed: then no call is made.
        """
        ear = None if self._closed else self._ears.get(loop) or self._listen(loop)
        if ear is None:
            return False
        ear.calls.append(call)
        ear.sentry.arm()
        return True

    def forget(self, call: Callable[[], None]) -> None:
        """Takes `tell` back, if the call was not made yet."""
        for ear in list(self._ears.values()):
            if call in ear.calls:
                ear.calls.remove(call)

    def close(self) -> None:
        """Wakes everybody. A sentry ends when its loop has heard of it, or is gone."""
        self._closed = True
        for ear in list(self._ears.values()):
            ear.last = True
            ear.sentry.signal()
        self._ears.clear()

    def __del__(self) -> None:
        self.close()  # the handle was dropped without `close`: no loop is to watch for it any more

    def _listen(self, loop: asyncio.AbstractEventLoop) -> _Ear | None:
        """Posts a sentry for one more loop, and forgets those of loops that are closed. None when the handle is."""
        for other in [other for other in list(self._ears) if other.is_closed()]:
            self._ears.pop(other, None)
        try:
            ear = self._ears[loop] = _Ear(self._sentry())
        except ConnectionClosedError:
            return None
        if self._closed:  # asked when the ear is there: `close` tells those that it sees
            return None
        loop.add_reader(ear.sentry.fileno(), ear.hear, loop)
        return ear


class _Ear:
    """What one loop hears of its sentry."""

    def __init__(self, sentry: EventfdWaiter) -> None:
        self.sentry = sentry
        self.calls: list[Callable[[], None]] = []
        self.last = False

    def hear(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop calls it when the descriptor is readable."""
        self.sentry.clear()
        if self.last:
            loop.remove_reader(self.sentry.fileno())
        calls, self.calls = self.calls, []
        for call in calls:
            try:
                call()
            except Exception as error:  # noqa: BLE001  the others are to hear of it all the same
                told = {"message": f"{call!r} failed, which an AsyncBell was to call", "exception": error}
                loop.call_exception_handler(told)


def _settle(waiter: asyncio.Future[bool], rung: bool) -> None:
    if not waiter.done():
        waiter.set_result(rung)
