"""One way of stepping environments, in a process of its own: for `vector_env.py`, where many take turns.

`python -m environments.steppers WAY WORLD NUM_ENVS` says ``{}`` when it is ready, or what is missing; then, for each
line with a number of seconds, how fast it was, and at what cost in CPU time. Packages are imported on use: an
interpreter needs those of its way alone. In one process for all, some were slower than in one of their own.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from environments.worlds import WORLDS

Advance = Callable[[], int]
"""Does some work; says how many environment steps it was."""


def main() -> None:
    warnings.simplefilter("ignore")
    way, world, num_envs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    answers, sys.stdout = sys.stdout, sys.stderr  # some of them print, too
    try:
        measure = stepper(way, world, num_envs)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=answers, flush=True)
        return
    print(json.dumps({}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(float(line))), file=answers, flush=True)


def stepper(way: str, world: str, num_envs: int) -> Callable[[float], dict[str, float]]:
    """What steps for so many seconds. `way` may end with a number: of workers."""
    kind, _, last = way.rpartition(" ")
    workers = int(last) if last.isdigit() else 0
    if kind == "bare":
        from environments.bare_processes import TakingTurns

        return TakingTurns(WORLDS[world], num_envs, workers).measure
    if kind == "lock-step":
        from environments.bare_processes import LockStep

        return LockStep(WORLDS[world], num_envs).measure
    advance = _advance(kind if last.isdigit() else way, world, num_envs, workers)

    def measure(seconds: float) -> dict[str, float]:
        for _ in range(3):
            advance()
        steps, cpu, began = 0, cpu_s(), time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            steps += advance()
        return {"steps_per_s": steps / took, "cpu_us_per_step": (cpu_s() - cpu) / steps * 1e6}

    return measure


def _advance(way: str, world: str, num_envs: int, workers: int) -> Advance:
    makes = [WORLDS[world]] * num_envs
    if way == "plain loop":
        return _stepping(PlainLoop(makes), num_envs)
    if way == "PufferLib":
        return _stepping(_puffers(world, num_envs, workers), num_envs)
    if way in ("SyncVectorEnv", "AsyncVectorEnv"):
        import gymnasium.vector

        return _stepping(getattr(gymnasium.vector, way)(makes), num_envs)
    if way == "SB3 SubprocVecEnv":
        from stable_baselines3.common.vec_env import SubprocVecEnv

        return _stepping(SubprocVecEnv(makes, start_method="fork"), num_envs)
    if way == "EnvPool":
        import envpool

        pool = envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, seed=0)
        return _stepping(pool, num_envs, np.int32)
    import rollway

    if way == "rollway, send/recv":
        halves = rollway.make_vec(WORLDS[world], num_envs, num_workers=workers, batch_size=num_envs // 2)
        return _by_halves(halves, num_envs // 2)
    copies = {"rollway": True, "rollway, views": False}[way]
    return _stepping(rollway.make_vec(WORLDS[world], num_envs, num_workers=workers, copy=copies), num_envs)


def _stepping(envs: Any, num_envs: int, dtype: Any = np.int64) -> Advance:
    """All at once, with the same actions for everybody."""
    envs.reset()
    turns = itertools.cycle(np.random.default_rng(0).integers(0, 2, (32, num_envs), dtype))

    def advance() -> int:
        envs.step(next(turns))
        return num_envs

    return advance


def _by_halves(envs: Any, half: int) -> Advance:
    envs.async_reset(seed=0)
    actions = np.zeros(half, np.int64)

    def advance() -> int:
        envs.recv()
        envs.send(actions)
        return half

    return advance


class PlainLoop:
    """Steps one after the other, and keeps nothing: what the environments alone cost with these packages."""

    def __init__(self, makes: list[Callable[[], Any]]) -> None:
        self._envs = [make() for make in makes]

    def reset(self) -> None:
        for env in self._envs:
            env.reset()

    def step(self, actions: np.ndarray) -> None:
        for env, action in zip(self._envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()


def _puffers(world: str, num_envs: int, workers: int) -> Any:
    import pufferlib.emulation
    import pufferlib.vector

    make = lambda: pufferlib.emulation.GymnasiumPufferEnv(env_creator=WORLDS[world])  # noqa: E731
    options = {"backend": pufferlib.vector.Serial}
    if workers:
        options = {"backend": pufferlib.vector.Multiprocessing, "num_workers": workers, "batch_size": num_envs}
    return pufferlib.vector.make(make, num_envs=num_envs, **options)


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


if __name__ == "__main__":
    main()
