"""AsyncRecordSends: the asyncio versions of a record client's blocking calls, the same for every kind of client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rollway._core import RecordSlot
from rollway.errors import RingFull, WaitTimeout
from rollway.records.key import RecordKey
from rollway.waiting.peer_watch import deadline_of, notified
from rollway.waiting.room import SentCount, WaitsForRoom

T = TypeVar("T")

_LAST_WAIT_S = 1e-6  # how long the last attempt blocks, to find out whether the lane or the memory is full

_RETRY_RECORDS = 64  # how many records of a list a retry tries at once: each retry checks them again


if TYPE_CHECKING:
    from rollway._core import RecordSends

    class _Client(RecordSends, WaitsForRoom, Protocol):
        """What a client brings."""

        async def _retry_when_room(self, attempt: Callable[[float], T], timeout: float | None) -> T: ...
        def _last_attempt(self, attempt: Callable[[float], T], timeout: float | None) -> T: ...


def _frozen(given: Any) -> Any:
    """A copy of a list, because its owner may change it during the wait."""
    return tuple(given) if isinstance(given, list) else given


class AsyncRecordSends:
    """Waits for a notification and then tries, so a cancelled wait has sent and reserved nothing."""

    async def send_async(
        self: _Client,
        data: Any,
        *,
        key: RecordKey | None = None,
        metadata: Any = None,
        version: int = 0,
        timeout: float | None = None,
    ) -> bool:
        """As `send`, for asyncio. A cancelled wait sends nothing."""
        if not self.blocks:
            return self.send(data, key=key, metadata=metadata, version=version)
        deadline = deadline_of(timeout)
        while not self.try_send(data, key=key, metadata=metadata, version=version):
            if not await notified(self._notifier, deadline, self._learner_watch):
                return self._last_attempt(
                    lambda wait_s: self.send(data, key=key, metadata=metadata, version=version, timeout=wait_s), timeout
                )
        return True

    async def send_many_async(
        self: _Client,
        data: Sequence[Any],
        *,
        keys: Sequence[RecordKey | None] | None = None,
        metadata: Sequence[Any] | None = None,
        version: int | Sequence[int] = 0,
        timeout: float | None = None,
    ) -> int:
        """As `send_many`, for asyncio. When it fails or is cancelled, ``error.sent`` records are sent.

        A task that is cancelled before it ran has sent nothing, and its `CancelledError` has no ``sent``. The
        `TimeoutError` of `asyncio.timeout` and `asyncio.wait_for` has the `CancelledError` as its cause.
        """
        if not self.blocks:
            return self.send_many(data, keys=keys, metadata=metadata, version=version)
        deadline, count = deadline_of(timeout), SentCount()
        data, keys, metadata, version = map(_frozen, (data, keys, metadata, version))

        def unsent(most: int | None) -> dict[str, Any]:
            given = {"data": data, "keys": keys, "metadata": metadata, "version": version}
            end = None if most is None else count.sent + most
            return {name: each[count.sent : end] if isinstance(each, tuple) else each for name, each in given.items()}

        with count:
            count.sent = self.try_send_many(**unsent(None))  # checks all of them
            while count.sent < len(data):
                if not await notified(self._notifier, deadline, self._learner_watch):
                    return count.sent + self._last_attempt(
                        lambda wait_s: self.send_many(**unsent(None), timeout=wait_s), timeout
                    )
                while now := self.try_send_many(**unsent(_RETRY_RECORDS)):
                    count.sent += now
            return count.sent

    async def tombstone_async(
        self: _Client, key: RecordKey, reason: str = "", *, version: int = 0, timeout: float | None = None
    ) -> bool:
        """As `tombstone`, for asyncio. A cancelled wait sends nothing."""
        return await self._retry_when_room(
            lambda wait_s: self.tombstone(key, reason, version=version, timeout=wait_s), timeout
        )

    async def reserve_async(
        self: _Client,
        lengths: dict[str, int],
        *,
        key: RecordKey | None = None,
        metadata: Any = None,
        version: int = 0,
        timeout: float | None = None,
    ) -> RecordSlot:
        """As `reserve`, for asyncio. A cancelled wait reserves nothing."""
        return await self._retry_when_room(
            lambda wait_s: self.reserve(lengths, key=key, metadata=metadata, version=version, timeout=wait_s), timeout
        )

    async def _retry_when_room(self: _Client, attempt: Callable[[float], T], timeout: float | None) -> T:
        """Repeats an attempt that does not wait until there is room for it."""
        deadline = deadline_of(timeout)
        while True:
            try:
                return attempt(0.0)
            except RingFull:
                if not self.blocks:
                    raise
                if not await notified(self._notifier, deadline, self._learner_watch):
                    return self._last_attempt(attempt, timeout)

    def _last_attempt(self: _Client, attempt: Callable[[float], T], timeout: float | None) -> T:
        """The last attempt after a timeout. Raises `NotEnoughMemory` if that is why there was no room."""
        try:
            return attempt(_LAST_WAIT_S)
        except (RingFull, WaitTimeout) as last:
            raise _timed_out(self._no_room(timeout), last.sent) from None


def _timed_out(message: str, sent: int) -> WaitTimeout:
    """Makes the error here: as a variable of the raising frame it would keep that frame and the client alive."""
    error = WaitTimeout(message)
    error.sent = sent
    return error
