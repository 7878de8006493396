"""Interval: what happened between two looks at a segment: rates, and where the time of each participant went."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rollway.inspect.look import Inspection, Look, Participant

_COMMITTED = {"ring": "samples_committed", "records": "records_committed", "replay": "added", "weights": "version"}
_TAKEN = {"ring": "samples_released", "records": "records_released", "replay": "sampled"}
UNITS = {"ring": "samples", "records": "records", "replay": "rows", "weights": "versions", "vector env": "answers"}
"""What the segments of each kind move."""


@dataclass(frozen=True)
class Shares:
    """How one participant spent an interval. The first four add up to 1."""

    wait_data: float
    wait_room: float
    hold: float
    work: float
    copy: float
    """Part of ``work``: an estimate."""


@dataclass(frozen=True)
class Interval:
    """Two looks at one segment."""

    before: Look
    after: Look

    @property
    def name(self) -> str:
        """Of the segment."""
        return self.after.name

    @property
    def seconds(self) -> float:
        """How long it was."""
        return (self.after.at_ns - self.before.at_ns) / 1e9

    def rate(self, number: str) -> float:
        """How much a number grew, per second."""
        grown = self.after.numbers.get(number, 0) - self.before.numbers.get(number, 0)
        return max(grown, 0) / self.seconds if self.seconds > 0 else 0.0

    @property
    def committed_rate(self) -> float:
        """Samples, records, rows, versions or answers that were committed, per second."""
        if self.after.kind in _COMMITTED:
            return self.rate(_COMMITTED[self.after.kind])
        return sum(self.rate_of(one) for one in self.after.givers)

    @property
    def taken_rate(self) -> float | None:
        """How many learners took and released, per second; ``None`` where nothing is taken."""
        return self.rate(_TAKEN[self.after.kind]) if self.after.kind in _TAKEN else None

    @property
    def dropped_rate(self) -> float:
        """Samples or records that were dropped, per second."""
        return self.rate("dropped_oldest") + self.rate("dropped_newest")

    def earlier(self, one: Participant) -> Participant | None:
        """The same participant in the first look; ``None`` if it came later."""
        same = (one.seat, one.pid, one.joined_unix_ns)
        return next((old for old in self.before.participants if (old.seat, old.pid, old.joined_unix_ns) == same), None)

    def rate_of(self, one: Participant) -> float:
        """How much a participant committed, per second."""
        old = self.earlier(one)
        grown = one.committed - (old.committed if old else 0)
        return max(grown, 0) / self.seconds if self.seconds > 0 else 0.0

    def shares(self, one: Participant) -> Shares:
        """How a participant of the second look spent the interval, or its life if it came later."""
        old = self.earlier(one)

        def grown(number: str) -> int:
            return max(int(getattr(one, number)) - (int(getattr(old, number)) if old else 0), 0)

        parts = [grown(number) for number in ("wait_data_ns", "wait_room_ns", "hold_ns", "work_ns")]
        total = max(sum(parts), 1)
        wait_data, wait_room, hold, work = (part / total for part in parts)
        if not any(parts):
            work = 1.0
        return Shares(wait_data, wait_room, hold, work, min(grown("copy_ns") / total, work))


def watch(name: str, seconds: float = 2.0) -> Interval:
    """Looks at a segment twice, so many seconds apart.

    >>> import numpy as np, rollway
    >>> with rollway.Server({"x": np.zeros(1)}, batch_size=2, transport=rollway.ShmTransport()) as server:
    ...     interval = watch(server.name, seconds=0.01)
    >>> [round(interval.shares(one).work, 2) for one in interval.after.participants]
    [1.0]
    """
    inspection = Inspection(name)
    before = inspection.look()
    time.sleep(seconds)
    return Interval(before, inspection.look())
