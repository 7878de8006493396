"""Samples and records as users have them: converted natively, by the rule that Python's conversion follows too."""

import dataclasses
import pickle
import threading
import warnings
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollway
from rollway.schema.arrays import as_leaf
from rollway.schema.pytree import Schema
from rollway.schema.record import RecordSchema


class Step(NamedTuple):
    obs: Any
    reward: Any
    done: Any


@dataclasses.dataclass
class Data:
    obs: Any
    reward: Any
    done: Any = False


@dataclasses.dataclass(slots=True, frozen=True)
class Slotted:
    obs: Any
    reward: Any
    done: Any


@pytest.fixture
def native(monkeypatch):
    """Ends the test where Python would convert something."""

    def refuse(self, *args):
        raise AssertionError("Python was asked to convert")

    monkeypatch.setattr(Schema, "conform", refuse)
    monkeypatch.setattr(RecordSchema, "conform", refuse)


def sent(example, data):
    with rollway.Server(example, batch_size=1) as server:
        assert server.submit(data)
        return server.sample(timeout=5).batch


def recorded(schema, data):
    with rollway.RecordServer(schema) as server:
        server.submit(data)
        return {name: array.copy() for name, array in server.read(timeout=5).fields.items()}


OBS = np.arange(4, dtype=np.float32)
PLAIN = {"obs": OBS, "reward": np.float32(0), "done": np.False_}
SAMPLES = {
    "float and bool": (PLAIN, {"obs": OBS, "reward": 1.5, "done": True}),
    "int for a float": (PLAIN, {"obs": OBS, "reward": 1, "done": True}),
    "bool for a float": (PLAIN, {"obs": OBS, "reward": True, "done": True}),
    "numpy scalars": (PLAIN, {"obs": OBS, "reward": np.float32(1.5), "done": np.True_}),
    "float64 for float32": (PLAIN, {"obs": OBS, "reward": np.float64(1.5), "done": np.True_}),
    "0-d arrays": (PLAIN, {"obs": OBS, "reward": np.array(1.5), "done": np.array(True)}),
    "strided": (PLAIN, {"obs": np.repeat(OBS, 3)[::3], "reward": 1.5, "done": True}),
    "reversed": (PLAIN, {"obs": OBS[::-1].copy()[::-1], "reward": 1.5, "done": True}),
    "list": (PLAIN, {"obs": [0, 1.0, np.float64(2), np.int8(3)], "reward": 1.5, "done": True}),
    "tuple for an array": (PLAIN, {"obs": (0.0, 1.0, 2.0, 3.0), "reward": 1.5, "done": True}),
    "another order of keys": (PLAIN, {"done": True, "reward": 1.5, "obs": OBS}),
    "tuple": ((OBS, np.float32(0), np.False_), (OBS, 1.5, True)),
    "named tuple": (Step(*PLAIN.values()), Step(OBS, 1.5, True)),
    "dataclass": (Data(*PLAIN.values()), Data(OBS, 1.5, True)),
    "dataclass with slots": (Slotted(*PLAIN.values()), Slotted(OBS, 1.5, True)),
    "mixed": (
        {"step": Data(OBS, (np.float32(0), [np.float32(0)]), {"x": np.False_})},
        {"step": Data([0, 1, 2, 3], (1.5, [1]), {"x": True})},
    ),
}


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(("example", "data"), SAMPLES.values(), ids=SAMPLES.keys())
def test_every_natural_form_of_a_sample_is_sent_natively(example, data):
    import optree

    leaves = optree.tree_leaves(sent(example, data), namespace="rollway")
    by_kind = {leaf.dtype.kind + str(leaf.ndim): leaf for leaf in leaves}
    assert by_kind["f2"].tolist() == [[0, 1, 2, 3]]
    assert by_kind["b1"].tolist() == [True]
    assert by_kind["f1"].tolist() in ([1.5], [1.0])


@pytest.mark.usefixtures("native")
def test_tensors_of_torch_are_sent_natively(torch):
    data = {"obs": torch.arange(4.0), "reward": torch.tensor(1.5, requires_grad=True), "done": torch.tensor(True)}
    sent(PLAIN, {**PLAIN, "reward": 1.0})  # torch's class is learned when it is first met
    for obs in (data["obs"], torch.arange(8.0).reshape(4, 2)[:, 0] / 2, torch.nn.Parameter(data["obs"])):
        batch = sent(PLAIN, {**data, "obs": obs})
        assert batch["obs"].tolist() == [[0, 1, 2, 3]]
        assert batch["reward"].tolist() == [1.5] and batch["done"].tolist() == [True]
    sent_double = sent(PLAIN, {**data, "reward": torch.tensor(1.5, dtype=torch.float64)})
    assert sent_double["reward"].tolist() == [1.5], "a tensor without dimensions is a number"


