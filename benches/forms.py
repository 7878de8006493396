"""What a sample costs in each form in which a user may have it, beside a dict of exact arrays with the same leaves.

    python benches/forms.py [--seconds 0.5] [--only ring,records,lists,accumulator,jax]

Prints nanoseconds for one call: the first decile of bursts, so that what else runs on the machine counts little. All
forms of a table take turns, burst by burst. Nothing crosses a core: `ring.py` and `records.py` measure between
processes. A form whose package is not installed is left out, and the table says so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import rollway
from harness import forms
from harness.trajectories import PACED
from harness.workloads import ENV_STEP

_BURST = 256
_NUMBERS = 1000


Case = tuple[Any, Any]
"""The example that a server starts with, and what is sent."""


def sample_forms() -> dict[str, Case]:
    """One step of an environment, in each form. The first is what the others are compared with."""
    (step,) = ENV_STEP.samples(0, 1)
    return {name: (form.arrange(step), form(step)) for name, form in _usable(forms.STEPS).items()}


def record_forms() -> dict[str, Case]:
    """A trajectory of an LLM in each form."""
    schema = {"tokens": "int32[*]", "logprobs": "float32[*]", "masks": "int8[*]", "score": "float64[]"}
    (trajectory,) = PACED.samples(0, 1)
    return {name: (schema, form(trajectory)) for name, form in _usable(forms.TRAJECTORIES).items()}


def _usable(known: Mapping[str, forms.Form]) -> dict[str, forms.Form]:
    for name, form in known.items():
        if reason := form.missing():
            print(f"{name}: left out, {reason}")
    return {name: form for name, form in known.items() if form.missing() is None}


def list_forms() -> dict[str, Case]:
    """A thousand numbers as an array, and as lists of them."""
    schema = {"numbers": "float32[*]"}
    floats = [float(number) for number in range(_NUMBERS)]
    return {
        "array": (schema, {"numbers": np.ones(_NUMBERS, np.float32)}),
        "floats": (schema, {"numbers": floats}),
        "one int among the floats": (schema, {"numbers": [0, *floats[1:]]}),
        "tuple": (schema, {"numbers": tuple(floats)}),
        "rows of ten": ({"numbers": "float32[*,10]"}, {"numbers": [floats[:10]] * (_NUMBERS // 10)}),
        "ints": ({"numbers": "int64[*]"}, {"numbers": list(range(_NUMBERS))}),
        "bools": ({"numbers": "bool[*]"}, {"numbers": [True] * _NUMBERS}),
    }


def measure_accumulator(seconds: float) -> None:
    """Prints what `TrajectoryAccumulator.add` costs beside one assignment for each leaf."""
    steps, data = 4096, {"obs": np.ones(4, np.float32), "reward": 1.0, "terminated": False}
    example = {"step": {"obs": np.zeros((steps, 4), np.float32), "reward": np.zeros(steps, np.float32)}}
    example["step"]["terminated"] = np.zeros(steps, bool)
    accumulator, buffers = rollway.TrajectoryAccumulator(example), dict(example["step"])

    def assign() -> None:
        obs, reward, terminated = buffers.values()
        for place in range(_BURST):
            obs[place] = data["obs"]
            reward[place] = data["reward"]
            terminated[place] = data["terminated"]

    def add() -> None:
        accumulator.reset()
        for _ in range(_BURST):
            accumulator.add("step", data)

    _compare({"buffer[i] = x for each leaf": assign, "add of arrays and numbers": add}, seconds)


def measure_jax(seconds: float) -> None:
    """Prints what asking JAX where the arrays of a step are costs, without a copy: the limit of `JAX arrays`."""
    form = forms.STEPS["JAX arrays"]
    if reason := form.missing():
        print(f"  left out, {reason}")
        return
    (step,) = ENV_STEP.samples(0, 1)
    numpy_leaves, jax_leaves = list(step.values()), list(form(step).values())

    def look(leaves: list[Any]) -> Callable[[], None]:
        def repeat() -> None:
            for _ in range(_BURST):
                for leaf in leaves:
                    memoryview(leaf)

        return repeat

    _compare({"arrays of numpy": look(numpy_leaves), "arrays of JAX": look(jax_leaves)}, seconds)


def measure(cases: Mapping[str, Case], open_send: Callable[[Any], Callable[[Any], object]], seconds: float) -> None:
    """Prints what a call costs in each form."""
    sends = {}
    for name, (example, data) in cases.items():
        send = open_send(example)
        try:
            send(data)
        except rollway.SchemaMismatch as refused:
            print(f"  {name:28} refused: {refused}")
        else:
            sends[name] = (send, data)

    def burst(send: Callable[[Any], object], data: Any) -> Callable[[], None]:
        def repeat() -> None:
            for _ in range(_BURST):
                send(data)

        return repeat

    _compare({name: burst(send, data) for name, (send, data) in sends.items()}, seconds)


def _compare(bursts: Mapping[str, Callable[[], None]], seconds: float) -> None:
    times: dict[str, list[float]] = {name: [] for name in bursts}
    end = time.perf_counter() + seconds * len(bursts)
    while time.perf_counter() < end:
        for name, burst in bursts.items():
            started = time.perf_counter_ns()
            burst()
            times[name].append((time.perf_counter_ns() - started) / _BURST)
    first = 0.0
    for name, measured in times.items():
        cost = sorted(measured)[len(measured) // 10]
        first = first or cost
        print(f"  {name:28} {cost:10,.0f} ns {cost / first:8.2f}")


def main() -> None:
    """Measures the forms of samples, of records and of lists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each form")
    parser.add_argument(
        "--only", default="ring,records,lists,accumulator,jax", help="which tables, with commas between"
    )
    options = parser.parse_args()
    opened: list[Any] = []

    def ring(example: Any) -> Callable[[Any], object]:
        server = rollway.Server(example, 64, rollway.ShmTransport(), num_buffers=8)
        client = rollway.ShmClient(server.name, example, on_full="drop_oldest")
        opened.extend((client, server))
        return client.send

    def records(schema: Any) -> Callable[[Any], object]:
        # Few records fit: to drop one from a full lane costs as much as there are.
        server = rollway.RecordServer(schema, rollway.ShmTransport(), lane_bytes=1 << 18)
        client = rollway.ShmRecordClient(server.name, schema, on_full="drop_oldest")
        opened.extend((client, server))
        return client.send

    tables = {
        "ring": ("ring: one step", sample_forms, ring),
        "records": (f"records: a trajectory of {PACED.length:,} tokens", record_forms, records),
        "lists": (f"records: {_NUMBERS:,} numbers", list_forms, records),
    }
    try:
        for key, (title, cases, open_send) in tables.items():
            if key in options.only.split(","):
                print(title)
                measure(cases(), open_send, options.seconds)
        if "accumulator" in options.only.split(","):
            print("TrajectoryAccumulator.add of one step")
            measure_accumulator(options.seconds)
        if "jax" in options.only.split(","):
            print(f"memoryview of each leaf of one step ({len(ENV_STEP.samples(0, 1)[0])} of them)")
            measure_jax(options.seconds)
    finally:
        for handle in opened:
            handle.close()


if __name__ == "__main__":
    main()
