"""From raw samples to medians and spreads. The ratios of them are in `bars`.

Works on the dict that is written as JSON and on nothing else, so it can be run again on an old file. Prints
nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Record = dict[str, Any]  # one run: command, commit, machine, settings, throughput[], latency[], idle[], extras
MEASURED = ("ok", "stalled", "lossy")  # a cell that stalls after its window has still measured; so has one that loses


@dataclass(frozen=True)
class Figure:
    """The repeats of one cell."""

    values: tuple[float, ...]
    troubles: tuple[str, ...]  # one status per repeat that was not ok

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


@dataclass(frozen=True)
class Ratio:
    name: str
    value: float | None
    unit: str


def throughput(record: Record, contender: str, workload: str, producers: int, value: str = "items_per_s") -> Figure:
    rows = [
        row
        for row in record["throughput"]
        if (row["contender"], row["workload"], row["producers"]) == (contender, workload, producers)
    ]
    return _figure(rows, lambda values: values.get(value))


def producer_cpu_ns(record: Record, contender: str, workload: str, producers: int) -> Figure:
    """CPU time of a producer per sample: what a send costs when waiting for room is left out."""
    rows = [
        row
        for row in record["throughput"]
        if (row["contender"], row["workload"], row["producers"]) == (contender, workload, producers)
    ]
    return _figure(rows, lambda v: 1e9 * v["producer_cpu_s"] / v["sent"] if v.get("sent") else None)


def latency_us(record: Record, contender: str, percentile: float) -> Figure:
    rows = [row for row in record["latency"] if row["contender"] == contender]
    return _figure(rows, lambda v: float(np.percentile(v["waits_ns"], percentile)) / 1e3 if v.get("waits_ns") else None)


def idle_percent(record: Record) -> Figure:
    return _figure(record["idle"], lambda values: values.get("cpu_percent"))


def losses(record: Record, contender: str, workload: str, producers: int) -> dict[str, int] | None:
    """What became of what was sent, all repeats added up: sent, lost, repeated, torn. None where nobody looked."""
    rows = [
        row["values"]
        for row in record["throughput"]
        if (row["contender"], row["workload"], row["producers"]) == (contender, workload, producers)
        and "lost" in row["values"]
    ]
    if not rows:
        return None
    return {name: sum(values.get(name, 0) for values in rows) for name in ("sent", "lost", "repeated", "torn")}


def extra(record: Record, table: str, contender: str, pick: Callable[[dict[str, Any]], float | None]) -> Figure:
    """A figure of one of the benchmark's extras."""
    return _figure([row for row in record.get(table, ()) if row["contender"] == contender], pick)


def _figure(rows: list[Record], pick: Any) -> Figure:
    values = [pick(row["values"]) for row in rows if row["status"] in MEASURED]
    troubles = [row["status"] for row in rows if row["status"] != "ok"]
    return Figure(tuple(value for value in values if value is not None), tuple(troubles))
