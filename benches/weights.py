"""Weights from a learner to a worker: what a write and a read cost beside a memcpy of the same bytes, and others.

    python benches/weights.py [--quick] [--out DIR]

10 M and 100 M float32 parameters in 20 torch tensors. Every way is measured in turn, round by round, so that all meet
the same weather; figures are medians. `memcpy` is numpy's copy between two arrays that are warm, with as many
threads. Then reads while another process writes and never stops, each with one thread; and small weights, each leaf
filled with its version, of which 10,000 reads are looked at for two versions at once. Writes docs/bench/weights.json,
.md and .png, with the bars that were met and missed.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing as mp
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rollway
from harness import machine, report

TENSORS = 20
TORN_READS = 10_000
State = dict[str, Any]
SPAWN = mp.get_context("spawn")


def state_of(parameters: int, value: float | None = None) -> State:
    size = parameters // TENSORS
    made = (torch.full((size,), value) if value is not None else torch.randn(size) for _ in range(TENSORS))
    return {f"layer{number}.weight": tensor for number, tensor in enumerate(made)}


class Way:
    """One way for weights to travel: a write of all, and a read into parameters."""

    def __init__(self, label: str, threads: int) -> None:
        self.label, self.threads = label, threads

    def write(self, state: State) -> None:
        raise NotImplementedError

    def read(self, into: State) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Memcpy(Way):
    """The limit: one copy of as many bytes, by as many threads."""

    def __init__(self, parameters: int, threads: int) -> None:
        super().__init__("memcpy (limit)", threads)
        self._source, self._target = np.ones(parameters, np.float32), np.zeros(parameters, np.float32)
        self._pool = ThreadPoolExecutor(threads)
        self._cuts = [parameters * i // threads for i in range(threads + 1)]

    def write(self, state: State) -> None:
        if self.threads == 1:
            np.copyto(self._target, self._source)
            return
        pairs = [slice(a, b) for a, b in itertools.pairwise(self._cuts)]
        list(self._pool.map(lambda cut: np.copyto(self._target[cut], self._source[cut]), pairs))

    read = write

    def close(self) -> None:
        self._pool.shutdown()


class Rollway(Way):
    """`rollway.SharedWeightSync`, written by one handle and read by another."""

    def __init__(self, state: State, threads: int, checksum: bool = False) -> None:
        super().__init__("rollway, with checksums" if checksum else "rollway", threads)
        self._writer = rollway.SharedWeightSync.from_state_dict(state, threads=threads, checksum=checksum)
        self._reader = rollway.SharedWeightSync.attach(self._writer.name, threads=threads)
        self.write, self.read = self._writer.write_weights, self._reader.read_weights_into  # type: ignore[method-assign]

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


class UniLab(Way):
    """UniLab's class of the same name: with its lock, or as its collectors use it when they are given none."""

    def __init__(self, state: State, locked: bool) -> None:
        from unilab.rl.runtime.ipc.weight_sync import SharedWeightSync

        super().__init__(f"UniLab, {'with' if locked else 'without'} its lock", torch.get_num_threads())
        self._sync = SharedWeightSync.from_state_dict(state)
        if not locked:
            self._sync._lock = None
        self.write, self.read = self._sync.write_weights, self._sync.read_weights_into  # type: ignore[method-assign]

    def close(self) -> None:
        self._sync.cleanup()


class SharedTensors(Way):
    """Torch tensors in shared memory, and a lock."""

    def __init__(self, state: State) -> None:
        super().__init__("torch shared tensors, lock", torch.get_num_threads())
        self._lock = SPAWN.Lock()
        self._shared = {name: tensor.clone().share_memory_() for name, tensor in state.items()}

    def write(self, state: State) -> None:
        with self._lock:
            for name, tensor in self._shared.items():
                tensor.copy_(state[name])

    def read(self, into: State) -> None:
        with self._lock:
            for name, tensor in self._shared.items():
                into[name].copy_(tensor)