@pytest.mark.usefixtures("native")
def test_bfloat16_tensors_are_sent_natively(torch):
    import ml_dtypes

    example = {"x": np.zeros(3, ml_dtypes.bfloat16)}
    batch = sent(example, {"x": torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)})
    assert batch["x"].astype(np.float32).tolist() == [[1, 2, 3]]


def test_a_negated_tensor_does_not_lose_its_sign(torch):
    strided = torch.tensor([1 + 2j, 3 - 1j]).conj().imag
    for negated in (strided, strided[0], strided[:1], strided.as_strided((2,), (1,))):
        assert negated.is_neg()
        try:
            batch = sent({"x": np.zeros(negated.shape, np.float32)}, {"x": negated})
        except rollway.SchemaMismatch as refused:
            assert "'x'" in str(refused)
        else:
            assert batch["x"].tolist() == [negated.tolist()]


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_a_negated_tensor_does_not_fit_integers_or_bools(torch, dtype):
    negated = torch.tensor([1 + 2j, 3 - 1j]).conj().imag
    with pytest.raises(rollway.SchemaMismatch, match=r"'x' is a tensor of torch\.float32.*negative bit"):
        sent({"x": np.zeros(2, dtype)}, {"x": negated})


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("letter", "bhilqBHILQfd?")
def test_scalars_of_every_numpy_type_are_sent_natively(letter):
    dtype = np.dtype(letter)
    limits = {"i": np.iinfo, "u": np.iinfo, "f": np.finfo}.get(dtype.kind)
    for value in (limits(dtype).min, limits(dtype).max) if limits else (False, True):
        scalar = dtype.type(value)
        for data in (scalar, [scalar]):
            batch = sent({"x": np.zeros(np.shape(data), dtype)}, {"x": data})
            assert batch["x"].tolist() == [np.asarray(data).tolist()]


RECORD = {"tokens": "int32[*]", "rows": "float32[*,2]", "masks": "bool[*]", "pair": "float32[2]", "score": "float32[]"}
TRAJECTORY = {
    "tokens": np.arange(3, dtype=np.int32),
    "rows": np.ones((2, 2), np.float32),
    "masks": np.ones(3, bool),
    "pair": np.ones(2, np.float32),
    "score": np.float32(1),
}
RECORDS = {
    "lists": {"tokens": [0, 1, 2], "rows": [[1, 1.0], (True, 1)], "masks": [True] * 3, "pair": [1, 1], "score": 1},
    "tuples": {"tokens": (0, 1, 2), "rows": ((1, 1), (1, 1)), "masks": (True,) * 3, "pair": (1, 1), "score": 1.0},
    "scalars": {**TRAJECTORY, "score": np.int64(1)},
    "strided": {**TRAJECTORY, "tokens": np.arange(6, dtype=np.int32)[::2] // 2, "rows": np.ones((2, 4), "f4")[:, ::2]},
    "empty": {**TRAJECTORY, "tokens": [], "rows": [], "masks": ()},
}


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("data", RECORDS.values(), ids=RECORDS.keys())
def test_every_natural_form_of_a_record_is_sent_natively(data):
    record = recorded(RECORD, data)
    empty = {"tokens": [], "rows": np.empty((0, 2)), "masks": []} if len(data["rows"]) == 0 else {}
    for leaf, array in {**TRAJECTORY, **empty}.items():
        np.testing.assert_array_equal(record[leaf], array, leaf)


@pytest.mark.usefixtures("native")
def test_a_record_of_torch_tensors_is_sent_natively(torch):
    tensors = {name: torch.from_numpy(np.atleast_1d(array)).squeeze() for name, array in TRAJECTORY.items()}
    for leaf, array in recorded(RECORD, tensors).items():
        np.testing.assert_array_equal(array, TRAJECTORY[leaf], leaf)


NUMBERS = (
    st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-300, 300)
    | st.floats(width=64)
    | st.integers(-(2**63), 2**63 - 1).map(np.int64)
    | st.integers(0, 255).map(np.uint8)
    | st.integers(0, 2**64 - 1).map(np.uint64)
    | st.floats(width=32).map(np.float32)
    | st.floats(width=64).map(np.float64)
    | st.booleans().map(np.bool_)
)
DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]


