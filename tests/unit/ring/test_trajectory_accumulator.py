"""TrajectoryAccumulator: echo's rules, and clear errors."""

import dataclasses

import numpy as np
import pytest

from rollway import TrajectoryAccumulator
from rollway.errors import InvalidArgument, SchemaMismatch


def example():
    return {"step": {"obs": np.zeros((3, 2)), "reward": np.zeros(3)}, "last": {"value": np.zeros((1, 4))}}


def test_steps_fill_a_sample_and_build_starts_anew():
    acc = TrajectoryAccumulator(example())
    for round_ in range(2):
        for i in range(3):
            acc.add("step", {"obs": np.full(2, i + round_), "reward": float(i)})
        acc.add("last", {"value": np.full((1, 4), 9.0)})
        built = acc.build()
        assert built["step"]["obs"][:, 0].tolist() == [round_, round_ + 1, round_ + 2]
        assert built["step"]["reward"].tolist() == [0, 1, 2] and built["last"]["value"].tolist() == [[9] * 4]


def test_items_may_keep_their_leading_one():
    acc = TrajectoryAccumulator(example())
    acc.add("step", {"obs": np.ones((1, 2)), "reward": np.ones(1)})
    acc.add("last", {"value": np.ones((1, 4))})
    assert acc.build()["step"]["obs"][0].tolist() == [1, 1]


def test_a_zero_d_leaf_makes_a_single_item_timescale():
    acc = TrajectoryAccumulator({"end": {"ret": np.zeros(()), "obs": np.zeros(7)}})
    acc.add("end", {"ret": 3.0, "obs": np.arange(7.0)})
    assert acc.build()["end"]["obs"].tolist() == list(range(7))


def test_reset_forgets_the_steps():
    acc = TrajectoryAccumulator(example())
    acc.add("step", {"obs": np.ones(2), "reward": 1.0})
    acc.reset()
    for _ in range(3):
        acc.add("step", {"obs": np.ones(2), "reward": 1.0})


def test_a_single_item_needs_no_leading_one():
    acc = TrajectoryAccumulator({"last": {"obs": np.zeros((1, 4)), "value": np.zeros(1)}})
    acc.add("last", {"obs": np.full(4, 9.0), "value": 3.0})
    built = acc.build()["last"]
    assert built["obs"].tolist() == [[9] * 4] and built["value"].tolist() == [3]


def test_an_example_may_be_of_dataclasses_tensors_and_numbers(torch):
    Step = dataclasses.make_dataclass("Step", ["obs", "reward"])
    acc = TrajectoryAccumulator({"step": Step(torch.zeros(2, 3), np.zeros(2)), "end": {"ret": 0.0}})
    acc.add("step", Step(torch.ones(3, requires_grad=True), 1.0))
    acc.add("end", {"ret": 5})
    built = acc.build()
    assert built["step"].obs.tolist() == [[1] * 3, [0] * 3] and built["end"]["ret"] == 5


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"a": np.full(1, 7.0), "b": np.array([1.9])}, "leaf 's/b' is float64, which does not become uint8 without"),
        ({"a": np.full(1, 7.0), "b": np.nan}, "leaf 's/b' is float64, which does not become uint8 without"),
        ({"a": np.full(1, 7.0), "b": np.array(["x"])}, "leaf 's/b' is <U1, which does not become uint8 without"),
        ({"a": np.full(1, 7.0), "b": [None]}, "leaf 's/b' is object, which does not become uint8 without"),
        ({"a": np.full(1, 7.0), "b": [300]}, r"leaf 's/b' is \[300\], which makes no array of uint8"),
        ({"a": np.full(1, 7.0), "b": "text"}, "leaf 's/b' is a str"),
        ({"a": 1e300, "b": [1]}, "leaf 's/a' has values of float64 that do not fit float32"),
        ({"a": np.full(1, 7.0), "b": np.full(1, 300, np.uint16)}, "leaf 's/b' has values of uint16 that do not fit"),
    ],
)
def test_a_value_that_does_not_fit_is_named_and_nothing_is_changed(item, message):
    acc = TrajectoryAccumulator({"s": {"a": np.zeros((2, 1), np.float32), "b": np.zeros((2, 1), np.uint8)}})
    acc.add("s", {"a": [1.0], "b": [1]})
    with pytest.raises(SchemaMismatch, match=message):
        acc.add("s", item)
    acc.add("s", {"a": np.full(1, 2, np.int64), "b": np.full(1, 2, np.uint8)})
    built = acc.build()["s"]
    assert built["a"].tolist() == built["b"].tolist() == [[1], [2]]
    with pytest.raises(SchemaMismatch, match=message):
        acc.add("s", item)
    assert built["a"].tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda acc: acc.add("steps", {}), KeyError, "unknown timescale 'steps'; there are"),
        (lambda acc: acc.add("step", {"obs": np.ones(2)}), SchemaMismatch, "must have the structure"),
        (
            lambda acc: acc.add("step", {"obs": np.ones(3), "reward": 1.0}),
            SchemaMismatch,
            r"must have shape \(2,\), not \(3,\)",
        ),
        (
            lambda acc: [acc.add("last", {"value": np.ones((1, 4))}) for _ in range(2)],
            IndexError,
            "room for 1; call build",
        ),
    ],
)
def test_wrong_use_says_so(act, error, message):
    with pytest.raises(error, match=message):
        act(TrajectoryAccumulator(example()))


def test_wrong_examples_say_so():
    with pytest.raises(TypeError, match="must be a dict of timescales, not a list"):
        TrajectoryAccumulator([])
    with pytest.raises(InvalidArgument, match="'empty' has no arrays"):
        TrajectoryAccumulator({"empty": {}})
    with pytest.raises(InvalidArgument, match=r"different leading dimensions \[2, 3\]"):
        TrajectoryAccumulator({"step": {"a": np.zeros((2, 1)), "b": np.zeros((3, 1))}})


def test_places_that_were_not_filled_are_zeros_and_nothing_of_an_earlier_trajectory():
    acc = TrajectoryAccumulator({"s": {"r": np.zeros((3, 1))}, "l": {"v": np.zeros(()), "w": np.zeros(2)}})
    for number in (1.0, 2.0, 3.0):
        acc.add("s", {"r": [number]})
    acc.add("l", {"v": 0.5, "w": [1, 2]})
    acc.build()
    acc.add("s", {"r": [7.0]})
    built = acc.build()
    assert built["s"]["r"].tolist() == [[7], [0], [0]]
    assert built["l"]["v"] == 0 and built["l"]["w"].tolist() == [0, 0]
