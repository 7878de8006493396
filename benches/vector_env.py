"""Vector environments beside each other: environment steps per second, in one run.

`python benches/vector_env.py` steps CartPole × 16 and × 64, an image that is only moved × 16, environments that sleep 1
ms × 16 and 0.1 to 5 ms × 16, with rollway, Gymnasium's SyncVectorEnv and AsyncVectorEnv(shared_memory=True),
Stable-Baselines3's SubprocVecEnv, PufferLib and EnvPool's C++ CartPole, by turns. Then numbers of workers, beside
processes that only take turns, and what idle workers cost. What is not installed is said to be missing. PufferLib asks
for Gymnasium 0.29 and numpy 1.23, with which a CartPole itself takes less time, as the plain loops show; it runs
with the packages of everybody else, and also with its own in the interpreter that `--pinned` names. Writes
docs/bench/vector_env.json (raw samples) and .md. It asserts nothing about time.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
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

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import machine
import rollway
from relay import Relay
from worlds import WORLDS

PUFFERS = ("plain loop", "PufferLib 0", "PufferLib 2")
"""What `vector_env_pufferlib.py` can do; the number is that of the workers."""
PINNED = ", packages that PufferLib asks for"

Advance = Callable[[], int]
"""Does some work; says how many environment steps it was."""


class Stepper:
    """One contender: steps for a while, and says how fast, and at what cost in CPU time."""

    def __init__(self, name: str, advance: Advance, close: Callable[[], None]) -> None:
        self.name, self._advance, self.close = name, advance, close

    def measure(self, seconds: float) -> dict[str, float]:
        for _ in range(3):
            self._advance()
        steps, cpu, began = 0, cpu_s(), time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            steps += self._advance()
        return {"steps_per_s": steps / took, "cpu_us_per_step": (cpu_s() - cpu) / steps * 1e6}


class Puffer:
    """PufferLib, or Gymnasium beside it, in a process of its own: asked by a line, answers by a line."""

    def __init__(self, python: str, world: str, num_envs: int, way: str) -> None:
        script = Path(__file__).with_name("vector_env_pufferlib.py")
        self._process = subprocess.Popen(
            [python, script, world, str(num_envs), way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # its workers outlive it, and poll for ever
        )

        if self._answer() is None:
            raise ImportError(f"{python} has no PufferLib")
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        """To it and its workers, which poll, also between the turns: they would disturb the others."""
        os.killpg(self._process.pid, number)

    def _answer(self) -> dict[str, float] | None:
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
        self._signal(signal.SIGKILL)
        self._process.communicate()


def cpu_s() -> float:
    """CPU time of this process and its children, the living ones."""
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    return sum(_ticks(pid) for pid in [own, *children]) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int | str) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        return 0
    return int(fields[11]) + int(fields[12])


def gymnasium_like(name: str, envs: Any, num_envs: int) -> Stepper:
    """Anything with reset(seed=…), step(actions) and close()."""
    envs.reset(seed=0)
    actions = itertools.cycle([envs.action_space.sample() for _ in range(32)])

    def advance() -> int:
        envs.step(next(actions))
        return num_envs

    return Stepper(name, advance, envs.close)


def ours(world: str, num_envs: int, workers: int, **options: Any) -> Stepper:
    envs = rollway.make_vec(WORLDS[world], num_envs, num_workers=workers, **options)
    return gymnasium_like(f"rollway {workers} workers", envs, num_envs)


def ours_by_halves(world: str, num_envs: int, workers: int) -> Stepper:
    envs = rollway.make_vec(WORLDS[world], num_envs, num_workers=workers, batch_size=num_envs // 2)
    envs.async_reset(seed=0)
    actions = np.zeros(num_envs // 2, np.int64)

    def advance() -> int:
        envs.recv()
        envs.send(actions)
        return num_envs // 2

    return Stepper(f"rollway {workers} workers, send/recv of half", advance, envs.close)


def stable_baselines(world: str, num_envs: int) -> Stepper:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = SubprocVecEnv([WORLDS[world]] * num_envs, start_method="fork")
    envs.seed(0)
    envs.reset()
    actions = np.zeros(num_envs, np.int64)

    def advance() -> int:
        envs.step(actions)
        return num_envs

    return Stepper("SB3 SubprocVecEnv", advance, envs.close)


def envpool(num_envs: int) -> Stepper:
    import envpool as pool

    envs = pool.make_gymnasium("CartPole-v1", num_envs=num_envs, seed=0)
    envs.reset()
    actions = np.zeros(num_envs, np.int32)

    def advance() -> int:
        envs.step(actions)
        return num_envs

    return Stepper("EnvPool (C++)", advance, envs.close)


def contenders(world: str, num_envs: int, options: argparse.Namespace) -> list[tuple[str, Callable[[], Any]]]:
    """Their names, and how to make them."""
    makes = [WORLDS[world]] * num_envs
    sleeping = "ms" in world
    found: list[tuple[str, Callable[[], Any]]] = [
        ("SyncVectorEnv", lambda: gymnasium_like("SyncVectorEnv", SyncVectorEnv(makes), num_envs)),
        ("rollway", lambda: ours(world, num_envs, num_envs if sleeping else 2)),
        ("AsyncVectorEnv", lambda: gymnasium_like("AsyncVectorEnv", AsyncVectorEnv(makes), num_envs)),
        ("SB3 SubprocVecEnv", lambda: stable_baselines(world, num_envs)),
    ]
    if world == "image":
        found.insert(2, ("rollway, views", lambda: ours(world, num_envs, 2, copy=False)))
    if world.startswith("0.1-5 ms"):
        found.insert(2, ("rollway, send/recv", lambda: ours_by_halves(world, num_envs, num_envs)))
    if not sleeping:
        makes_puffer = lambda python, way: lambda: Puffer(python, world, num_envs, way)  # noqa: E731
        found += [(way, makes_puffer(sys.executable, way)) for way in PUFFERS]
        if options.pinned:
            found += [(way + PINNED, makes_puffer(options.pinned, way)) for way in PUFFERS]
    if world == "cartpole":
        found.append(("EnvPool", lambda: envpool(num_envs)))
    return found


def compete(makers: list[tuple[str, Callable[[], Any]]], rounds: int, seconds: float) -> dict[str, Any]:
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
        found += [
            (f"{cell}: SyncVectorEnv", ratio(cells[cell], "rollway", "SyncVectorEnv"), 1.5),
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
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "bench")
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
            cells[title] = compete(contenders(world, num_envs, options), options.rounds, options.seconds)
    for num_envs in (16, 64):
        title = f"workers, cartpole x {num_envs}"
        if options.only is None or options.only in title:
            numbers = [(str(n), lambda n=n, e=num_envs: ours("cartpole", e, n)) for n in (1, 2, 4, 8, 16)]
            numbers += [(f"bare, {n}", lambda n=n, e=num_envs: Relay(WORLDS["cartpole"], e, n)) for n in (2, 16)]
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
        head = f"`{facts['command']}`, {where['cpu']}, {where['cores_usable']} cores; by turns, medians."
        text = "\n".join(["# Vector environments", "", head, "", *lines, ""])
        (options.out / "vector_env.md").write_text(text)


if __name__ == "__main__":
    main()