@given(dtype=st.sampled_from(DTYPES), value=NUMBERS, form=st.sampled_from(["scalar", "list", "0-d"]))
@settings(max_examples=600, deadline=None)
def test_numbers_convert_natively_as_they_do_in_python(dtype, value, form):
    if form == "0-d":
        value = np.asarray(value)
        if value.dtype.kind == "O":
            return
    given, schema = ([value], {"x": f"{dtype}[*]"}) if form == "list" else (value, {"x": f"{dtype}[]"})
    try:
        expected = as_leaf(given, "x", np.dtype(dtype), ("*",) if form == "list" else ())
    except rollway.SchemaMismatch:
        expected = None
    try:
        found = recorded(schema, {"x": given})["x"]
    except rollway.SchemaMismatch as refused:
        assert expected is None and "'x'" in str(refused)
    else:
        assert expected is not None, f"{value!r} became {found}"
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (300, "'x' is the Python int 300, which does not fit int8"),
        (np.int64(300), "'x' is the int64 300, which does not fit int8"),
        (1.5, "'x' is the Python float 1.5, which does not fit int8"),
        (np.float64(1), "'x' is the float64 1.0, which does not fit int8"),
        ([1], "'x' is int8[1] here but int8[] in the schema"),
        (np.zeros(1, np.int8), "'x' is int8[1] here but int8[] in the schema"),
    ],
    ids=str,
)
def test_a_number_that_does_not_fit_is_an_error_that_names_the_leaf(value, says):
    with rollway.Server({"x": np.int8(0)}, batch_size=1) as server:
        with pytest.raises(rollway.SchemaMismatch) as refused:
            server.submit({"x": value})
        assert says in str(refused.value)
        assert server.submit({"x": 3}) and server.sample(timeout=5)["x"].tolist() == [3]


def test_arrays_keep_their_dtype():
    with rollway.Server({"x": np.zeros(2, np.float32)}, batch_size=1) as server:
        with pytest.raises(rollway.SchemaMismatch, match=r"'x' is float64\[2\] here but float32\[2\]"):
            server.submit({"x": np.zeros(2)})


@dataclasses.dataclass
class Computed:
    obs: Any
    _reward: float = 0.0

    @property
    def reward(self):
        return self._reward


def test_a_dataclass_with_more_than_its_fields_is_sent():
    batch = sent(Computed(OBS, 0.0), Computed(OBS, 2.5))
    assert batch._reward.tolist() == [2.5]


def test_a_dataclass_that_lost_a_field_is_refused_and_a_subclass_too():
    class Other(Data):
        pass

    broken = Data(OBS, 1.0)
    del broken.__dict__["reward"]
    with rollway.Server(Data(*PLAIN.values()), batch_size=1) as server:
        with pytest.raises(Exception, match="reward"):
            server.submit(broken)
        with pytest.raises(rollway.SchemaMismatch):
            server.submit(Other(OBS, 1.0))
        assert server.submit(Data(OBS, 1.0))


def test_values_stay_alive_while_a_send_waits_for_room(name, torch):
    """The only reference to each value is in the dict, which is emptied while the send waits."""
    example = {"obs": np.zeros(1000, np.float32), "list": np.zeros(3), "x": np.float32(0), "t": np.zeros(500, np.int64)}
    with rollway.Server(example, 1, rollway.ShmTransport(name), num_buffers=2) as server:
        with rollway.ShmClient(name, example) as client:
            for _ in range(2):
                client.send(example)
            data = {"obs": np.full(2000, 7, np.float32)[::2], "list": [1, 2, 3], "x": 4.5, "t": torch.full((500,), 6)}
            sender = threading.Thread(target=client.send, args=(data,))
            sender.start()
            while not server.stats()["blocked"]:
                pass
            data.clear()
            rubbish = [torch.full((500,), 9) for _ in range(100)]
            for _ in range(2):
                server.sample(timeout=5).release()
            batch = server.sample(timeout=5).batch
            sender.join()
            assert (batch["obs"] == 7).all() and batch["list"].tolist() == [[1, 2, 3]]
            assert batch["x"].tolist() == [4.5] and (batch["t"] == 6).all() and rubbish


