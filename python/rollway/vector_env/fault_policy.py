"""FaultPolicy: how often an environment that died, hung or raised is begun anew, before the caller is told."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from rollway.errors import InvalidArgument


@dataclass(frozen=True)
class FaultPolicy:
    """Begin an environment anew after a fault, while the others go on.

    To the learner it is a truncated episode: the last observation again, reward 0, ``truncated``, and in the infos
    ``"fault"`` with what happened. Then the environment is reset as its autoreset mode says. A reset in which it fails
    is done again, with the same seed. A step of an environment whose episode is over, where autoreset is disabled, is
    no fault of the environment: it is raised, and uses up no restart.

    Args:
        max_restarts: How many faults one environment may have within ``within_s`` seconds. One more is raised.
        within_s: Faults longer ago than this are forgiven.

    >>> FaultPolicy(max_restarts=2)
    FaultPolicy(max_restarts=2, within_s=60.0)
    """

    max_restarts: int = 3
    within_s: float = 60.0

    def __post_init__(self) -> None:
        if self.max_restarts < 1 or not self.within_s > 0:
            raise InvalidArgument(f"{self} makes no sense: both numbers must be positive")


class Patience:
    """What is left of it: the faults of each environment."""

    def __init__(self, policy: FaultPolicy | None) -> None:
        if not isinstance(policy, FaultPolicy | None):
            raise InvalidArgument(f"restart must be a FaultPolicy, or None for none; not {policy!r}")
        self.policy = policy
        self._faults: dict[int, deque[float]] = {}

    def bears(self, env: int) -> bool:
        """Notes a fault; false when it was one too many."""
        if self.policy is None:
            return False
        faults, now = self._faults.setdefault(env, deque()), time.monotonic()
        while faults and now - faults[0] > self.policy.within_s:
            faults.popleft()
        faults.append(now)
        return len(faults) <= self.policy.max_restarts


_SLOWER = 5
"""How many times as long as at the start an environment may take to be made again."""


class Allowance:
    """What `Troupe` waits for at most, and who is the reason that it is more than usual."""

    def __init__(self, making_s: float) -> None:
        self._making_s = making_s
        """How long it took to make all of them, at the start."""
        self.timeout_s: float | None = None
        """For ever, if ``None``."""
        self.absent: set[int] = set()
        """Workers: successors that have not said yet that they are there."""
        self.anew: set[int] = set()
        """Environments that are being made again."""

    def limit(self) -> float | None:
        """How long one may take now. Those that are being made anew are not hung yet, and nobody else is until then."""
        if self.timeout_s is None or not (self.absent or self.anew):
            return self.timeout_s
        return self.timeout_s + _SLOWER * self._making_s

    def deadline(self) -> float | None:
        """Until when what begins now may take."""
        limit = self.limit()
        return None if limit is None else time.monotonic() + limit
