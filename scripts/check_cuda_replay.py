"""Checks ReplayBuffer and ReplayPipeline with device="cuda" on a machine with a GPU and torch, and measures them.

`python scripts/check_cuda_replay.py` samples to the GPU while an adder goes on, checks that every row is whole there
and that a batch in use is not written over, and prints batches per second. CI has no GPU, so it does not run this.
"""

import json
import threading
import time

import numpy as np
import torch

import rollway

CAPACITY, OBS, ACT, ROWS, BATCHES = 200_000, 64, 4, 4096, 300


def add(buffer: rollway.ReplayBuffer, value: int, rows: int = 1000) -> None:
    column = np.full(rows, value, np.float32)
    wide = np.repeat(column[:, None], OBS, 1)
    buffer.add(wide, wide[:, :ACT], column, wide, column, column)


def check(batch: dict[str, torch.Tensor]) -> None:
    rewards = batch["rewards"]
    for name in ("obs", "actions", "next_obs"):
        assert batch[name].is_cuda and bool((batch[name] == rewards[:, None]).all()), f"{name} is torn"
    assert bool((batch["dones"] == rewards).all()) and float(rewards.min()) >= 1


def rate(take, work: torch.Tensor) -> float:
    """Batches per second, with some work for the GPU on each."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(BATCHES):
        batch = take()
        for _ in range(4):
            work = torch.tanh(work @ work) * batch["obs"].mean()
    torch.cuda.synchronize()
    return BATCHES / (time.perf_counter() - began)


def main() -> None:
    with rollway.ReplayBuffer(CAPACITY, OBS, ACT, "cuda", seed=1) as buffer:
        for value in range(1, CAPACITY // 1000 + 1):
            add(buffer, value)
        done = threading.Event()

        def keep_adding() -> None:
            value = 0
            while not done.is_set():
                value = value % 1000 + 1
                add(buffer, value)

        adder = threading.Thread(target=keep_adding)
        adder.start()
        try:
            out = None
            for _ in range(50):
                check(buffer.sample(ROWS))
                out = buffer.sample(ROWS, out=out)
                check(out)
            with rollway.ReplayPipeline(buffer, sample_count=ROWS) as pipeline:
                heavy = torch.randn(4096, 4096, device="cuda")
                for _ in range(100):
                    batch = pipeline.next(timeout=30)
                    before = batch["obs"].clone()
                    heavy = torch.tanh(heavy @ heavy)  # The copy of the next batch overtakes this, if nothing stops it.
                    assert torch.equal(before, batch["obs"]), "a batch in use was written over"
                    check(batch)
        finally:
            done.set()
            adder.join()
        work = torch.randn(2048, 2048, device="cuda")
        direct = rate(lambda: buffer.sample(ROWS), work)
        with rollway.ReplayPipeline(buffer, sample_count=ROWS) as pipeline:
            ahead = rate(pipeline.next, work)
        print(
            json.dumps(
                {
                    "gpu": torch.cuda.get_device_name(),
                    "rows": ROWS,
                    "sample_batches_s": direct,
                    "pipeline_batches_s": ahead,
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
