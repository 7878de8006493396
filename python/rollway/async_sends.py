"""AsyncSends: the asyncio twins of a client's blocking sends, the same for every kind of client."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

import optree

from rollway.async_bell import AsyncBell
from rollway.errors import WaitTimeout


class _Client(Protocol):
    """What a client brings."""

    _bell: AsyncBell

    @property
    def blocks(self) -> bool: ...
    def _no_room(self, timeout: float | None) -> str: ...
    async def _room(self, deadline: float | None, timeout: float | None) -> None: ...
    def send(self, data: Any, *, version: int = 0) -> bool: ...
    def try_send(self, data: Any, *, version: int = 0) -> bool: ...
    def send_many(self, data: Any, *, version: int = 0) -> int: ...
    def try_send_many(self, data: Any, *, version: int = 0) -> int: ...


def deadline_of(timeout: float | None) -> float | None:
    """When a timeout that begins now is over."""
    return None if timeout is None else time.monotonic() + timeout


class AsyncSends:
    """Waits on the client's bell and then tries: so a cancelled wait has sent nothing."""

    async def send_async(self: _Client, data: Any, *, version: int = 0, timeout: float | None = None) -> bool:
        """As `send`, for asyncio. A cancelled wait sends nothing."""
        if not self.blocks:
            return self.send(data, version=version)
        deadline = deadline_of(timeout)
        while not self.try_send(data, version=version):
            await self._room(deadline, timeout)
        return True

    async def send_many_async(self: _Client, data: Any, *, version: int = 0, timeout: float | None = None) -> int:
        """As `send_many`, for asyncio. After a timeout, ``error.sent`` samples are sent."""
        if not self.blocks:
            return self.send_many(data, version=version)
        deadline, sent, rest = deadline_of(timeout), 0, data
        while True:
            sent += (now := self.try_send_many(rest, version=version))
            rest = optree.tree_map(lambda leaf: leaf[now:], rest, namespace="rollway")
            if len(optree.tree_leaves(rest, namespace="rollway")[0]) == 0:
                return sent
            try:
                await self._room(deadline, timeout)
            except WaitTimeout as late:
                late.sent = sent
                raise

    async def _room(self: _Client, deadline: float | None, timeout: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        try:
            await asyncio.wait_for(self._bell.rung(), left)
        except TimeoutError:
            raise WaitTimeout(self._no_room(timeout)) from None