@pytest.fixture
def accumulator(monkeypatch):
    def refuse(self, *args):
        raise AssertionError("Python was asked to convert")

    monkeypatch.setattr(rollway.TrajectoryAccumulator, "_convert", refuse)
    step = {"obs": np.zeros((3, 4), np.float32), "reward": np.zeros(3, np.float32), "done": np.zeros(3, bool)}
    return rollway.TrajectoryAccumulator({"step": step, "last": {"value": np.zeros(())}})


def test_a_trajectory_accumulator_takes_natural_forms_natively(accumulator, torch):
    accumulator.add("step", {"obs": OBS, "reward": 1, "done": False})
    accumulator.add("step", {"obs": [0, 1, 2, 3], "reward": np.float64(2), "done": np.True_})
    accumulator.add("last", {"value": 0.5})
    copied = pickle.loads(pickle.dumps(accumulator))
    for each in (accumulator, copied):
        each.add("step", {"obs": torch.arange(4.0), "reward": torch.tensor(3.0), "done": True})
        with pytest.raises(IndexError, match="'step' is full"):
            each.add("step", {"obs": OBS, "reward": 4, "done": False})
        built = each.build()
        assert built["step"]["obs"].tolist() == [[0, 1, 2, 3]] * 3
        assert built["step"]["reward"].tolist() == [1, 2, 3]
        assert built["step"]["done"].tolist() == [False, True, True] and built["last"]["value"] == 0.5


def test_an_accumulator_whose_array_was_resized_writes_nothing_beyond_it():
    accumulator = rollway.TrajectoryAccumulator({"step": {"x": np.zeros(1000)}})
    accumulator.build()["step"]["x"].resize(2, refcheck=False)
    accumulator.add("step", {"x": 1.0})
    accumulator.add("step", {"x": 1.0})
    with pytest.raises(IndexError):
        accumulator.add("step", {"x": 1.0})


def test_a_replay_buffer_takes_tensors_and_lists_natively(torch, monkeypatch):
    def refuse(self, *args):
        raise AssertionError("Python was asked to convert")

    monkeypatch.setattr(rollway.ReplayBuffer, "_converted", refuse)
    with rollway.ReplayBuffer(10, 2, 1) as buffer:
        obs, actions = torch.arange(8.0).reshape(4, 2)[::2], torch.ones(2, 1)
        buffer.add(obs, actions, [1, 2.5], obs, [False, True], (0, 1))
        batch = buffer.sample(50)
        assert {tuple(row) for row in batch["obs"].tolist()} == {(0, 1), (4, 5)}
        assert set(batch["rewards"].tolist()) == {1, 2.5} and set(batch["truncated"].tolist()) == {0, 1}


CASTS = [("float64", "float32"), ("int64", "int32"), ("int64", "float32"), ("bool", "float32"), ("uint8", "float32")]


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(("given", "wanted"), [*CASTS, ("int16", "uint8"), ("float32", "float64"), ("bool", "int8")])
def test_a_client_that_casts_converts_arrays_natively(name, given, wanted):
    array = np.array([[0, 1], [1, 0], [1, 1]], given)
    example, schema = {"x": np.zeros((3, 2), wanted)}, {"x": f"{wanted}[*,2]"}
    with rollway.Server(example, 1, rollway.ShmTransport(name)) as server:
        with rollway.ShmClient(name, example, casting="same_kind") as client:
            for sent in (array, np.asfortranarray(array), np.repeat(array, 2, 1)[:, ::2]):
                client.send({"x": sent})
                found = server.sample(timeout=5)["x"]
                assert found.dtype == wanted and found[0].tolist() == array.astype(wanted).tolist()
    with rollway.RecordServer(schema, rollway.ShmTransport(name)) as records:
        with rollway.ShmRecordClient(name, schema, casting="same_kind") as client:
            client.send({"x": array})
            assert records.read(timeout=5)["x"].tolist() == array.astype(wanted).tolist()


