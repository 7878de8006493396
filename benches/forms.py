"""What a sample costs in each form in which a user may have it, beside a dict of exact arrays with the same leaves.

    python benches/forms.py [--seconds 0.5] [--only ring,records,lists,accumulator]

Prints nanoseconds for one call: the first decile of bursts, so that what else runs on the machine counts little. All
forms of a table take turns, burst by burst. Nothing crosses a core: `ring.py` and `records.py` measure between
processes. A form whose package is not installed is left out, and the table says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import rollway

_BURST = 256
_TOKENS = 2048
_NUMBERS = 1000


class StepTuple(NamedTuple):
    """A step as a named tuple."""

    obs: Any
    reward: Any
    terminated: Any


@dataclasses.dataclass
class StepData:
    """A step as a dataclass."""

    obs: Any
    reward: Any
    terminated: Any


@dataclasses.dataclass(slots=True)
class SlottedStep:
    """A step as a dataclass with slots."""

    obs: Any
    reward: Any
    terminated: Any


Form = tuple[Any, Any]
"""The example that a server starts with, and what is sent."""


def sample_forms() -> dict[str, Form]:
    """One step of an environment, in each form. The first is what the others are compared with."""
    obs, reward, over = np.ones(4, np.float32), np.float32(1), np.False_
    plain = {"obs": obs, "reward": np.asarray(reward), "terminated": np.asarray(over)}
    strided = np.ones((4, 2), np.float32)[:, 0]
    forms: dict[str, Form] = {
        "dict of exact arrays": (plain, plain),
        "float and bool": (plain, {**plain, "reward": 1.0, "terminated": False}),
        "int for a float": (plain, {**plain, "reward": 1}),
        "numpy scalars": (plain, {**plain, "reward": np.float32(1), "terminated": np.False_}),
        "np.float64 for float32": (plain, {**plain, "reward": np.float64(1)}),
        "0-d array of float64": (plain, {**plain, "reward": np.ones(())}),
        "strided array": (plain, {**plain, "obs": strided}),
        "list of numbers": (plain, {**plain, "obs": [1.0, 2.0, 3.0, 4.0]}),
        "nested dict": (
            {"step": {"obs": obs, "reward": reward}, "info": {"terminated": over}},
            {"step": {"obs": obs, "reward": 1.0}, "info": {"terminated": False}},
        ),
        "tuple": ((obs, reward, over), (obs, 1.0, False)),
        "named tuple": (StepTuple(obs, reward, over), StepTuple(obs, 1.0, False)),
        "dataclass": (StepData(obs, reward, over), StepData(obs, 1.0, False)),
        "dataclass with slots": (SlottedStep(obs, reward, over), SlottedStep(obs, 1.0, False)),
    }
    for name, made in _tensors(plain).items():
        forms[name] = (plain, made)
    return forms


def record_forms() -> dict[str, Form]:
    """A trajectory of an LLM in each form."""
    schema = {"tokens": "int32[*]", "logprobs": "float32[*]", "masks": "int8[*]", "score": "float32[]"}
    plain = {
        "tokens": np.ones(_TOKENS, np.int32),
        "logprobs": np.ones(_TOKENS, np.float32),
        "masks": np.ones(_TOKENS, np.int8),
        "score": np.ones((), np.float32),
    }
    forms: dict[str, Form] = {
        "dict of exact arrays": (schema, plain),
        "float score": (schema, {**plain, "score": 1.0}),
        "int score": (schema, {**plain, "score": 1}),
        "np.float64 score": (schema, {**plain, "score": np.float64(1)}),
        "strided tokens": (schema, {**plain, "tokens": np.ones((_TOKENS, 2), np.int32)[:, 0]}),
    }
    for name, made in _tensors(plain).items():
        forms[name] = (schema, made)
    return forms


def list_forms() -> dict[str, Form]:
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


def _tensors(plain: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """The same leaves as tensors of torch and as arrays of JAX, where those are installed."""
    made: dict[str, Any] = {}
    try:
        import torch

        made["torch tensors"] = {name: torch.from_numpy(array.copy()) for name, array in plain.items()}
    except ImportError:
        print("torch is not installed: left out")
    try:
        import jax

        made["JAX arrays"] = {name: jax.numpy.asarray(array) for name, array in plain.items()}
    except ImportError:
        print("JAX is not installed: left out")
    return made


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


def measure(forms: Mapping[str, Form], open_send: Callable[[Any], Callable[[Any], object]], seconds: float) -> None:
    """Prints what a call costs in each form."""
    sends = {}
    for name, (example, data) in forms.items():
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
    parser.add_argument("--only", default="ring,records,lists,accumulator", help="which tables, with commas between")
    options = parser.parse_args()
    opened: list[Any] = []

    def ring(example: Any) -> Callable[[Any], object]:
        server = rollway.Server(example, 64, rollway.ShmTransport(), num_buffers=8)
        client = rollway.ShmClient(server.name, example, on_full="drop_oldest")
        opened.extend((client, server))
        return client.send

    def records(schema: Any) -> Callable[[Any], object]:
        server = rollway.RecordServer(schema, rollway.ShmTransport())
        client = rollway.ShmRecordClient(server.name, schema, on_full="drop_oldest")
        opened.extend((client, server))
        return client.send

    tables = {
        "ring": ("ring: one step", sample_forms, ring),
        "records": (f"records: a trajectory of {_TOKENS:,} tokens", record_forms, records),
        "lists": (f"records: {_NUMBERS:,} numbers", list_forms, records),
    }
    try:
        for key, (title, forms, open_send) in tables.items():
            if key in options.only.split(","):
                print(title)
                measure(forms(), open_send, options.seconds)
        if "accumulator" in options.only.split(","):
            print("TrajectoryAccumulator.add of one step")
            measure_accumulator(options.seconds)
    finally:
        for handle in opened:
            handle.close()


if __name__ == "__main__":
    main()
