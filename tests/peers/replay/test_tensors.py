"""Batches of a replay buffer are numpy's unless torch is asked for, and become tensors without a copy."""

import pickle
import warnings

import jax
import numpy as np
import pytest
import torch

import rollway
from rollway.replay import ReplayPipeline, TransitionBuffer


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def fill(buffer, **more):
    ones = np.ones((4, 2), np.float32)
    buffer.add(ones, ones[:, :1], ones[:, 0], 2 * ones, ones[:, 0], ones[:, 0], **more)


@pytest.fixture
def buffer():
    with TransitionBuffer(10, obs_dim=2, action_dim=1) as made:
        fill(made)
        yield made


def test_the_plain_buffer_gives_numpy_and_unilabs_gives_torch(buffer):
    with TransitionBuffer.attach(buffer.name) as other:
        for each in (buffer, other, pickle.loads(pickle.dumps(buffer))):
            assert each.device is None and type(each.sample(3)["obs"]) is np.ndarray
    with TransitionBuffer.attach(buffer.name, "cpu") as asked, rollway.ReplayBuffer.attach(buffer.name) as unilab:
        for each in (asked, unilab, pickle.loads(pickle.dumps(unilab))):
            assert each.device == "cpu" and type(each.sample(3)["obs"]) is torch.Tensor


def test_out_is_filled_again_as_arrays_and_as_tensors(buffer):
    batch = buffer.sample(3)
    tensors = batch.torch()
    batch["obs"][:] = 9
    assert buffer.sample(3, out=batch) is batch and batch["obs"].sum() == 6
    assert tensors["obs"].sum() == 6, "the same memory"


def test_a_batch_becomes_tensors_without_a_copy_and_arrays_of_jax_that_do_not_change(buffer):
    batch = buffer.sample(3)
    tensors, table, arrays = batch.torch(), batch.tensordict(), batch.jax()
    assert tensors["obs"].data_ptr() == batch["obs"].ctypes.data == table["obs"].data_ptr()
    assert table.batch_size == (3,) and isinstance(arrays["obs"], jax.Array)
    batch["next_obs"][:] = 9
    assert tensors["next_obs"].sum() == 54 and arrays["next_obs"].sum() == 12
    assert rollway.ReplayBuffer.attach(buffer.name).sample(3).jax()["next_obs"].sum() == 12


def test_a_pipeline_gives_what_its_buffer_gives(buffer):
    with ReplayPipeline(buffer, sample_count=3) as pipeline:
        batch = pipeline.next()
        assert type(batch) is dict, "trees of torch and of JAX know no other"
        assert type(batch["obs"]) is np.ndarray and batch["obs"].sum() == 6
    with ReplayPipeline(buffer, sample_count=3, device="cpu") as pipeline:
        assert type(pipeline.next()["obs"]) is torch.Tensor


def test_a_field_that_torch_does_not_have_is_named():
    with TransitionBuffer(4, 2, 1, fields={"odd": "V3[]"}) as buffer:
        fill(buffer, odd=np.zeros(4, "V3"))
        with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'odd' is \|V3, which torch does not have"):
            buffer.sample(2).torch()
        with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'odd' is \|V3, which JAX does not have"):
            buffer.sample(2).jax()
        with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'odd' is \|V3, which torch does not have"):
            rollway.ReplayBuffer.attach(buffer.name).sample(2)
