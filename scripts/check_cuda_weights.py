"""Checks SharedWeightSync and RolloutRingBuffer with tensors of a GPU, on a machine with one and torch.

`python scripts/check_cuda_weights.py` writes the weights of a model on the GPU, reads them into another there, takes
a rollout to the GPU in both ways, compares every value, and prints GB/s. CI has no GPU, so it does not run this.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch

import rollway

PARAMETERS, LEAVES, REPEATS = 10_000_000, 20, 10


def rate(nbytes: int, work: Callable[[], object]) -> float:
    """GB/s: the median."""
    seconds = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return nbytes / statistics.median(seconds) / 1e9


def weights() -> dict[str, float]:
    state = {f"leaf{i}": torch.randn(PARAMETERS // LEAVES, device="cuda") for i in range(LEAVES)}
    state |= {"half": torch.randn(3, 5, device="cuda").to(torch.bfloat16).T, "step": torch.tensor(7, device="cuda")}
    into = {name: torch.zeros_like(value) for name, value in state.items()}
    nbytes = sum(value.nbytes for value in state.values())
    with rollway.SharedWeightSync.from_state_dict(state) as sync:
        assert sync.read_weights_into(into) == sync.version
        assert all(torch.equal(into[name], state[name]) for name in state), "the weights differ"
        write = rate(nbytes, lambda: sync.write_weights(state))
        read = rate(nbytes, lambda: sync.read_weights_into(into))
    return {"megabytes": nbytes / 1e6, "write_gb_s": write, "read_gb_s": read}


def rollouts() -> None:
    with rollway.RolloutRingBuffer(num_envs=64, num_steps=32, obs_dim=48, action_dim=12) as ring:
        for number in (1.0, 2.0):
            with ring.writing() as rollout:
                for field in rollout.values():
                    field[...] = number
        assert ring.wait_for_data(5)
        first = ring.read_torch("cuda")
        ring.advance_read()
        assert ring.wait_for_data(5)
        second = {field: torch.zeros(shape, device="cuda") for field, shape in ring.slot_shapes.items()}
        ring.copy_read_slot_to_torch(second)
        ring.advance_read()
        for rollout, number in ((first, 1.0), (second, 2.0)):
            assert all(field.is_cuda and bool((field == number).all()) for field in rollout.values()), "torn"


def main() -> None:
    rollouts()
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "weights": weights()}, indent=1))


if __name__ == "__main__":
    main()
