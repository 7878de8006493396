"""Lookout: what a learner that waits in an event loop looks for now and then. What it waits for cannot ring.

`Server` and `RecordServer` make one for each wait. The calls that block look for the same, natively.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from rollway.errors import ConnectionClosedError, InvalidArgument, PeerDied, RollwayError
from rollway.waiting.notifier import AsyncBell

_WORKER_LOOK_S = 1.0  # how often somebody who waits looks whether anybody is left
_FIRST_LOOK_S, _LOOK_S = 0.02, 0.5  # soon for the first time: from then on it counts how long a trouble lasts


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
        if await bell.rung(max(min(left, _WORKER_LOOK_S), 0.0)):
            return True
        if left <= _WORKER_LOOK_S:
            return False
        alone_since = None if vigil is None else vigil.look(alone_since)


@dataclass(frozen=True)
class Trouble:
    """Something that will not end by itself: an error, once its sign has been the same for a while."""

    sign: Callable[[], object | None]
    """``None`` when all is well."""
    limit_s: float | None
    """How long to bear it; ``None``: for ever."""
    error: Callable[[], RollwayError]


def gone(producers: Callable[[], tuple[int, list[int]]], limit_s: float | None, what: str) -> Trouble:
    """Every producer is gone, and some of them died."""

    def sign() -> object | None:
        try:
            alive, died = producers()
        except ConnectionClosedError:  # closed by another thread: no trouble, and whoever waits sees the end
            return None
        return "alone" if died and not alive else None

    def error() -> RollwayError:
        _, died = producers()
        pids = ", ".join(map(str, died))
        return PeerDied(
            f"every producer is gone, and {len(died)} died without closing (pid {pids}): no {what} in {limit_s} s. "
            "Look at the workers' logs (killed? out of memory?), or raise peer_timeout_s"
        )

    return Trouble(sign, limit_s, error)


class Lookout:
    """Waits for a bell until a deadline, and for troubles that keep it from being rung."""

    def __init__(self, bell: AsyncBell, timeout: float | None, troubles: Callable[[], list[Trouble]]) -> None:
        self._bell = bell
        deadline = deadline_of(timeout)
        self._deadline = math.inf if deadline is None else deadline
        self._troubles = troubles
        self._pause_s = _FIRST_LOOK_S
        self._seen: dict[int, tuple[object, float]] = {}

    async def rung(self) -> bool:
        """True when it is worth looking, false when the time is over. Raises the error of a trouble that lasts."""
        while (left := self._deadline - time.monotonic()) > 0:
            if await self._bell.rung(min(left, self._pause_s)):
                return True
            self._pause_s = _LOOK_S
            for index, trouble in enumerate(self._troubles()):
                self._look(index, trouble)
        return False

    def _look(self, index: int, trouble: Trouble) -> None:
        sign, now = (None if trouble.limit_s is None else trouble.sign()), time.monotonic()
        if sign is None or trouble.limit_s is None:
            self._seen.pop(index, None)
            return
        first, since = self._seen.setdefault(index, (sign, now))
        if first != sign:
            self._seen[index] = (sign, now)
        elif now - since >= trouble.limit_s:
            raise trouble.error()
