"""Batches of transitions on a device. Here that is the CPU: scripts/check_cuda_feed.py has the GPU."""

import itertools

import jax
import numpy as np
import pytest
import torch

import rollway
from rollway.errors import BufferEmpty
from rollway.replay import TransitionBuffer


def fill(buffer, values):
    column = np.asarray(values, np.float32)
    obs = np.repeat(column[:, None], 3, 1)
    buffer.add(obs, obs[:, :1], column, obs, column, column, step=column.astype(np.int64))


@pytest.fixture
def buffer():
    with TransitionBuffer(100, 3, 1, fields={"step": "int64[]"}, seed=1) as made:
        yield made


def test_drawn_batches_come_as_tensors_that_may_be_kept(buffer):
    fill(buffer, range(50))
    kept = list(itertools.islice(buffer.device_iter(32, "cuda"), 4))
    buffer.reseed(1)
    for batch in kept:
        assert batch["obs"].shape == (32, 3) and batch["step"].dtype == torch.int64
        drawn = buffer.sample(32)
        assert torch.equal(batch["rewards"], torch.from_numpy(drawn["rewards"])), "as sample() draws them"
        assert torch.equal(batch["obs"][:, 2], batch["rewards"]) and torch.equal(batch["step"], batch["rewards"].long())


def test_drawn_batches_come_as_arrays_of_jax(buffer):
    fill(buffer, [1] * 5)
    batch = next(buffer.device_iter(4, "cpu", framework="jax"))
    assert isinstance(batch["obs"], jax.Array) and batch["obs"].tolist() == [[1.0] * 3] * 4
    assert batch.keys() == buffer.schema.keys()
    assert jax.jit(lambda batch: batch["rewards"].sum())(batch) == 4


def test_an_empty_buffer_says_so_and_the_same_iterator_goes_on(buffer):
    batches = buffer.device_iter(2)
    with pytest.raises(BufferEmpty):
        next(batches)
    fill(buffer, [1])
    assert next(batches)["rewards"].tolist() == [1, 1]


def test_it_ends_when_the_buffer_is_closed(buffer):
    fill(buffer, [1])
    batches = buffer.device_iter(2)
    next(batches)
    buffer.close()
    assert list(batches) == []


def test_unilabs_buffer_has_it_too():
    with rollway.ReplayBuffer(10, 3, 1, fields={"step": "int64[]"}) as buffer:
        fill(buffer, [1])
        assert type(next(buffer.device_iter(2))["obs"]) is torch.Tensor
        with pytest.raises(rollway.InvalidArgument, match="batch_size = 0"):
            buffer.device_iter(0)
