"""Rollouts become tensors of torch without a copy, and arrays of JAX that never change."""

import warnings

import jax
import pytest
import torch

from rollway.ring import RolloutRing


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_rollout_becomes_tensors_where_it_lies():
    with RolloutRing(2, 3, obs_dim=4, action_dim=1, num_slots=2) as ring:
        with ring.writing() as rollout:
            rollout["rewards"][:] = 1
        views = ring.read_numpy_views()
        tensors, table, arrays = ring.read_torch_views(), ring.read_tensordict(), ring.read_jax()
        assert tensors["rewards"].data_ptr() == views["rewards"].ctypes.data == table["rewards"].data_ptr()
        assert not views["rewards"].flags.writeable and table.batch_size == (2,)
        assert isinstance(tensors["obs"], torch.Tensor) and isinstance(arrays["rewards"], jax.Array)
        ring.advance_read()
        del views, table
        assert ring.stats()["held_batches"] == 1, "the tensors keep the slot"
        del tensors
        assert ring.stats()["held_batches"] == 0
        for _ in range(4):
            with ring.writing() as rollout:
                rollout["rewards"][:] = 7
        assert arrays["rewards"].tolist() == [[1] * 3] * 2


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_rollouts_come_to_a_device_and_may_be_kept(framework):
    with RolloutRing(2, 3, obs_dim=4, action_dim=1, num_slots=2, fields={"seed": "int64[]"}) as ring:
        rollouts, kept = ring.device_iter("cuda", framework=framework), []
        for i in range(5):
            with ring.writing() as rollout:
                rollout["rewards"][:], rollout["seed"][...] = i, i
            kept.append(next(rollouts))
        assert [int(rollout["seed"]) for rollout in kept] == [0, 1, 2, 3, 4]
        assert all((rollout["rewards"] == i).all() for i, rollout in enumerate(kept))
        assert kept[0]["obs"].shape == (2, 3, 4) and ring.stats()["held_batches"] == 0
        kind = torch.Tensor if framework == "torch" else jax.Array
        assert all(isinstance(array, kind) for array in kept[0].values())
        ring.close()
        assert list(rollouts) == []


def test_a_rollout_that_was_waited_for_comes_first():
    with RolloutRing(2, 3, obs_dim=4, action_dim=1) as ring:
        for i in range(2):
            with ring.writing() as rollout:
                rollout["rewards"][:] = i
        assert ring.wait_for_data()
        rollouts = ring.device_iter("cpu")
        assert [next(rollouts)["rewards"][0, 0].item() for _ in range(2)] == [0, 1]
