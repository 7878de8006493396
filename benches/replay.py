"""Compare rollway's ReplayBuffer with a naive array, cpprb, torchrl and UniLab, in one run on one machine.

    python benches/replay.py [--quick] [--seconds 1.0] [--repeats 5] [--capacity 1000000] [--out DIR]

1 M transitions of 133 float32 and a done (64 observations, 4 actions, reward, 64 next observations). Every contender
is filled first. Then all of them have their turns, cell by cell, as often as there are repeats: adding one transition,
adding 1,024, the same from four processes, sampling 256 and 4,096 into memory that exists where the contender can.
UniLab 1.5 keeps its rows on a GPU and samples there; its pipeline refuses a CPU. So that there is a figure, its gather
(`torch.randint`, `index_select(out=)` on packed rows, no look at whether they are whole) is run here by itself; its
add is the ingress slot with the copy into the rows behind it, as its pipeline does it.

"items/s" are transitions. The naive array is not safe between processes, and neither is cpprb's plain buffer, nor
torchrl's: with four adders cpprb is its `MPReplayBuffer`, torchrl its buffer made with `shared=True`, both with locks.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import signal
import statistics
import struct
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from harness import machine, plot
from harness.report import write_json
from harness.tables import short

OBS, ACT = 64, 4
FIELDS = {"obs": (OBS,), "actions": (ACT,), "rewards": (), "next_obs": (OBS,), "dones": ()}
WIDTH = 2 * OBS + ACT + 2
PACKAGES = ("rollway", "torch", "cpprb", "torchrl", "unilab")
ADDS = {"add 1": 1, "add 1,024": 1024}
SAMPLES = {"sample 256": 256, "sample 4,096": 4096}
ADDERS = 4

Columns = dict[str, np.ndarray[Any, Any]]


def transitions(rows: int) -> Columns:
    rng = np.random.default_rng(rows)
    return {name: rng.standard_normal((rows, *shape), dtype=np.float32) for name, shape in FIELDS.items()}


class Contender:
    """A buffer that is full: `adding` gives a call that adds so many rows, `sampling` one that draws so many."""

    label = ""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def adding(self, rows: int) -> Callable[[], Any] | None:
        raise NotImplementedError

    def sampling(self, rows: int) -> Callable[[], Any] | None:
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of its memory."""


class Rollway(Contender):
    label = "rollway"

    def __init__(self, capacity: int) -> None:
        import rollway

        super().__init__(capacity)
        self.buffer = rollway.ReplayBuffer(capacity, OBS, ACT, "cpu")

    def adding(self, rows: int) -> Callable[[], Any]:
        t, buffer = transitions(rows), self.buffer
        obs, actions, rewards, next_obs, dones = t.values()
        truncated = np.zeros(rows, np.float32)
        return lambda: buffer.add(obs, actions, rewards, next_obs, dones, truncated)

    def sampling(self, rows: int) -> Callable[[], Any]:
        out, buffer = self.buffer.sample(rows), self.buffer
        return lambda: buffer.sample(rows, out=out)

    def close(self) -> None:
        self.buffer.close()


class RollwayFresh(Rollway):
    label = "rollway, a new batch each time"

    def adding(self, rows: int) -> None:
        return None

    def sampling(self, rows: int) -> Callable[[], Any]:
        return lambda: self.buffer.sample(rows)


class Naive(Contender):
    """Packed rows, a pointer, `np.take(out=)`. Drawing the rows is a part of sampling."""

    label = "naive packed array, np.take(out=)"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.rows = np.zeros((capacity, WIDTH), np.float32)
        self.next = 0

    def adding(self, rows: int) -> Callable[[], Any]:
        t = transitions(rows)
        obs, actions, rewards, next_obs, dones = t.values()

        def add() -> None:
            start = self.next if self.next + rows <= self.capacity else 0
            place = self.rows[start : start + rows]
            place[:, :OBS] = obs
            place[:, OBS : OBS + ACT] = actions
            place[:, OBS + ACT] = rewards
            place[:, OBS + ACT + 1 : -1] = next_obs
            place[:, -1] = dones
            self.next = start + rows

        return add

    def sampling(self, rows: int) -> Callable[[], Any]:
        rng, out = np.random.default_rng(0), np.zeros((rows, WIDTH), np.float32)
        return lambda: np.take(self.rows, rng.integers(0, self.capacity, rows), axis=0, out=out, mode="clip")


