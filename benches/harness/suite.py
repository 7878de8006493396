"""The whole run of a benchmark: decide which cells run and in which order, show progress, write down what came of it.

How a cell is measured is in `cell`, `latency`, `idle` and the extras of a benchmark. Called by ring.py, net.py and
records.py.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from contenders.base import Contender
from harness import machine, plot, report
from harness.benchmark import Benchmark
from harness.cell import Outcome, measure_throughput
from harness.idle import measure_idle
from harness.latency import measure_latency
from harness.options import parse

_QUIET = 0.3  # load per core
_PAPER = 150  # columns, where the output is not a terminal


class Step(NamedTuple):
    """One cell to run: the list it is recorded in, what identifies it, and how it is measured."""

    table: str
    row: dict[str, Any]
    title: str
    contender: Contender
    measure: Callable[[], Outcome]


def main(benchmark: Benchmark) -> int:
    options = parse(benchmark, sys.argv[1:])
    console = Console()
    if not console.is_terminal:
        console.width = _PAPER
    record: dict[str, Any] = {
        "command": machine.command(),
        "commit": machine.commit(),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(benchmark.packages),
        "settings": {key: value for key, value in vars(options).items() if key != "out"},
        "plot": None,
        "throughput": [],
        "latency": [],
        "idle": [],
        **{extra.table: [] for extra in benchmark.extras},
    }
    load = os.getloadavg()[0]
    if load > _QUIET * (os.cpu_count() or 1):
        console.print(f"this machine is busy (load {load:.1f}): spinning contenders will look worse than they are")
    for ending in (signal.SIGINT, signal.SIGTERM):  # also where a shell started us with SIGINT ignored
        signal.signal(ending, signal.default_int_handler)
    try:
        measure(list(steps(benchmark, options)), record, console)
    except KeyboardInterrupt:
        console.print("interrupted: all processes ended, nothing written")
        return 130

    record["machine"]["load_average_after"] = os.getloadavg()
    options.out.mkdir(parents=True, exist_ok=True)
    if plot.available():
        record["plot"] = f"{benchmark.stem}.png"
        plot.write_png(record, options.out / record["plot"])
    else:
        console.print("no picture: matplotlib is not installed")
    report.write_json(record, options.out / f"{benchmark.stem}.json")
    report.write_markdown(benchmark, record, options.out / f"{benchmark.stem}.md")
    report.show(benchmark, record, console)
    return 0


def steps(benchmark: Benchmark, options: argparse.Namespace) -> Iterator[Step]:
    """All repeats of all cells. Each contender runs once before any runs twice, so that noise affects all alike."""
    rows = [(place, c) for place, c in enumerate(benchmark.throughput) if _chosen(c, options)]
    waits = [(place, c) for place, c in enumerate(benchmark.latency) if _chosen(c, options)]
    for repeat in range(options.repeats):
        rows, waits = (_still(contenders, repeat, options) for contenders in (rows, waits))
        for name in options.workloads:
            for producers in options.producers:
                for place, contender in _rotated(rows, repeat):
                    if not contender.suits(benchmark.workloads[name]):
                        continue
                    yield Step(
                        "throughput",
                        _row(place, contender, repeat, workload=name, producers=producers),
                        f"{contender.label}, {name}, {producers} producer{'s' * (producers > 1)}",
                        contender,
                        partial(
                            measure_throughput,
                            contender,
                            benchmark.workloads[name],
                            producers,
                            options.seconds,
                            options.warmup,
                        ),
                    )
        if options.latency:
            for place, contender in _rotated(waits, repeat):
                measure = partial(measure_latency, contender, benchmark.paced, options.seconds)
                row = _row(place, contender, repeat)
                if contender.rate_hz != 1000:
                    row["contender"] += f", at {contender.rate_hz}/s"
                yield Step("latency", row, f"{contender.label}, latency", contender, measure)
        if options.idle and _chosen(benchmark.idle, options):
            ours = benchmark.idle
            measure = partial(measure_idle, ours, benchmark.paced, options.idle)
            yield Step("idle", {"contender": ours.label, "repeat": repeat}, "rollway, idle", ours, measure)
        for extra in benchmark.extras:
            for place, contender in enumerate(extra.contenders):
                if _chosen(contender, options):
                    measure = partial(extra.measure, contender, options.seconds)
                    row = _row(place, contender, repeat)
                    yield Step(extra.table, row, f"{contender.label}, {extra.table}", contender, measure)


def measure(plan: list[Step], record: dict[str, Any], console: Console) -> None:
    """Run the steps one by one. The display is drawn between cells only: no thread of it runs during one."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=len(plan))
        before: Contender | None = None
        try:
            for step in plan:
                progress.update(task, description=step.title)
                progress.refresh()
                if before is not None and before.shared_service != step.contender.shared_service:
                    before.leave()
                before = step.contender
                outcome = step.measure()
                record[step.table].append({**step.row, **outcome.as_json()})
                progress.console.print(f"  {step.title}: {brief(outcome)}", highlight=False)
                progress.advance(task)
        finally:
            if before is not None:
                before.leave()
        progress.update(task, description="done")
        progress.refresh()


def brief(outcome: Outcome) -> str:
    """One cell on one line."""
    values = outcome.values
    parts = []
    if outcome.status != "ok":
        parts.append(outcome.status if outcome.note == outcome.status else f"{outcome.status} ({outcome.note})")
    if "items_per_s" in values:
        rate = values["items_per_s"]
        parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s")
    if values.get("waits_ns"):
        p50, p99 = np.percentile(values["waits_ns"], [50, 99]) / 1e3
        parts.append(f"p50 {p50:.0f} µs, p99 {p99:.0f} µs")
    if "cpu_percent" in values:
        parts.append(f"{values['cpu_percent']:.3f} % of a core")
    if outcome.status == "ok" and outcome.note:
        parts.append(outcome.note)
    return ", ".join(parts)


def _row(place: int, contender: Contender, repeat: int, **cell: Any) -> dict[str, Any]:
    return {"contender": contender.label, "place": place, **cell, "repeat": repeat}


def _rotated(rows: list[tuple[int, Contender]], repeat: int) -> list[tuple[int, Contender]]:
    """Each repeat starts elsewhere, so nobody always runs right after the same neighbour's heat."""
    start = repeat * 3 % max(1, len(rows))
    return rows[start:] + rows[:start]


def _still(rows: list[tuple[int, Contender]], repeat: int, options: argparse.Namespace) -> list[tuple[int, Contender]]:
    """Who takes part in this repeat."""
    return [(place, c) for place, c in rows if not c.slow or repeat < options.slow_repeats]


def _chosen(contender: Contender, options: argparse.Namespace) -> bool:
    return contender.key in options.only
