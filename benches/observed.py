"""What it costs a run to be looked at: a ring under full load, by turns with and without `rollway top`.

`python benches/observed.py` lets producers send trajectories of 24.6 KB to a learner as fast as they can. Turn by turn
it measures samples per second while nobody looks, and while `rollway top --interval 0.5` draws on a terminal of its
own. Prints the ratio of each pair of turns, and writes docs/bench/observed.json. It asserts nothing about time.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import pty
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live

import rollway
from harness import machine
from rollway.cli.top import frame
from rollway.inspect import Monitor

HERE = Path(__file__).resolve().parent
EXAMPLE = {"obs": np.zeros((64, 96), np.float32), "reward": np.zeros(1, np.float32)}


def produce(name: str) -> None:
    with contextlib.suppress(rollway.RollwayError, KeyboardInterrupt), rollway.ShmClient(name, EXAMPLE) as client:
        while True:
            client.send(EXAMPLE)


def rate(server: rollway.Server, seconds: float) -> float:
    """Samples per second that the learner takes."""
    count, started = 0, time.perf_counter()
    while time.perf_counter() < started + seconds:
        with server.sample() as sample:
            count += len(sample)
    return count / (time.perf_counter() - started)


@contextlib.contextmanager
def looked_at(name: str) -> Iterator[None]:
    """`rollway top` on a terminal, from its first frame on."""
    leader, follower = pty.openpty()
    terminal = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    command = [sys.executable, "-m", "rollway.cli", "top", name, "--interval", "0.5"]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=terminal)
    os.close(follower)
    seen = b""
    while b"q: quit" not in seen:
        seen += os.read(leader, 1 << 16)

    def drain() -> None:
        with contextlib.suppress(OSError):
            while os.read(leader, 1 << 16):
                pass

    threading.Thread(target=drain, daemon=True).start()
    try:
        yield
    finally:
        os.write(leader, b"q")
        process.wait(30)
        os.close(leader)


def costs(name: str, times: int = 50) -> dict[str, float]:
    """CPU seconds of this process for one look at a segment, and for drawing one frame of it."""
    monitor = Monitor([name])
    out = Console(width=160, height=40, file=io.StringIO(), force_terminal=True)
    seen = monitor.look()

    def cost(call: Callable[[], object]) -> float:
        began = time.process_time()
        for _ in range(times):
            call()
        return (time.process_time() - began) / times

    with Live(console=out, screen=True, auto_refresh=False) as live:
        return {"look_cpu_s": cost(monitor.look), "frame_cpu_s": cost(lambda: live.update(frame(seen), refresh=True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured time per turn")
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "bench")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    turns: list[dict[str, float]] = []
    with rollway.Server(EXAMPLE, 32, rollway.ShmTransport()) as server:
        workers = [context.Process(target=produce, args=(server.name,)) for _ in range(options.producers)]
        for worker in workers:
            worker.start()
        rate(server, options.seconds)
        for number in range(options.rounds):
            turn: dict[str, float] = {}
            for looks in (False, True) if number % 2 else (True, False):
                with looked_at(server.name) if looks else contextlib.nullcontext():
                    turn["looked_at" if looks else "alone"] = rate(server, options.seconds)
            turns.append(turn)
            print(f"turn {number + 1}: {turn['looked_at'] / turn['alone']:.3f} of the samples/s without a look")
        cpu = costs(server.name)
    for worker in workers:
        worker.join()
    ratios = [turn["looked_at"] / turn["alone"] for turn in turns]
    alone = statistics.median(turn["alone"] for turn in turns)
    print(f"median {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), at {alone:,.0f} samples/s")
    print(f"CPU: a look {cpu['look_cpu_s'] * 1e3:.2f} ms, a frame {cpu['frame_cpu_s'] * 1e3:.1f} ms")
    result: dict[str, Any] = {
        "command": machine.command(),
        "commit": machine.commit(),
        "machine": machine.describe(("rollway",)),
        **cpu,
        "turns": turns,
    }
    (options.out / "observed.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
