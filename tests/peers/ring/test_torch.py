"""The real torch: its CPU tensors go in, and batches become tensors without a copy."""

import itertools
import warnings

import numpy as np
import pytest
import torch

import rollway
import rollway.torch


def test_cpu_tensors_are_sent_as_they_are():
    example = {"obs": torch.zeros(2, 3), "half": torch.zeros(2, dtype=torch.bfloat16), "done": torch.tensor(False)}
    with rollway.Server(example, 2) as server:
        for i in range(2):
            sent = {
                "obs": torch.full((2, 3), float(i), requires_grad=True),
                "half": torch.full((2,), 1.5 + i, dtype=torch.bfloat16),
                "done": torch.tensor(bool(i)),
            }
            server.submit(sent)
        batch = server.sample().batch
        assert batch["obs"].dtype == np.float32 and batch["obs"][1].tolist() == [[1.0] * 3] * 2
        assert batch["half"].astype(np.float32).tolist() == [[1.5, 1.5], [2.5, 2.5]]
        assert batch["done"].tolist() == [False, True]


def test_a_transposed_tensor_arrives_in_order():
    with rollway.Server(torch.zeros(3, 2), 1) as server:
        server.submit(torch.arange(6, dtype=torch.float32).reshape(2, 3).T)
        assert server.sample().batch[0].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_tensors_of_another_dtype_or_device_are_refused():
    with rollway.Server({"a": torch.zeros(2)}, 1) as server:
        with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'a' is float64\[2\] here but float32\[2\]"):
            server.submit({"a": torch.zeros(2, dtype=torch.float64)})
        with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'a' is on meta: call \.cpu\(\)"):
            server.submit({"a": torch.zeros(2, device="meta")})


def test_a_batch_becomes_a_tensor_without_a_copy():
    with rollway.Server(np.zeros(3, np.float32), 2, writable=True) as server:
        server.submit_many(np.arange(6, dtype=np.float32).reshape(2, 3))
        sample = server.sample()
        tensor = torch.from_numpy(sample.batch)
        assert tensor.data_ptr() == sample.batch.ctypes.data and tensor.sum() == 15
        del sample
        assert server.stats()["held_batches"] == 1, "the tensor keeps the room"
        del tensor
        assert server.stats()["held_batches"] == 0


def test_a_sample_becomes_tensors_without_a_copy_or_a_warning():
    example = {"obs": np.zeros(3, np.float32), "half": torch.zeros(2, dtype=torch.bfloat16), "done": np.False_}
    with rollway.Server(example, 2) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(2):
            server.submit({"obs": [i, i, i], "half": torch.ones(2, dtype=torch.bfloat16), "done": bool(i)})
        sample = server.sample()
        tensors = sample.torch()
        assert tensors["obs"].data_ptr() == sample["obs"].ctypes.data
        assert tensors["half"].dtype == torch.bfloat16 and tensors["half"].tolist() == [[1, 1], [1, 1]]
        assert tensors["done"].tolist() == [False, True] and not sample["obs"].flags.writeable
        made = sample.tensordict()
        assert made.batch_size == (2,) and made["obs"].data_ptr() == sample["obs"].ctypes.data
        del sample, made
        assert server.stats()["held_batches"] == 1, "the tensors keep the room"
        del tensors
        assert server.stats()["held_batches"] == 0


def test_tensors_keep_the_structure_of_the_sample():
    with rollway.Server({"a": (np.zeros(2), [np.zeros(1)])}, 1) as server:
        server.submit({"a": ([1, 2], [[3]])})
        first, [second] = server.sample().torch()["a"]
        assert first.tolist() == [[1, 2]] and second.tolist() == [[3]]
        server.submit({"a": ([1, 2], [[3]])})
        with pytest.raises(rollway.SchemaMismatch, match="'a' is a tuple"):
            server.sample().tensordict()


def test_a_leaf_that_torch_does_not_have_is_named():
    with rollway.Server({"name": np.zeros((), "S4")}, 1) as server:
        server.submit({"name": np.array(b"abc", "S4")})
        with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'name' is \|S4, which torch does not have"):
            server.sample().torch()


def test_a_data_loader_takes_batches(monkeypatch):
    with rollway.Server({"x": np.float32(0)}, 2) as server:
        for i in range(6):
            server.submit({"x": i})
        loader = torch.utils.data.DataLoader(rollway.torch.Batches(server), batch_size=None)
        kept = list(itertools.islice(loader, 3))
        assert [batch["x"].tolist() for batch in kept] == [[0, 1], [2, 3], [4, 5]]
        monkeypatch.setattr("rollway.torch.batches.get_worker_info", object)  # as in a worker of a loader
        with pytest.raises(rollway.InvalidArgument, match="num_workers=0"):
            next(iter(rollway.torch.Batches(server)))


def test_device_iter_gives_tensors_that_may_be_kept():
    with rollway.Server({"x": np.float32(0), "y": np.zeros(2)}, 2, num_buffers=2) as server:
        batches, kept = server.device_iter("cpu"), []
        for i in range(6):
            server.submit({"x": i, "y": [i, i]})
            if i % 2:
                kept.append(next(batches))
        assert [batch["x"].tolist() for batch in kept] == [[0, 1], [2, 3], [4, 5]]
        assert server.stats()["held_batches"] == 0
        with pytest.raises(rollway.InvalidArgument, match="depth = 0"):
            server.device_iter("cpu", depth=0)


def test_device_iter_ends_when_the_server_is_closed():
    server = rollway.Server({"x": np.float32(0)}, 1)
    server.submit({"x": 1})
    batches = server.device_iter("cpu")
    assert next(batches)["x"].tolist() == [1]
    server.close()
    assert list(batches) == []


def test_device_iter_gives_a_batch_that_was_closed_early_and_odd_shapes():
    example = {"x": np.float32(0), "flags": np.zeros((3, 2), bool), "half": torch.zeros(2, dtype=torch.bfloat16)}
    with rollway.Server(example, 4) as server:
        batches = server.device_iter("cuda")
        for rows in (4, 3):
            for i in range(rows):
                server.submit({"x": i, "flags": np.full((3, 2), i == 1), "half": torch.full((2,), 1.5).bfloat16()})
            server.flush()
            batch = next(batches)
            assert batch["x"].tolist() == list(range(rows)) and batch["flags"].sum() == 6
            assert batch["half"].dtype == torch.bfloat16 and batch["half"].tolist() == [[1.5, 1.5]] * rows


def test_device_iter_names_a_leaf_that_torch_does_not_have():
    with rollway.Server({"name": np.zeros((), "S4")}, 1) as server:
        batches = server.device_iter("cpu")
        server.submit({"name": np.array(b"abc", "S4")})
        with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'name' is \|S4, which torch does not have"):
            next(batches)
        assert server.stats()["held_batches"] == 0, "the room went back"
