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
        tensors, table, arrays = views.torch(), views.tensordict(), views.jax()
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
