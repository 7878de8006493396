"""Checks pin_host_memory on a machine with a GPU and torch, and measures what it brings.

`python scripts/check_cuda.py` copies a batch to the GPU from the ring, pinned and not, and from torch's own pinned
memory, in one run, and compares every byte. CI has no GPU, so it does not run this.
"""

import json
import statistics
import time

import numpy as np
import torch

import rollway

ROWS, ROW = 64, 4 * 1024 * 1024
EXAMPLE = {"frames": np.zeros(ROW, np.uint8)}
REPEATS = 20


def rate(source: torch.Tensor, target: torch.Tensor) -> float:
    """GB/s of copies to the GPU, one after the other: the median."""
    seconds = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return source.numel() / statistics.median(seconds) / 1e9


def from_ring(target: torch.Tensor, pinned: bool) -> float:
    transport = rollway.ShmTransport()
    with rollway.Server(EXAMPLE, ROWS, transport, 2, pin_host_memory=pinned, writable=True) as server:
        rng = np.random.default_rng(0)
        rows = rng.integers(0, 255, (ROWS, ROW), np.uint8)
        with rollway.ShmClient(server.name, EXAMPLE) as client:
            client.send_many({"frames": rows})
        batch = torch.from_numpy(server.sample(timeout=10).batch["frames"]).view(-1)
        assert batch.is_pinned() == pinned, f"is_pinned() is {batch.is_pinned()}, expected {pinned}"
        result = rate(batch, target)
        assert (target.cpu().numpy() == rows.reshape(-1)).all(), "the bytes on the GPU differ"
        return result


def main() -> None:
    target = torch.empty(ROWS * ROW, dtype=torch.uint8, device="cuda")
    own = torch.empty(ROWS * ROW, dtype=torch.uint8, pin_memory=True)
    print(
        json.dumps(
            {
                "gpu": torch.cuda.get_device_name(),
                "megabytes": ROWS * ROW / 1e6,
                "ring_gb_s": from_ring(target, False),
                "ring_pinned_gb_s": from_ring(target, True),
                "torch_pinned_gb_s": rate(own, target),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
