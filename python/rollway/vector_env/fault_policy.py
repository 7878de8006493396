"""FaultPolicy: how often an environment that died, hung or raised is restarted before the caller gets the error.

`FaultBudget` counts the faults, and `Deadlines` says when an environment counts as hung.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from rollway.errors import InvalidArgument


@dataclass(frozen=True)
class FaultPolicy:
    """Restart an environment after a fault, while the others go on.

    The learner sees a truncated episode: the last observation again, reward 0, ``truncated``, and in the infos
    ``"fault"`` with what happened. Then the environment is reset as its autoreset mode says. A reset that fails is done
    again, with the same seed. With autoreset disabled, a step of an environment whose episode is over is an error of
    the caller: it is raised, and uses up no restart.

    Args:
        max_restarts: How many faults one environment may have within ``within_s`` seconds. One more is raised.
        within_s: Faults longer ago than this do not count.

    >>> FaultPolicy(max_restarts=2)
    FaultPolicy(max_restarts=2, within_s=60.0)
    """

    max_restarts: int = 3
    within_s: float = 60.0

    def __post_init__(self) -> None:
        if self.max_restarts < 1 or not self.within_s > 0:
            raise InvalidArgument(f"{self} makes no sense: both numbers must be positive")


class FaultBudget:
    """Counts the faults of each environment against a policy."""

    def __init__(self, policy: FaultPolicy | None) -> None:
        if not isinstance(policy, FaultPolicy | None):
            raise InvalidArgument(f"restart must be a FaultPolicy, or None for none; not {policy!r}")
        self.policy = policy
        self._faults: dict[int, deque[float]] = {}

    def record_fault(self, env: int) -> bool:
        """Counts a fault. False when it was one too many."""
        if self.policy is None:
            return False
        faults, now = self._faults.setdefault(env, deque()), time.monotonic()
        while faults and now - faults[0] > self.policy.within_s:
            faults.popleft()
        faults.append(now)
        return len(faults) <= self.policy.max_restarts


_REMAKE_FACTOR = 5
"""To be made again, an environment may take this many times as long as at the start."""


class Deadlines:
    """How long environments may take before they count as hung. Longer while some are made again."""

    def __init__(self, making_s: float) -> None:
        self._making_s = making_s
        """How long it took to make all environments at the start."""
        self.timeout_s: float | None = None
        """For one step or reset; ``None``: for ever."""
        self.starting_workers: set[int] = set()
        """Replacement workers that have not reported yet that they are ready."""
        self.remaking_envs: set[int] = set()
        """Environments that are being made again."""

    def limit(self) -> float | None:
        """How long one environment may take now. While some are made again, all of them get the longer time."""
        if self.timeout_s is None or not (self.starting_workers or self.remaking_envs):
            return self.timeout_s
        return self.timeout_s + _REMAKE_FACTOR * self._making_s

    def deadline(self) -> float | None:
        """When a request that begins now counts as hung; ``None``: never."""
        limit = self.limit()
        return None if limit is None else time.monotonic() + limit
