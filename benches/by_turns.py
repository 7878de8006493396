"""Compares two builds of Rollway by turns, in one run: an older checkout and this one.

`python benches/by_turns.py ../older` runs the same short benchmarks of `ring.py`, `net.py`, `records.py`, `weights.py`
and `harness/handles.py` (replay, rollouts, groups, vector_env) with the one package and then with the other, round
after round, and prints the ratio of each round: new to old, above 1 is faster. The older checkout must be built (``make
.venv/.built`` there). The benchmark code is this checkout's for both, so that only the package differs. Writes
docs/bench/by_turns.json. It asserts nothing about time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness import machine
from harness.handles import MEASURED

HERE = Path(__file__).resolve().parent
OURS = HERE.parent / "python"
STREAMS = {  # benchmark: its workloads
    "ring": "trajectory,transition",
    "net": "trajectory,transition",
    "records": "2048-token",
}

Figures = dict[str, float]  # what was measured: how much of it per second


def streams(bench: str, out: Path, environment: dict[str, str], seconds: float) -> Figures:
    """Samples or records per second, by contender, workload and number of producers."""
    cells = ["--only", "rollway", "--workloads", STREAMS[bench], "--repeats", "1", "--idle", "0", "--no-latency"]
    times = ["--seconds", str(seconds), "--warmup", "0.2"]
    run([f"{bench}.py", *cells, *times, "--out", str(out)], environment)
    rows = json.loads((out / f"{bench}.json").read_text())["throughput"]
    return {
        f"{row['contender']}, {row['workload']}, {row['producers']} producers": row["values"]["items_per_s"]
        for row in rows
        if row["status"] == "ok"
    }


def weights(out: Path, environment: dict[str, str]) -> Figures:
    """Whole sets of weights written and read per second."""
    run(["weights.py", "--quick", "--out", str(out)], environment)
    rows = json.loads((out / "weights.json").read_text())["speeds"]
    return {
        f"{row['way']} {what}, {row['parameters'] // 10**6} M parameters, {row['threads']} threads": 1
        / statistics.median(row[f"{what}_s"])
        for row in rows
        if row["way"].startswith("rollway")
        for what in ("write", "read")
    }


def handles(bench: str, environment: dict[str, str], seconds: float) -> Figures:
    """Calls per second in one process."""
    figures: Figures = json.loads(run(["-W", "ignore", "-m", "harness.handles", bench, str(seconds)], environment))
    return figures


def run(command: list[str], environment: dict[str, str]) -> str:
    ended = subprocess.run(
        [sys.executable, *command], cwd=HERE, env=os.environ | environment, capture_output=True, text=True
    )
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with status {ended.returncode}:\n{ended.stderr[-2000:]}")
    return ended.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("older", type=Path, help="a built checkout of the older code")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4, help="measured time per cell")
    parser.add_argument("--only", default=",".join([*STREAMS, "weights", *MEASURED]))
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "bench")
    options = parser.parse_args()
    older = (options.older / "python").resolve()
    if not list((older / "rollway").glob("_core*.so")):
        raise SystemExit(f"{older} holds no built extension: run `make .venv/.built` in {options.older}")

    console = Console()
    rounds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for number in range(options.rounds):
        for bench in options.only.split(","):
            console.print(f"round {number + 1} of {options.rounds}: {bench}")
            sides = {}
            # The one that goes first changes from round to round.
            for package in [older, OURS] if number % 2 == 0 else [OURS, older]:
                environment = {"PYTHONPATH": str(package)}
                with tempfile.TemporaryDirectory() as folder:
                    out = Path(folder)
                    if bench in MEASURED:
                        sides[package] = handles(bench, environment, options.seconds)
                    elif bench == "weights":
                        sides[package] = weights(out, environment)
                    else:
                        sides[package] = streams(bench, out, environment, options.seconds)
            for what in sides[older].keys() & sides[OURS].keys():
                rounds[what].append((sides[older][what], sides[OURS][what]))

    table = Table("what", "old per s", "new per s", "new / old, median", "least", "most")
    for what in sorted(rounds):
        ratios = [new / old for old, new in rounds[what]]
        old, new = (statistics.median(side) for side in zip(*rounds[what], strict=True))
        figures = (statistics.median(ratios), min(ratios), max(ratios))
        table.add_row(what, f"{old:,.0f}", f"{new:,.0f}", *(f"{figure:.2f}" for figure in figures))
    console.print(table)
    record = {
        "command": machine.command(),
        "commit": machine.commit(),
        "machine": machine.describe(("numpy", "rollway")),
        "older": subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=options.older, capture_output=True, text=True
        ).stdout.strip(),
        "rounds": rounds,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "by_turns.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
