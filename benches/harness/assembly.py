"""Time to assemble a trainer's batch of 256 trajectories of up to 2,048 tokens in torch tensors that exist already.

Padded `[256, 2048]` with its mask, and packed with `cu_seqlens`; once with all trajectories of full length, once with
lengths spread from 256 up. One process does it in turn by rollway from records that it holds, by torch from tensors
(`pad_sequence`, `cat`), by a loop over numpy arrays, and beside them copies as many bytes as were written by one plain
memcpy. Torch has its turns afterwards, because its threads go on spinning for a while. All results are compared word by
word first.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from contenders.base import Contender
from contenders.rollway_records import lane_bytes, schema
from harness import summary
from harness.cell import Outcome, Report, run_alone
from harness.summary import Record
from harness.tables import TableText, figure_text
from harness.trajectories import PACED
from harness.workloads import Item

ROWS, LENGTH = 256, 2048
RAGGED = ("tokens", "logprobs", "masks")
WAYS = ("memcpy (limit)", "rollway", "torch", "numpy loop")
_LEAST_CALLS = 30
_SETTLED_S = 0.3  # until torch's threads are asleep


class Assembly(Contender):
    key = "rollway"
    package = "torch"

    def __init__(self, shape: str) -> None:
        self.shape = shape
        self.label = f"256 trajectories, {shape}"

    def missing(self) -> str | None:
        from importlib.util import find_spec

        lacking = [name for name in ("rollway", "torch") if find_spec(name) is None]
        return f"not installed: {', '.join(lacking)}" if lacking else None


FULL, SPREAD = "all of 2,048 tokens", "256 to 2,048 tokens"
CONTENDERS = (Assembly(FULL), Assembly(SPREAD))


def measure(contender: Assembly, seconds: float) -> Outcome:
    """Nanoseconds per call, in `values["padded"]` and `values["packed"]`, a list for each way."""
    return run_alone(contender, (assemble, contender, seconds))


def assemble(report: Report, contender: Assembly, seconds: float) -> None:
    import rollway

    lengths = np.full(ROWS, LENGTH) if contender.shape == FULL else np.linspace(256, LENGTH, ROWS).astype(int)
    lengths = np.random.default_rng(0).permutation(lengths)
    sources = PACED.samples(0, ROWS)
    items = [
        {name: leaf[:count] if leaf.ndim else leaf for name, leaf in item.items()}
        for item, count in zip(sources, lengths, strict=True)
    ]
    with rollway.RecordServer(
        schema(PACED), transport=rollway.ShmTransport(), lane_bytes=lane_bytes(PACED, 2 * ROWS), lanes=2
    ) as server:
        for item in items:
            server.submit(item)
        records = []
        while len(records) < ROWS:
            records += server.read_many(ROWS - len(records), timeout=10)
        results = {
            "padded": _race(_padded(records, items), seconds),
            "packed": _race(_packed(records, items), seconds),
        }
        for record in records:
            record.release()
    shares = [f"{form} {100 * _share(times):.0f} % of memcpy" for form, times in results.items()]
    report({**results, "note": ", ".join(shares)})


def _padded(records: list[Any], items: list[Item]) -> dict[str, Callable[[], Any]]:
    import torch

    import rollway

    def room() -> dict[str, Any]:
        return {
            "tokens": torch.zeros(ROWS, LENGTH, dtype=torch.int32),
            "logprobs": torch.zeros(ROWS, LENGTH),
            "masks": torch.zeros(ROWS, LENGTH, dtype=torch.int8),
            "score": torch.zeros(ROWS, dtype=torch.float64),
            "mask": torch.zeros(ROWS, LENGTH, dtype=torch.int8),
        }

    tensors = {name: [torch.from_numpy(item[name]) for item in items] for name in RAGGED}
    scores = np.array([item["score"] for item in items])
    ours, loop = room(), {name: tensor.numpy() for name, tensor in room().items()}
    lengths = torch.tensor([len(item["tokens"]) for item in items])

    def by_torch() -> dict[str, Any]:
        out = {name: torch.nn.utils.rnn.pad_sequence(tensors[name], batch_first=True) for name in RAGGED}
        out["mask"] = (torch.arange(LENGTH)[None, :] < lengths[:, None]).to(torch.int8)
        return out

    def by_loop() -> dict[str, Any]:
        for row, item in enumerate(items):
            count = len(item["tokens"])
            for name in RAGGED:
                loop[name][row, :count] = item[name]
                loop[name][row, count:] = 0
            loop["mask"][row, :count] = 1
            loop["mask"][row, count:] = 0
        loop["score"][:] = scores
        return loop

    def by_rollway() -> dict[str, Any]:
        batch = rollway.pad(records, length=LENGTH, out=ours)
        return {**batch.fields, "mask": batch.mask}

    return {
        "memcpy (limit)": _memcpy(sum(tensor.nbytes for tensor in ours.values())),
        "rollway": by_rollway,
        "torch": by_torch,
        "numpy loop": by_loop,
    }


def _packed(records: list[Any], items: list[Item]) -> dict[str, Callable[[], Any]]:
    import torch

    import rollway

    total = sum(len(item["tokens"]) for item in items)
    room = {
        "tokens": torch.zeros(total, dtype=torch.int32),
        "logprobs": torch.zeros(total),
        "masks": torch.zeros(total, dtype=torch.int8),
        "score": torch.zeros(ROWS, dtype=torch.float64),
    }
    tensors = {name: [torch.from_numpy(item[name]) for item in items] for name in RAGGED}
    lengths = [len(item["tokens"]) for item in items]
    theirs = {name: torch.zeros_like(room[name]) for name in RAGGED}
    loop = {name: np.zeros_like(room[name].numpy()) for name in RAGGED}

    def by_torch() -> dict[str, Any]:
        out = {name: torch.cat(tensors[name], out=theirs[name]) for name in RAGGED}
        out["cu_seqlens"] = torch.nn.functional.pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(torch.int32)
        return out

    def by_loop() -> dict[str, Any]:
        bounds = np.zeros(ROWS + 1, np.int32)
        np.cumsum(lengths, out=bounds[1:])
        for row, item in enumerate(items):
            for name in RAGGED:
                loop[name][bounds[row] : bounds[row + 1]] = item[name]
        return {**loop, "cu_seqlens": bounds}

    def by_rollway() -> dict[str, Any]:
        batch = rollway.pack(records, out=room)
        return {**batch.fields, "cu_seqlens": batch.cu_seqlens}

    return {
        "memcpy (limit)": _memcpy(sum(tensor.nbytes for tensor in room.values())),
        "rollway": by_rollway,
        "torch": by_torch,
        "numpy loop": by_loop,
    }


def _memcpy(size: int) -> Callable[[], Any]:
    """One plain copy of so many bytes between places that exist already."""
    source, target = (ctypes.c_uint8 * size)(), (ctypes.c_uint8 * size)()
    return partial(ctypes.memmove, target, source, size)


def _race(ways: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[int]]:
    """All ways in turn, until the time is over; then torch by itself. They must agree first."""
    expected = ways["numpy loop"]()
    for way in ("rollway", "torch"):
        for name, got in ways[way]().items():
            if name in expected and not np.array_equal(np.asarray(got), expected[name]):
                raise RuntimeError(f"{way} and a plain loop differ in {name!r}")
    time.sleep(_SETTLED_S)
    in_turn = {way: call for way, call in ways.items() if way != "torch"}
    return {**_timed(in_turn, seconds), **_timed({"torch": ways["torch"]}, seconds)}


def _timed(ways: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[int]]:
    times: dict[str, list[int]] = {way: [] for way in ways}
    until = time.monotonic() + seconds
    while time.monotonic() < until or min(map(len, times.values())) < _LEAST_CALLS:
        for way, call in ways.items():
            began = time.perf_counter_ns()
            call()
            times[way].append(time.perf_counter_ns() - began)
    return times


def _share(times: dict[str, list[int]]) -> float:
    return float(np.median(times["memcpy (limit)"]) / np.median(times["rollway"]))


def median_us(form: str, way: str) -> Callable[[dict[str, Any]], float | None]:
    """The middle of the calls of one repeat."""
    return lambda values: float(np.median(values[form][way])) / 1e3 if form in values else None


def tabulate(record: Record) -> TableText:
    columns = [(contender.label, form) for contender in CONTENDERS for form in ("padded", "packed")]
    rows = []
    for way in WAYS:
        figures = [summary.extra(record, "assembly", label, median_us(form, way)) for label, form in columns]
        rows.append([way, *(figure_text(figure, lambda us: f"{us:.0f}") for figure in figures)])
    title = "Assembling a torch batch, µs per call: median (min–max)"
    return title, ["", *(f"{label}, {form}" for label, form in columns)], rows
