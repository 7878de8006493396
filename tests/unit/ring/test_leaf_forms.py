"""Whatever takes a schema takes every form of a leaf: an example, text, a shape and a dtype, a Gymnasium space."""

import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

import rollway
from rollway import SchemaMismatch
from rollway.memory_budget import MemoryBudget
from rollway.schema.leaves import read_leaf, read_leaves
from rollway.schema.pytree import Schema

FORMS = {
    "example": np.zeros((2, 3), np.uint8),
    "text": "uint8[2,3]",
    "text with spaces": "uint8[2, 3]",
    "pair": ((2, 3), np.uint8),
    "pair of list and text": ([2, 3], "uint8"),
    "pair with a dtype": ((2, 3), np.dtype("u1")),
    "Box": spaces.Box(0, 255, (2, 3), np.uint8),
}
SPACES = {
    "Box": (spaces.Box(-1.0, 1.0, (3,)), "float32[3]"),
    "Discrete": (spaces.Discrete(5), "int64[]"),
    "MultiDiscrete": (spaces.MultiDiscrete([3, 4]), "int64[2]"),
    "MultiBinary": (spaces.MultiBinary((2, 2)), "int8[2,2]"),
}
NESTED = spaces.Dict(
    {
        "z": spaces.Discrete(3),
        "parts": spaces.Tuple([spaces.MultiBinary(2), spaces.Dict({"a": spaces.Box(0, 1, (1,))})]),
    }
)
VALUE = np.arange(6, dtype=np.uint8).reshape(2, 3)
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
pytestmark = pytest.mark.filterwarnings("ignore:.*Box.*:UserWarning")


def torch_pair():
    torch = pytest.importorskip("torch")
    return (torch.Size([2, 3]), torch.uint8)


@forms
def test_a_server_and_its_clients_take_every_form(form):
    example = {"obs": form, "reward": np.float32(0)}
    with (
        rollway.Server(example, 1, rollway.ShmTransport()) as server,
        rollway.ShmClient(server.name, {"obs": np.zeros((2, 3), np.uint8), "reward": "float32[]"}) as client,
    ):
        client.send({"obs": VALUE, "reward": np.float32(2)})
        sample = server.sample(timeout=10)
        assert sample["obs"].tolist() == [VALUE.tolist()] and sample["reward"].tolist() == [2]


@forms
def test_a_form_may_be_the_whole_sample(form):
    with rollway.Server(form, 2) as server:
        server.submit_many(np.stack([VALUE, VALUE]))
        assert server.sample().batch.tolist() == [VALUE.tolist()] * 2


@forms
def test_records_take_every_form(form):
    schema = {"tokens": "int32[*]", "obs": form}
    with rollway.RecordServer(schema) as server:
        server.submit({"tokens": [1, 2], "obs": VALUE})
        record = server.read()
        assert record["obs"].tolist() == VALUE.tolist() and record["tokens"].tolist() == [1, 2]
        assert str(server.schema["obs"]) == "uint8[2,3]"


@forms
def test_a_replay_buffer_takes_every_form(form):
    with rollway.ReplayBuffer(8, 1, 1, fields={"obs": form, "next_obs": form, "extra": form}) as buffer:
        ones = np.ones((1, 1), np.float32)
        buffer.add(VALUE[None], ones, ones[0], VALUE[None], ones[0], ones[0], extra=VALUE[None])
        batch = buffer.sample(2)
        assert all(np.asarray(batch[field]).tolist() == [VALUE.tolist()] * 2 for field in ("obs", "next_obs", "extra"))


@forms
def test_a_rollout_ring_takes_every_form(form):
    with rollway.RolloutRingBuffer(1, 1, 1, 1, fields={"extra": form}) as ring:
        with ring.writing() as rollout:
            rollout["extra"][...] = VALUE
        assert ring.wait_for_data(10) and ring.read_numpy_views()["extra"].tolist() == VALUE.tolist()
    text, given = (str(MemoryBudget().add_rollout_ring(1, 1, 1, 1, fields={"x": one})) for one in ("uint8[2,3]", form))
    assert text == given


def test_torch_names_a_shape_and_a_dtype_too():
    assert str(read_leaf("a", torch_pair())) == "uint8[2,3]"
    torch = pytest.importorskip("torch")
    assert str(read_leaf("a", ((2,), torch.bfloat16))) == "bfloat16[2]"
    assert str(read_leaf("a", torch.zeros(2, 3))) == "float32[2,3]"


@pytest.mark.parametrize(("space", "text"), SPACES.values(), ids=SPACES)
def test_a_space_becomes_the_array_of_its_samples(space, text):
    assert str(read_leaf("a", space)) == text
    sample = np.asarray(space.sample())
    assert str(read_leaf("a", sample)) == text
    with rollway.Server({"a": space}, 1) as server:
        server.submit({"a": sample})
        assert server.sample()["a"][0].tolist() == sample.tolist()