class Queue(Way):
    """A pickle queue: a write ends when the other side has the arrays, and a read is that and the copies."""

    def __init__(self) -> None:
        super().__init__("mp.Queue", 1)
        self._queue: Any = SPAWN.Queue()
        self._state: State = {}

    def write(self, state: State) -> None:
        self._state = state
        self._queue.put({name: tensor.numpy() for name, tensor in state.items()})
        self._got = self._queue.get()

    def read(self, into: State) -> None:
        self.write(self._state)
        for name, array in self._got.items():
            into[name].copy_(torch.from_numpy(array))

    def close(self) -> None:
        self._queue.close()


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def speeds(parameters: int, rounds: int) -> list[dict[str, Any]]:
    """Every way in turn, round by round."""
    state, into = state_of(parameters), state_of(parameters, 0.0)
    cores = sorted({1, min(4, len(os.sched_getaffinity(0)))})
    torch.set_num_threads(cores[-1])
    ways: list[Way] = [Memcpy(parameters, threads) for threads in cores]
    ways += [Rollway(state, threads) for threads in cores]
    ways += [Rollway(state, cores[-1], checksum=True), UniLab(state, True), UniLab(state, False), SharedTensors(state)]
    if parameters <= 10_000_000:
        ways.append(Queue())
    samples: list[dict[str, list[float]]] = [{"write": [], "read": []} for _ in ways]
    for turn in range(rounds + 1):
        for way, times in zip(ways, samples, strict=True):
            write, read = timed(lambda way=way: way.write(state)), timed(lambda way=way: way.read(into))
            if turn:  # The first round warms up.
                times["write"].append(write)
                times["read"].append(read)
    for way in ways:
        way.close()
    rows = []
    for way, times in zip(ways, samples, strict=True):
        row = {"parameters": parameters, "way": way.label, "threads": way.threads}
        rows.append({**row, **{f"{what}_s": seconds for what, seconds in times.items()}})
    return rows


def _never_stop(name: str, parameters: int, ready: Any, stop: Any) -> None:
    torch.set_num_threads(1)
    parent, state = os.getppid(), state_of(parameters)
    writer = rollway.SharedWeightSync.attach(name, threads=1)
    writer.write_weights(state)
    ready.set()
    while not stop.is_set() and os.getppid() == parent:
        writer.write_weights(state)
    writer.close()


def disturbed(parameters: int, reads: int) -> dict[str, Any]:
    """Reads alone, and beside a writer that never stops; one thread each."""
    into = state_of(parameters, 0.0)
    creator = rollway.SharedWeightSync.from_state_dict(state_of(parameters), threads=1)
    reader = rollway.SharedWeightSync.attach(creator.name, threads=1)
    creator.close()
    reader.read_weights_into(into)
    row: dict[str, Any] = {"parameters": parameters}
    row["alone_s"] = [timed(lambda: reader.read_weights_into(into)) for _ in range(reads)]
    ready, stop = SPAWN.Event(), SPAWN.Event()
    writer = SPAWN.Process(daemon=True, target=_never_stop, args=(reader.name, parameters, ready, stop))
    writer.start()
    ready.wait()
    first = reader.version
    row["beside_s"] = [timed(lambda: reader.read_weights_into(into)) for _ in range(reads)]
    row["versions_meanwhile"] = reader.version - first
    stop.set()
    writer.join()
    row.update({key: value for key, value in reader.stats().items() if key in ("retries", "overtaken", "buffers")})
    reader.close()
    return row


def _fill(kind: str, name: str, lock: Any, ready: Any, stop: Any) -> None:
    torch.set_num_threads(1)
    sync = _small(kind, name, lock, create=False)
    tensors = {f"l{i}": torch.zeros(size) for i, size in enumerate(SMALL)}
    parent = os.getppid()
    while not stop.is_set() and os.getppid() == parent:
        version = sync.version + 1
        for tensor in tensors.values():
            tensor.fill_(version)
        sync.write_weights(tensors)
        ready.set()


SMALL = (1, 1000, 20_000)


