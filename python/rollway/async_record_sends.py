"""AsyncRecordSends: the asyncio twins of a record client's blocking sends, the same for every kind of client."""

from __future__ import annotations

from typing import Any, Protocol

from rollway.async_bell import AsyncBell
from rollway.async_sends import Vigil, deadline_of, rung
from rollway.errors import RingFull, WaitTimeout
from rollway.record_key import RecordKey


class _Client(Protocol):
    """What a client brings."""

    _bell: AsyncBell
    _vigil: Vigil | None

    @property
    def blocks(self) -> bool: ...
    def _no_room(self, timeout: float | None) -> str: ...
    def send(self, data: Any, *, key: RecordKey | None = None, metadata: Any = None, version: int = 0) -> bool: ...
    def try_send(self, data: Any, *, key: RecordKey | None = None, metadata: Any = None, version: int = 0) -> bool: ...
    def tombstone(
        self, key: RecordKey, reason: str = "", *, version: int = 0, timeout: float | None = None
    ) -> bool: ...


class AsyncRecordSends:
    """Waits on the client's bell and then tries: so a cancelled wait has sent nothing."""

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
        if not self.blocks:
            return self.tombstone(key, reason, version=version)
        deadline = deadline_of(timeout)
        while True:
            try:
                return self.tombstone(key, reason, version=version, timeout=0.0)
            except RingFull:
                if not await rung(self._bell, deadline, self._vigil):
                    raise WaitTimeout(self._no_room(timeout)) from None
