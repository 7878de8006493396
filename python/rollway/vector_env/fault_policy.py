"""FaultPolicy: the name that `RestartPolicy` had for vector environments.

`FaultBudget` counts the faults of the environments, and `Deadlines` says when an environment counts as hung.
"""

from __future__ import annotations

import time

from rollway.errors import InvalidArgument
from rollway.runner.restart_policy import RestartCount, RestartPolicy


class FaultPolicy(RestartPolicy):
    """A `RestartPolicy` with the defaults ``max_restarts=3`` and ``within_s=60.0``. New code uses `RestartPolicy`.

    >>> FaultPolicy(max_restarts=2) == FaultPolicy(2, 60.0)
    True
    """

    def __init__(self, max_restarts: int = 3, within_s: float = 60.0) -> None:
        super().__init__(max_restarts, within_s=within_s)
        if max_restarts < 1:
            raise InvalidArgument(f"max_restarts = {max_restarts} is out of range: at least 1")

    def __repr__(self) -> str:
        return f"FaultPolicy(max_restarts={self.max_restarts}, within_s={self.within_s})"


class FaultBudget:
    """Counts the faults of each environment against a policy. ``policy`` is ``None`` where none is ever restarted."""

    def __init__(self, policy: RestartPolicy | None) -> None:
        if not isinstance(policy, RestartPolicy | None):
            raise InvalidArgument(f"restart must be a RestartPolicy, or None for none; not {policy!r}")
        self.policy = None if policy is None or policy.max_restarts == 0 else policy
        self._counts: dict[int, RestartCount] = {}

    def record_fault(self, env: int) -> bool:
        """Counts a fault. False when it was one too many."""
        if self.policy is None:
            return False
        count = self._counts.get(env) or self._counts.setdefault(env, RestartCount(self.policy))
        return count.allows_another()


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
