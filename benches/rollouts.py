"""The rollout ring beside memcpy and UniLab's: what a rollout costs, how late it arrives, and whether it is whole.

`python benches/rollouts.py` measures, in one run and in turns, so that a busy moment hits all alike:

* write and read: a rollout is copied field by field into the ring and published, waited for and copied out again. The
  limit is the same copies between plain arrays, with as many of them as the ring has slots.
* arrival: the time from publishing in one process to the arrays being at hand in another, 200 times, 5 ms apart.
* wholeness: a writer that never stops and laps the reader, which copies rollouts out and looks whether each is of one
  piece.

Writes docs/bench/rollouts.json and .md, and prints the table; the exit status says whether a rollout of ours was torn.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

import numpy as np

import rollway
from contenders.unilab_rollouts import UnilabRollouts
from harness import machine
from rollway.ring.rollout_ring import rollout_shapes

SIZES = {"256 envs": 256, "1,024 envs": 1024, "4,096 envs": 4096}
STEPS, OBS, ACTIONS, SLOTS = 24, 48, 12, 4
PAUSE_S = 0.005

Arrays = dict[str, np.ndarray[Any, Any]]


class Memcpy:
    """The limit: the same copies between arrays of one process, and nothing else."""

    def __init__(self, num_envs: int, num_steps: int, obs_dim: int, action_dim: int, *, num_slots: int) -> None:
        shapes = rollout_shapes(num_envs, num_steps, obs_dim, action_dim)
        self._slots = [{f: np.ones(s, np.float32) for f, s in shapes.items()} for _ in range(num_slots)]
        self._written = self._read = 0

    @property
    def write_buffer(self) -> Arrays:
        return self._slots[self._written % len(self._slots)]

    def signal_write_done(self) -> None:
        self._written += 1

    def wait_for_data(self, timeout: float) -> bool:
        return self._read < self._written

    def read_numpy_views(self) -> Arrays:
        return self._slots[self._read % len(self._slots)]

    def advance_read(self) -> None:
        self._read += 1

    def close(self) -> None:
        self._slots.clear()


CONTENDERS: dict[str, Callable[..., Any]] = {
    "memcpy": Memcpy,
    "rollway": rollway.RolloutRingBuffer,
    "unilab": UnilabRollouts,
}


def make(name: str, num_envs: int) -> Any:
    return CONTENDERS[name](num_envs, STEPS, OBS, ACTIONS, num_slots=SLOTS)


def copy(source: Arrays, destination: Arrays) -> None:
    for field, array in destination.items():
        np.copyto(array, source[field])


def copies(num_envs: int, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of every write and every read of every contender, taken in turns."""
    shapes = rollout_shapes(num_envs, STEPS, OBS, ACTIONS)
    source: Arrays = {field: np.ones(shape, np.float32) for field, shape in shapes.items()}
    mine: Arrays = {field: np.zeros(shape, np.float32) for field, shape in shapes.items()}
    rings = {name: make(name, num_envs) for name in CONTENDERS}
    seconds: dict[str, dict[str, list[float]]] = {name: {"write": [], "read": []} for name in rings}
    for repeat in range(-2 * SLOTS, repeats):  # the first laps touch every page
        for name, ring in rings.items():
            begin = time.perf_counter()
            copy(source, ring.write_buffer)
            ring.signal_write_done()
            middle = time.perf_counter()
            if not ring.wait_for_data(1.0):
                raise RuntimeError(f"{name} lost a rollout")
            copy(ring.read_numpy_views(), mine)
            ring.advance_read()
            end = time.perf_counter()
            if repeat >= 0:
                seconds[name]["write"].append(middle - begin)
                seconds[name]["read"].append(end - middle)
    for ring in rings.values():
        ring.close()
    return seconds


def forked(target: Callable[..., None], *args: Any) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            target(*args)
            code = 0
        finally:
            os._exit(code)
    return pid


