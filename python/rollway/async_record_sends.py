"""AsyncRecordSends: the asyncio twins of a record client's blocking calls, the same for every kind of client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from rollway._core import RecordSlot
from rollway.async_bell import AsyncBell
from rollway.async_sends import Vigil, deadline_of, rung
from rollway.errors import RingFull, WaitTimeout
from rollway.record_key import RecordKey

T = TypeVar("T")


class _Client(Protocol):
    """What a client brings."""

    _bell: AsyncBell
    _vigil: Vigil | None

    @property
    def blocks(self) -> bool: ...
    def _no_room(self, timeout: float | None) -> str: ...
    async def _when_there_is_room(self, attempt: Callable[[], T], timeout: float | None) -> T: ...
    def send(self, data: Any, *, key: RecordKey | None = None, metadata: Any = None, version: int = 0) -> bool: ...
    def try_send(self, data: Any, *, key: RecordKey | None = None, metadata: Any = None, version: int = 0) -> bool: ...
    def tombstone(
        self, key: RecordKey, reason: str = "", *, version: int = 0, timeout: float | None = None
    ) -> bool: ...
    def reserve(
        self,
        lengths: dict[str, int],
        *,
        key: RecordKey | None = None,
        metadata: Any = None,
        version: int = 0,
        timeout: float | None = None,
    ) -> RecordSlot: ...


class AsyncRecordSends:
    """Waits on the client's bell and then tries: so a cancelled wait has sent and reserved nothing."""

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
            if not await rung(self._bell, deadline, self._vigil):
                raise WaitTimeout(self._no_room(timeout))
        return True

    async def tombstone_async(
        self: _Client, key: RecordKey, reason: str = "", *, version: int = 0, timeout: float | None = None
    ) -> bool:
        """As `tombstone`, for asyncio. A cancelled wait sends nothing."""
        return await self._when_there_is_room(
            lambda: self.tombstone(key, reason, version=version, timeout=0.0), timeout
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
        return await self._when_there_is_room(
            lambda: self.reserve(lengths, key=key, metadata=metadata, version=version, timeout=0.0), timeout
        )

    async def _when_there_is_room(self: _Client, attempt: Callable[[], T], timeout: float | None) -> T:
        """What an attempt gives that does not wait, once there is room for it."""
        deadline = deadline_of(timeout)
        while True:
            try:
                return attempt()
            except RingFull:
                if not self.blocks:
                    raise
                if not await rung(self._bell, deadline, self._vigil):
                    raise WaitTimeout(self._no_room(timeout)) from None
