"""AsyncRecordSends: the asyncio twin of a record client's blocking send, the same for every kind of client."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

from rollway.async_bell import AsyncBell
from rollway.async_sends import deadline_of
from rollway.errors import WaitTimeout
from rollway.record_key import RecordKey


class _Client(Protocol):
    """What a client brings."""

    _bell: AsyncBell

    @property
    def blocks(self) -> bool: ...
    def _no_room(self, timeout: float | None) -> str: ...
    def send(self, data: Any, *, key: RecordKey | None = None, metadata: Any = None, version: int = 0) -> bool: ...
    def try_send(self, data: Any, *, key: RecordKey | None = None, metadata: Any = None, version: int = 0) -> bool: ...


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
            left = None if deadline is None else deadline - time.monotonic()
            try:
                await asyncio.wait_for(self._bell.rung(), left)
            except TimeoutError:
                raise WaitTimeout(self._no_room(timeout)) from None
        return True
