"""Console: where the command line prints to, and how it shows numbers, sizes and ages.

On a terminal there is colour and width; elsewhere plain text, at most `PLAIN_WIDTH` columns wide.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rollway.inspect.summary import size

__all__ = ["PLAIN_WIDTH", "LiveScreen", "age", "console", "count", "plain", "print_json", "size"]

PLAIN_WIDTH = 120


def console(*, stderr: bool = False) -> Console:
    """A console on the current standard output (or error). It shows characters that the encoding lacks as ``?``."""
    stream = sys.stderr if stderr else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    fixed = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return Console(stderr=stderr, width=fixed, highlight=False, soft_wrap=False)


class LiveScreen:
    """What shows a run. On a terminal its last part is drawn again and again, and vanishes at the end.

    Args:
        out: Where to print.
        heading: The first line.
        processes: What the processes of the run are called.
    """

    def __init__(self, out: Console, heading: Text, processes: str) -> None:
        self._out, self._heading, self._processes = out, heading, processes
        self._live = Live(console=out, auto_refresh=False, transient=True) if out.is_terminal else None
        """``None`` on a console that is no terminal."""

    def __enter__(self) -> Self:
        self._out.print(self._heading)
        if self._live is not None:
            self._live.start()
            self._live.update(Text(f"starting the {self._processes} ...", style="dim"), refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(Text(""), refresh=True)
            self._live.stop()

    def started(self, pids: Sequence[int]) -> None:
        """Prints the process ids, so that a user can kill one and watch what happens."""
        self._out.print(f"{self._processes}: pid {', '.join(map(str, pids))}", style="dim")


def print_json(value: Any) -> None:
    """Prints the value as JSON, for other programs: no colour, no wrapping."""
    print(json.dumps(value, indent=2))


def plain(text: str, style: str = "") -> Text:
    """Text from elsewhere (file names, error messages), without markup and control characters."""
    return Text("".join(c if c.isprintable() else "?" for c in text), style=style)


def age(seconds: float) -> str:
    """How long ago, in the largest unit that fits.

    >>> age(3.2), age(75), age(7300), age(200_000)
    ('3 s', '1 min', '2 h', '2 d')
    """
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def count(number: int, noun: str) -> str:
    """A number and its noun.

    >>> count(1, "segment"), count(1200, "segment")
    ('1 segment', '1,200 segments')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
