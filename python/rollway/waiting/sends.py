"""AsyncSends: the asyncio twins of a client's blocking sends, the same for every kind of client."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import optree

from rollway.errors import InvalidArgument, PeerDied, RollwayError, WaitTimeout
from rollway.schema.pytree import as_array
from rollway.waiting.notifier import AsyncBell

_LOOK_S = 1.0  # how often somebody who waits looks whether anybody is left


class _Client(Protocol):
    """What a client brings."""

    _bell: AsyncBell
    _vigil: Vigil | None

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
    if timeout is not None and not timeout >= 0:
        raise InvalidArgument(f"a timeout must be a number of seconds >= 0 or None, not {timeout}")
    return None if timeout is None else time.monotonic() + timeout


class Vigil:
    """Notices that every learner is dead, and that none has come back for too long, or can: then nobody will ring."""

    def __init__(
        self,
        learners: Callable[[], tuple[int, list[int]]],
        is_orphaned: Callable[[], bool],
        limit_s: float | None,
    ) -> None:
        self._learners = learners
        self._is_orphaned = is_orphaned
        self._limit_s = limit_s

    def look(self, alone_since: float | None) -> float | None:
        """Since when we have been alone, if we are. Raises `PeerDied` when that is too long ago, or for ever."""
        alive, died = self._learners()
        if alive or not died:
            return None
        pids = ", ".join(map(str, died))
        if self._is_orphaned():
            raise PeerDied(
                f"the learner died (pid {pids}), and the name is gone: nobody can take its place. Start another "
                "learner, and attach to it anew"
            )
        if self._limit_s is None:
            return None
        now = time.monotonic()
        if alone_since is not None and now - alone_since >= self._limit_s:
            raise PeerDied(
                f"the learner died (pid {pids}) and nobody took its place in {self._limit_s} s: there is no room. "
                "Start a learner with the same name to go on, or raise peer_timeout_s"
            )
        return alone_since or now


async def rung(bell: AsyncBell, deadline: float | None, vigil: Vigil | None) -> bool:
    """Waits for the bell; looks around now and then, for the dead cannot ring. False when the time was over."""
    alone_since: float | None = None
    while True:
        left = math.inf if deadline is None else deadline - time.monotonic()
        if await bell.rung(max(min(left, _LOOK_S), 0.0)):
            return True
        if left <= _LOOK_S:
            return False
        alone_since = None if vigil is None else vigil.look(alone_since)


def _behind(leaf: Any, rows: int) -> Any:
    """A stacked leaf without its first rows."""
    return (leaf if hasattr(leaf, "__getitem__") else as_array(leaf, "", None))[rows:]


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
        """As `send_many`, for asyncio. When it fails or is cancelled, ``error.sent`` samples are sent.

        A task that is cancelled before it ran has sent nothing, and its `CancelledError` has no ``sent``. The
        `TimeoutError` of `asyncio.timeout` and `asyncio.wait_for` has the `CancelledError` as its cause.
        """
        if not self.blocks:
            return self.send_many(data, version=version)
        deadline, sent, rest = deadline_of(timeout), 0, data
        try:
            while True:
                sent += (now := self.try_send_many(rest, version=version))
                rest = optree.tree_map(lambda leaf: _behind(leaf, now), rest, namespace="rollway")
                if len(optree.tree_leaves(rest, namespace="rollway")[0]) == 0:
                    return sent
                await self._room(deadline, timeout)
        except RollwayError as error:
            error.sent += sent
            raise
        except asyncio.CancelledError as cancelled:
            cancelled.sent = sent  # type: ignore[attr-defined]
            raise

    async def _room(self: _Client, deadline: float | None, timeout: float | None) -> None:
        if not await rung(self._bell, deadline, self._vigil):
            raise WaitTimeout(self._no_room(timeout))
