"""Short measurements of one package for `by_turns.py`: a replay buffer, rollouts, groups, a vector environment.

`python -m harness.handles replay 0.5` prints how many calls a second there are, as JSON. It uses only what the package
had from its first version on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import rollway

Figures = dict[str, float]


def rate(call: Callable[[], Any], seconds: float) -> float:
    """Calls per second, in the best tenth of short runs: the machine has other work."""
    runs, end = [], time.perf_counter() + seconds
    begin = time.perf_counter()
    call()
    repeats = max(1, int(0.002 / (time.perf_counter() - begin + 1e-7)))
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        runs.append((time.perf_counter() - begin) / repeats)
    return 1 / float(np.quantile(runs, 0.1))


def replay(seconds: float) -> Figures:
    figures = {}
    buffer = rollway.ReplayBuffer(200_000, 64, 4, "cpu")
    rng = np.random.default_rng(0)
    for rows in (1, 1024):
        shapes = ((rows, 64), (rows, 4), (rows,), (rows, 64), (rows,), (rows,))
        columns = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
        figures[f"replay, add {rows:,}"] = rate(lambda columns=columns: buffer.add(*columns), seconds)
    for rows in (256, 4096):
        out = buffer.sample(rows)
        figures[f"replay, sample {rows:,}"] = rate(lambda rows=rows, out=out: buffer.sample(rows, out=out), seconds)
    buffer.close()
    return figures


def rollouts(seconds: float) -> Figures:
    figures = {}
    for num_envs in (4, 256):
        ring = rollway.RolloutRingBuffer(num_envs, 24, 48, 12, num_slots=4)
        mine = {field: np.zeros_like(array) for field, array in ring.write_buffer.items()}

        def around(ring: Any = ring, mine: Any = mine) -> None:
            for field, array in ring.write_buffer.items():
                np.copyto(array, mine[field])
            ring.signal_write_done()
            if not ring.wait_for_data(1.0):
                raise RuntimeError("a rollout is lost")
            for field, array in ring.read_numpy_views().items():
                np.copyto(mine[field], array)
            ring.advance_read()

        figures[f"rollouts, write and read {num_envs} envs"] = rate(around, seconds)
        ring.close()
    return figures


def groups(seconds: float) -> Figures:
    """Groups of 8 records of 512 tokens, from sending them to having them as one group."""
    schema = {"tokens": "int32[*]", "mask": "bool[*]", "score": "float32[]"}
    record = {"tokens": np.arange(512, dtype=np.int32), "mask": np.ones(512, bool), "score": np.float32(1)}
    numbers = iter(range(10**12))
    name = f"handles-{os.getpid()}"
    with (
        rollway.RecordServer(schema, rollway.ShmTransport(name)) as server,
        rollway.ShmRecordClient(name, schema) as client,
    ):
        assembler = rollway.GroupAssembler(8)

        def around() -> None:
            instance = f"prompt-{next(numbers)}"
            for repetition in range(8):
                client.send(record, key=rollway.RecordKey("run", "train", 0, instance, repetition))
            while (group := assembler.pop()) is None:
                assembler.add(server.read())
            if len(group.records) != 8:
                raise RuntimeError("a group is not whole")
            group.release()

        return {"groups of 8": rate(around, seconds)}


def vector_env(seconds: float) -> Figures:
    figures = {}
    for workers in (1, 2):
        with rollway.make_vec("CartPole-v1", 16, num_workers=workers) as envs:
            envs.reset(seed=0)
            actions = np.zeros(16, np.int64)
            rate_of_steps = rate(lambda envs=envs, actions=actions: envs.step(actions), seconds)
        figures[f"vector_env, step of 16 CartPoles, {workers} workers"] = rate_of_steps
    return figures


MEASURED: dict[str, Callable[[float], Figures]] = {
    "replay": replay,
    "rollouts": rollouts,
    "groups": groups,
    "vector_env": vector_env,
}

if __name__ == "__main__":
    print(json.dumps(MEASURED[sys.argv[1]](float(sys.argv[2]))))
