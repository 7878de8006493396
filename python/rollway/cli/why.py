"""`rollway why`: prints the verdict of `rollway.inspect.why`."""

from __future__ import annotations

import dataclasses

from rollway import inspect
from rollway.cli.console import console, plain, print_json


def show(name: str, seconds: float, *, as_json: bool) -> None:
    """Prints who is the bottleneck, in three lines."""
    verdict = inspect.why(name, seconds)
    if as_json:
        print_json(dataclasses.asdict(verdict))
        return
    out = console()
    first, *evidence = verdict.lines
    out.print(plain(first, "green" if verdict.culprit == "nobody" else "bold yellow"), soft_wrap=True)
    for line in evidence:
        out.print(plain(line), soft_wrap=True)
