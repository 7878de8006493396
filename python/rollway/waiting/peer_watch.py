"""Peer watch: notices, while a coroutine waits, that its peers are dead. A dead process cannot wake it.

`LearnerWatch` is for workers that wait for room, `PeerWatch` for learners that wait for data. Both check periodically.
Blocking calls make the same checks natively.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from rollway.errors import ConnectionClosedError, InvalidArgument, PeerDied, RollwayError
from rollway.waiting.notifier import LoopNotifier

_LEARNER_CHECK_S = 1.0  # how often a worker that waits checks whether a learner is left
_FIRST_CHECK_S, _CHECK_S = 0.02, 0.5  # the first check is early, because a stall counts from the check that found it


def deadline_of(timeout: float | None) -> float | None:
    """When a timeout that begins now is over."""
    if timeout is not None and not timeout >= 0:
        raise InvalidArgument(f"a timeout must be a number of seconds >= 0 or None, not {timeout}")
    return None if timeout is None else time.monotonic() + timeout


class LearnerWatch:
    """Raises `PeerDied` when every learner is dead, and no new one can come, or has come in time."""

    def __init__(
        self,
        learners: Callable[[], tuple[int, list[int]]],
        is_orphaned: Callable[[], bool],
        limit_s: float | None,
    ) -> None:
        self._learners = learners
        self._is_orphaned = is_orphaned
        self._limit_s = limit_s

    def check(self, alone_since: float | None) -> float | None:
        """Since when there has been no learner; ``None`` while there is one. Takes the result of the last check."""
        alive, died = self._learners()
        if alive or not died:
            return None
        pids = ", ".join(map(str, died))
        if self._is_orphaned():
            raise PeerDied(
                f"the learner died (pid {pids}), and the name is gone: no other can take its place. Start another "
                "learner, and attach to it anew"
            )
        if self._limit_s is None:
            return None
        now = time.monotonic()
        if alone_since is not None and now - alone_since >= self._limit_s:
            raise PeerDied(
                f"the learner died (pid {pids}) and no other took its place in {self._limit_s} s: there is no room. "
                "Start a learner with the same name to go on, or raise peer_timeout_s"
            )
        return alone_since or now


async def notified(notifier: LoopNotifier, deadline: float | None, learner_watch: LearnerWatch | None) -> bool:
    """Waits for a notification, and checks periodically for dead learners. False when the deadline came first."""
    alone_since: float | None = None
    while True:
        left = math.inf if deadline is None else deadline - time.monotonic()
        if await notifier.notified(max(min(left, _LEARNER_CHECK_S), 0.0)):
            return True
        if left <= _LEARNER_CHECK_S:
            return False
        alone_since = None if learner_watch is None else learner_watch.check(alone_since)


@dataclass(frozen=True)
class StallCheck:
    """A state that does not end by itself. It becomes an error once it has stayed the same for ``limit_s`` seconds."""

    state: Callable[[], object | None]
    """``None`` when nothing is wrong."""
    limit_s: float | None
    """``None``: for ever."""
    error: Callable[[], RollwayError]


def producers_died(producers: Callable[[], tuple[int, list[int]]], limit_s: float | None, what: str) -> StallCheck:
    """The check that every producer is gone, and some of them died."""

    def state() -> object | None:
        try:
            alive, died = producers()
        except ConnectionClosedError:  # closed by another thread: the wait itself sees that
            return None
        return "alone" if died and not alive else None

    def error() -> RollwayError:
        _, died = producers()
        pids = ", ".join(map(str, died))
        return PeerDied(
            f"every producer is gone, and {len(died)} died without closing (pid {pids}): no {what} in {limit_s} s. "
            "Look at the workers' logs (killed? out of memory?), or raise peer_timeout_s"
        )

    return StallCheck(state, limit_s, error)


class PeerWatch:
    """Waits for notifications until a deadline, and makes checks periodically. One for each wait of a learner."""

    def __init__(self, notifier: LoopNotifier, timeout: float | None, checks: Callable[[], list[StallCheck]]) -> None:
        self._notifier = notifier
        deadline = deadline_of(timeout)
        self._deadline = math.inf if deadline is None else deadline
        self._checks = checks
        self._pause_s = _FIRST_CHECK_S
        self._seen: dict[int, tuple[object, float]] = {}

    async def notified(self) -> bool:
        """True when it is time to try again, false when the deadline came first. Raises the error of a failed check."""
        while (left := self._deadline - time.monotonic()) > 0:
            if await self._notifier.notified(min(left, self._pause_s)):
                return True
            self._pause_s = _CHECK_S
            for index, check in enumerate(self._checks()):
                self._make(index, check)
        return False

    def _make(self, index: int, check: StallCheck) -> None:
        state, now = (None if check.limit_s is None else check.state()), time.monotonic()
        if state is None or check.limit_s is None:
            self._seen.pop(index, None)
            return
        first, since = self._seen.setdefault(index, (state, now))
        if first != state:
            self._seen[index] = (state, now)
        elif now - since >= check.limit_s:
            raise check.error()
