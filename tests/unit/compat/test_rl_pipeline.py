"""shared_memory_rl_pipeline: what it says, and that nothing of it is left."""

import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import _core, shared_memory_rl_pipeline


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert not list(Path(_core.shm_directory()).glob(f"rollway.auto-{os.getpid()}-*"))


def test_a_step_of_three_environments_is_summed_up():
    result = shared_memory_rl_pipeline(
        3, 2, [(0, [1.0, 2.0], 1.0, False), (1, [3.0, 4.0], 2.0, True), (2, [5.0, 6.0], 3.0, False)]
    )
    assert result == {
        "observations": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        "rewards": [1.0, 2.0, 3.0],
        "dones": [0, 1, 0],
        "mean_obs": [3.0, 4.0],
        "mean_reward": 2.0,
        "num_done": 1,
        "active_mean_reward": 2.0,
        "total_shared_bytes": 3 * 2 * 8 + 3 * 8 + 3,
    }
    assert type(result["num_done"]) is int and type(result["dones"][0]) is int


def test_later_entries_overwrite_earlier_ones_and_missing_environments_stay_zero():
    result = shared_memory_rl_pipeline(3, 1, [(1, [9.0], 9.0, True), (1, [2.0], 4.0, False)])
    assert result["observations"] == [[0.0], [2.0], [0.0]]
    assert result["rewards"] == [0.0, 4.0, 0.0] and result["dones"] == [0, 0, 0]


def test_no_news_at_all_is_all_zero():
    result = shared_memory_rl_pipeline(2, 2, [])
    assert result["mean_obs"] == [0.0, 0.0] and result["active_mean_reward"] == 0.0


def test_floats_are_rounded_to_four_places():
    result = shared_memory_rl_pipeline(3, 1, [(i, [1 / 3 * i], 1 / 7, False) for i in range(3)])
    assert result["observations"] == [[0.0], [0.3333], [0.6667]]
    assert result["rewards"] == [0.1429] * 3 and result["mean_reward"] == 0.1429 and result["mean_obs"] == [0.3333]


def test_the_active_mean_is_zero_when_all_are_done():
    result = shared_memory_rl_pipeline(2, 1, [(0, [1.0], 5.0, True), (1, [1.0], 7.0, True)])
    assert result["active_mean_reward"] == 0.0 and result["num_done"] == 2 and result["mean_reward"] == 6.0


def test_a_nan_is_passed_on():
    result = shared_memory_rl_pipeline(2, 1, [(0, [math.nan], 1.0, False), (1, [1.0], math.nan, False)])
    assert math.isnan(result["observations"][0][0]) and math.isnan(result["mean_obs"][0])
    assert math.isnan(result["mean_reward"]) and math.isnan(result["active_mean_reward"])


def test_pythons_own_numbers_are_numbers():
    result = shared_memory_rl_pipeline(1, 2, [(0, [Fraction(1, 2), 10**30], Fraction(1, 4), 1)])
    assert result["observations"] == [[0.5, 1e30]] and result["rewards"] == [0.25] and result["dones"] == [1]


def test_numpy_numbers_are_numbers():
    result = shared_memory_rl_pipeline(np.int64(1), 2, [(np.int32(0), np.ones(2, np.float32), np.float32(2), np.True_)])
    assert result["rewards"] == [2.0] and result["dones"] == [1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 2, []), "num_envs is 0"),
        ((-1, 2, []), "num_envs is -1"),
        ((2, 0, []), "obs_dim is 0"),
        ((1.5, 2, []), "num_envs is 1.5"),
        ((2, 1, [(0, [1.0], 1.0, False), (2, [1.0], 1.0, False)]), "entry 1 .* environment 2; there are 2"),
        ((2, 1, [(-1, [1.0], 1.0, False)]), "environment -1"),
        ((2, 1, [(0.5, [1.0], 1.0, False)]), "not made of numbers"),
        ((2, 2, [(0, [1.0], 1.0, False)]), r"shape \(1,\); obs_dim says \(2,\)"),
        ((2, 2, [(0, ["a", "b"], 1.0, False)]), "not made of numbers"),
        ((2, 1, [(0, [1.0], None, False)]), "not made of numbers"),
        ((2, 1, [(0, [10**400], 1.0, False)]), "entry 0 .* not made of numbers"),
        ((2, 1, [(0, [1.0], 10**400, False)]), "entry 0 .* not made of numbers"),
        ((2, 1, [(0, [1.0], 1.0, np.ones(2))]), "entry 0 .* not made of numbers"),
        ((2, 1, [(0, [None], 1.0, False)]), "entry 0 .* not made of numbers"),
        ((2, 1, [(0, ["1.5"], 1.0, False)]), "entry 0 .* not made of numbers"),
        ((2, 1, [(0, [1j], 1.0, False)]), "entry 0 .* not made of numbers"),
        ((2, 1, [(0, [1.0], "2", False)]), "entry 0 .* not made of numbers"),
        *(((2, 1, [(0, [1.0], 1.0, done)]), "done is .*; it must be") for done in (None, "no", 2, math.nan)),
        ((2, 1, [(0, [1.0], 1.0)]), "must be"),
        ((2**62, 8, []), r"num_envs .* obs_dim"),
    ],
)
def test_bad_data_is_a_clear_error(arguments, words):
    with pytest.raises(rollway.InvalidArgument, match=words):
        shared_memory_rl_pipeline(*arguments)


def test_the_resource_tracker_has_no_part_in_it():
    code = """
        import multiprocessing.resource_tracker as tracker
        from rollway import shared_memory_rl_pipeline
        shared_memory_rl_pipeline(2, 1, [(0, [1.0], 1.0, False)])
        assert tracker._resource_tracker._fd is None
    """
    import textwrap

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
