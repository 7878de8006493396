"""Progress: the numbers of a run at one moment, and `ProgressTracker`, which counts what arrives at a learner."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any, NamedTuple, Self

_RECENT_S = 10.0


@dataclass(frozen=True)
class Progress:
    """One moment of a run. Rates, shares and the staleness are those of the last ten seconds or so."""

    iteration: int
    elapsed_s: float
    env_steps: int
    """Steps of all environments that the learner has received."""
    episodes: int
    mean_return: float
    """Of the last `return_window` episodes, or of fewer if there were fewer; NaN before the first."""
    averaged: int
    """How many episodes the mean return is of."""
    window_full: bool
    """Whether `averaged` is the whole `return_window`."""
    steps_per_s: float
    version: int
    """The number of the weights that were published last."""
    staleness: float
    """How many versions behind the newest weights the data was, on average."""
    queue_depth: int
    """How many rollouts, or chunks of transitions, wait for the learner."""
    learner_waiting: float
    """The share of its time that the learner waited for data."""
    collectors_waiting: float
    """The share of their time that collectors waited for room."""
    collectors: int
    """Collectors that live."""
    deaths: int
    restarts: int
    losses: Mapping[str, float]

    def numbers(self) -> dict[str, float]:
        """All numbers as one flat mapping, for logs, without those that are not known yet.

        >>> numbers = ProgressTracker(100).progress(0, version=7, queue_depth=0).numbers()
        >>> numbers["version"], "mean_return" in numbers
        (7.0, False)
        """
        flat = {key: float(value) for key, value in vars(self).items() if key != "losses"} | dict(self.losses)
        return {key: value for key, value in flat.items() if not math.isnan(value)}

    @classmethod
    def of(cls, numbers: Mapping[str, float]) -> Self:
        """The moment that a line of a log tells of, without its losses.

        >>> Progress.of(ProgressTracker(100).progress(4, version=7, queue_depth=0).numbers()).iteration
        4
        """
        whole = {"iteration", "env_steps", "episodes", "averaged", "version", "queue_depth", "collectors"}
        whole |= {"deaths", "restarts", "window_full"}
        known: dict[str, Any] = {}
        for field in fields(cls):
            value = numbers.get(field.name, math.nan)
            known[field.name] = int(value) if field.name in whole else value
        return cls(**{**known, "losses": {}})


class _Mark(NamedTuple):
    at_s: float
    steps: int
    arrivals: int
    staleness: int
    learner_waited_s: float
    collectors_waited_s: float
    collectors_spent_s: float


class ProgressTracker:
    """Counts what arrives at a learner.

    Args:
        return_window: How many episodes the mean return is of.
        clock: Seconds that only grow.

    >>> board = ProgressTracker(return_window=2)
    >>> board.arrived(steps=64, returns=[10.0, 20.0, 30.0], staleness=1, waited_s=0.0, spent_s=0.5)
    >>> now = board.progress(1, version=2, queue_depth=0)
    >>> now.env_steps, now.episodes, now.mean_return, now.window_full
    (64, 3, 25.0, True)
    """

    def __init__(self, return_window: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._returns: deque[float] = deque(maxlen=return_window)
        self._episodes = 0
        self._total = _Mark(clock(), 0, 0, 0, 0.0, 0.0, 0.0)
        self._began_s = self._total.at_s
        self._recent: deque[_Mark] = deque([self._total])

    @property
    def env_steps(self) -> int:
        """Steps that have arrived so far."""
        return self._total.steps

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to count on from here."""
        return {
            "steps": self._total.steps,
            "episodes": self._episodes,
            "returns": list(self._returns),
            "elapsed_s": self._clock() - self._began_s,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Counts on from what `state_dict` gave. Rates, shares and the staleness begin anew."""
        self._returns.clear()
        self._returns.extend(state["returns"])
        self._episodes = state["episodes"]
        self._total = _Mark(self._clock(), state["steps"], 0, 0, 0.0, 0.0, 0.0)
        self._began_s = self._total.at_s - state["elapsed_s"]
        self._recent = deque([self._total])

    def arrived(self, *, steps: int, returns: Iterable[float], staleness: int, waited_s: float, spent_s: float) -> None:
        """Counts what came from a collector: its steps, the returns of ended episodes, and its time."""
        for one in returns:
            self._returns.append(float(one))
            self._episodes += 1
        total = self._total
        self._total = total._replace(
            steps=total.steps + steps,
            arrivals=total.arrivals + 1,
            staleness=total.staleness + staleness,
            collectors_waited_s=total.collectors_waited_s + waited_s,
            collectors_spent_s=total.collectors_spent_s + spent_s,
        )

    def waited(self, seconds: float) -> None:
        """Notes that the learner waited for data."""
        self._total = self._total._replace(learner_waited_s=self._total.learner_waited_s + seconds)

    def progress(
        self,
        iteration: int,
        *,
        version: int,
        queue_depth: int,
        collectors: int = 0,
        deaths: int = 0,
        restarts: int = 0,
        losses: Mapping[str, float] | None = None,
    ) -> Progress:
        """Where the run stands."""
        now = self._total = self._total._replace(at_s=self._clock())
        self._recent.append(now)
        while len(self._recent) > 2 and self._recent[0].at_s < now.at_s - _RECENT_S:
            self._recent.popleft()
        since = self._recent[0]
        took_s = now.at_s - since.at_s
        return Progress(
            iteration=iteration,
            elapsed_s=now.at_s - self._began_s,
            env_steps=now.steps,
            episodes=self._episodes,
            mean_return=fmean(self._returns) if self._returns else math.nan,
            averaged=len(self._returns),
            window_full=len(self._returns) == self._returns.maxlen,
            steps_per_s=_share(now.steps - since.steps, took_s),
            version=version,
            staleness=_share(now.staleness - since.staleness, now.arrivals - since.arrivals),
            queue_depth=queue_depth,
            learner_waiting=_share(now.learner_waited_s - since.learner_waited_s, took_s),
            collectors_waiting=_share(
                now.collectors_waited_s - since.collectors_waited_s, now.collectors_spent_s - since.collectors_spent_s
            ),
            collectors=collectors,
            deaths=deaths,
            restarts=restarts,
            losses=dict(losses or {}),
        )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
