"""PufferLib's vector environments, for `vector_env.py`: a line with seconds comes in, a line with the rate goes out.

`python vector_env_pufferlib.py WORLD NUM_ENVS WORKERS`, in an interpreter that has PufferLib; 0 workers: in this one.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np
import pufferlib.emulation
import pufferlib.vector

from worlds import WORLDS


def main() -> None:
    warnings.simplefilter("ignore")
    world, num_envs, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    answers, sys.stdout = sys.stdout, sys.stderr  # it prints, too
    make = lambda: pufferlib.emulation.GymnasiumPufferEnv(env_creator=WORLDS[world])  # noqa: E731
    options = {"backend": pufferlib.vector.Serial}
    if workers:
        options = {"backend": pufferlib.vector.Multiprocessing, "num_workers": workers, "batch_size": num_envs}
    envs = pufferlib.vector.make(make, num_envs=num_envs, **options)
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
