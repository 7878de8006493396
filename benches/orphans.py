"""SIGKILLs learners at random moments and measures how long their collectors outlive them, and what is left behind.

`python benches/orphans.py` starts a learner with four collectors, two of which have a process of their own, waits for a
random time (0 to 5 s, so that some are killed while their collectors still import), kills the learner, and waits on
pidfds until every process that it had started is gone. Then `rollway.gc` must find all there is to remove. Writes
docs/bench/orphans.json and prints a line; the exit status says whether the bar (2 s, nothing left) was met.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import rollway
from harness import machine

BAR_S = 2.0
COLLECTORS = 4
DIMS = {"num_envs": 8, "num_steps": 16, "obs_dim": 16, "action_dim": 4}


class Learner(rollway.AsyncRunner):
    def learn(self, max_iterations: int, save_interval: int = 50, log_dir: str = "logs") -> None:
        ring = self.own(rollway.RolloutRingBuffer(**DIMS, num_slots=6, shm_name_prefix=log_dir))
        self.start_collectors(collect, ring)
        for _ in range(max_iterations):
            self.wait_for_data(ring)
            ring.advance_read()


def collect(collector: rollway.runner.Collector, ring: rollway.RolloutRingBuffer) -> None:
    if collector.index % 2:
        subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    while not collector.stop.is_set():
        with ring.writing() as rollout:
            rollout["obs"][:] = collector.index


def family(pid: int) -> set[int]:
    """The process's children and theirs, as they are now."""
    found: set[int] = set()
    todo = [pid]
    while todo:
        one = todo.pop()
        for tasks in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                children = {int(child) for child in tasks.read_text().split()}
            except OSError:
                continue
            todo += children - found
            found |= children
    return found


def one_death(rng: random.Random) -> dict[str, Any]:
    """Starts a learner, kills it, and waits for the others."""
    name = f"bench-{os.getpid()}-{secrets.token_hex(4)}"
    learner = subprocess.Popen([sys.executable, __file__, "--learner", name])
    while len(family(learner.pid)) < COLLECTORS:
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 5))
    os.kill(learner.pid, signal.SIGSTOP)  # it starts nobody while we count
    watch, left = select.poll(), {}
    for pid in family(learner.pid):
        try:
            left[os.pidfd_open(pid)] = pid
        except ProcessLookupError:
            continue
    for fd in left:
        watch.register(fd, select.POLLIN)
    count, begin = len(left), time.monotonic()
    learner.kill()
    learner.wait()
    while left and time.monotonic() < begin + 30:
        for fd, _ in watch.poll(1000):
            watch.unregister(fd)
            os.close(fd)
            del left[fd]
    seconds = time.monotonic() - begin
    for pid in left.values():
        os.kill(pid, signal.SIGKILL)
    rollway.gc()
    behind = sum(segment.name == name for segment in rollway.segments())
    return {"seconds": seconds, "processes": count, "survivors": len(left), "segments_left": behind}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learner", metavar="NAME", help="be the learner that is killed")
    parser.add_argument("--deaths", type=int, default=50)
    parser.add_argument("--out", type=Path, default=machine.ROOT / "docs" / "bench")
    options = parser.parse_args()
    if options.learner:
        with Learner("none", {}, {}, device="cpu", num_envs=8, num_collectors=COLLECTORS) as learner:
            learner.learn(10**9, log_dir=options.learner)
        return 0
    rng = random.Random(0)
    deaths = [one_death(rng) for _ in range(options.deaths)]
    longest = max(death["seconds"] for death in deaths)
    survivors = sum(death["survivors"] for death in deaths)
    behind = sum(death["segments_left"] for death in deaths)
    record = {
        "command": machine.command(),
        "commit": machine.commit(),
        "machine": machine.describe(()),
        "deaths": deaths,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "orphans.json").write_text(json.dumps(record) + "\n")
    print(
        f"{len(deaths)} learners killed, {sum(death['processes'] for death in deaths)} processes of theirs: the last "
        f"was gone after {longest:.3f} s at most; {survivors} survived, {behind} segments left after gc"
    )
    return 0 if longest <= BAR_S and not survivors and not behind else 1


if __name__ == "__main__":
    sys.exit(main())
