"""Monitor: looks at several segments again and again, and gives the interval since the last look of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollway.errors import RollwayError, SegmentNotFound
from rollway.inspect.interval import Interval
from rollway.inspect.look import Inspection, Look
from rollway.machine import segments


@dataclass(frozen=True)
class Unreadable:
    """A segment that cannot be looked at."""

    name: str
    problem: str
    is_missing: bool = False
    """Whether there is no such segment."""


class Monitor:
    """Looks at segments from outside. New ones are found, and those that are gone are forgotten.

    Args:
        names: Which segments; all of this user if there are none.

    >>> import numpy as np, rollway
    >>> with rollway.Server({"x": np.zeros(1)}, batch_size=2, transport=rollway.ShmTransport()) as server:
    ...     (seen,) = Monitor([server.name]).look()
    >>> seen.after.kind
    'ring'
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = list(names)
        self._inspections: dict[str, Inspection] = {}
        self._last: dict[str, Look] = {}

    def look(self) -> list[Interval | Unreadable]:
        """Looks at each segment once. The first interval of a segment has no length."""
        names = self._names or [segment.name for segment in segments()]
        for gone in self._inspections.keys() - set(names):
            self._forget(gone)
        return [seen for name in names if (seen := self._look_at(name)) is not None]

    def _look_at(self, name: str) -> Interval | Unreadable | None:
        try:
            look = self._inspect(name).look()
            if look.unlinked:  # another segment may have the name now
                self._forget(name)
                look = self._inspect(name).look()
        except SegmentNotFound as missing:
            self._forget(name)
            return Unreadable(name, str(missing), is_missing=True) if self._names else None
        except RollwayError as error:
            self._forget(name)
            return Unreadable(name, str(error))
        before = self._last.get(name, look)
        self._last[name] = look
        return Interval(before, look)

    def _inspect(self, name: str) -> Inspection:
        if name not in self._inspections:
            self._inspections[name] = Inspection(name)
        return self._inspections[name]

    def _forget(self, name: str) -> None:
        self._inspections.pop(name, None)
        self._last.pop(name, None)
