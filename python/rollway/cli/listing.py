"""`rollway ls` and `rollway gc`: show the segments, and what was removed. `rollway.segments` does the rest."""

from __future__ import annotations

import dataclasses
import time

from rich import box
from rich.console import RenderableType
from rich.table import Table

import rollway
from rollway.cli.console import age, console, count, plain, print_json, size

_STYLES = {"live": "green", "stale": "yellow", "unreadable": "red"}


def show(*, as_json: bool) -> None:
    """Prints every segment."""
    found = rollway.segments()
    if as_json:
        print_json([{**dataclasses.asdict(segment), "state": segment.state} for segment in found])
        return
    out = console()
    if not found:
        out.print("No segments.")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", overflow="fold", min_width=10, no_wrap=not out.is_terminal)
    table.add_column("kind")
    table.add_column("state")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("created", justify="right", no_wrap=True)
    table.add_column("creator", justify="right", no_wrap=True)
    table.add_column("attached", overflow="fold")
    problems = any(segment.problem for segment in found)
    if problems:
        table.add_column("problem", overflow="fold")
    for segment in found:
        known = segment.problem is None
        row: list[RenderableType] = [
            plain(segment.name),
            plain(segment.kind),
            plain(segment.state, _STYLES[segment.state]),
            size(segment.used_bytes),
            f"{age(time.time() - segment.created_unix_ns / 1e9)} ago" if known else "",
            f"pid {segment.creator_pid}" if known else "",
            _attached(segment) if known else "",
        ]
        table.add_row(*row, *([plain(segment.problem or "")] if problems else []))
    out.print(table)
    stale = sum(segment.state == "stale" for segment in found)
    if stale:
        out.print(f"{count(stale, 'stale segment')}: `rollway gc` removes them.")


def collect(*, dry_run: bool) -> None:
    """Removes the stale segments, and prints which."""
    before = rollway.segments()
    removed = [segment for segment in before if segment.state == "stale"] if dry_run else rollway.gc()
    out = console()
    verb = "would remove" if dry_run else "removed"
    for segment in removed:
        out.print(plain(f"{verb} {segment.name} ({size(segment.used_bytes)}, made by pid {segment.creator_pid})"))
    if removed:
        total = sum(segment.used_bytes for segment in removed)
        out.print(f"{verb} {count(len(removed), 'segment')}, {size(total)} ({total:,} bytes)")
    else:
        out.print("Nothing to remove.")
    unreadable = sum(segment.state == "unreadable" for segment in before)
    if unreadable:
        out.print(f"{count(unreadable, 'unreadable segment')} left alone: `rollway ls` says why.")


def _attached(segment: rollway.machine.SegmentInfo) -> str:
    if not segment.alive:
        return "none"
    processes = len(segment.pids)
    if not processes:  # attached a moment ago, and its process id is not written yet
        return str(segment.alive)
    pids = ", ".join(map(str, segment.pids))
    if segment.alive == processes:
        return f"{processes} (pid {pids})"
    return f"{count(segment.alive, 'handle')} of {processes} process{'' if processes == 1 else 'es'} (pid {pids})"
