"""`rollway why`: prints the verdicts of `rollway.inspect`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from rollway import inspect
from rollway.cli.console import console, plain, print_json


def show(names: Sequence[str], seconds: float, *, as_json: bool) -> int:
    """Prints who is the bottleneck, in three lines for each segment. Without names, of all segments.

    Returns 1 if a named one cannot be looked at.
    """
    found = {names[0]: inspect.why(names[0], seconds)} if len(names) == 1 else _several(names, seconds)
    if as_json:
        print_json({name: dataclasses.asdict(verdict) for name, verdict in found.items()})
    else:
        _print(names, found)
    return 1 if names and any(verdict.culprit == "unreadable" for verdict in found.values()) else 0


def _print(names: Sequence[str], found: dict[str, inspect.Verdict]) -> None:
    out = console()
    for name, verdict in found.items():
        if len(names) != 1:
            out.print(plain(name, "bold"))
        first, *evidence = verdict.lines
        out.print(plain(first, "green" if verdict.culprit == "nobody" else "bold yellow"), soft_wrap=True)
        for line in evidence:
            out.print(plain(line), soft_wrap=True)
    if not found:
        out.print("No segments.")


def _several(names: Sequence[str], seconds: float) -> dict[str, inspect.Verdict]:
    """The verdicts over one interval."""
    monitor = inspect.Monitor(names)
    monitor.look()
    time.sleep(seconds)
    verdicts = {}
    for seen in monitor.look():
        if isinstance(seen, inspect.Interval):
            verdicts[seen.after.name] = inspect.judge(seen)
        else:
            verdicts[seen.name] = inspect.Verdict("unreadable", (), (seen.problem,))
    return verdicts
