"""History: what a monitor saw of each segment in the last hour. Its memory is bounded. It opens no segment itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rollway.inspect import Interval, Look, Monitor, Participant, Unreadable, Verdict, judge
from rollway.inspect.summary import state_of

HOUR_S = 3600.0
SERIES = ("committed", "taken", "dropped", "fill", "givers_wait", "takers_wait", "takers_hold", "lag")
"""What is kept of each look: rates, and shares from 0 to 1; of ``lag``, versions. NaN where it has no meaning."""

_VERDICT_S = 5.0
"""Verdicts and shown rates are over the last seconds, so that they do not flicker."""
_MOST_ENDED = 100
"""So many segments that are gone are kept."""

Array = np.ndarray[Any, np.dtype[np.float64]]


class Series:
    """The values of `SERIES` over the last hour: a ring of ``capacity`` points."""

    def __init__(self, capacity: int) -> None:
        self._times = np.zeros(capacity)
        self._values = np.zeros((capacity, len(SERIES)), np.float32)
        self._count = 0
        self._drawn: dict[tuple[float, int], tuple[Array, Array]] = {}

    def add(self, at: float, values: Sequence[float]) -> None:
        """Adds a point. The oldest makes room for it."""
        index = self._count % len(self._times)
        self._times[index], self._values[index] = at, values
        self._count += 1
        self._drawn.clear()

    def last(self, seconds: float, now: float, points: int) -> tuple[Array, Array]:
        """Times and values of the last ``seconds``, averaged to about ``points`` points at most.

        The averages are over fixed steps of the clock, so that they do not change from call to call.

        >>> series = Series(100)
        >>> for at in range(8):
        ...     series.add(at, [at] * len(SERIES))
        >>> times, values = series.last(8, 8, points=4)
        >>> times.tolist(), values[:, 0].tolist()
        ([1.0, 3.0, 5.0, 7.0], [0.5, 2.5, 4.5, 6.5])
        """
        if (seconds, points) not in self._drawn:  # one computation for all plots and browsers
            self._drawn[seconds, points] = self._averaged(now - seconds, points)
        return self._drawn[seconds, points]

    def _averaged(self, begin: float, points: int) -> tuple[Array, Array]:
        kept = min(self._count, len(self._times))
        order = np.arange(self._count - kept, self._count) % len(self._times)
        order = order[self._times[order] >= begin]
        times, values = self._times[order], self._values[order].astype(np.float64)
        if len(times) <= points:
            return times, values
        step = 2.0 ** np.ceil(np.log2(max(np.ptp(times), 1e-3) / points))
        steps = np.floor(times / step)
        starts = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))
        known = np.isfinite(values)
        sums = np.add.reduceat(np.where(known, values, 0), starts)
        with np.errstate(invalid="ignore"):
            return (steps[starts] + 0.5) * step, sums / np.add.reduceat(known, starts, dtype=np.float64)


class Watched:
    """One segment: the last looks at it, its history, and whether it has ended or cannot be read."""

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.series = Series(capacity)
        self.verdict: Verdict | None = None
        self.problem: str | None = None
        """Why it cannot be looked at."""
        self.ended_at: float | None = None
        """When it was gone, by `time.time`."""
        self._looks: deque[Look] = deque()

    @property
    def interval(self) -> Interval | None:
        """The last seconds; ``None`` if it never could be looked at."""
        return Interval(self._looks[0], self._looks[-1]) if self._looks else None

    @property
    def state(self) -> str:
        """``live``, ``stale``, ``closed``, ``ended``, ``unreadable``, or ``awaited`` (it was never there)."""
        if self.ended_at is not None:
            return "ended" if self._looks else "awaited"
        if self.problem is not None:
            return "unreadable"
        return state_of(self._looks[-1])

    def saw(self, seen: Interval, at: float) -> None:
        """Adds a look."""
        if seen.before is seen.after:  # the first of its segment, and perhaps another one had the name
            self._looks.clear()
        self._looks.append(seen.after)
        while len(self._looks) > 2 and self._looks[1].at_ns <= seen.after.at_ns - _VERDICT_S * 1e9:
            self._looks.popleft()
        self.problem = self.ended_at = None
        self.verdict = judge(Interval(self._looks[0], self._looks[-1]))
        if seen.seconds > 0:
            self.series.add(at, _values(seen))

    def failed(self, problem: str, at: float) -> None:
        """It is there, and cannot be looked at."""
        self.problem, self.ended_at, self.verdict = problem, None, None
        self.series.add(at, _UNKNOWN)

    def ended(self, at: float) -> None:
        """It is gone."""
        if self.ended_at is None:
            self.problem, self.ended_at, self.verdict = None, at, None
            self.series.add(at, _UNKNOWN)


class History:
    """All segments, or those with the given names, that were seen in the last hour.

    `look` reads the segments and may run in a thread. `add` keeps what it saw, in the thread of the readers.

    >>> import numpy as np, rollway
    >>> history = History(["observed"])
    >>> with rollway.Server({"x": np.zeros(1)}, batch_size=2, transport=rollway.ShmTransport("observed")):
    ...     history.add(history.look())
    >>> history.segments[0].state
    'live'
    >>> history.add(history.look())
    >>> history.segments[0].state
    'ended'
    """

    def __init__(
        self, names: Sequence[str] = (), interval_s: float = 1.0, clock: Callable[[], float] = time.time
    ) -> None:
        self.interval_s = interval_s
        self.problem: str | None = None
        """Why no segment can be looked at; `add` clears it."""
        self._monitor, self._clock = Monitor(names), clock
        self._capacity = int(HOUR_S / interval_s) + 1
        self._watched: dict[str, Watched] = {}

    @property
    def segments(self) -> list[Watched]:
        """By name; those that have ended last."""
        return sorted(self._watched.values(), key=lambda one: (one.ended_at is not None, one.name))

    def get(self, name: str) -> Watched | None:
        """The segment with this name, if it was seen in the last hour."""
        return self._watched.get(name)

    def look(self) -> list[Interval | Unreadable]:
        """Looks at every segment once."""
        seen = self._monitor.look()
        for one in seen:
            if isinstance(one, Interval):
                for participant in one.after.participants:
                    participant.process  # noqa: B018  (from /proc, and kept)
        return seen

    def add(self, seen: Iterable[Interval | Unreadable]) -> None:
        """Keeps what `look` saw. A segment that is no longer there has ended, and is kept for an hour."""
        now, present, self.problem = self._clock(), set(), None
        for one in seen:
            name = one.name if isinstance(one, Unreadable) else one.after.name
            watched = self._watched.setdefault(name, Watched(name, self._capacity))
            present.add(name)
            if isinstance(one, Interval):
                watched.saw(one, now)
            elif one.is_missing:
                watched.ended(now)
            else:
                watched.failed(one.problem, now)
        for name in self._watched.keys() - present:
            self._watched[name].ended(now)
        self._forget(now, present)

    def _forget(self, now: float, present: set[str]) -> None:
        ended = [one for one in self._watched.values() if one.ended_at is not None and one.name not in present]
        ended.sort(key=lambda one: one.ended_at or 0.0, reverse=True)
        for place, one in enumerate(ended):
            if place >= _MOST_ENDED or now - (one.ended_at or 0.0) > HOUR_S:
                del self._watched[one.name]


_UNKNOWN = (np.nan,) * len(SERIES)


def _values(seen: Interval) -> tuple[float, ...]:
    look = seen.after
    given = "wait_data" if look.kind == "vector env" else "wait_room"
    taken = seen.taken_rate
    return (
        seen.committed_rate,
        np.nan if taken is None else taken,
        seen.dropped_rate if look.kind in ("ring", "records") else np.nan,
        fill(look),
        np.nan if look.kind == "weights" else _mean(getattr(seen.shares(one), given) for one in look.givers),
        _mean(seen.shares(one).wait_data for one in look.takers),
        _mean(seen.shares(one).hold for one in look.takers) if look.kind in ("ring", "records") else np.nan,
        lag(look),
    )


def _mean(shares: Iterable[float]) -> float:
    known = list(shares)
    return sum(known) / len(known) if known else np.nan


def fill(look: Look) -> float:
    """How much of the room is taken, from 0 to 1; NaN where there is no bound."""
    numbers = look.numbers
    if look.kind == "ring":
        slots = numbers["num_buffers"] * numbers["batch_size"]
        return _share(numbers["ready_samples"] + numbers["held_samples"] + numbers["claimed_slots"], slots)
    if look.kind == "records":
        used = numbers["ready_bytes"] + numbers["taken_bytes"]
        return _share(used, numbers["lanes_taken"] * numbers["lane_bytes"])
    if look.kind == "replay":
        return _share(numbers["rows"], numbers["capacity"])
    if look.kind == "vector env":
        return _share(numbers["unanswered"], numbers["envs"])
    return np.nan


def _share(part: int, whole: int) -> float:
    return min(part / whole, 1.0) if whole else np.nan


def lag(look: Look) -> float:
    """Versions of the weights by which the slowest reader is behind, or the slowest producer behind the fastest."""
    if look.kind == "weights":
        return _behind(look.takers, look.numbers["version"])
    versions = [one for one in look.givers if one.version]
    return _behind(versions, max((one.version for one in versions), default=0))


def _behind(them: Sequence[Participant], newest: int) -> float:
    return max((max(newest - one.version, 0) for one in them), default=np.nan)