def _small(kind: str, name: str | None, lock: Any, create: bool) -> Any:
    shapes = {f"l{i}": torch.Size([size]) for i, size in enumerate(SMALL)}
    if kind == "rollway":
        return (
            rollway.SharedWeightSync(shapes, create=create, shm_name=name)
            if create
            else (rollway.SharedWeightSync.attach(str(name)))
        )
    from unilab.rl.runtime.ipc.weight_sync import SharedWeightSync

    return SharedWeightSync(shapes, create=create, shm_name=name, lock=lock)


def torn(kind: str, reads: int) -> dict[str, Any]:
    """Reads of small weights beside a writer that never stops, of which each is looked at."""
    torch.set_num_threads(1)
    sync = _small(kind, None, None, create=True)
    ready, stop = SPAWN.Event(), SPAWN.Event()
    reader = sync if kind != "rollway" else rollway.SharedWeightSync.attach(sync.name)
    if kind == "rollway":
        sync.close()
    else:
        sync._lock = None
    writer = SPAWN.Process(daemon=True, target=_fill, args=(kind, reader.name, None, ready, stop))
    writer.start()
    ready.wait()
    into = {f"l{i}": torch.zeros(size) for i, size in enumerate(SMALL)}
    count = versions = last = 0
    for _ in range(reads):
        version = reader.read_weights_into(into)
        numbers = {float(tensor.min()) for tensor in into.values()} | {float(tensor.max()) for tensor in into.values()}
        count += len(numbers) > 1 or (kind == "rollway" and numbers != {float(version)})
        versions += version != last
        last = version
    stop.set()
    writer.join()
    row = {"way": "rollway" if kind == "rollway" else "UniLab, without its lock", "reads": reads, "torn": count}
    reader.cleanup()
    return {**row, "versions_seen": versions}


def bars(record: dict[str, Any]) -> list[dict[str, Any]]:
    """What issue 6 asks for, as ratios of medians of this run."""
    found = []
    by = {(row["parameters"], row["way"], row["threads"]): row for row in record["speeds"]}
    for parameters in sorted({row["parameters"] for row in record["speeds"]}):
        size = f"{parameters * 4 // 1_000_000} MB"
        for threads in sorted({row["threads"] for row in record["speeds"] if row["way"] == "rollway"}):
            ours, limit = by[parameters, "rollway", threads], by[parameters, "memcpy (limit)", threads]
            for what in ("write", "read"):
                share = statistics.median(limit[f"{what}_s"]) / statistics.median(ours[f"{what}_s"])
                name = f"{what}, {size}, {threads} thread{'s' * (threads > 1)}, of memcpy"
                found.append({"bar": name, "value": 100 * share, "unit": "%", "met": share >= 0.9})
        unilab = next(r for r in record["speeds"] if r["parameters"] == parameters and "with its lock" in r["way"])
        gain = statistics.median(unilab["read_s"]) / statistics.median(ours["read_s"])
        found.append(
            {"bar": f"read, {size}, over UniLab's with its lock", "value": gain, "unit": "x", "met": gain >= 2}
        )
    for row in record["disturbed"]:
        ratio = statistics.median(row["beside_s"]) / statistics.median(row["alone_s"])
        size = f"{row['parameters'] * 4 // 1_000_000} MB"
        found.append(
            {"bar": f"read beside a writer, {size}, over alone", "value": ratio, "unit": "x", "met": ratio <= 2}
        )
    ours_torn = record["torn"][0]
    name = f"torn reads in {ours_torn['reads']:,}"
    found.append({"bar": name, "value": ours_torn["torn"], "unit": "", "met": ours_torn["torn"] == 0})
    return found