class NaiveDrawn(Naive):
    label = "np.take(out=) alone, rows drawn before"

    def adding(self, rows: int) -> None:
        return None

    def sampling(self, rows: int) -> Callable[[], Any]:
        rng, out = np.random.default_rng(0), np.zeros((rows, WIDTH), np.float32)
        drawn = [rng.integers(0, self.capacity, rows) for _ in range(max(4, 2_000_000 // rows))]
        turn = iter(range(10**12))
        return lambda: np.take(self.rows, drawn[next(turn) % len(drawn)], axis=0, out=out, mode="clip")


class Memcpy(Naive):
    label = "memcpy of packed rows (limit)"

    def adding(self, rows: int) -> Callable[[], Any]:
        packed = np.zeros((rows, WIDTH), np.float32)

        def add() -> None:
            start = self.next if self.next + rows <= self.capacity else 0
            self.rows[start : start + rows] = packed
            self.next = start + rows

        return add

    def sampling(self, rows: int) -> None:
        return None


class Cpprb(Contender):
    label = "cpprb"

    def __init__(self, capacity: int, shared: bool = False) -> None:
        import cpprb

        super().__init__(capacity)
        kind = cpprb.MPReplayBuffer if shared else cpprb.ReplayBuffer
        self.buffer = kind(capacity, {name: {"shape": shape or 1} for name, shape in FIELDS.items()})

    def adding(self, rows: int) -> Callable[[], Any]:
        t, buffer = transitions(rows), self.buffer
        return lambda: buffer.add(**t)

    def sampling(self, rows: int) -> Callable[[], Any]:
        return lambda: self.buffer.sample(rows)


class Torchrl(Contender):
    label = "torchrl, LazyTensorStorage"
    storage = "LazyTensorStorage"

    def __init__(self, capacity: int, shared: bool = False) -> None:
        import torchrl.data

        super().__init__(capacity)
        storage = getattr(torchrl.data, self.storage)(capacity)
        self.buffer = torchrl.data.TensorDictReplayBuffer(storage=storage, shared=shared, batch_size=256)

    def adding(self, rows: int) -> Callable[[], Any]:
        import torch
        from tensordict import TensorDict

        td = TensorDict({name: torch.from_numpy(c) for name, c in transitions(rows).items()}, batch_size=[rows])
        if rows == 1:
            return lambda one=td[0]: self.buffer.add(one)
        return lambda: self.buffer.extend(td)

    def sampling(self, rows: int) -> Callable[[], Any]:
        return lambda: self.buffer.sample(rows)


class TorchrlMemmap(Torchrl):
    label = "torchrl, LazyMemmapStorage"
    storage = "LazyMemmapStorage"


class Unilab(Contender):
    label = "UniLab 1.5, its ingress and its gather"

    def __init__(self, capacity: int) -> None:
        import torch
        from unilab.rl.runtime.ipc.replay_buffer import ReplayBuffer

        super().__init__(capacity)
        self.buffer = ReplayBuffer(capacity, OBS, ACT, "cpu", ingress_slot_rows=1024)
        self.rows = torch.zeros(capacity, self.buffer.storage_width)

    def adding(self, rows: int) -> Callable[[], Any]:
        import torch

        t = {name: torch.from_numpy(column) for name, column in transitions(rows).items()}
        truncated = torch.zeros(rows)

        def add() -> None:
            self.buffer.add(*t.values(), truncated)
            slot, start, count, packed = self.buffer.take_published_ingress()
            place = start % self.capacity
            first = min(count, self.capacity - place)
            self.rows[place : place + first].copy_(packed[:first])
            self.rows[: count - first].copy_(packed[first:])
            self.buffer.commit_ingress(slot=slot, start=start, count=count)

        return add

    def sampling(self, rows: int) -> Callable[[], Any]:
        import torch

        out = torch.empty(rows, self.buffer.storage_width)

        def sample() -> None:
            torch.index_select(self.rows, 0, torch.randint(0, self.capacity, (rows,)), out=out)

        return sample


ALL: tuple[type[Contender], ...] = (
    Memcpy, Rollway, RollwayFresh, Naive, NaiveDrawn, Cpprb, Torchrl, TorchrlMemmap, Unilab,
)  # fmt: skip
SHARED = (Rollway, Cpprb, TorchrlMemmap)
ON_CPU = (Cpprb.label, Torchrl.label, TorchrlMemmap.label)
LIBRARIES = (*ON_CPU, Unilab.label)


def rate(call: Callable[[], Any], rows: int, seconds: float) -> float:
    """Transitions per second."""
    call()
    calls, began = 0, time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        for _ in range(8):
            call()
        calls += 8
    return calls * rows / (now - began)


def rate_of_many(call: Callable[[], Any], rows: int, seconds: float) -> float:
    """Transitions per second of four forked processes together."""
    board = mmap.mmap(-1, 16 * ADDERS)
    begin = time.perf_counter() + 0.3
    pids = []
    for index in range(ADDERS):
        pid = os.fork()
        if pid == 0:
            code = 1
            signal.alarm(round(seconds) + 30)  # A lock that was held at the fork must not hold up the run.
            try:
                call()
                while time.perf_counter() < begin:
                    pass
                calls = 0
                while (now := time.perf_counter()) - begin < seconds:
                    call()
                    calls += 1
                struct.pack_into("qd", board, 16 * index, calls, now - begin)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if any(codes):
        raise RuntimeError(f"an adder ended with {codes}")
    counts = [struct.unpack_from("qd", board, 16 * index) for index in range(ADDERS)]
    return sum(calls * rows / elapsed for calls, elapsed in counts)


def fill(contender: Contender) -> None:
    # Also where adding is not measured: pages that nobody wrote are all one page of zeros, in the cache.
    kind = next((kind for kind in (Rollway, Naive) if isinstance(contender, kind)), type(contender))
    add = kind.adding(contender, 1024)
    assert add is not None
    for _ in range(-(-contender.capacity // 1024)):
        add()


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    cells: dict[tuple[str, str, int], list[float]] = {}

    def measure(contender: Contender, cell: str, adders: int) -> None:
        rows = ADDS.get(cell) or SAMPLES[cell]
        call = contender.adding(rows) if cell in ADDS else contender.sampling(rows)
        if call is not None:
            value = rate(call, rows, options.seconds) if adders == 1 else rate_of_many(call, rows, options.seconds)
            cells.setdefault((contender.label, cell, adders), []).append(value)
            print(f"{contender.label:42} {cell:12} x {adders}: {short(value)}/s", flush=True)

    contenders = [kind(options.capacity) for kind in ALL]
    for contender in contenders:
        fill(contender)
    for _ in range(options.repeats):
        for cell in (*ADDS, *SAMPLES):
            for contender in contenders:
                measure(contender, cell, 1)
    for contender in contenders:
        contender.close()
    del contenders
    gc.collect()
    import torch

    torch.set_num_threads(1)  # Its pool of threads does not survive a fork, and four adders have no use for it.
    shared = [kind(options.capacity) if kind is Rollway else kind(options.capacity, shared=True) for kind in SHARED]
    for contender in shared:
        fill(contender)
    for _ in range(options.repeats):
        for cell in ADDS:
            for contender in shared:
                measure(contender, cell, ADDERS)
    for contender in shared:
        contender.close()
    return [
        {"contender": label, "cell": cell, "adders": adders, "items_per_s": values}
        for (label, cell, adders), values in cells.items()
    ]


def median(rows: list[dict[str, Any]], label: str, cell: str, adders: int) -> float | None:
    found = [r for r in rows if (r["contender"], r["cell"], r["adders"]) == (label, cell, adders)]
    return statistics.median(found[0]["items_per_s"]) if found else None


def ratios(rows: list[dict[str, Any]]) -> list[tuple[str, float | None]]:
    """What the bars ask for."""

    def over(label: str, cell: str, adders: int = 1) -> float | None:
        ours, theirs = median(rows, "rollway", cell, adders), median(rows, label, cell, adders)
        return ours / theirs if ours and theirs else None

    def best(cell: str, adders: int = 1, labels: tuple[str, ...] = LIBRARIES) -> float | None:
        found = [value for label in labels if (value := over(label, cell, adders)) is not None]
        return min(found) if found else None

    found = []
    for cell in SAMPLES:
        found.append((f"{cell} / np.take(out=) with its draw (bar: 1)", over(Naive.label, cell)))
        found.append((f"{cell} / np.take(out=) alone", over(NaiveDrawn.label, cell)))
        found.append((f"{cell} / the best library that samples on a CPU (bar: 4)", best(cell, labels=ON_CPU)))
        found.append((f"{cell} / UniLab's gather, which its library runs on a GPU only", over(Unilab.label, cell)))
    for cell, bar in zip(ADDS, (20, 2), strict=True):
        found.append((f"{cell}, one adder / the best library (bar: {bar})", best(cell)))
        found.append((f"{cell}, four adders / the best library (bar: {bar})", best(cell, ADDERS)))
    found.append(("add 1,024, one adder / memcpy of packed rows", over(Memcpy.label, "add 1,024")))
    return found


def columns_of(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(cell, adders) for cell in (*ADDS, *SAMPLES) for adders in (1, ADDERS) if cell in ADDS or adders == 1]


def write_markdown(record: dict[str, Any], path: Path) -> None:
    rows, host = record["cells"], record["machine"]
    shown = columns_of(rows)
    lines = [
        "# Replay benchmark",
        "",
        f"`{record['command']}` at commit `{(record['commit']['id'] or 'unknown')[:12]}`"
        f"{' with local changes' if record['commit']['dirty'] else ''}, {record['began']}.",
        "",
        f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB, {host['kernel']}, {host['python']}; "
        f"load average before the run {host['load_average_before'][0]:.1f}, "
        f"after it {record['load_average_after'][0]:.1f}. "
        + ", ".join(f"{name} {version}" for name, version in host["packages"].items())
        + ".",
        "",
        f"{record['settings']['capacity']:,} transitions of {WIDTH} float32; {record['settings']['seconds']:g} s "
        f"per cell, repeats: {record['settings']['repeats']}, interleaved. Read the ratios within this page: "
        "all rows come from one run.",
        "",
        *(["![transitions per second](replay.png)", ""] if record["plot"] else []),
        "## Transitions per second: median (min–max)",
        "",
        "| | " + " | ".join(cell + (f", {n} adders" if n > 1 else "") for cell, n in shown) + " |",
        "| --- |" + " ---: |" * len(shown),
    ]
    for label in dict.fromkeys(row["contender"] for row in rows):
        texts = []
        for cell, adders in shown:
            values = [
                r["items_per_s"] for r in rows if (r["contender"], r["cell"], r["adders"]) == (label, cell, adders)
            ]
            texts.append(
                f"{short(statistics.median(values[0]))} ({short(min(values[0]))}–{short(max(values[0]))})"
                if values
                else "–"
            )
        lines.append(f"| {label} | " + " | ".join(texts) + " |")
    lines += ["", "## Ratios", "", "| what | value |", "| --- | ---: |"]
    lines += [f"| {name} | {'–' if value is None else f'{value:.2f} x'} |" for name, value in ratios(rows)]
    lines += ["", "Method: the head of `benches/replay.py`. Raw samples: `replay.json`."]
    path.write_text("\n".join(lines) + "\n")


def write_png(record: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = record["cells"]
    shown = columns_of(rows)
    figure, axes = pyplot.subplots(3, 2, figsize=(13, 11), layout="constrained")
    for axis, (cell, adders) in zip(axes.flat, shown, strict=True):
        bars = [(r["contender"], r["items_per_s"]) for r in rows if (r["cell"], r["adders"]) == (cell, adders)]
        for place, (label, values) in enumerate(bars):
            color = "#1f77b4" if label.startswith("rollway") else "#777777" if "limit" in label else "#d98c3f"
            axis.barh(place, statistics.median(values), color=color)
            axis.annotate(short(statistics.median(values)), (statistics.median(values), place), va="center", fontsize=7)
        axis.set_yticks(range(len(bars)), [label for label, _ in bars], fontsize=7)
        axis.invert_yaxis()
        axis.set_xscale("log")
        title = f"{cell}{f', {adders} adders' if adders > 1 else ''}: transitions/s"
        axis.set_title(title, fontsize=8, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100,000 rows, 0.1 s, one repeat: to see that it runs")
    parser.add_argument("--seconds", type=float, help="per cell and repeat (1.0)")
    parser.add_argument("--repeats", type=int, help="(5)")
    parser.add_argument("--capacity", type=int, help="(1,000,000)")
    parser.add_argument("--out", type=Path, default=machine.ROOT / "docs" / "bench")
    options = parser.parse_args()
    defaults = (0.1, 1, 100_000) if options.quick else (1.0, 5, 1_000_000)
    for name, value in zip(("seconds", "repeats", "capacity"), defaults, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    import torch

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0))))
    record: dict[str, Any] = {
        "command": machine.command(),
        "commit": machine.commit(),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(PACKAGES),
        "settings": {"seconds": options.seconds, "repeats": options.repeats, "capacity": options.capacity},
        "plot": "replay.png" if plot.available() else None,
    }
    record["cells"] = run(options)
    record["load_average_after"] = list(os.getloadavg())
    options.out.mkdir(parents=True, exist_ok=True)
    if record["plot"]:
        write_png(record, options.out / "replay.png")
    write_json(record, options.out / "replay.json")
    write_markdown(record, options.out / "replay.md")
    for name, value in ratios(record["cells"]):
        print(f"{name:60} {'–' if value is None else f'{value:.2f} x'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
