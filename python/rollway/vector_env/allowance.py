"""Allowance: how long environments may take before they count as hung. More while one is being made again."""

from __future__ import annotations

import time

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
