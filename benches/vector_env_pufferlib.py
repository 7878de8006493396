"""PufferLib's vector environments, for `vector_env.py`: a line with seconds comes in, a line with the rate goes out.

`python vector_env_pufferlib.py WORLD NUM_ENVS WAY`, in an interpreter that has PufferLib. WAY is `PufferLib N`, with N
workers or in this process, or `plain loop`: what the environments alone cost with the packages of that interpreter.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import numpy as np
import pufferlib.emulation
import pufferlib.vector

from worlds import WORLDS


class PlainLoop:
    """Steps one after the other, and keeps nothing."""

    def __init__(self, world: str, num_envs: int) -> None:
        self._envs = [WORLDS[world]() for _ in range(num_envs)]

    def reset(self, seed: int) -> None:
        for env in self._envs:
            env.reset(seed=seed)

    def step(self, actions: np.ndarray) -> None:
        for env, action in zip(self._envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()


def puffers(world: str, num_envs: int, workers: int) -> Any:
    make = lambda: pufferlib.emulation.GymnasiumPufferEnv(env_creator=WORLDS[world])  # noqa: E731
    options = {"backend": pufferlib.vector.Serial}
    if workers:
        options = {"backend": pufferlib.vector.Multiprocessing, "num_workers": workers, "batch_size": num_envs}
    return pufferlib.vector.make(make, num_envs=num_envs, **options)


def main() -> None:
    warnings.simplefilter("ignore")
    world, num_envs, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    answers, sys.stdout = sys.stdout, sys.stderr  # it prints, too
    envs = PlainLoop(world, num_envs) if way == "plain loop" else puffers(world, num_envs, int(way.split()[-1]))
    envs.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 2, (32, num_envs))
    print(json.dumps({}), file=answers, flush=True)  # ready
    for line in sys.stdin:
        calls, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < float(line):
            envs.step(actions[calls % 32])
            calls += 1
        print(json.dumps({"steps_per_s": calls * num_envs / took, "cpu_us_per_step": 0.0}), file=answers, flush=True)


if __name__ == "__main__":
    main()
