"""Checks every ``device_iter`` on a machine with a GPU and torch, and measures what share of the link the ring reaches.

`python scripts/check_cuda_feed.py [--seconds 3] [--producers 8] [--only ring,sources,jax]`

`ring` feeds batches of several sizes from producer processes through a ring to the GPU, and compares the rate with one
large copy from pinned memory in the same run, and with a loop that moves each leaf of each batch. `sources` feeds
rollouts, padded and packed records, groups and replay batches to the GPU, while the GPU is kept busy, and measures them
too. Both check every number on the GPU, and that tensors that are kept do not change. `jax` does the same for arrays of
JAX, where JAX has the GPU. CI has no GPU, so it does not run this.
"""

import argparse
import itertools
import json
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import rollway
from rollway.records import GroupAssembler, RecordKey
from rollway.replay import TransitionBuffer
from rollway.ring import RolloutRing

ROW = {"obs": np.zeros(6000, np.float32), "action": np.zeros(8, np.float32), "reward": np.float32(0)}
SIZES = {"1.6 MB": 64, "6 MB": 256}
BUFFERS = (8, 24)
RECORD = {"tokens": "int32[*]", "logprobs": "float32[*]", "half": "bfloat16[*]", "score": "float32[]"}
LONGEST = 8192
KEPT = 50
Fed = tuple[dict[str, Any], int, Any]
"""The arrays of a batch, the number that all of them hold, and where its records are padded."""


def produce(name: str, rows: int, stop: Any) -> None:
    """Sends stacked rows of ones."""
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


def rate(batches: Any, nbytes: int, seconds: float, look: bool = True) -> float:
    """GB/s of batches, each of which is looked at on the GPU if so wished."""
    for _ in range(200):
        next(batches)
    torch.cuda.synchronize()
    total = torch.zeros((), device="cuda")
    count, started = 0, time.perf_counter()
    while time.perf_counter() < started + seconds:
        batch = next(batches)
        if look:
            total += batch["reward"][0]
        count += 1
    torch.cuda.synchronize()
    assert not look or float(total) == count, "a batch was not there when it was looked at"
    return count * nbytes / (time.perf_counter() - started) / 1e9


def check(batches: Any, rows: int) -> None:
    """Every row is whole, and kept tensors do not change."""
    kept = [next(batches) for _ in range(KEPT)]
    for batch in kept:
        assert batch["obs"].shape == (rows, 6000)
        assert bool((batch["obs"] == 1).all() and (batch["action"] == 1).all() and (batch["reward"] == 1).all())


