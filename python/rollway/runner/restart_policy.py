"""RestartPolicy: how often a collector, or an environment of a vector env, is restarted before its fault is an error.

`AsyncRunner` and `make_vec` take one as ``restart=``. `RestartCount` counts against it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Self

from rollway.errors import InvalidArgument


@dataclass(frozen=True)
class RestartPolicy:
    """How often each collector or environment is restarted, and the pauses of a collector, which double up to a cap.

    Environments are restarted without a pause, because the step of the others waits for them: ``backoff_s``,
    ``backoff_cap_s`` and ``healthy_after_s`` are for collectors.

    Args:
        max_restarts: Of each collector, or of each environment; ``None`` for any number.
        backoff_s: The pause before the first restart.
        backoff_cap_s: The longest pause.
        healthy_after_s: A collector that worked for so long before it died is forgiven: its pauses start anew.
        within_s: Faults longer ago than this do not count. ``None``: all count.

    >>> policy = RestartPolicy.up_to(3, backoff_s=0.5, backoff_cap_s=1.5)
    >>> [policy.pause_s(deaths) for deaths in (1, 2, 3)], policy.allows(restarts=3)
    ([0.5, 1.0, 1.5], False)
    """

    max_restarts: int | None = 0
    backoff_s: float = 0.5
    backoff_cap_s: float = 30.0
    healthy_after_s: float = 2.0
    within_s: float | None = None

    def __post_init__(self) -> None:
        if self.max_restarts is not None and self.max_restarts < 0:
            raise InvalidArgument(f"max_restarts = {self.max_restarts} is out of range: at least 0, or None")
        if not 0 <= self.backoff_s <= self.backoff_cap_s:
            raise InvalidArgument(f"backoff_s = {self.backoff_s} must be between 0 and backoff_cap_s")
        if self.within_s is not None and not self.within_s > 0:
            raise InvalidArgument(f"within_s = {self.within_s} is out of range: more than 0, or None")

    @classmethod
    def never(cls) -> Self:
        """The first fault is an error."""
        return cls(0)

    @classmethod
    def up_to(
        cls, max_restarts: int, *, within_s: float | None = None, backoff_s: float = 0.5, backoff_cap_s: float = 30.0
    ) -> Self:
        """So many restarts of each, in all or within so many seconds; the next fault is an error."""
        return cls(max_restarts, backoff_s, backoff_cap_s, within_s=within_s)

    @classmethod
    def always(cls, *, backoff_s: float = 0.5, backoff_cap_s: float = 30.0) -> Self:
        """Any number of restarts."""
        return cls(None, backoff_s, backoff_cap_s)

    def allows(self, restarts: int) -> bool:
        """Whether one that was restarted so often may be once more."""
        return self.max_restarts is None or restarts < self.max_restarts

    def pause_s(self, deaths: int) -> float:
        """How long to wait after so many deaths in a row."""
        return min(self.backoff_cap_s, self.backoff_s * 2.0 ** min(deaths - 1, 60))


class RestartCount:
    """Counts the faults of one collector or environment against a policy."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._faults: deque[float] = deque(maxlen=(policy.max_restarts or 0) + 1)  # more would change nothing

    def allows_another(self) -> bool:
        """Counts a fault. False when it was one too many."""
        faults, now, within_s = self._faults, time.monotonic(), self._policy.within_s
        while within_s is not None and faults and now - faults[0] > within_s:
            faults.popleft()
        faults.append(now)
        return self._policy.allows(len(faults) - 1)
