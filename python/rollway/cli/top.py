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

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rollway.cli.console import console, plain, print_json, size
from rollway.inspect import Interval, Monitor, Participant, Unreadable
from rollway.inspect.interval import UNITS

Seen = Interval | Unreadable

_ORDERS = ("role", "rate", "waiting")
_ACTIVITIES = {"wait_data": "data", "wait_room": "room", "hold": "hold", "work": "work"}
_KEYS = "q: quit   p: pause   s: sort"


def show(names: Sequence[str], interval_s: float, *, once: bool, as_json: bool) -> int:
    """Shows segments until ``q`` or Ctrl-C; with ``once``, prints one frame. Returns 1 if a named one is missing."""
    monitor = Monitor(names)
    seen = monitor.look()
    out = console()
    if once or as_json or not (out.is_terminal and sys.stdin.isatty()):
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
    with _keyboard() as fd, Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            status = f"{_KEYS} (by {_ORDERS[order]}){'   PAUSED' if paused else ''}"
            live.update(Group(frame(seen, _ORDERS[order]), Text(status, style="dim")), refresh=True)
            key = _key(fd, max(due - time.monotonic(), 0.0))
            if key in ("q", "\x03", "\x04"):
                return
            if key == "p":
                paused = not paused
            if key == "s":
                order = (order + 1) % len(_ORDERS)
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


def frame(seen: Sequence[Seen], order: str = "role") -> RenderableType:
    """One picture of all segments."""
    if not seen:
        return Text("No segments.")
    parts: list[RenderableType] = []
    for one in seen:
        if isinstance(one, Unreadable):
            parts.append(Text.assemble((one.name, "bold"), "  ", plain(one.problem, "red")))
            continue
        parts += [_heading(one), _participants(one, order), ""]
    return Group(*parts)


def _heading(interval: Interval) -> Text:
    look = interval.after
    state = "closed" if look.closed else "live" if look.givers or look.takers else "stale"
    unit = UNITS.get(look.kind, "commits")
    parts = [look.kind, size(look.used_bytes), *_fill(interval)]
    if look.kind in UNITS:
        parts.append(f"in {_rate(interval.committed_rate)} {unit}/s")
    if interval.taken_rate is not None:
        parts.append(f"out {_rate(interval.taken_rate)}/s")
    if look.kind in ("ring", "records"):
        dropped = look.numbers["dropped_oldest"] + look.numbers["dropped_newest"]
        parts.append(
            f"dropped {dropped:,}" + (f" (+{_rate(interval.dropped_rate)}/s)" if interval.dropped_rate else "")
        )
    dwell = look.histograms.get("queue_dwell")
    if dwell is not None and dwell.count:
        parts.append(f"dwell {_ns(dwell.p50_ns)} (p99 {_ns(dwell.p99_ns)})")
    network = [one for one in look.givers if one.role == "network"]
    if network:
        lost = sum(one.remote_lost for one in network)
        parts.append(
            f"remote workers: {sum(one.remote_connected for one in network)}" + (f", {lost} lost" if lost else "")
        )
    if look.dead:
        parts.append(f"{len(look.dead)} died")
    style = {"live": "green", "stale": "yellow", "closed": "red"}[state]
    return Text.assemble((plain(look.name).plain, "bold"), "  ", (state, style), "  ", ", ".join(parts))


def _fill(interval: Interval) -> list[str]:
    numbers, kind = interval.after.numbers, interval.after.kind
    if kind == "ring":
        held, ready, all_of = numbers["held_batches"], numbers["ready_batches"], numbers["num_buffers"]
        return [f"batches: {ready} ready, {held} held, {numbers['free_buffers']} free of {all_of}"]
    if kind == "records":
        return [
            f"{numbers['ready_records']:,} ready ({size(numbers['ready_bytes'])}), {numbers['taken_records']:,} held"
        ]
    if kind == "replay":
        return [f"{numbers['rows']:,} of {numbers['capacity']:,} rows"]
    if kind == "weights":
        ago = numbers.get("published_ago_ns")
        return [f"version {numbers['version']}" + (f", {_ns(ago)} ago" if ago is not None else "")]
    if kind == "vector env":
        return [f"{numbers['envs']:,} environments, {numbers['unanswered']:,} unanswered"]
    return []


def _participants(interval: Interval, order: str) -> Table:
    look = interval.after
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("role", no_wrap=True)
    table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("now", no_wrap=True)
    for name in ("commits/s", "last", "data", "room", "hold", "copy", "work", "holds", "writes", "weights"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in sorted(look.participants, key=lambda one: _sort_key(interval, one, order)):
        table.add_row(*_row(interval, one))
    return table


def _row(interval: Interval, one: Participant) -> list[Text | str]:
    is_dead = one.state == "dead"
    state, style = (one.process, "red") if one.is_stopped else (one.state, "red" if is_dead else "")
    shares = interval.shares(one)
    percents = (
        ("", "", "", "", "")
        if is_dead
        else (
            _percent(shares.wait_data),
            _percent(shares.wait_room),
            _percent(shares.hold),
            _percent(shares.copy),
            _percent(shares.work - shares.copy),
        )
    )
    held = f"{one.holding:,}" + (f" ({_ns(one.oldest_held_ns)})" if one.oldest_held_ns is not None else "")
    lag = interval.after.numbers.get("version", 0) - one.version
    behind = f" (-{lag})" if one.role == "reader" and lag > 0 else ""
    return [
        one.role,
        str(one.pid),
        Text(str(state), style=style),
        "" if is_dead else f"{_ACTIVITIES[one.activity]} {_ns(one.activity_ns)}",
        _rate(interval.rate_of(one)) if one.gives else "",
        _ns(one.last_commit_ns) if one.last_commit_ns is not None else "",
        *percents,
        held if one.holding else "",
        f"{one.writing:,}" if one.writing else "",
        f"{one.version}{behind}" if one.version or behind else "",
    ]


def _sort_key(interval: Interval, one: Participant, order: str) -> tuple[Any, ...]:
    shares = interval.shares(one)
    first: Any = {
        "role": one.gives,
        "rate": -interval.rate_of(one),
        "waiting": -(shares.wait_data + shares.wait_room),
    }[order]
    return first, one.role, one.seat


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


def _percent(share: float) -> Text:
    return Text(f"{share:.0%}", style="bold" if share >= 0.5 else "dim" if share < 0.005 else "")


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _ns(value: int) -> str:
    """A duration for people.

    >>> _ns(1_500), _ns(2_300_000), _ns(4_200_000_000), _ns(600_000_000_000)
    ('2 us', '2.3 ms', '4.2 s', '10 min')
    """
    if value < 1_000_000:
        return f"{value / 1e3:.0f} us"
    if value < 1_000_000_000:
        return f"{value / 1e6:.1f} ms"
    if value < 300_000_000_000:
        return f"{value / 1e9:.1f} s"
    return f"{value / 60e9:.0f} min" if value < 7_200_000_000_000 else f"{value / 3600e9:.0f} h"