def check_ring(seconds: float, producers: int) -> dict[str, Any]:
    """The ring's feed: rates and shares of the link."""
    link = largest()
    result: dict[str, Any] = {"one_large_copy_gb_s": round(link, 1)}
    context = multiprocessing.get_context("spawn")
    for (size, rows), buffers in itertools.product(SIZES.items(), BUFFERS):
        nbytes = rows * (6000 + 8 + 1) * 4
        with rollway.Server(ROW, rows, rollway.ShmTransport(), num_buffers=buffers) as server:
            stop = context.Event()
            arguments = (server.name, rows // 8, stop)
            workers = [context.Process(target=produce, args=arguments) for _ in range(producers)]
            for worker in workers:
                worker.start()
            batches = server.device_iter("cuda", depth=3)
            check(batches, rows)
            while server.stats()["producers_alive"] < producers:  # The others are still being imported.
                next(batches)
            alone, ours = (rate(batches, nbytes, seconds, look) for look in (False, True))
            theirs = rate(leaf_by_leaf(server), nbytes, seconds)
            stop.set()
            result[f"{size}, {buffers} buffers"] = {
                "device_iter_gb_s": round(alone, 1),
                "of_one_large_copy": round(alone / link, 2),
                "of_one_large_copy_with_a_look": round(ours / link, 2),
                "leaf_by_leaf_gb_s": round(theirs, 1),
                "held_batches": server.stats()["held_batches"],
            }
            for worker in workers:
                worker.join(10)
    return result


# ── the other sources: one batch is sent for each that is asked for, and says which it is ────────────────────────────


def rollouts(options: dict[str, Any]) -> Iterator[Fed]:
    """Rollouts, each of one number."""
    with RolloutRing(64, 128, obs_dim=48, action_dim=8, num_slots=6, fields={"seed": "int64[]"}) as ring:
        batches = ring.device_iter(**options)
        for i in range(1 << 20):
            with ring.writing() as rollout:
                for array in rollout.values():
                    array[...] = i % 100
            yield next(batches), i % 100, None


def records(layout: Any, options: dict[str, Any]) -> Iterator[Fed]:
    """Batches of eight records of different lengths, each batch of one number."""
    lengths = np.random.default_rng(0).integers(1, LONGEST, 1 << 12)
    with rollway.RecordServer(RECORD) as server:
        batches = server.device_iter(batch_size=8, layout=layout, **options)
        for i in range(1 << 20):
            of_batch = [int(lengths[(8 * i + k) % len(lengths)]) for k in range(8)]
            for length in of_batch:
                server.submit(record(length, i % 100))
            batch = next(batches)
            yield batch.fields, i % 100, padding(batch, of_batch)


def groups(options: dict[str, Any]) -> Iterator[Fed]:
    """Groups of four records of different lengths, each group of one number."""
    lengths = np.random.default_rng(1).integers(1, LONGEST, 1 << 12)
    with rollway.RecordServer(RECORD) as server:
        batches = GroupAssembler(4).device_iter(server, **options)
        for i in range(1 << 20):
            of_group = [int(lengths[(4 * i + k) % len(lengths)]) for k in range(4)]
            for k, length in enumerate(of_group):
                server.submit(record(length, i % 100), key=RecordKey("run", "train", 0, str(i), k))
            group, batch = next(batches)
            assert group.key.instance_id == str(i)
            yield batch.fields, i % 100, padding(batch, of_group)


def replay(options: dict[str, Any]) -> Iterator[Fed]:
    """Drawn batches of a buffer of ones."""
    with TransitionBuffer(10_000, 48, 8, fields={"image": "uint8[32,32]", "half": "bfloat16[3]"}) as buffer:
        ones = np.ones((1000, 48), np.float32)
        fields = {
            "image": np.ones((1000, 32, 32), np.uint8),
            "half": torch.ones(1000, 3, dtype=torch.bfloat16),
        }
        buffer.add(ones, ones[:, :8], ones[:, 0], ones, ones[:, 0], ones[:, 0], **fields)
        for batch in buffer.device_iter(1024, **options):
            yield batch, 1, None


def record(length: int, value: int) -> dict[str, Any]:
    """A record of one number."""
    return {
        "tokens": np.full(length, value, np.int32),
        "logprobs": np.full(length, value, np.float32),
        "half": torch.full((length,), value, dtype=torch.bfloat16),
        "score": float(value),
    }


def padding(batch: Any, lengths: list[int]) -> Any:
    """Where a batch of records has no data; checks the lengths."""
    if not hasattr(batch, "mask"):
        assert batch.cu_seqlens.tolist() == [0, *np.cumsum(lengths)], "wrong cu_seqlens"
        return None
    mask = computable(batch.mask)
    assert batch.lengths.tolist() == lengths, "wrong lengths"
    assert mask.sum(1).tolist() == lengths, "wrong mask"
    return mask == 0


def computable(array: Any) -> Any:
    """A tensor as it is; an array of JAX as numpy's, because JAX would compile each check for each shape."""
    return array if isinstance(array, torch.Tensor) else np.asarray(array)


def is_filled(array: Any, value: int, padded: Any) -> bool:
    """Whether an array is one number, but for padding."""
    same = computable(array) == value
    return bool((same if padded is None or array.ndim == 1 else same | padded).all())


SOURCES: dict[str, Callable[[dict[str, Any]], Iterator[Fed]]] = {
    "rollouts": rollouts,
    "padded": lambda options: records("padded", options),
    "packed": lambda options: records("packed", options),
    "groups": groups,
    "replay": replay,
}


def check_sources(seconds: float, framework: str, device: str) -> dict[str, Any]:
    """Every number of kept batches, and GB/s with the sender in the same process."""
    found: dict[str, Any] = {}
    busy = torch.zeros(4096 if device == "cuda" else 4, 4096, device=device)
    for name, source in SOURCES.items():
        kept, batches = [], source({"device": device, "framework": framework})
        for _ in range(KEPT):
            busy @ busy.T  # The user's stream is behind, and has to wait for the copies.
            kept.append(next(batches))
        for batch, value, padded in kept:
            for field, array in batch.items():
                assert device in str(array.device).lower(), (name, field, array.device)
                assert is_filled(array, value, padded), (name, field, value)
        nbytes, started = 0, time.perf_counter()
        while time.perf_counter() < started + seconds:
            batch, *_ = next(batches)
            nbytes += sum(array.nbytes for array in batch.values())
        if device == "cuda":
            torch.cuda.synchronize()
        found[name] = {"gb_s": round(nbytes / (time.perf_counter() - started) / 1e9, 2)}
        batches.close()  # type: ignore[attr-defined]
    return found


def check_jax(seconds: float, device: str) -> dict[str, Any] | str:
    """As `check_sources`, if JAX has the device."""
    try:
        import jax

        jax.devices(device)
    except (ImportError, RuntimeError) as error:
        return f"left out: {error}"
    return check_sources(seconds, "jax", device)


def main() -> None:
    """Measures and checks. A warning, as of memory that cannot be page-locked, is an error here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--producers", type=int, default=8)
    parser.add_argument("--only", default="ring,sources,jax", help="which parts, with commas between")
    parser.add_argument("--device", default="cuda", help="cpu: only to see that the sources' part of this file runs")
    options = parser.parse_args()
    warnings.filterwarnings("error", message="batches are not in page-locked memory")
    only = options.only.split(",")
    result: dict[str, Any] = {"device": torch.cuda.get_device_name() if options.device == "cuda" else options.device}
    if "ring" in only:
        result |= check_ring(options.seconds, options.producers)
    if "sources" in only:
        result["sources"] = check_sources(options.seconds, "torch", options.device)
    if "jax" in only:
        result["jax"] = check_jax(options.seconds, options.device)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
