"""Environments stepped by processes that do nothing else: the limits for vector environments on these cores.

`TakingTurns`: on each core they take turns. What sixteen processes lose against two is the cost of the machine: context
switches, and caches that hold the data of the process before. `LockStep`: one process on each core; after every step
they wait for each other, as the caller of a vector environment waits for all, so the slower one sets the pace.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy as np

_CORES = 2
_LINE_WORDS = 8  # the counters of two processes are not on one cache line


class TakingTurns:
    """On each core, processes in a circle: each steps its environments, then wakes the next."""

    def __init__(self, make: Callable[[], Any], num_envs: int, workers: int) -> None:
        self.name = f"bare, {workers}"
        self._resting = RawArray("b", [1])
        self._steps = RawArray("q", workers * _LINE_WORDS)
        self._rings = [[os.eventfd(0) for _ in range(workers // _CORES)] for _ in range(_CORES)]
        self._back = os.eventfd(0, os.EFD_SEMAPHORE)
        context = multiprocessing.get_context("fork")
        self._processes = [
            context.Process(target=self._run, args=(make, num_envs // workers, core, place), daemon=True)
            for core, ring in enumerate(self._rings)
            for place in range(len(ring))
        ]
        for process in self._processes:
            process.start()
        while not all(self._steps[::_LINE_WORDS]):
            self.measure(0.1)

    def _run(self, make: Callable[[], Any], num_envs: int, core: int, place: int) -> None:
        step = _stepper(make, num_envs, core)
        ring, steps, resting = self._rings[core], self._steps, self._resting
        mine, after = ring[place], ring[(place + 1) % len(ring)]
        counter = (core * len(ring) + place) * _LINE_WORDS
        while True:
            os.eventfd_read(mine)
            step()
            steps[counter] += num_envs
            os.eventfd_write(self._back if resting[0] else after, 1)

    def measure(self, seconds: float) -> dict[str, float]:
        """Steps per second, of all together."""
        self._resting[0] = 0
        before, began = sum(self._steps), time.perf_counter()
        for ring in self._rings:
            os.eventfd_write(ring[0], 1)
        time.sleep(seconds)
        steps, took = sum(self._steps) - before, time.perf_counter() - began
        self._resting[0] = 1
        for _ in self._rings:
            os.eventfd_read(self._back)
        return {"steps_per_s": steps / took, "cpu_us_per_step": _CORES * took / max(steps, 1) * 1e6}  # none is idle

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for descriptor in [self._back, *(end for ring in self._rings for end in ring)]:
            os.close(descriptor)


class LockStep:
    """One process on each core; each begins a step when the other has done the last."""

    def __init__(self, make: Callable[[], Any], num_envs: int) -> None:
        self._resting = RawArray("b", [1])
        self._steps = RawArray("q", _CORES * _LINE_WORDS)
        context = multiprocessing.get_context("fork")
        self._processes = [
            context.Process(target=self._run, args=(make, num_envs // _CORES, core), daemon=True)
            for core in range(_CORES)
        ]
        for process in self._processes:
            process.start()
        while not all(self._steps[::_LINE_WORDS]):
            self.measure(0.1)

    def _run(self, make: Callable[[], Any], num_envs: int, core: int) -> None:
        step = _stepper(make, num_envs, core)
        steps, resting, done = self._steps, self._resting, 0
        mine, other = core * _LINE_WORDS, (1 - core) * _LINE_WORDS
        while True:
            step()
            steps[mine] = done = done + num_envs
            while steps[other] < done:
                pass
            while resting[0]:
                time.sleep(0.001)

    def measure(self, seconds: float) -> dict[str, float]:
        """Steps per second, of both together."""
        self._resting[0] = 0
        before, began = sum(self._steps), time.perf_counter()
        time.sleep(seconds)
        steps, took = sum(self._steps) - before, time.perf_counter() - began
        self._resting[0] = 1
        return {"steps_per_s": steps / took, "cpu_us_per_step": _CORES * took / max(steps, 1) * 1e6}  # none is idle

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _stepper(make: Callable[[], Any], num_envs: int, core: int) -> Callable[[], None]:
    """Steps environments on a core, each once."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})
    envs = [make() for _ in range(num_envs)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    actions = np.arange(num_envs) % 2  # of NumPy's type, as a vector environment hands them out

    def step() -> None:
        for env, action in zip(envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    gc.collect()
    gc.freeze()
    return step