@pytest.mark.parametrize(
    ("array", "wanted"),
    [(np.array([300]), "int8"), (np.array([-1]), "uint8"), (np.array([1e300]), "float32"), (np.array([1.0]), "int64")],
    ids=str,
)
def test_a_client_that_casts_refuses_what_does_not_fit(name, array, wanted):
    example = {"x": np.zeros(1, wanted)}
    with rollway.Server(example, 1, rollway.ShmTransport(name)):
        with rollway.ShmClient(name, example, casting="same_kind") as client:
            with pytest.raises(
                rollway.SchemaMismatch, match=rf"'x' has values of {array.dtype}, which do not fit {wanted}"
            ):
                client.send({"x": array})
        with pytest.raises(rollway.InvalidArgument, match="casting = 'unsafe'"):
            rollway.ShmClient(name, example, casting="unsafe")


def test_remote_clients_cast_too():
    schema = {"x": "float32[*]"}
    with rollway.RecordServer(schema, rollway.TcpTransport()) as records:
        with rollway.TcpRecordClient("localhost", records.port, schema, casting="same_kind") as client:
            client.send({"x": np.arange(3)})
            assert records.read(timeout=5)["x"].tolist() == [0, 1, 2]
        with rollway.TcpRecordClient("localhost", records.port, schema) as client:
            with pytest.raises(rollway.SchemaMismatch, match=r"'x' is int64\[3\] here but float32\[\*\]"):
                client.send({"x": np.arange(3)})


def test_a_tensor_may_lose_its_memory_while_a_send_waits(name, torch):
    size = 1 << 16
    example = {"x": np.zeros(size, np.float32)}
    with rollway.Server(example, 1, rollway.ShmTransport(name), num_buffers=2) as server:
        with rollway.ShmClient(name, example) as client:
            tensor = torch.ones(size)
            for _ in range(2):
                client.send({"x": tensor})
            sender = threading.Thread(target=client.send, args=({"x": tensor},))
            sender.start()
            while not server.stats()["blocked"]:
                pass
            tensor.data = torch.full((size,), 9.0)
            rubbish = [torch.full((size,), 7.0) for _ in range(20)]
            for _ in range(3):
                with server.sample(timeout=5) as sample:
                    assert (sample["x"] == 1).all() and rubbish
            sender.join()