def test_dict_and_tuple_spaces_become_trees_of_samples():
    with rollway.Server({"obs": NESTED}, 1) as server:
        server.submit({"obs": NESTED.sample()})
        batch = server.sample()["obs"]
        assert list(batch) == ["z", "parts"] or list(batch) == ["parts", "z"]
        assert isinstance(batch["parts"], tuple) and batch["parts"][0].shape == (1, 2)
        assert batch["parts"][1]["a"].shape == (1, 1) and batch["z"].shape == (1,)


def test_dict_and_tuple_spaces_become_flat_leaves_of_records_and_rollouts():
    flat = {"obs/z": "int64[]", "obs/parts/0": "int8[2]", "obs/parts/1/a": "float32[1]"}
    assert {name: str(leaf) for name, leaf in read_leaves({"obs": NESTED}).items()} == flat
    assert {name: str(leaf) for name, leaf in rollway.RecordSchema({"obs": NESTED}).items()} == flat
    assert set(rollway.RecordSchema(NESTED)) == {"z", "parts/0", "parts/1/a"}
    with rollway.RolloutRingBuffer(1, 1, 1, 1, fields={"obs2": NESTED}) as ring:
        assert {"obs2/z", "obs2/parts/0", "obs2/parts/1/a"} <= ring.slot_shapes.keys()
    with rollway.ReplayBuffer(8, 1, 1, fields={"extra": {"a": "int8[]", "b": ((2,), np.int8)}}) as buffer:
        assert {"extra/a", "extra/b"} <= set(buffer._schema)


def test_a_pair_takes_a_free_first_dimension_for_records_only():
    assert str(rollway.RecordSchema({"tokens": (("*", 4), np.int32)})["tokens"]) == "int32[*,4]"
    for form in ("int32[*]", (("*",), np.int32)):
        with pytest.raises(SchemaMismatch, match=r"leaf 'a' is int32\[\*\]: samples have one shape"):
            rollway.Server({"a": form}, 1)
        with pytest.raises(SchemaMismatch, match=r"field 'a' is int32\[\*\]; the rows of a replay buffer"):
            rollway.ReplayBuffer(8, 1, 1, fields={"a": form})
        with pytest.raises(SchemaMismatch, match=r"field 'a' is int32\[\*\]; the rollouts of a ring"):
            rollway.RolloutRingBuffer(1, 1, 1, 1, fields={"a": form})


@pytest.mark.parametrize("wrong", ["int32", "int32[", spaces.Text(3), spaces.Sequence(spaces.Discrete(2))], ids=repr)
def test_a_wrong_form_names_its_leaf_and_shows_the_forms(wrong):
    message = (
        r"leaf 'a/b' is .*; give an example array, text like 'uint8\[84,84\]', a pair like .*, or a Gymnasium space"
    )
    with pytest.raises(SchemaMismatch, match=message):
        rollway.Server({"a": {"b": wrong}}, 1)
    with pytest.raises(SchemaMismatch, match=message):
        rollway.RecordSchema({"a": {"b": wrong}})
    with pytest.raises(SchemaMismatch, match=message):
        rollway.ReplayBuffer(8, 1, 1, fields={"a": {"b": wrong}})
    with pytest.raises(SchemaMismatch, match=message):
        rollway.RolloutRingBuffer(1, 1, 1, 1, fields={"a": {"b": wrong}})


@pytest.mark.parametrize(
    "wrong", [7, None, [1, 2], np.float32, b"int32[3]", ((2, -1), np.int8), ((2,), object)], ids=repr
)
def test_what_describes_no_array_is_refused_by_name(wrong):
    with pytest.raises(SchemaMismatch, match="'a'"):
        rollway.RecordSchema({"a": wrong})


def test_a_usual_field_of_a_replay_buffer_is_one_array():
    with pytest.raises(SchemaMismatch, match="field 'obs' is one array: a dict, or a Dict or Tuple space, is several"):
        rollway.ReplayBuffer(8, 1, 1, fields={"obs": NESTED})


def test_two_leaves_of_one_name_are_refused():
    with pytest.raises(SchemaMismatch, match="two leaves are called 'a/b'"):
        rollway.RecordSchema({"a/b": "int8[]", "a": {"b": "int8[]"}})


def test_an_example_that_looks_like_a_pair_stays_a_pair_of_leaves():
    for example in (
        (np.zeros(2), np.zeros(3)),
        ((1, 2), 3.0),
        (1, 2),
        ((1, 2), (3, 4)),
        (np.str_("a"), np.str_("float32")),
    ):
        leaves = [leaf.name for leaf in Schema.of(example).leaves]
        assert len(leaves) >= 2
    assert [str(leaf) for leaf in Schema.of((1, "float32[3]")).leaves] == ["int64[]", "float32[3]"]


def test_an_example_of_text_takes_no_memory():
    assert Schema.of({"a": "uint8[1000000,1000000]"}).leaves[0].row_bytes == 10**12


def test_gymnasium_is_not_imported_for_the_other_forms():
    code = (
        "import sys, numpy as np, rollway\n"
        "rollway.RecordSchema({'a': 'int8[]', 'b': ((2,), np.int8), 'c': np.zeros(2)})\n"
        "rollway.Server({'a': 'int8[]', 'b': ((2,), np.int8), 'c': np.zeros(2)}, 1).close()\n"
        "sys.exit('gymnasium' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
