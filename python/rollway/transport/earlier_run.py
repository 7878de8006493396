"""Earlier run: the warning of a learner that finds data which it was not told to expect."""

from __future__ import annotations

import sys
import warnings

_UNITS = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0))


def warn_of_earlier_run(name: str, what: str, found: tuple[int, float] | None) -> None:
    """Says how much of an earlier run is there and how old it is, if anything is."""
    if found is None:
        return
    count, age_s = found
    warnings.warn(
        f"'{name}' has {count:,} {what} of an earlier run, which began {_duration(age_s)} ago: this learner continues "
        'with them. To do so without this warning, give if_exists="resume"; to throw them away, if_exists="replace"',
        stacklevel=_callers_level(),
    )


def _callers_level() -> int:
    """The ``stacklevel`` of the line outside this package that made the learner."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("rollway."):
        level, frame = level + 1, frame.f_back
    return level


def _duration(seconds: float) -> str:
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
