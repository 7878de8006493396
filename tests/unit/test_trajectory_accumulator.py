"""TrajectoryAccumulator: echo's rules, and clear errors."""

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
