"""From raw samples to medians, spreads and the ratios that the project's bars ask for.

Works on the dict that is written as JSON and on nothing else, so it can be run again on an old file. Prints
nothing.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

Record = dict[str, Any]  # one run: command, commit, machine, settings, throughput[], latency[], idle[]
MEASURED = ("ok", "stalled")  # a cell that stalls after its window has still measured


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


def _figure(rows: list[Record], pick: Any) -> Figure:
    values = [pick(row["values"]) for row in rows if row["status"] in MEASURED]
    troubles = [row["status"] for row in rows if row["status"] != "ok"]
    return Figure(tuple(value for value in values if value is not None), tuple(troubles))


def ratios(record: Record) -> list[Ratio]:
    """Medians against medians of the same run, 1 producer."""

    def rate(contender: str, workload: str) -> float | None:
        return throughput(record, contender, workload, 1).median

    def cpu(contender: str, workload: str) -> float | None:
        return producer_cpu_ns(record, contender, workload, 1).median

    def p(contender: str, percentile: float) -> float | None:
        return latency_us(record, contender, percentile).median

    send, many = "rollway send", "rollway send_many"
    naive, iceoryx = "naive numpy ring, polling", "iceoryx2 (Python, u8 slice)"
    echo, queue = "id-echo TCP", "multiprocessing.Queue"
    share = _over(rate(send, "trajectory"), rate("memcpy (limit)", "trajectory"))
    by_cpu = _over(cpu("memcpy (limit)", "trajectory"), cpu(send, "trajectory"))
    found = [
        Ratio("trajectory, send, of memcpy", None if share is None else 100 * share, "%"),
        Ratio("trajectory, send, of memcpy, by producer CPU", None if by_cpu is None else 100 * by_cpu, "%"),
    ]
    for short, peer in (("naive", naive), ("iceoryx2", iceoryx), ("echo", echo), ("mp.Queue", queue)):
        found.append(
            Ratio(f"trajectory, send / {short}", _over(rate(send, "trajectory"), rate(peer, "trajectory")), "x")
        )
    for way in (send, many):
        for short, peer in (("naive", naive), ("echo", echo)):
            value = _over(rate(way, "transition"), rate(peer, "transition"))
            found.append(Ratio(f"transition, {way.split()[1]} / {short}", value, "x"))
    return [
        *found,
        Ratio("transition, wall time per send (1 / throughput)", _over(1e9, rate(send, "transition")), "ns"),
        Ratio("transition, producer CPU per send", cpu(send, "transition"), "ns"),
        Ratio("latency, rollway p50 / iceoryx2 event p50", _over(p(send, 50), p("iceoryx2, event", 50)), "x"),
        Ratio("latency, rollway p99 / mp.Queue p99", _over(p(send, 99), p(queue, 99)), "x"),
        Ratio("latency, rollway p50 / bare futex p50", _over(p(send, 50), p("bare futex in C (floor)", 50)), "x"),
        Ratio("idle, CPU of the waiting consumer", idle_percent(record).median, "% of a core"),
    ]


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b