@pytest.mark.parametrize("many", [False, True])
def test_code_that_runs_while_a_tensor_is_looked_at_may_change_the_sample(torch, many):
    from torch.overrides import TorchFunctionMode

    data = {"a": np.ones(1000, np.float32), "b": torch.ones(1000)}

    class Replaces(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            data["a"] = np.full(1000, 2, np.float32)
            return function(*args, **(kwargs or {}))

    schema = {"a": "float32[*]", "b": "float32[*]"}
    with rollway.RecordServer(schema) as server:
        server.submit(data)
        server.read(timeout=5).release()
        with Replaces():
            server.submit_many([data, data]) if many else server.submit(data)
        rubbish = [np.full(1000, 9, np.float32) for _ in range(100)]
        assert server.read(timeout=5)["a"].tolist() in ([1] * 1000, [2] * 1000) and rubbish


def test_a_tensor_that_wraps_another_is_refused(torch):
    """Its own data pointer is null."""

    def send(tensor):
        with pytest.raises(rollway.SchemaMismatch, match="'x' is a tensor without memory of its own"):
            server.submit({"x": tensor})
        return tensor

    with rollway.RecordServer({"x": "float32[*]"}) as server:
        server.submit({"x": torch.ones(4)})
        server.read(timeout=5).release()
        torch.func.functionalize(send)(torch.arange(1.0, 5.0))
        assert server.stats()["ready_records"] == 0


class Derived(np.ndarray):
    pass


@pytest.mark.usefixtures("native")
def test_an_array_of_a_subclass_is_sent_natively():
    batch = sent({"obs": OBS}, {"obs": np.repeat(OBS, 2)[::2].view(Derived)})
    assert batch["obs"].tolist() == [OBS.tolist()]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_masked_values_are_refused_and_without_any_it_is_an_array(dtype):
    given = np.ma.masked_array(OBS.astype(dtype), mask=[0, 1, 0, 0])
    with rollway.Server({"obs": OBS.astype(dtype)}, batch_size=1) as server:
        with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'obs' is an array with masked values.*filled"):
            server.submit({"obs": given})
        assert server.submit({"obs": np.ma.masked_array(OBS.astype(dtype))})
        assert server.sample(timeout=5)["obs"].tolist() == [OBS.tolist()]
    with pytest.raises(rollway.SchemaMismatch, match="masked"):
        recorded({"x": "float32[*]"}, {"x": np.ma.masked_equal(OBS, 2)})


@pytest.mark.parametrize("value", [np.broadcast_to(np.float32(1), (10**14,)), np.broadcast_to(np.int64(1), (10**14,))])
def test_an_array_that_no_memory_holds_is_an_error(name, value):
    with rollway.RecordServer({"x": "float32[*]"}, rollway.ShmTransport(name)) as server:
        with rollway.ShmRecordClient(name, {"x": "float32[*]"}, casting="same_kind") as client:
            with pytest.raises((MemoryError, rollway.RollwayError)):
                client.send({"x": value})
            client.send({"x": [1]})
        assert server.read(timeout=5)["x"].tolist() == [1]


def test_a_number_of_thousands_of_digits_is_refused_in_words():
    with rollway.Server({"x": np.float32(0)}, 1) as server:
        with pytest.raises(rollway.SchemaMismatch, match=r"'x' is the Python int of 16,610 bits"):
            server.submit({"x": 10**5000})


@dataclasses.dataclass
class Overridden:
    x: Any

    def __getattribute__(self, name):
        return 42.0 if name == "x" else object.__getattribute__(self, name)


def test_a_dataclass_with_a_getattribute_of_its_own_is_asked():
    with rollway.Server({"d": Overridden(0.0), "y": np.float32(0)}, 1) as server:
        server.submit({"d": Overridden(1.0), "y": 1.0})
        tree = server.sample(timeout=5)["d"]
        assert object.__getattribute__(tree, "x").tolist() == [42]


@dataclasses.dataclass(init=False)
class Complex(complex):
    real: float
    x: Any


def test_a_field_that_is_a_member_of_a_c_class_is_read_by_python():
    value = complex.__new__(Complex, 1.5, 2)
    value.x = np.zeros(2, np.float32)
    with rollway.Server({"c": value}, 1) as server:
        assert server.submit({"c": value})
        with pytest.raises(TypeError, match="__new__"):  # optree cannot build one either
            server.sample(timeout=5)


def test_a_released_sample_gives_no_tensors(torch):
    with rollway.Server({"x": np.zeros(4, np.float32)}, 1) as server:
        server.submit({"x": [1, 2, 3, 4]})
        sample = server.sample(timeout=5)
        sample.release()
        for ask in (sample.torch, sample.jax, sample.tensordict):
            with pytest.raises(rollway.InvalidArgument, match="was released"):
                ask()


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [
        ("int4", [100, 1.5, -9]),
        ("uint4", [100, -2]),
        ("int2", [9]),
        ("float4_e2m1fn", [100.0, np.inf, np.nan]),
        ("float6_e2m3fn", [100.0, np.nan]),
        ("float8_e4m3fn", [np.inf, 1e9]),
        ("bfloat16", [1e300]),
    ],
)
def test_numbers_that_a_dtype_of_ml_dtypes_does_not_have_are_refused(dtype, wrong):
    own = np.dtype(getattr(pytest.importorskip("ml_dtypes"), dtype))
    for value in wrong:
        for shape, form in (((2,), [value, 1]), ((), np.float64(value)), ((), value)):
            with pytest.raises(rollway.SchemaMismatch, match="'x'"):
                sent({"x": np.zeros(shape, own)}, {"x": form})
    for one in (1, 1.0, True) if dtype.startswith(("float", "bfloat")) else (1, True):
        assert float(sent({"x": np.zeros((), own)}, {"x": one})["x"][0]) == 1
        assert sent({"x": np.zeros(2, own)}, {"x": [one, one]})["x"].astype(float).tolist() == [[1, 1]]


def test_subclasses_of_numbers_are_numbers():
    class Phase(IntEnum):
        SECOND = 2

    class Metres(float):
        pass

    example = {"small": np.int32(0), "real": np.float32(0), "far": np.float32(0)}
    batch = sent(example, {"small": Phase.SECOND, "real": Phase.SECOND, "far": Metres(1.5)})
    assert [batch[name].tolist() for name in example] == [[2], [2], [1.5]]


def test_masked_values_in_a_list_are_refused():
    with pytest.raises(rollway.SchemaMismatch, match="'x' is a list with masked values"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sent({"x": np.zeros((1, 2), np.float32)}, {"x": [[np.ma.masked, 1]]})
