"""JAX arrays go into samples and records natively."""

import dataclasses

import jax
import numpy as np
import pytest

import rollway
from rollway.schema.pytree import Schema
from rollway.schema.record import RecordSchema


@pytest.fixture(autouse=True)
def _native(monkeypatch):
    def refuse(self, *args):
        raise AssertionError("Python was asked to convert")

    monkeypatch.setattr(Schema, "conform", refuse)
    monkeypatch.setattr(RecordSchema, "conform", refuse)


def test_arrays_of_jax_are_samples():
    example = {"obs": np.zeros(4, np.float32), "reward": np.float32(0), "done": np.False_}
    data = {"obs": jax.numpy.arange(4.0), "reward": jax.numpy.float32(1.5), "done": jax.numpy.array(True)}
    with rollway.Server(example, batch_size=1) as server:
        server.submit(data)
        batch = server.sample(timeout=5).batch
        assert batch["obs"].tolist() == [[0, 1, 2, 3]]
        assert batch["reward"].tolist() == [1.5] and batch["done"].tolist() == [True]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int32", "float16", "float32"])
def test_arrays_of_jax_of_any_shape_are_samples(dtype):
    matrix = np.arange(6).reshape(2, 3).astype(dtype)
    for array in (matrix, matrix.T, matrix[:, 1:], matrix[:1], matrix[0, 1]):
        with rollway.Server({"x": np.zeros(array.shape, dtype)}, batch_size=1) as server:
            server.submit({"x": jax.numpy.asarray(array)})
            np.testing.assert_array_equal(server.sample(timeout=5)["x"], array[None])
    with rollway.Server({"x": np.zeros((3, 2), dtype)}, batch_size=1) as server:
        server.submit({"x": jax.numpy.asarray(matrix).T})
        np.testing.assert_array_equal(server.sample(timeout=5)["x"], matrix.T[None])


def test_an_array_that_is_still_computed_is_sent_whole():
    step = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: y @ x / 200, x))
    example = {"x": np.zeros((200, 200), np.float32)}
    start = jax.numpy.ones((200, 200))
    expected = np.asarray(step(start))
    with rollway.Server(example, batch_size=1) as server:
        server.submit({"x": step(start)})
        np.testing.assert_array_equal(server.sample(timeout=5)["x"][0], expected)


def test_arrays_of_jax_are_records_and_stacked_samples():
    schema = {"tokens": "int32[*]", "score": "float32[]"}
    data = {"tokens": jax.numpy.arange(3), "score": jax.numpy.float32(0.5)}
    with rollway.RecordServer(schema) as server:
        server.submit_many([data, data])
        for _ in range(2):
            record = server.read(timeout=5)
            assert record["tokens"].tolist() == [0, 1, 2] and record["score"] == 0.5
    with rollway.Server({"x": np.zeros(2, np.float32)}, 3, rollway.ShmTransport()) as ring:
        with rollway.ShmClient(ring.name, {"x": np.zeros(2, np.float32)}) as client:
            assert client.send_many({"x": jax.numpy.ones((3, 2))}) == 3
        assert ring.sample(timeout=5)["x"].tolist() == [[1, 1]] * 3


def test_an_array_of_jax_never_changes_under_its_holder():
    example = {"x": np.zeros((64, 64), np.float32)}
    with rollway.Server(example, batch_size=1, num_buffers=2) as server:
        server.submit({"x": np.ones((64, 64), np.float32)})
        with server.sample(timeout=5) as sample:
            array = sample.jax()["x"]
        for _ in range(4):
            server.submit({"x": np.full((64, 64), 7, np.float32)})
            server.sample(timeout=5).release()
        assert float(array.min()) == float(array.max()) == 1


def test_a_sample_of_any_structure_becomes_arrays_of_jax():
    @dataclasses.dataclass
    class Step:
        obs: object
        reward: object

    with rollway.Server(Step(np.zeros(2, np.float32), np.float32(0)), batch_size=1) as server:
        server.submit(Step([1, 2], 3.0))
        step = server.sample(timeout=5).jax()
        assert isinstance(step, Step) and isinstance(step.obs, jax.Array) and step.reward.tolist() == [3]


def test_a_leaf_that_jax_does_not_have_is_named():
    with rollway.Server({"x": {"name": np.zeros((), "S4")}}, 1) as server:
        server.submit({"x": {"name": np.array(b"abc", "S4")}})
        with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'x/name' is \|S4, which JAX does not have"):
            server.sample().jax()


def test_device_iter_gives_arrays_of_jax_that_never_change():
    with rollway.Server({"x": np.zeros((64, 64), np.float32)}, batch_size=1, num_buffers=2) as server:
        batches, kept = server.device_iter("cuda", framework="jax"), []
        for i in range(5):
            server.submit({"x": np.full((64, 64), i, np.float32)})
            kept.append(next(batches)["x"])
        assert [float(array.min()) for array in kept] == [float(array.max()) for array in kept] == [0, 1, 2, 3, 4]
        assert isinstance(kept[0], jax.Array) and server.stats()["held_batches"] == 0
