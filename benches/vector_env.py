"""Vector environments beside each other: environment steps per second, in one run.

`python benches/vector_env.py` steps CartPole × 16 and × 64, an image that is only moved × 16, environments that sleep 1
ms × 16 and 0.1 to 5 ms × 16, with rollway, Gymnasium's SyncVectorEnv and AsyncVectorEnv(shared_memory=True),
Stable-Baselines3's SubprocVecEnv, PufferLib, EnvPool's C++ CartPole and two processes that only step and wait for each
other, by turns, each in a process of its own. Then numbers of workers, beside processes that only take turns, and what
idle workers cost. What is not installed is said to be missing. PufferLib asks for Gymnasium 0.29 and numpy 1.23, with
which a CartPole itself takes less time, as the plain loops show; it runs with the packages of everybody else, and also
with its own in the interpreter that `--pinned` names.
Writes docs/bench/vector_env.json (raw samples) and .md. It asserts nothing about time.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rollway
from environments.steppers import cpu_s
from environments.worlds import WORLDS
from harness import machine

PUFFERS = ("plain loop", "PufferLib 0", "PufferLib 2")
"""The number is that of the workers."""
HERE = Path(__file__).resolve().parent
LOCK_STEP = "two processes, in step (limit)"
PINNED = ", packages that PufferLib asks for"


class Contender:
    """A way of stepping, in a process of its own (`environments.steppers`): asked by a line, answers by a line."""

    def __init__(self, way: str, world: str, num_envs: int, python: str = sys.executable) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "environments.steppers", way, world, str(num_envs)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # some leave workers behind that poll for ever
        )
        ready = self._answer()
        if ready is None or "missing" in ready:
            self._process.communicate()
            raise ImportError("it does not start" if ready is None else ready["missing"])
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        """To it and its workers. Some of them poll, also between the turns, and would disturb the others."""
        os.killpg(self._process.pid, number)

    def _answer(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def measure(self, seconds: float) -> dict[str, float] | None:
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        print(seconds, file=self._process.stdin, flush=True)
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=20)  # the end of its input is its own
        with contextlib.suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self._process.wait()


def contenders(world: str, num_envs: int, pinned: str | None) -> list[tuple[str, Callable[[], Contender]]]:
    """Their names, and how to make them."""

    def maker(way: str, python: str = sys.executable) -> Callable[[], Contender]:
        return lambda: Contender(way, world, num_envs, python)

    sleeping = "ms" in world
    workers = num_envs if sleeping else 2
    found = [("SyncVectorEnv", maker("SyncVectorEnv")), ("rollway", maker(f"rollway {workers}"))]
    if world == "image":
        found.append(("rollway, views", maker(f"rollway, views {workers}")))
    if world.startswith("0.1-5 ms"):
        found.append(("rollway, send/recv", maker(f"rollway, send/recv {workers}")))
    found += [(way, maker(way)) for way in ("AsyncVectorEnv", "SB3 SubprocVecEnv")]
    if not sleeping:
        found += [(way, maker(way)) for way in PUFFERS]
        if pinned:
            found += [(way + PINNED, maker(way, pinned)) for way in PUFFERS]
    if world == "cartpole":
        found += [(LOCK_STEP, maker("lock-step 2")), ("EnvPool", maker("EnvPool"))]
    return found


def compete(makers: list[tuple[str, Callable[[], Contender]]], rounds: int, seconds: float) -> dict[str, Any]:
    """By turns, so that whatever else the machine does hits all of them."""
    steppers, missing = {}, {}
    for name, make in makers:
        try:
            steppers[name] = make()
        except (ImportError, OSError) as error:
            missing[name] = str(error)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in steppers}
    for _ in range(rounds):
        for name, stepper in steppers.items():
            if (measured := stepper.measure(seconds)) is not None:
                samples[name].append(measured)
    for stepper in steppers.values():
        stepper.close()
    missing |= {name: "did not answer" for name, found in samples.items() if not found}
    return {"samples": {name: found for name, found in samples.items() if found}, "missing": missing}


def idle_percent(seconds: float, workers: int) -> float:
    """CPU time of caller and workers while the learner thinks, in per cent of a core."""
    with rollway.make_vec(WORLDS["cartpole"], workers, num_workers=workers) as envs:
        envs.reset()
        for _ in range(10):
            envs.step(envs.action_space.sample())
        before = cpu_s()
        time.sleep(seconds)
        return (cpu_s() - before) / seconds * 100


def median(cell: dict[str, Any], name: str, what: str = "steps_per_s") -> float | None:
    found = cell["samples"].get(name)
    return statistics.median(sample[what] for sample in found) if found else None


def ratio(cell: dict[str, Any], ours: str, theirs: str) -> float | None:
    """Median of the ratios, round by round: what a busy machine does to one round, it does to both."""
    mine, yours = cell["samples"].get(ours), cell["samples"].get(theirs)
    if not mine or not yours:
        return None
    return statistics.median(a["steps_per_s"] / b["steps_per_s"] for a, b in zip(mine, yours, strict=False))


def limit(world: str, num_envs: int, batch: int) -> float:
    """What send and recv of a batch could gain over stepping all, if nothing but the environments took any time."""
    env = WORLDS[world]()
    env.reset(seed=0)

    def steps_per_s(batch: int) -> float:
        busy, now, steps = [(env.draw(), n) for n in range(num_envs)], 0.0, 0
        heapq.heapify(busy)
        while steps < 50_000:
            done = [heapq.heappop(busy) for _ in range(batch)]
            now, steps = max(now, done[-1][0]), steps + batch
            for _, number in done:
                heapq.heappush(busy, (now + env.draw(), number))
        return steps / now

    return steps_per_s(batch) / steps_per_s(num_envs)


def best_puffer(cell: dict[str, Any], packages: str) -> float | None:
    ratios = (ratio(cell, "rollway", way + packages) for way in PUFFERS[1:])
    return min((found for found in ratios if found is not None), default=None)


def bars(cells: dict[str, Any]) -> list[tuple[str, float | None, float]]:
    """What is asked for: its words, what was measured, and the least that it should be."""
    found: list[tuple[str, float | None, float]] = []
    for cell in ("cartpole x 16", "cartpole x 64"):
        lock_step = ratio(cells[cell], LOCK_STEP, "SyncVectorEnv")
        words = f"{cell}: SyncVectorEnv (processes that only wait for each other after every step: {lock_step:.2f})"
        found += [
            (words, ratio(cells[cell], "rollway", "SyncVectorEnv"), 1.5),
            (f"{cell}: AsyncVectorEnv", ratio(cells[cell], "rollway", "AsyncVectorEnv"), 8.0),
            (f"{cell}: PufferLib's best", best_puffer(cells[cell], ""), 1.3),
        ]
        if (pinned := best_puffer(cells[cell], PINNED)) is not None:
            price = ratio(cells[cell], f"plain loop{PINNED}", "plain loop")
            words = f"PufferLib's best{PINNED} (a plain loop is {price:.2f} times as fast there)"
            found.append((f"{cell}: {words}", pinned, 1.3))
    image, slow = cells["image x 16"], cells["1 ms x 16"]
    found += [
        ("image x 16: AsyncVectorEnv", ratio(image, "rollway", "AsyncVectorEnv"), 10.0),
        ("image x 16: SyncVectorEnv", ratio(image, "rollway", "SyncVectorEnv"), 0.8),
        ("1 ms x 16: SyncVectorEnv", ratio(slow, "rollway", "SyncVectorEnv"), 7.0),
    ]
    for world in ("0.1-5 ms", "0.1-5 ms, mostly short"):
        cell = f"{world} x 16"
        words = f"{cell}: send/recv of half, to stepping all (the limit is {limit(world, 16, 8):.2f})"
        found.append((words, ratio(cells[cell], "rollway, send/recv", "rollway"), 1.5))
    sweep = cells["workers, cartpole x 64"]
    others = [r for n in sweep["samples"] if n.isdigit() and (r := ratio(sweep, "16", n)) is not None]
    bare = ratio(sweep, "bare, 16", "bare, 2")
    words = f"cartpole x 64: 16 workers, to the best number (processes that only take turns: {bare:.2f})"
    found.append((words, min(others, default=None), 0.8))
    return found


def table(cells: dict[str, Any]) -> list[str]:
    lines = ["| | steps/s | CPU µs per step | to SyncVectorEnv |", "|---|---|---|---|"]
    for title, cell in cells.items():
        for name in cell["samples"]:
            against = ratio(cell, name, "SyncVectorEnv")
            rate, cost = median(cell, name), median(cell, name, "cpu_us_per_step")
            label = f"{name} workers" if title.startswith("workers") else name
            shown = "" if against is None else f"{against:.2f}"
            cost_shown = f"{cost:.1f}" if cost else ""
            lines.append(f"| {title}: {label} | {rate:,.0f} | {cost_shown} | {shown} |")
        lines += [f"| {title}: {name} | {why} | | |" for name, why in cell["missing"].items()]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each contender in each round")
    parser.add_argument("--pinned", help="an interpreter with the old Gymnasium and numpy that PufferLib asks for")
    parser.add_argument("--only", help="part of the name of a cell")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "bench")
    options = parser.parse_args()
    cells: dict[str, Any] = {}
    for world, num_envs in [
        ("cartpole", 16),
        ("cartpole", 64),
        ("image", 16),
        ("1 ms", 16),
        ("0.1-5 ms", 16),
        ("0.1-5 ms, mostly short", 16),
    ]:
        title = f"{world} x {num_envs}"
        if options.only is None or options.only in title:
            cells[title] = compete(contenders(world, num_envs, options.pinned), options.rounds, options.seconds)
    for num_envs in (16, 64):
        title = f"workers, cartpole x {num_envs}"
        if options.only is None or options.only in title:
            ways = {str(n): f"rollway {n}" for n in (1, 2, 4, 8, 16)} | {f"bare, {n}": f"bare {n}" for n in (2, 16)}
            numbers = [(n, lambda way=way, e=num_envs: Contender(way, "cartpole", e)) for n, way in ways.items()]
            cells[title] = compete(numbers, options.rounds, options.seconds)
    lines = table(cells)
    idle = None
    if options.only is None:
        idle = idle_percent(3.0, 16)
        lines += ["", "| bar | measured | asked for |", "|---|---|---|"]
        for words, measured, least in bars(cells):
            lines.append(f"| {words} | {'missing' if measured is None else f'{measured:.2f}'} | ≥ {least} |")
        lines.append(f"| CPU of 16 idle workers and their caller, % of a core | {idle:.2f} | < 1 |")
    print("\n".join(lines))
    if options.only is None:
        packages = ("gymnasium", "stable-baselines3", "pufferlib", "envpool", "rollway")
        command = machine.command().replace(options.pinned or "PYTHON", "PYTHON")
        facts = {"command": command, "commit": machine.commit(), "machine": machine.describe(packages)}
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "vector_env.json").write_text(json.dumps({**facts, "cells": cells, "idle_percent": idle}) + "\n")
        where = facts["machine"]
        measured = f"commit `{(facts['commit']['id'] or 'unknown')[:12]}`"
        if facts["commit"]["dirty"]:
            measured += " with local changes"
        head = f"`{command}` at {measured}, {where['cpu']}, {where['cores_usable']} cores; by turns, medians."
        text = "\n".join(["# Vector environments", "", head, "", *lines, ""])
        (options.out / "vector_env.md").write_text(text)


if __name__ == "__main__":
    main()
