"""RestartPolicy: whether a collector that died is started again, and after how long. The supervisor asks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from rollway.errors import InvalidArgument


@dataclass(frozen=True)
class RestartPolicy:
    """How often a collector is started again, and the pauses between, which double up to a cap.

    Args:
        max_restarts: Of each collector; ``None`` for any number.
        backoff_s: The pause before the first restart.
        backoff_cap_s: The longest pause.
        healthy_after_s: A collector that worked for so long before it died is forgiven: its pauses start anew.

    >>> policy = RestartPolicy.up_to(3, backoff_s=0.5, backoff_cap_s=1.5)
    >>> [policy.pause_s(deaths) for deaths in (1, 2, 3)], policy.allows(restarts=3)
    ([0.5, 1.0, 1.5], False)
    """

    max_restarts: int | None = 0
    backoff_s: float = 0.5
    backoff_cap_s: float = 30.0
    healthy_after_s: float = 2.0

    def __post_init__(self) -> None:
        if self.max_restarts is not None and self.max_restarts < 0:
            raise InvalidArgument(f"max_restarts = {self.max_restarts} is out of range: at least 0, or None")
        if not 0 <= self.backoff_s <= self.backoff_cap_s:
            raise InvalidArgument(f"backoff_s = {self.backoff_s} must be between 0 and backoff_cap_s")

    @classmethod
    def never(cls) -> Self:
        """The first death is an error."""
        return cls(0)

    @classmethod
    def up_to(cls, max_restarts: int, *, backoff_s: float = 0.5, backoff_cap_s: float = 30.0) -> Self:
        """So many restarts of each collector; the next death is an error."""
        return cls(max_restarts, backoff_s, backoff_cap_s)

    @classmethod
    def always(cls, *, backoff_s: float = 0.5, backoff_cap_s: float = 30.0) -> Self:
        """Any number of restarts."""
        return cls(None, backoff_s, backoff_cap_s)

    def allows(self, restarts: int) -> bool:
        """Whether a collector that was restarted so often may be once more."""
        return self.max_restarts is None or restarts < self.max_restarts

    def pause_s(self, deaths: int) -> float:
        """How long to wait after so many deaths in a row."""
        return min(self.backoff_cap_s, self.backoff_s * 2.0 ** min(deaths - 1, 60))
