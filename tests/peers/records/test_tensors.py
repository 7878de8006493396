"""Records and batches of them become tensors of torch without a copy, and arrays of JAX that never change."""

import warnings

import jax
import numpy as np
import pytest
import torch

import rollway
from rollway.records import pack, pad

SCHEMA = {"tokens": "int32[*]", "half": "bfloat16[*]", "score": "float32[]"}


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def server():
    with rollway.RecordServer(SCHEMA) as made:
        for n in (1, 3):
            half = torch.full((n,), 1.5, dtype=torch.bfloat16)
            made.submit({"tokens": list(range(n)), "half": half, "score": n / 2})
        yield made


def test_a_record_becomes_tensors_where_it_lies(server):
    record = server.read_many(2)[1]
    tensors = record.torch()
    assert tensors["tokens"].tolist() == [0, 1, 2] and tensors["score"].item() == 1.5
    assert tensors["half"].dtype == torch.bfloat16 and tensors["half"].tolist() == [1.5] * 3
    assert tensors["tokens"].data_ptr() == record["tokens"].ctypes.data and not record["tokens"].flags.writeable
    assert record.tensordict().batch_size == () and record.tensordict()["tokens"].tolist() == [0, 1, 2]
    del record
    assert server.stats()["taken_records"] == 1, "the tensors keep the room"
    del tensors
    assert server.stats()["taken_records"] == 0


def test_a_record_that_was_released_gives_no_tensors(server):
    record = server.read()
    record.release()
    for ask in (record.torch, record.tensordict, record.jax):
        with pytest.raises(rollway.InvalidArgument, match="the record was released"):
            ask()


def test_a_detached_record_still_gives_tensors(server):
    record = server.read()
    record.detach()
    assert record.torch()["tokens"].tolist() == [0] and record.jax()["tokens"].tolist() == [0]


def test_arrays_of_jax_outlive_their_record():
    with rollway.RecordServer({"x": "float32[*]"}, lane_bytes=1 << 16) as server:
        server.submit({"x": np.ones(4096, np.float32)})
        with server.read() as record:
            array = record.jax()["x"]
        for _ in range(8):
            server.submit({"x": np.full(4096, 7, np.float32)})
            server.read().release()
        assert isinstance(array, jax.Array) and float(array.min()) == float(array.max()) == 1


def test_a_padded_batch_becomes_tensors_and_arrays_of_jax(server):
    batch = pad(server.read_many(2))
    tensors, table, arrays = batch.torch(), batch.tensordict(), batch.jax()
    assert tensors.fields["tokens"].tolist() == arrays.fields["tokens"].tolist() == [[0, 0, 0], [0, 1, 2]]
    assert tensors.mask.tolist() == arrays.mask.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert tensors.lengths.tolist() == arrays.lengths.tolist() == [1, 3]
    assert tensors.fields["tokens"].data_ptr() == batch.fields["tokens"].ctypes.data == table["tokens"].data_ptr()
    assert table.batch_size == (2,) and set(table.keys()) == {"tokens", "half", "score", "mask", "lengths"}
    assert arrays.fields["half"].dtype == jax.numpy.bfloat16
    batch.fields["tokens"][:] = 9
    assert arrays.fields["tokens"].tolist() == [[0, 0, 0], [0, 1, 2]] and tensors.fields["tokens"][0, 0] == 9


def test_a_packed_batch_becomes_tensors_and_arrays_of_jax(server):
    batch = pack(server.read_many(2))
    tensors, table, arrays = batch.torch(), batch.tensordict(), batch.jax()
    assert tensors.fields["tokens"].tolist() == arrays.fields["tokens"].tolist() == [0, 0, 1, 2]
    assert tensors.cu_seqlens.tolist() == arrays.cu_seqlens.tolist() == table["cu_seqlens"].tolist() == [0, 1, 4]
    assert tensors.max_length == arrays.max_length == 3 and table.batch_size == ()
    assert isinstance(arrays.cu_seqlens, jax.Array)


def test_a_batch_in_tensors_of_the_caller_becomes_arrays_of_jax(server):
    out = {"half": torch.zeros(2, 3, dtype=torch.bfloat16), "mask": torch.zeros(2, 3, dtype=torch.int8)}
    batch = pad(server.read_many(2), out=out)
    assert batch.torch().fields["half"] is out["half"]
    assert batch.jax().fields["half"].tolist() == [[1.5, 0, 0], [1.5, 1.5, 1.5]]


def test_a_leaf_with_the_name_of_the_mask_does_not_hide_it():
    with rollway.RecordServer({"mask": "int8[*]"}) as server:
        server.submit({"mask": [1]})
        with pytest.raises(rollway.SchemaMismatch, match="leaf 'mask' has the name that the batch's own mask gets"):
            pad([server.read()]).tensordict()


@pytest.mark.parametrize(("form", "name"), [("S4[]", r"\|S4"), ("V3[]", r"\|V3"), ("float128[]", "float128")])
def test_a_leaf_that_torch_or_jax_does_not_have_is_named(form, name):
    with rollway.RecordServer({"tokens": "int32[*]", "odd": form}) as server:
        server.submit({"tokens": [1], "odd": np.zeros((), form[:-2])})
        record = server.read()
        for ask in (record.torch, record.tensordict, pad([record]).torch):
            with pytest.raises(rollway.SchemaMismatch, match=rf"leaf 'odd' is {name}, which torch does not have"):
                ask()
        for ask in (record.jax, pad([record]).jax, pack([record]).jax):
            with pytest.raises(rollway.SchemaMismatch, match=rf"leaf 'odd' is {name}, which JAX does not have"):
                ask()


def test_dtypes_that_both_have_pass():
    names = [
        "bool",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
    ]
    names += ["float32", "complex64"]
    with rollway.RecordServer({name: f"{name}[2]" for name in names} | {"tokens": "int32[*]"}) as server:
        server.submit({name: np.ones(2, server.schema[name].dtype) for name in names} | {"tokens": [1]})
        record = server.read()
        for name, tensor in record.torch().items():
            if name != "tokens":
                assert str(tensor.dtype) == f"torch.{name}" and tensor.to(torch.complex64).tolist() == [1, 1]
        for name, array in record.jax().items():
            if name != "tokens":
                assert array.dtype.name == name
