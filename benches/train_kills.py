"""Trains by `rollway train appo`, undisturbed and with a collector killed every few seconds: the same return?

`python benches/train_kills.py` runs the command twice on CartPole-v1, until the mean return of 100 episodes is 475. In
the second run a third party (this script) sends SIGKILL to one of the command's collectors every five seconds. Writes
docs/bench/train_kills.json and the two learning curves beside it. It asserts nothing about time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from harness import machine

GOAL = 475


def collectors(learner: int) -> list[int]:
    """The command's collectors: its children, but for Python's resource tracker."""
    found = []
    for task in Path(f"/proc/{learner}/task").glob("*/children"):
        for pid in map(int, task.read_text().split()):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"spawn_main" in command:
                found.append(pid)
    return found


def kill_now_and_then(learner: int, every_s: float, over: threading.Event, kills: list[int]) -> None:
    """Kills the collectors by turns, once both have started."""
    while not over.wait(every_s):
        if alive := collectors(learner):
            victim = alive[len(kills) % len(alive)]
            os.kill(victim, signal.SIGKILL)
            kills.append(victim)


def train(log_dir: Path, every_s: float | None, seed: int) -> dict[str, object]:
    """One run of the command; what it says at its end."""
    arguments = ["train", "appo", "--env", "CartPole-v1", "--until-return", str(GOAL), "--steps", "1000000"]
    command = [sys.executable, "-m", "rollway.cli", *arguments, "--seed", str(seed), "--log-dir", str(log_dir)]
    began = time.monotonic()
    over, kills = threading.Event(), []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        killer = threading.Thread(target=kill_now_and_then, args=(process.pid, every_s or 0, over, kills))
        lines = []
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if not lines and every_s:
                killer.start()
            lines.append(line)
        over.set()
        if every_s:
            killer.join()
    said = "".join(lines)
    numbers = [json.loads(row) for row in (log_dir / "progress.jsonl").read_text().splitlines()]
    return {
        "command": " ".join(["rollway", *arguments, "--seed", str(seed)]),
        "exit_status": process.returncode,
        "killed_every_s": every_s,
        "kills": len(kills),
        "deaths": int(numbers[-1]["deaths"]),
        "restarts": int(numbers[-1]["restarts"]),
        "mean_return_of_last_100": numbers[-1]["mean_return"],
        "greedy_mean_of_50": float(re.search(r"evaluated +(-?[\d.]+)", said)[1]),
        "env_steps": int(numbers[-1]["env_steps"]),
        "seconds": round(time.monotonic() - began, 1),
        "curve": [[row["env_steps"], row["mean_return"]] for row in numbers if "mean_return" in row][
            :: 1 + len(numbers) // 200
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-kills", action="store_true", help="leave the undisturbed run out")
    parser.add_argument("--out", type=Path, default=machine.ROOT / "docs" / "bench")
    options = parser.parse_args()
    result = {
        "machine": machine.describe(("torch", "gymnasium")),
        "commit": machine.commit(),
        "command": machine.command(),
    }
    runs = {"undisturbed": None, "kills": options.every}
    with tempfile.TemporaryDirectory() as logs:
        for name, every_s in runs.items():
            if every_s is None and options.only_kills:
                continue
            result[name] = train(Path(logs) / name, every_s, options.seed)
            shutil.copy(Path(logs) / name / "learning_curve.png", options.out / f"train_{name}.png")
    (options.out / "train_kills.json").write_text(json.dumps(result, indent=2) + "\n")
    for name in runs:
        if name in result:
            print(name, {key: value for key, value in result[name].items() if key != "curve"})


if __name__ == "__main__":
    main()