def write_markdown(record: dict[str, Any], path: Path) -> None:
    where, commit = record["machine"], record["commit"]
    lines = [
        "# Weights: versions in shared memory, beside memcpy and others",
        f"`{record['command']}` at `{commit['id']}`{' (changed)' if commit['dirty'] else ''}, {record['date']}: "
        f"{where['cpu']}, {where['cores_usable']} cores, {where['kernel']}, Python {where['python'].split()[-1]}.",
        "![write and read](weights.png)",
        "## Bars",
        "| | value | met |\n|---|---:|---|\n"
        + "\n".join(
            f"| {b['bar']} | {b['value']:.4g} {b['unit']} | {'yes' if b['met'] else '**no**'} |" for b in record["bars"]
        ),
        "## Write and read",
        "GB/s, median (best).\n\n| parameters | way | threads | write | read |\n|---:|---|---:|---:|---:|\n"
        + "\n".join(
            f"| {row['parameters'] // 1_000_000} M | {row['way']} | {row['threads']} "
            f"| {_speed(row, 'write')} | {_speed(row, 'read')} |"
            for row in record["speeds"]
        ),
        "## Reads while a writer never stops",
        "One thread each.\n\n"
        "| parameters | alone, p50 | beside, p50 | beside, p99 | versions meanwhile | read again | buffers |\n"
        "|---:|---:|---:|---:|---:|---:|---:|\n"
        + "\n".join(
            f"| {row['parameters'] // 1_000_000} M | {_ms(row['alone_s'], 50)} | {_ms(row['beside_s'], 50)} "
            f"| {_ms(row['beside_s'], 99)} | {row['versions_meanwhile']} | {row['retries']} | {row['buffers']} |"
            for row in record["disturbed"]
        ),
        "## Torn reads",
        "| way | reads | versions seen | torn |\n|---|---:|---:|---:|\n"
        + "\n".join(
            f"| {r['way']} | {r['reads']:,} | {r['versions_seen']:,} | {r['torn']:,} |" for r in record["torn"]
        ),
        "Raw samples: `weights.json`.",
    ]
    path.write_text("\n\n".join(lines) + "\n")


def _speed(row: dict[str, Any], what: str) -> str:
    gigabytes = row["parameters"] * 4 / 1e9
    times = row[f"{what}_s"]
    return f"{gigabytes / statistics.median(times):.1f} ({gigabytes / min(times):.1f})"


def _ms(times: list[float], percentile: float) -> str:
    return f"{1e3 * float(np.percentile(times, percentile)):.1f} ms"


def write_png(record: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes = sorted({row["parameters"] for row in record["speeds"]})
    figure, axes = plt.subplots(1, len(sizes), figsize=(6.5 * len(sizes), 4.5), squeeze=False)
    for axis, parameters in zip(axes[0], sizes, strict=True):
        rows = [row for row in record["speeds"] if row["parameters"] == parameters][::-1]
        for offset, what, colour in ((0.2, "write", "#4878cf"), (-0.2, "read", "#6acc65")):
            rates = [parameters * 4 / 1e9 / statistics.median(row[f"{what}_s"]) for row in rows]
            axis.barh([i + offset for i in range(len(rows))], rates, 0.38, label=what, color=colour)
        axis.set_yticks(range(len(rows)), [f"{row['way']} ({row['threads']})" for row in rows])
        axis.set_title(f"{parameters // 1_000_000} M float32 in {TENSORS} tensors (threads)")
        axis.set_xlabel("GB/s, median")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it runs")
    parser.add_argument("--out", type=Path, default=machine.ROOT / "docs" / "bench")
    options = parser.parse_args()
    sizes = (10_000_000, 100_000_000)
    record: dict[str, Any] = {
        "command": machine.command(),
        "commit": machine.commit(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine.describe(("rollway", "torch", "unilab")),
        "quick": options.quick,
    }
    record["speeds"] = []
    for parameters, rounds in zip(sizes, (5, 2) if options.quick else (60, 20), strict=True):
        record["speeds"] += speeds(parameters, rounds)
    reads = (10, 3) if options.quick else (200, 40)
    record["disturbed"] = [disturbed(parameters, count) for parameters, count in zip(sizes, reads, strict=True)]
    record["torn"] = [torn(kind, 1000 if options.quick else TORN_READS) for kind in ("rollway", "unilab")]
    record["bars"] = bars(record)
    options.out.mkdir(parents=True, exist_ok=True)
    report.write_json(record, options.out / "weights.json")
    write_markdown(record, options.out / "weights.md")
    write_png(record, options.out / "weights.png")
    print((options.out / "weights.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
