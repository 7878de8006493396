"""`rollway top`: a live view of segments and of the processes that take part in them. `rollway.inspect` looks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rollway.cli.console import console, plain, print_json
from rollway.inspect import Interval, Monitor, Unreadable, judge, summary
from rollway.inspect.summary import duration

Seen = Interval | Unreadable

_KEYS = "q: quit   p: pause   s: sort"
_WIDE = 110
_WIDE_ONLY = ("last", "holds", "writes", "weights")
"""Columns that narrower terminals do not show."""
_MOST_KEYS = 9
"""So many segments have a key of their own."""


def show(names: Sequence[str], interval_s: float, *, once: bool, as_json: bool) -> int:
    """Shows segments until ``q`` or Ctrl-C; with ``once``, prints one frame. Returns 1 if a named one is missing."""
    monitor = Monitor(names)
    seen = monitor.look()
    out = console()
    is_live = out.is_terminal and not out.is_dumb_terminal and sys.stdin is not None and sys.stdin.isatty()
    if once or as_json or not is_live:
        time.sleep(interval_s)
        seen = monitor.look()
        if as_json:
            print_json([_as_json(one) for one in seen])
        else:
            out.print(frame(seen))
        return 1 if names and any(isinstance(one, Unreadable) for one in seen) else 0
    _live(monitor, seen, interval_s, out)
    return 0


def _live(monitor: Monitor, seen: list[Seen], interval_s: float, out: Any) -> None:
    order, paused, due = 0, False, time.monotonic() + min(interval_s, 0.2)
    chosen: str | None = None
    with _keyboard() as fd, Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            names = [one.name for one in seen]
            sort = summary.ORDERS[order]
            if chosen in names:
                picture, keys = detail(seen[names.index(chosen)], sort), "0: all segments"
            else:
                picture, keys = frame(seen, sort, numbered=True), "1 to 9: look into a segment"
            status = f"{_KEYS} (by {sort})   {keys}{'   PAUSED' if paused else ''}"
            live.update(Group(picture, Text(status, style="dim")), refresh=True)
            key = _key(fd, max(due - time.monotonic(), 0.0))
            if key in ("q", "\x03", "\x04"):
                return
            if key.isdecimal():
                chosen = names[int(key) - 1] if 1 <= int(key) <= len(names) else None
            if key == "p":
                paused = not paused
            if key == "s":
                order = (order + 1) % len(summary.ORDERS)
            if time.monotonic() >= due:
                due = time.monotonic() + interval_s
                if not paused:
                    seen = monitor.look()


@contextlib.contextmanager
def _keyboard() -> Iterator[int]:
    """Standard input, key by key."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _key(fd: int, timeout: float) -> str:
    ready, _, _ = select.select([fd], [], [], timeout)
    return os.read(fd, 1).decode(errors="replace") or "q" if ready else ""


def frame(seen: Sequence[Seen], order: str = "role", *, numbered: bool = False) -> RenderableType:
    """One picture of all segments."""
    if not seen:
        return Text("No segments.")
    parts: list[RenderableType] = []
    for number, one in enumerate(seen, start=1):
        key = Text(f"{number} " if numbered and number <= _MOST_KEYS else "", style="dim")
        if isinstance(one, Unreadable):
            parts.append(key + _problem(one))
        else:
            parts += [key + _heading(one), _Participants(one, order), ""]
    return Group(*parts)


def detail(one: Seen, order: str = "role") -> RenderableType:
    """One segment: also the verdict, how long things take, and all its numbers."""
    if isinstance(one, Unreadable):
        return _problem(one)
    first, *evidence = judge(one).lines
    verdict = [plain(first, "bold"), *(plain(line) for line in evidence)]
    times = [
        Text(f"{name}: p50 {duration(found.p50_ns)}, p90 {duration(found.p90_ns)}, p99 {duration(found.p99_ns)}")
        for name, found in one.after.histograms.items()
        if found.count
    ]
    numbers = Columns([f"{name} {value:,}" for name, value in one.after.numbers.items()], padding=(0, 3))
    return Group(_heading(one), "", *verdict, "", _Participants(one, order), "", *times, "", numbers, "")


def _problem(one: Unreadable) -> Text:
    return Text.assemble((plain(one.name).plain, "bold"), "  ", plain(one.problem, "red"))


def _heading(interval: Interval) -> Text:
    state = summary.state_of(interval.after)
    style = {"live": "green", "stale": "yellow", "closed": "red"}[state]
    name, facts = plain(interval.after.name).plain, ", ".join(summary.facts(interval))
    return Text.assemble((name, "bold"), "  ", (state, style), "  ", facts)


class _Participants:
    """The table of participants, with the columns for which there is room."""

    def __init__(self, interval: Interval, order: str) -> None:
        self._interval, self._order = interval, order

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        names = [name for name in summary.COLUMNS if options.max_width >= _WIDE or name not in _WIDE_ONLY]
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
        for name in names:
            left = name in ("role", "state", "now")
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
        for one in summary.participants(self._interval, self._order):
            cells = summary.row(self._interval, one)
            table.add_row(*(Text(cells[name], style=_style(name, cells[name])) for name in names))
        yield table


def _style(column: str, text: str) -> str:
    if column == "state":
        return "" if text in ("alive", "leaving") else "red"
    if text.endswith("%"):
        share = int(text.removesuffix("%"))
        return "bold" if share >= 50 else "" if share else "dim"
    return ""


def _as_json(one: Seen) -> dict[str, Any]:
    if isinstance(one, Unreadable):
        return dataclasses.asdict(one)
    look = one.after
    histograms = {
        name: {field: getattr(found, field) for field in ("count", "mean_ns", "p50_ns", "p90_ns", "p99_ns", "max_ns")}
        for name, found in look.histograms.items()
    }
    participants = [
        {
            **dataclasses.asdict(each),
            "process": each.process,
            "commits_per_s": one.rate_of(each),
            "shares": dataclasses.asdict(one.shares(each)),
        }
        for each in look.participants
    ]
    return {
        "name": look.name,
        "kind": look.kind,
        "closed": look.closed,
        "used_bytes": look.used_bytes,
        "seconds": one.seconds,
        "committed_per_s": one.committed_rate,
        "taken_per_s": one.taken_rate,
        "dropped_per_s": one.dropped_rate,
        "numbers": dict(look.numbers),
        "histograms": histograms,
        "participants": participants,
    }