def arrivals(name: str, count: int) -> list[float]:
    """Microseconds between publishing a small rollout here and having its arrays in another process."""
    ring = make(name, 4)
    landed = RawArray("d", count)

    def receive() -> None:
        for number in range(count):
            if not ring.wait_for_data(30.0):
                raise RuntimeError("nothing arrived")
            ring.read_numpy_views()
            landed[number] = time.monotonic()
            ring.advance_read()

    pid = forked(receive)
    sent = []
    for _ in range(count):
        time.sleep(PAUSE_S)
        ring.write_buffer["rewards"][:] = 1
        sent.append(time.monotonic())
        ring.signal_write_done()
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise RuntimeError(f"the receiver of {name} failed")
    ring.close()
    return [1e6 * (there - here) for here, there in zip(sent, landed, strict=True)]


def wholeness(name: str, num_envs: int, seconds: float) -> dict[str, int]:
    """How many rollouts were read, and how many of them were of two pieces, while a writer laps the reader."""
    ring = make(name, num_envs)

    def write() -> None:
        number = 0
        while True:
            number += 1
            for array in ring.write_buffer.values():
                array[...] = number % 1_000_000
            ring.signal_write_done()

    pid = forked(write)
    shapes = rollout_shapes(num_envs, STEPS, OBS, ACTIONS)
    mine: Arrays = {field: np.zeros(shape, np.float32) for field, shape in shapes.items()}
    read = torn = 0
    last = 0.0
    laps = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not ring.wait_for_data(5.0):
            raise RuntimeError(f"{name}: the writer has stopped")
        copy(ring.read_numpy_views(), mine)
        ring.advance_read()
        number = float(mine["obs"].flat[0])
        torn += any((array != number).any() for array in mine.values())
        read += 1
        laps += number > last + 1
        last = number
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    ring.close()
    return {"read": read, "torn": torn, "skipped_ahead": laps}


def gigabytes_per_second(num_envs: int, seconds: list[float]) -> float:
    numbers = sum(int(np.prod(shape)) for shape in rollout_shapes(num_envs, STEPS, OBS, ACTIONS).values())
    return 4 * numbers / statistics.median(seconds) / 1e9


def markdown(record: dict[str, Any]) -> str:
    described = record["machine"]
    lines = [
        "# Rollout ring",
        "",
        f"`{record['command']}` at {str(record['commit']['id'])[:9]}; {described['cpu']}, {described['cores_usable']} "
        f"cores, {described['kernel']}. Medians; shares of the memcpy of the same run.",
        "",
        "| rollout | | memcpy | rollway | share | unilab | share |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["copies"]:
        rates = {name: gigabytes_per_second(row["num_envs"], row["seconds"][name]) for name in CONTENDERS}
        cells = [row["size"], row["what"], f"{rates['memcpy']:.2f} GB/s"]
        for name in ("rollway", "unilab"):
            cells += [f"{rates[name]:.2f} GB/s", f"{rates[name] / rates['memcpy']:.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| | arrives after (p50) | p99 | read while lapped | torn |", "|---|---|---|---|---|"]
    for name in ("rollway", "unilab"):
        late = sorted(record["arrivals_us"][name])
        whole = record["wholeness"][name]
        lines.append(
            f"| {name} | {late[len(late) // 2]:.0f} µs | {late[int(len(late) * 0.99)]:.0f} µs | {whole['read']:,} | "
            f"{whole['torn']:,} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short pass, to see that it runs")
    parser.add_argument("--out", type=Path, default=machine.ROOT / "docs" / "bench")
    options = parser.parse_args()
    repeats, count, seconds = (10, 20, 0.5) if options.quick else (200, 200, 20.0)
    record: dict[str, Any] = {
        "command": machine.command(),
        "commit": machine.commit(),
        "machine": machine.describe(("rollway", "unilab")),
        "arrivals_us": {name: arrivals(name, count) for name in ("rollway", "unilab")},
        "wholeness": {name: wholeness(name, 64, seconds) for name in ("rollway", "unilab")},
        "copies": [],
    }
    for size, num_envs in SIZES.items():
        taken = copies(num_envs, max(10, repeats * 256 // num_envs))
        for what in ("write", "read"):
            both = {name: taken[name][what] for name in CONTENDERS}
            record["copies"].append({"size": size, "num_envs": num_envs, "what": what, "seconds": both})
    text = markdown(record)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rollouts.json").write_text(json.dumps(record) + "\n")
    (options.out / "rollouts.md").write_text(text)
    return 1 if record["wholeness"]["rollway"]["torn"] else 0


if __name__ == "__main__":
    sys.exit(main())
