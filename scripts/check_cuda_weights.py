"""Checks weights and rollouts with tensors of a GPU, on a machine with one and torch, and measures copies of weights.

`python scripts/check_cuda_weights.py [--only checks,speed] [--repeats 10]`

`checks` writes the weights of a model on the GPU and reads them into another there, in this process, from another and
over TCP: behind work on the GPU that is not done yet, with leaves that are not contiguous, on the host, or have a
checksum. It takes a rollout to the GPU in both ways. Every value is compared. `speed` prints GB/s of writing and
of reading weights of several sizes, and the share of what one large copy from or to pinned memory reaches in the same
run. CI has no GPU, so it does not run this.
"""

import argparse
import json
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import rollway

MODELS = {  # parameters of four bytes, and leaves
    "40 MB in 20 leaves": (10_000_000, 20),
    "40 MB in 160 leaves": (10_000_000, 160),
    "1 GB in 20 leaves": (250_000_000, 20),
    "1 GB in 300 leaves": (250_000_000, 300),
}
VERSIONS = 200
State = dict[str, torch.Tensor]


def state_of(parameters: int, leaves: int) -> State:
    """Leaves of one size, and a small one beside each."""
    state: State = {}
    for i in range(leaves // 2):
        state[f"layer{i}.weight"] = torch.randn(2 * parameters // leaves, device="cuda")
        state[f"layer{i}.bias"] = torch.randn(64, device="cuda")
    return state


def seconds_of(work: Callable[[], object], repeats: int) -> float:
    """The median."""
    seconds = []
    for _ in range(repeats + 3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[3:])


def check_speed(repeats: int) -> dict[str, Any]:
    """GB/s, and shares of one large copy, by model."""
    pinned = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(pinned, device="cuda")
    links = {
        "write": pinned.numel() / seconds_of(lambda: pinned.copy_(device), repeats) / 1e9,
        "read": pinned.numel() / seconds_of(lambda: device.copy_(pinned), repeats) / 1e9,
    }
    found: dict[str, Any] = {"one large copy": {what: round(rate, 1) for what, rate in links.items()}}
    for name, (parameters, leaves) in MODELS.items():
        rates = rates_of(state_of(parameters, leaves), repeats)
        found[name] = {f"{what}_gb_s": round(rate, 1) for what, rate in rates.items()}
        found[name] |= {f"{what}_of_one_large_copy": round(rate / links[what], 2) for what, rate in rates.items()}
    return found


def rates_of(state: State, repeats: int) -> dict[str, float]:
    """GB/s of writing these weights, and of reading them into others."""
    into = {key: torch.zeros_like(value) for key, value in state.items()}
    nbytes = sum(value.nbytes for value in state.values())
    with rollway.SharedWeightSync.from_state_dict(state) as sync:
        rates = {
            "write": nbytes / seconds_of(lambda: sync.write_weights(state), repeats) / 1e9,
            "read": nbytes / seconds_of(lambda: sync.read_weights_into(into), repeats) / 1e9,
        }
    assert all(torch.equal(into[key], state[key]) for key in state), "the weights differ"
    return rates


def odd_state(number: int) -> State:
    """One number in leaves of every kind."""
    return {
        "wide": torch.full((512, 1024), float(number), device="cuda"),
        "transposed": torch.full((300, 200), float(number), device="cuda").T,
        "strided": torch.full((64, 64), float(number), device="cuda")[::2],
        "half": torch.full((3, 5), number, device="cuda", dtype=torch.bfloat16),
        "step": torch.tensor(number, device="cuda"),
        "empty": torch.zeros(0, 4, device="cuda"),
        "on_host": torch.full((1000,), float(number)),
        "on_host_strided": torch.full((64, 64), float(number))[:, ::2],
    }


def holds(state: State, number: float) -> bool:
    return all(bool((value == number).all()) for value in state.values())


def check_values() -> None:
    """One version after the other, behind work that the GPU has not done yet."""
    work = torch.randn(4096, 4096, device="cuda")
    for options in ({}, {"checksum": True}):
        with rollway.SharedWeightSync.from_state_dict(odd_state(0), **options) as sync:
            mine, source = odd_state(-1), odd_state(0)
            for number in range(1, 30):
                with torch.cuda.stream(torch.cuda.Stream() if number % 3 == 0 else torch.cuda.current_stream()):
                    torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                    for _ in range(5):
                        work @ work
                    for value in source.values():
                        value.fill_(number)
                    sync.write_weights(source)
                    for value in source.values():
                        value.fill_(-2)  # after the write: nobody sees it
                    assert sync.read_weights_into(mine) == sync.version
                    assert holds(mine, number), number
                    torch.cuda.synchronize()
            sync.update_weights({"wide": torch.full((512, 1024), 99.0, device="cuda")})
            version = sync.version
            sync.read_weights_into(mine, since=version - 1)
            assert bool((mine["wide"] == 99).all()) and bool((mine["half"] == 29).all())


def follow(name: str, address: tuple[str, int], versions: int) -> None:
    """A worker: reads whatever is the latest into its GPU, by shared memory and by TCP, until the last version."""
    with rollway.SharedWeightSync.attach(name) as shared, rollway.TcpWeights(*address) as remote:
        for weights in (shared, remote):
            mine = {f"leaf{i}": torch.zeros(300_000, device="cuda") for i in range(8)}
            seen = 0
            while seen < versions:
                weights.wait_for_version(seen + 1, timeout=60)
                seen = weights.read_weights_into(mine)
                assert holds(mine, seen), f"version {seen} is torn"


def check_processes() -> None:
    """A writer on the GPU, and workers that read whole versions on it."""
    context = multiprocessing.get_context("spawn")
    state = {f"leaf{i}": torch.full((300_000,), 1.0, device="cuda") for i in range(8)}
    with rollway.SharedWeightSync.from_state_dict(state) as sync, sync.serve(rollway.TcpTransport()) as endpoint:
        arguments = (sync.name, ("localhost", endpoint.port), VERSIONS)
        workers = [context.Process(target=follow, args=arguments) for _ in range(3)]
        for worker in workers:
            worker.start()
        for number in range(2, VERSIONS + 1):
            for value in state.values():
                value.fill_(number)
            sync.write_weights(state)
            time.sleep(0.002)
        for worker in workers:
            worker.join(120)
            assert worker.exitcode == 0, worker.exitcode


def check_rollouts() -> None:
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
    """Checks and measures. A warning, as of memory that cannot be page-locked, is an error here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="checks,speed", help="which parts, with commas between")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    warnings.filterwarnings("error", message="weights are not in page-locked memory")
    only = options.only.split(",")
    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name()}
    if "checks" in only:
        check_values()
        check_processes()
        check_rollouts()
        result["checks"] = "every value was right"
    if "speed" in only:
        result["speed"] = check_speed(options.repeats)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
