"""LoopNotifier: lets coroutines wait for what a native handle waits for.

Each event loop gets a native thread, which sleeps while no coroutine waits, and a descriptor that the loop watches. No
Python code runs between the event and the wake-up of the loop. A notifier takes no data: it only tells coroutines and
callbacks to try again. So a cancelled wait loses nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from rollway._core import EventfdWaiter
from rollway.errors import ConnectionClosedError

if TYPE_CHECKING:
    import asyncio  # Importing it takes longer than all of Rollway, and most programs do without.

H = TypeVar("H")
T = TypeVar("T")


class WeakCall(Generic[H, T]):
    """Calls a method of a handle that it does not keep alive.

    For objects that the handle itself keeps. A bound method would make a reference cycle, and a handle that is dropped
    without `close` would keep its seat until Python's cyclic collector runs.
    """

    def __init__(self, handle: H, method: Callable[[H], T]) -> None:
        self._handle = weakref.ref(handle)
        self._method = method

    def __call__(self) -> T:
        """Calls the method; `ConnectionClosedError` when the handle is gone."""
        handle = self._handle()
        if handle is None:
            raise ConnectionClosedError("this handle was dropped")
        return self._method(handle)


class LoopNotifier:
    """Wakes a coroutine (`notified`) or makes a call (`call_once`) when it is time to try again, or it is closed."""

    def __init__(self, make_waiter: Callable[[], EventfdWaiter]) -> None:
        self._make_waiter = make_waiter
        self._readers: dict[asyncio.AbstractEventLoop, _LoopReader] = {}
        self._closed = False

    async def notified(self, timeout: float | None = None) -> bool:
        """Waits until it is time to try again. False when ``timeout`` seconds were over first.

        It does without `asyncio.wait_for`, which makes a task of each wait and needs two more iterations of the loop.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        settle = partial(_settle, waiter, True)
        if not self.call_once(loop, settle):
            return True
        timer = None if timeout is None else loop.call_later(timeout, _settle, waiter, False)
        was_notified = False
        try:
            was_notified = await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if not was_notified:
                self.cancel(settle)
        return was_notified

    def call_once(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> bool:
        """Makes ``loop``, which is the running one, make a call once, when it is time to try again.

        False when the handle is closed: then no call is made.
        """
        reader = None if self._closed else self._readers.get(loop) or self._add_reader(loop)
        if reader is None:
            return False
        reader.calls.append(call)
        reader.eventfd.arm()
        return True

    def cancel(self, call: Callable[[], None]) -> None:
        """Cancels `call_once`, if the call was not made yet."""
        for reader in list(self._readers.values()):
            if call in reader.calls:
                reader.calls.remove(call)

    def close(self) -> None:
        """Wakes every waiter. The native thread of a loop ends when the loop has seen it, or is gone."""
        self._closed = True
        for reader in list(self._readers.values()):
            reader.last = True
            reader.eventfd.signal()
        self._readers.clear()

    def __del__(self) -> None:
        self.close()  # the handle was dropped without `close`: no loop shall watch it any more

    def _add_reader(self, loop: asyncio.AbstractEventLoop) -> _LoopReader | None:
        """Starts to watch for one more loop, and drops loops that are closed. None when the handle is closed."""
        for other in [other for other in list(self._readers) if other.is_closed()]:
            self._readers.pop(other, None)
        try:
            reader = self._readers[loop] = _LoopReader(self._make_waiter())
        except ConnectionClosedError:
            return None
        if self._closed:  # checked after the reader is stored, because `close` wakes only the readers that it sees
            return None
        loop.add_reader(reader.eventfd.fileno(), reader.on_readable, loop)
        return reader


class _LoopReader:
    """The native thread and the pending calls of one loop."""

    def __init__(self, eventfd: EventfdWaiter) -> None:
        self.eventfd = eventfd
        self.calls: list[Callable[[], None]] = []
        self.last = False

    def on_readable(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes the pending calls. The loop calls it when the descriptor is readable."""
        self.eventfd.clear()
        if self.last:
            loop.remove_reader(self.eventfd.fileno())
        calls, self.calls = self.calls, []
        for call in calls:
            try:
                call()
            except Exception as error:  # noqa: BLE001  the other calls are made nevertheless
                context = {"message": f"{call!r} failed, which a LoopNotifier called", "exception": error}
                loop.call_exception_handler(context)


def _settle(waiter: asyncio.Future[bool], result: bool) -> None:
    if not waiter.done():
        waiter.set_result(result)
