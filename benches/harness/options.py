"""The command line of a benchmark: which cells, how long, where the results go."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from harness import machine
from harness.benchmark import Benchmark

OUT = machine.ROOT / "docs" / "bench"
FULL = {"seconds": 1.5, "warmup": 0.4, "repeats": 3, "idle": 5.0}
QUICK = {"seconds": 0.2, "warmup": 0.05, "repeats": 1, "idle": 1.0}


def parse(benchmark: Benchmark, arguments: list[str]) -> argparse.Namespace:
    stem, keys = benchmark.stem, benchmark.keys
    parser = argparse.ArgumentParser(prog=f"{stem}.py", description=benchmark.purpose)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="0.2 s per cell, 1 repeat, 1 s idle where not said otherwise: to see that it runs",
    )
    parser.add_argument("--only", type=_listed(keys), default=list(keys), help=f"contenders: {','.join(keys)}")
    names = tuple(benchmark.workloads)
    parser.add_argument("--workloads", type=_listed(names), default=list(names), help=",".join(names))
    parser.add_argument("--producers", type=_counts, default=[1, 4], help="numbers of producers, such as 1,4")
    parser.add_argument("--seconds", type=float, help="measured time per cell (1.5)")
    parser.add_argument("--warmup", type=float, help="seconds before that (0.4)")
    parser.add_argument("--repeats", type=int, help="(3)")
    if benchmark.slow:
        parser.add_argument("--slow-repeats", type=int, default=1, help=f"of those slow to start: {benchmark.slow} (1)")
    parser.add_argument("--idle", type=float, help="seconds of the idle measurement, 0 for none (5)")
    parser.add_argument("--latency", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder for {stem}.json, {stem}.md and {stem}.png")
    options = parser.parse_args(arguments)
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def _listed(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse_list(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown {name!r}; known: {', '.join(known)}")
        return names

    return parse_list


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers from 1 up, such as 1,4")
    return counts
