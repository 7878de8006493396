"""Checks `Server.device_iter` on a machine with a GPU and torch, and measures what share of the link it reaches.

`python scripts/check_cuda_feed.py [--seconds 3] [--producers 8]` feeds batches of several sizes from producer processes
through a ring to the GPU, and compares the rate with one large copy from pinned memory in the same run, and with a loop
that moves each leaf of each batch. It also checks every row on the GPU, and that tensors that are kept do not change.
CI has no GPU, so it does not run this.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from typing import Any

import numpy as np
import torch

import rollway

ROW = {"obs": np.zeros(6000, np.float32), "action": np.zeros(8, np.float32), "reward": np.float32(0)}
SIZES = {"1.6 MB": 64, "6 MB": 256}


def produce(name: str, rows: int, stop: Any) -> None:
    """Sends stacked rows that say which producer and which row they are of."""
    with rollway.ShmClient(name, ROW) as client:
        stacked = {
            "obs": np.ones((rows, 6000), np.float32),
            "action": np.ones((rows, 8), np.float32),
            "reward": np.ones(rows, np.float32),
        }
        while not stop.is_set():
            try:
                client.send_many(stacked, timeout=0.5)
            except (rollway.WaitTimeout, rollway.RollwayError):
                continue


def largest() -> float:
    """GB/s of one large copy from pinned memory: the median of ten."""
    source = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")
    seconds = []
    for _ in range(10):
        torch.cuda.synchronize()
        started = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return source.numel() / statistics.median(seconds) / 1e9


def leaf_by_leaf(server: rollway.Server) -> Any:
    """What a user writes without `device_iter`."""
    while True:
        with server.sample() as sample:
            yield {name: torch.from_numpy(array.copy()).to("cuda") for name, array in sample.batch.items()}


def rate(batches: Any, nbytes: int, seconds: float) -> float:
    """GB/s of batches that are looked at on the GPU."""
    for _ in range(20):
        next(batches)
    torch.cuda.synchronize()
    total = torch.zeros((), device="cuda")
    count, started = 0, time.perf_counter()
    while time.perf_counter() < started + seconds:
        batch = next(batches)
        total += batch["reward"][0]
        count += 1
    torch.cuda.synchronize()
    assert float(total) == count, "a batch was not there when it was looked at"
    return count * nbytes / (time.perf_counter() - started) / 1e9


def check(batches: Any, rows: int) -> None:
    """Every row is whole, and kept tensors do not change."""
    kept = [next(batches) for _ in range(50)]
    for batch in kept:
        assert batch["obs"].shape == (rows, 6000)
        assert bool((batch["obs"] == 1).all() and (batch["action"] == 1).all() and (batch["reward"] == 1).all())


def main() -> None:
    """Measures and checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--producers", type=int, default=8)
    options = parser.parse_args()
    link = largest()
    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "one_large_copy_gb_s": round(link, 1)}
    context = multiprocessing.get_context("spawn")
    for size, rows in SIZES.items():
        nbytes = rows * (6000 + 8 + 1) * 4
        with rollway.Server(ROW, rows, rollway.ShmTransport(), num_buffers=8) as server:
            stop = context.Event()
            arguments = (server.name, rows // 8, stop)
            workers = [context.Process(target=produce, args=arguments) for _ in range(options.producers)]
            for worker in workers:
                worker.start()
            batches = server.device_iter("cuda", depth=3)
            check(batches, rows)
            ours = rate(batches, nbytes, options.seconds)
            theirs = rate(leaf_by_leaf(server), nbytes, options.seconds)
            stop.set()
            result[size] = {
                "device_iter_gb_s": round(ours, 1),
                "of_one_large_copy": round(ours / link, 2),
                "leaf_by_leaf_gb_s": round(theirs, 1),
                "held_batches": server.stats()["held_batches"],
            }
            for worker in workers:
                worker.join(10)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
