"""SharedWeightSync with the real packages: torch modules and state dicts, JAX trees, and UniLab's own class beside it."""

import collections

import jax.numpy as jnp
import pytest
import torch
from unilab.rl.runtime.ipc.weight_sync import SharedWeightSync as UnilabWeightSync

import rollway
from rollway import SharedWeightSync


class Policy(torch.nn.Module):
    """Everything that a state dict can hold: parameters, buffers, a tied weight, a scalar, odd dtypes."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.embed = torch.nn.Embedding(7, 5)
        self.head = torch.nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        self.scale = torch.nn.Parameter(torch.randn(3, 2).to(torch.bfloat16))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("codes", torch.arange(6, dtype=torch.int8))
        self.register_buffer("steps", torch.tensor(5))


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_a_module_gets_the_weights_of_another_in_place(name):
    learner, worker = Policy(), Policy()
    with SharedWeightSync.from_state_dict(learner.state_dict(), shm_name=name), SharedWeightSync.attach(name) as sync:
        kept = worker.conv.weight
        assert sync.read_weights_into(worker.state_dict()) == 1
        assert_equal(worker.state_dict(), learner.state_dict())
        assert worker.conv.weight is kept and kept.requires_grad and kept.is_leaf
        assert worker.head.weight is worker.embed.weight
        # Parameters of the module itself do as well as its state dict.
        assert (
            sync.read_weights_into(
                {**dict(worker.named_buffers()), **dict(worker.named_parameters(remove_duplicate=False))}
            )
            == 1
        )


def test_training_goes_on_after_a_read(name):
    layer = torch.nn.Linear(2, 1)
    with SharedWeightSync.from_state_dict(layer.state_dict(), shm_name=name) as sync:
        loss = layer(torch.ones(1, 2)).sum()
        sync.read_weights_into(layer.state_dict())
        loss.backward()
        assert layer.weight.grad is not None


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_tensors_that_are_not_in_one_piece_are_read_and_written_as_they_look(name):
    source = {"a": torch.randn(4, 6).T, "b": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)}
    with SharedWeightSync.from_state_dict(source, shm_name=name) as sync:
        into = {"a": torch.zeros(4, 6).T, "b": torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)}
        assert sync.read_weights_into(into) == 1
        assert_equal(into, source)
        for overlapping in (torch.zeros(9).as_strided((6, 4), (1, 1)), torch.zeros(1, 1).expand(6, 4)):
            with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'a' overlaps itself.*\.clone\(\)"):
                sync.read_weights_into({**into, "a": overlapping})
            assert not overlapping.any()
        with pytest.raises(rollway.SchemaMismatch, match="leaf 'a' has no memory of its own"):
            sync.read_weights_into({**into, "a": torch.empty(6, 4, device="meta")})
        one = torch.eye(6, 4)
        for odd in (torch.empty(6, 4, device="meta"), one.to_sparse(), one.to_sparse_csr()):
            with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'a' is on .*: it has no bytes to copy"):
                sync.write_weights({**source, "a": odd})


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.float8_e4m3fn,
    ],
)
def test_every_dtype_is_kept(name, dtype):
    values = torch.arange(-4, 4).to(dtype)
    with SharedWeightSync.from_state_dict({"a": values}, shm_name=name) as sync:
        into = {"a": torch.zeros(8, dtype=dtype)}
        sync.read_weights_into(into)
        assert torch.equal(into["a"].view(torch.uint8), values.view(torch.uint8))
        with pytest.raises(rollway.SchemaMismatch, match="leaf 'a'"):
            sync.write_weights({"a": torch.zeros(8, dtype=torch.int16)})
        got = sync.read_weights()["a"]
        assert got.dtype.name == str(dtype)[6:] and got.nbytes == values.nbytes


def test_a_conjugate_is_written_as_it_reads(name):
    values = torch.tensor([1 + 2j, 3 - 4j])
    with SharedWeightSync.from_state_dict({"a": values.conj(), "b": values.conj().imag}, shm_name=name) as sync:
        got = sync.read_weights()
        assert got["a"].tolist() == [1 - 2j, 3 + 4j] and got["b"].tolist() == [-2, 4]


def test_shapes_of_torch_make_weights_as_unilab_makes_them(name):
    state = torch.nn.Linear(3, 2).state_dict()
    shapes = {key: value.shape for key, value in state.items()}
    with (
        SharedWeightSync(shapes, shm_name=name) as writer,
        SharedWeightSync(shapes, create=False, shm_name=name) as reader,
    ):
        writer.write_weights(state)
        into = {key: torch.zeros_like(value) for key, value in state.items()}
        assert reader.read_weights_into(into) == 1
        assert_equal(into, state)


def test_it_does_what_unilabs_does(name):
    state = collections.OrderedDict(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)).state_dict())
    theirs = UnilabWeightSync.from_state_dict(state)
    try:
        with SharedWeightSync.from_state_dict(state, shm_name=name) as ours:
            for sync in (theirs, ours):
                into = {key: torch.zeros_like(value) for key, value in state.items()}
                assert sync.write_weights(state) is None
                assert sync.version == 2 == sync.read_weights_into(into)
                assert_equal(into, state)
    finally:
        theirs.cleanup()


def test_jax_trees_travel(name):
    params = {
        "params": {"dense": {"kernel": jnp.ones((2, 3), jnp.bfloat16), "bias": jnp.zeros(3)}},
        "step": jnp.int32(4),
    }
    with SharedWeightSync.from_state_dict(params, shm_name=name), SharedWeightSync.attach(name) as reader:
        got = reader.read_weights()
        assert got["params"]["dense"]["kernel"].dtype == jnp.bfloat16 and got["step"] == 4
        assert float(got["params"]["dense"]["kernel"].sum()) == 6
        with pytest.raises(rollway.SchemaMismatch, match=r"read_weights\(\)"):
            reader.read_weights_into(params)
        assert jnp.asarray(got["params"]["dense"]["bias"]).shape == (3,)
