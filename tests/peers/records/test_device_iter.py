"""Batches of records and of groups on a device. Here that is the CPU: scripts/check_cuda_feed.py has the GPU."""

import threading
import warnings

import jax
import numpy as np
import pytest
import torch

import rollway
from rollway.records import GroupAssembler, PackedBatch, PaddedBatch, RecordKey
from tests.support.processes import until

SCHEMA = {"tokens": "int32[*]", "half": "bfloat16[*,2]", "score": "float32[]"}


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def send(server, n, **more):
    half = torch.full((n, 2), n + 0.5, dtype=torch.bfloat16)
    server.submit({"tokens": list(range(n)), "half": half, "score": n}, **more)


@pytest.fixture
def server():
    with rollway.RecordServer(SCHEMA) as made:
        yield made


def test_padded_batches_come_as_tensors_that_may_be_kept(server):
    for n in (1, 3, 2, 0):
        send(server, n)
    batches = server.device_iter("cuda", batch_size=2, fill={"tokens": -1})
    first, second = next(batches), next(batches)
    assert isinstance(first, PaddedBatch) and first.fields["tokens"].device == torch.device("cpu")
    assert first.fields["tokens"].tolist() == [[0, -1, -1], [0, 1, 2]] and first.mask.sum() == 4
    assert second.fields["tokens"].tolist() == [[0, 1], [-1, -1]] and second.lengths.tolist() == [2, 0]
    assert first.fields["half"].dtype == torch.bfloat16 and first.fields["half"][1].tolist() == [[3.5, 3.5]] * 3
    assert first.fields["score"].tolist() == [1, 3] and server.stats()["taken_records"] == 0


def test_packed_batches_come_as_tensors(server):
    for n in (1, 3):
        send(server, n)
    batch = next(server.device_iter("cpu", batch_size=2, layout="packed", leaves=["tokens"]))
    assert isinstance(batch, PackedBatch) and batch.max_length == 3 and list(batch.fields) == ["tokens"]
    assert batch.fields["tokens"].tolist() == [0, 0, 1, 2] and batch.cu_seqlens.tolist() == [0, 1, 4]


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_batches_come_as_arrays_of_jax(server, layout):
    for n in (1, 3):
        send(server, n)
    batch = next(server.device_iter("cuda", batch_size=2, layout=layout, framework="jax"))
    assert all(isinstance(array, jax.Array) for array in (*batch.fields.values(), batch.fields["half"]))
    assert batch.fields["half"].dtype == jax.numpy.bfloat16 and batch.fields["score"].tolist() == [1, 3]


def test_the_last_batch_is_what_is_left_and_tombstones_are_left_out(server):
    send(server, 1)
    key = RecordKey("run", "train", 0, "task", 0)
    server._submitter().tombstone(key)
    send(server, 2)
    send(server, 3)
    batches = server.device_iter("cpu", batch_size=2)
    assert next(batches).lengths.tolist() == [1, 2]
    got = []
    reader = threading.Thread(target=lambda: got.extend(batches))
    reader.start()
    until(lambda: server.stats()["taken_records"] == 0 and server.stats()["ready_records"] == 0)
    server.close()
    reader.join(30)
    assert [batch.lengths.tolist() for batch in got] == [[3]]


def test_a_batch_larger_than_the_lane_does_not_hang(name):
    schema = {"tokens": "int32[*]"}
    with rollway.RecordServer(schema, rollway.ShmTransport(name), lane_bytes=1 << 16) as server:

        def work():
            with rollway.ShmRecordClient(name, schema) as client:
                for i in range(16):
                    client.send({"tokens": np.full(4096, i, np.int32)}, timeout=30)

        worker = threading.Thread(target=work)
        worker.start()
        batch = next(server.device_iter("cpu", batch_size=16))
        worker.join(30)
        assert batch.fields["tokens"][:, -1].tolist() == list(range(16))


def test_a_leaf_may_have_the_name_of_the_mask():
    with rollway.RecordServer({"mask": "int8[*]", "lengths": "int32[*]"}) as server:
        server.submit({"mask": [5, 6], "lengths": [7]})
        batch = next(server.device_iter("cpu", batch_size=1))
        assert batch.fields["mask"].tolist() == [[5, 6]] and batch.fields["lengths"].tolist() == [[7]]
        assert batch.mask.tolist() == [[1, 1]] and batch.lengths.tolist() == [2]


def test_groups_come_with_their_batch(server):
    assembler = GroupAssembler(2)
    for instance, repetition, n in (("a", 1, 1), ("b", 0, 2), ("a", 0, 3)):
        send(server, n, key=RecordKey("run", "train", 0, instance, repetition), metadata={"n": n})
    group, batch = next(assembler.device_iter(server, "cuda"))
    assert group.key.instance_id == "a" and [record.metadata for record in group.records] == [{"n": 3}, {"n": 1}]
    assert batch.lengths.tolist() == [3, 1] and batch.fields["score"].tolist() == [3, 1]
    assert assembler.pending == 1


def test_a_group_that_is_late_comes_as_it_is(server):
    assembler = GroupAssembler(2, on_incomplete="partial", group_timeout_s=0.05)
    send(server, 1, key=RecordKey("run", "train", 0, "a", 0))
    group, batch = next(assembler.device_iter(server, "cpu", layout="packed"))
    assert group.missing == [1] and batch.cu_seqlens.tolist() == [0, 1]


def test_groups_too_old_for_the_published_version_are_dropped(server):
    assembler = GroupAssembler(1, max_staleness=0)
    server.publish(2)
    for version in (1, 2):
        send(server, version, key=RecordKey("run", "train", 0, f"v{version}", 0), version=version)
    group, _ = next(assembler.device_iter(server, "cpu"))
    assert group.key.instance_id == "v2"


def test_a_record_without_a_key_is_named_and_the_others_are_kept(server):
    assembler = GroupAssembler(1)
    send(server, 1)
    send(server, 2, key=RecordKey("run", "train", 0, "a", 0))
    batches = assembler.device_iter(server, "cpu")
    with pytest.raises(rollway.InvalidArgument, match="key"):
        next(batches)
    assert next(batches)[0].key.instance_id == "a"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch_size": 0}, "batch_size = 0"),
        ({"batch_size": 1, "depth": 0}, "depth = 0"),
        ({"batch_size": 1, "layout": "ragged"}, "layout is 'ragged'"),
        ({"batch_size": 1, "layout": "packed", "length": 3}, "length is no option of packed batches"),
        ({"batch_size": 1, "framework": "keras"}, "framework is 'keras'"),
        ({"batch_size": 1, "device": "nowhere"}, "device is 'nowhere', which torch does not have"),
        ({"batch_size": 1, "device": "nowhere", "framework": "jax"}, "device is 'nowhere', which JAX does not have"),
        ({"batch_size": 1, "device": "cpu:99", "framework": "jax"}, "device is 'cpu:99'"),
    ],
)
def test_bad_arguments_are_refused_at_once(server, arguments, said):
    with pytest.raises(rollway.InvalidArgument, match=said):
        server.device_iter(**arguments)


def test_a_leaf_that_the_framework_does_not_have_is_named():
    with rollway.RecordServer({"tokens": "int32[*]", "odd": "V3[]"}) as server:
        for framework, name in (("torch", "torch"), ("jax", "JAX")):
            server.submit({"tokens": [1], "odd": np.zeros((), "V3")})
            with pytest.raises(rollway.SchemaMismatch, match=rf"leaf 'odd' is \|V3, which {name} does not have"):
                next(server.device_iter("cpu", batch_size=1, framework=framework))
