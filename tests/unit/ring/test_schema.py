"""Schemas: what is accepted, and what the error says when it is not."""

import contextlib
import dataclasses
import math
import re
import threading
from collections import OrderedDict, namedtuple

import ml_dtypes
import numpy as np
import optree
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import rollway
from rollway._core import read_schema
from rollway.errors import ForeignSchema
from rollway.schema.pytree import Schema, dtype_text, known_dtype
from rollway.schema.record import RecordSchema

Step = namedtuple("Step", "obs reward")


@dataclasses.dataclass
class Transition:
    obs: np.ndarray
    reward: np.ndarray


@dataclasses.dataclass(frozen=True)
class Frozen:
    inner: Transition
    done: np.ndarray


def round_trip(example, sample, n=2):
    with rollway.Server(example, batch_size=n) as server:
        for _ in range(n):
            assert server.submit(sample)
        return server.sample(timeout=5).batch


TREES = {
    "dict": lambda a, b: {"x": a, "y": b},
    "nested dict": lambda a, b: {"x": {"deep": a}, "y": (b, [a])},
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
    "named tuple": lambda a, b: Step(a, b),
    "dataclass": lambda a, b: Transition(a, b),
    "nested dataclass": lambda a, b: Frozen(Transition(a, b), b),
    "ordered dict": lambda a, b: OrderedDict(y=b, x=a),
    "one array": lambda a, b: a,
    "dict of unsorted keys": lambda a, b: {"zz": a, "aa": b},
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_every_structure_comes_back_as_it_went_in(tree):
    import optree

    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7, np.int64)
    batch = round_trip(tree(np.zeros_like(a), np.zeros_like(b)), tree(a, b))
    expected = tree(np.stack([a, a]), np.stack([b, b]))
    assert type(batch) is type(expected)
    flat = optree.tree_leaves(batch, namespace="rollway"), optree.tree_leaves(expected, namespace="rollway")
    for got, want in zip(*flat, strict=True):
        np.testing.assert_array_equal(got, want)


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
    "complex64",
    "complex128",
    ">f4",
    "S5",
    "U3",
    "M8[ns]",
    "m8[us]",
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    [("position", "f4", (3,)), ("flags", "u1")],
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)], ids=str)
def test_every_dtype_of_fixed_size_survives_bit_for_bit(dtype, shape):
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(0)
    value = np.frombuffer(rng.bytes(dtype.itemsize * int(np.prod(shape))), np.uint8)
    if dtype.kind == "b":
        value = value % 2
    if dtype.kind == "U":
        value = np.frombuffer(b"abc" * 100, np.uint8).astype(np.uint32).view(np.uint8)[: len(value)]
    value = value.copy().view(dtype).reshape(shape)
    got = round_trip(np.zeros(shape, dtype), value)
    assert got.dtype == dtype and got.shape == (2, *shape)
    assert got[1:].tobytes() == value.tobytes()


def test_an_object_dtype_is_refused():
    with pytest.raises(rollway.SchemaMismatch, match="leaf 'a' has dtype object, which has no fixed size"):
        Schema.of({"a": np.array([None])})


def test_an_example_without_arrays_is_refused():
    with pytest.raises(rollway.SchemaMismatch, match="no arrays in it"):
        Schema.of({})


def test_a_leaf_that_is_no_array_is_refused():
    with pytest.raises(rollway.SchemaMismatch, match="leaf 'a' is 'text'; give an example array, text like"):
        Schema.of({"a": "text"})


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (
            {"obs": np.zeros(4), "reward": np.zeros(1, np.float32)},
            r"leaf 'obs' is float64\[4\] here but float32\[4\] in the schema. Cast or reshape",
        ),
        (
            {"obs": np.zeros(4, np.float32), "reward": np.float32(1)},
            r"leaf 'reward' is float32\[\] here but float32\[1\] in the schema. For single numbers use np.float32\(0\)",
        ),
        (
            {"obs": np.zeros(5, np.float32), "reward": np.zeros(1, np.float32)},
            r"leaf 'obs' is float32\[5\] here but float32\[4\]",
        ),
        ({"obs": np.zeros((4, 1), np.float32), "reward": np.zeros(1, np.float32)}, r"leaf 'obs' is float32\[4,1\]"),
        ({"obs": np.zeros(4, np.float32)}, "missing 'reward'"),
        (
            {"obs": np.zeros(4, np.float32), "rewards": np.zeros(1, np.float32)},
            "missing 'reward'; unexpected 'rewards'",
        ),
        ((np.zeros(4, np.float32), np.zeros(1, np.float32)), "missing 'obs', 'reward'; unexpected '0', '1'"),
        ({"obs": "text", "reward": np.zeros(1, np.float32)}, "leaf 'obs' is a str"),
        ({"obs": np.zeros(4, np.int32), "reward": np.zeros(1, np.float32)}, r"leaf 'obs' is int32\[4\]"),
        (None, "missing 'obs', 'reward'"),
    ],
)
def test_a_wrong_sample_names_the_leaf_and_leaves_the_ring_untouched(example, sample, message):
    with rollway.Server(example, batch_size=2) as server:
        for call in (server.submit, lambda s: server._submitter().try_send(s)):
            with pytest.raises(rollway.SchemaMismatch, match=message):
                call(sample)
        stats = server.stats()
        assert stats["ready_samples"] == stats["claimed_slots"] == stats["aborted"] == 0


def test_non_contiguous_and_subclassed_arrays_are_accepted():
    source = np.arange(8, dtype=np.float32)
    batch = round_trip({"a": np.zeros(4, np.float32)}, {"a": source[::2]})
    assert batch["a"].tolist() == [[0, 2, 4, 6]] * 2
    fortran = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert round_trip(np.zeros((2, 3), np.float32), fortran)[0].tolist() == fortran.tolist()
    matrix = np.matrix([[1.0, 2.0]], dtype=np.float32)
    assert round_trip(np.zeros((1, 2), np.float32), matrix)[0].tolist() == [[1, 2]]


def test_python_numbers_take_the_dtype_of_their_leaf():
    batch = round_trip({"r": np.float32(0), "n": np.int8(0), "d": np.bool_(0)}, {"r": 1.5, "n": 3, "d": True})
    assert (batch["r"][0], batch["n"][0], batch["d"][0]) == (1.5, 3, True)


@pytest.mark.parametrize(
    ("leaf", "value"),
    [
        (np.int32(0), 1.5),
        (np.int8(0), 300),
        (np.bool_(0), 2),
        (np.float32(0), 1e300),
        (np.float16(0), -70000),
        (np.float32(0), 10**400),
        (np.complex64(0), 1e300j),
    ],
)
def test_a_python_number_that_does_not_fit_is_refused(leaf, value):
    shown = "of 1,329 bits" if value == 10**400 else re.escape(repr(value))
    with pytest.raises(rollway.SchemaMismatch, match=f"leaf 'a' is .*{shown}.* does not fit"):
        round_trip({"a": leaf}, {"a": value})


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.1, 1e-300, 3.4e38, 2**24 + 1])
def test_rounding_and_real_infinities_are_no_misfit(value):
    got = round_trip({"a": np.float32(0)}, {"a": value})["a"]
    assert np.array_equal(got, np.full(2, value, np.float32), equal_nan=True)


class ArrayLike:
    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class DlpackOnly:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [ArrayLike, DlpackOnly])
def test_anything_with_array_or_dlpack_is_accepted(wrap):
    value = np.arange(3, dtype=np.float32)
    assert round_trip({"a": wrap(np.zeros(3, np.float32))}, {"a": wrap(value)})["a"][0].tolist() == [0, 1, 2]


def test_threads_may_be_the_first_to_use_a_dataclass(monkeypatch):
    Fresh = dataclasses.make_dataclass("Fresh", ["obs"])
    both, register, found = threading.Barrier(2), optree.register_pytree_node, []

    def slowly(*args, **kwargs):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # the other, if that comes so far
        return register(*args, **kwargs)

    monkeypatch.setattr(optree, "register_pytree_node", slowly)
    threads = [threading.Thread(target=lambda: found.append(Schema.of(Fresh(np.zeros(2))))) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join(10) for thread in threads]
    assert [[leaf.name for leaf in schema.leaves] for schema in found] == [["obs"], ["obs"]]


@pytest.mark.parametrize("cls", [Transition, Step, np.float32])
def test_a_class_in_place_of_an_instance_is_refused(cls):
    with pytest.raises(rollway.SchemaMismatch, match=f"leaf 'x' is the class {cls.__name__}: give an instance"):
        Schema.of({"x": cls})
    Schema.of({"x": Transition(np.zeros(1), np.zeros(1))})


def test_send_many_wants_a_leading_dimension_of_equal_length(example):
    with rollway.Server(example, batch_size=4) as server:
        good = {"obs": np.ones((3, 4), np.float32), "reward": np.ones((3, 1), np.float32)}
        assert server.submit_many(good) == 3
        with pytest.raises(rollway.SchemaMismatch, match=r"different numbers of samples: \{'obs': 3, 'reward': 2\}"):
            server.submit_many({**good, "reward": np.ones((2, 1), np.float32)})
        with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'reward' is float64\[n,1\] here but float32\[n,1\]"):
            server.submit_many({**good, "reward": np.ones((3, 1))})
        assert server.submit_many({k: v[:0] for k, v in good.items()}) == 0
        assert server.stats()["ready_samples"] == 3


def test_an_empty_leaf_takes_no_room():
    assert round_trip({"a": np.zeros(0), "b": np.zeros(1)}, {"a": np.zeros(0), "b": np.ones(1)})["a"].shape == (2, 0)


def test_more_leaves_than_fit_inline_work():
    example = {f"leaf{i}": np.zeros(2, np.int32) for i in range(40)}
    sample = {key: np.full(2, i, np.int32) for i, key in enumerate(example)}
    batch = round_trip(example, sample)
    assert all(batch[key][1].tolist() == value.tolist() for key, value in sample.items())


def told(mine, theirs):
    """What is said about an example here and another one there."""
    return str(Schema.of({"a": mine}).explain(ForeignSchema("there", Schema.of({"a": theirs}).text)))


def test_another_byte_order_is_told_as_such():
    swapped, native = np.zeros(2, np.dtype("f4").newbyteorder()), np.zeros(2, "f4")
    assert "leaf 'a' is >f4[2] here but float32[2] there" in told(swapped, native)


NAMELESS = [
    getattr(ml_dtypes, name)
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4", "complex32", "bcomplex32")
    if hasattr(ml_dtypes, name)
]


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: [("f", d)], lambda d: [("g", [("f", d, (2,))]), ("h", "V3")]])
def test_no_two_dtypes_have_the_same_text(wrap):
    assert len({Schema.of(np.zeros(1, wrap(dtype))).text for dtype in NAMELESS}) == len(NAMELESS)


def test_plain_bytes_are_sent_as_they_are():
    leaf = np.frombuffer(b"abcdef", "V3")
    batch = round_trip({"x": leaf, "y": np.void(b"xyz")}, {"x": leaf, "y": np.void(b"uvw")})
    assert batch["x"].dtype == batch["y"].dtype == np.dtype("V3")
    assert batch["x"].tobytes() == b"abcdef" * 2 and batch["y"].tobytes() == b"uvw" * 2
    with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'x' is \|V4\[2\] here but \|V3\[2\]"):
        round_trip({"x": leaf}, {"x": np.zeros(2, "V4")})


def test_the_text_of_a_dtype_does_not_change():
    told = {
        "<f4": "<f4",
        "V9": "void72",
        ">i8": ">i8",
        "U3": "<U3",
        ml_dtypes.bfloat16: "bfloat16",
        ml_dtypes.float8_e5m2: "<f1",
    }
    for dtype, text in told.items():
        assert dtype_text(np.dtype(dtype)) == text
    nested = np.dtype([(("title", "a"), "<i4"), ("b", [("c", "V3", (2,))]), ("d", "u1")], align=True)
    inner = [["c", "|V3", [2]]]
    assert dtype_text(nested) == [
        [["title", "a"], "<i4", []],
        ["b", inner, []],
        ["d", "|u1", []],
        ["", "|V1", []],
    ]


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (np.zeros(2, {"names": ["x", "y"], "formats": ["i4", "i2"], "offsets": [4, 0]}), "leaf 'a' has dtype .*order"),
        (np.zeros((1,) * 64), "leaf 'a' has 64 dimensions: at most 63"),
    ],
    ids=["out of order", "64 dimensions"],
)
def test_what_cannot_be_sent_is_refused_with_the_name_of_its_leaf(leaf, message):
    with pytest.raises(rollway.SchemaMismatch, match=message):
        Schema.of({"a": leaf})


def test_a_tensor_that_gives_no_array_is_refused_with_the_name_of_its_leaf(torch):
    for tensor, message in (
        (torch.ones(3).to_sparse(), "leaf 'a' is a tensor of torch.float32 that gives no array: .*to_dense"),
        (torch.ones(3, dtype=torch.float8_e4m3fn), "leaf 'a' is a tensor of torch.float8_e4m3fn that gives no array"),
    ):
        with pytest.raises(rollway.SchemaMismatch, match=message):
            Schema.of({"a": tensor})


def test_as_many_dimensions_as_a_batch_can_have_are_sent():
    assert round_trip(np.zeros((1,) * 63), np.ones((1,) * 63)).shape == (2, *(1,) * 63)


def test_a_schema_that_others_could_not_read_is_refused_where_it_is_made(name):
    with pytest.raises(rollway.SchemaMismatch, match=r"this schema cannot be shared: a name is too long \(leaf 0\)"):
        rollway.Server({"x" * 5000: np.zeros(1)}, 1, rollway.ShmTransport(name))
    with pytest.raises(rollway.SchemaMismatch, match="this schema cannot be shared: a name is too long"):
        rollway.SharedWeightSync.from_state_dict({"x" * 5000: np.zeros(1)}, shm_name=name)


HOSTILE = [
    b"[" * 1_000_000,
    b'[["a",' + b"[" * 100_000,
    b'[["a","(((((((((((((((((((((",[1]]]',
    b'[["a","f4,' + b"f4," * 250_000 + b'",[1]]]',
    b'[["a","O",[1]]]',
    b'[["a","<f4",[9223372036854775807,9223372036854775807]]]',
    b'[["a","<f4",[1e999]]]',
    b'[["a","<f4",{}]]',
    b'[["a","<f4",[-1]]]',
    b'[["a",["b"],[1]]]',
    b'{"a":1}',
    b"\xff\xfe",
    b"null",
    b"",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_strangers_text_gives_a_schema_mismatch_that_says_it_cannot_be_read(text):
    said = Schema.of({"a": np.zeros(4)}).explain(ForeignSchema("at worker 1.2.3.4:5", text))
    assert isinstance(said, rollway.SchemaMismatch)
    assert re.search("the schema at worker 1.2.3.4:5 cannot be read", str(said))


def test_what_is_said_about_a_strangers_text_is_short():
    fields = ",".join(f'["f{number}","<f4",[]]' for number in range(40_000))
    said = told_text(f'[["a",[{fields}],[1]]]'.encode())
    assert said.startswith("leaf 'a' is float64[4] here but [") and len(said) < 2000


def told_text(text):
    return str(Schema.of({"a": np.zeros(4)}).explain(ForeignSchema("there", text)))


PLAIN = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(endianness="?"),
    arrays.unsigned_integer_dtypes(endianness="?"),
    arrays.floating_dtypes(endianness="?", sizes=(16, 32, 64, 128)),
    arrays.complex_number_dtypes(endianness="?", sizes=(64, 128, 256)),
    arrays.byte_string_dtypes(endianness="?", max_len=40),
    arrays.unicode_string_dtypes(endianness="?", max_len=40),
    arrays.datetime64_dtypes(endianness="?"),
    arrays.timedelta64_dtypes(endianness="?"),
    st.sampled_from([np.dtype("V7"), np.dtype("m8[25s]"), np.dtype("M8"), *map(np.dtype, NAMELESS)]),
)
NAMES = st.text(min_size=1, max_size=6).filter(lambda name: not any(0xD800 <= ord(letter) < 0xE000 for letter in name))


def structured(inner):
    field = st.tuples(NAMES, inner, arrays.array_shapes(min_dims=0, max_dims=2, max_side=3))
    fields = st.lists(field, min_size=1, max_size=4, unique_by=lambda field: field[0])
    return st.builds(np.dtype, fields, align=st.booleans())


DTYPES = st.recursive(PLAIN, structured, max_leaves=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(DTYPES, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)), min_size=1))
def test_what_an_example_may_have_is_read_back_with_numpys_sizes(leaves):
    schema = Schema.of([np.zeros(shape, dtype) for dtype, shape in leaves if dtype.itemsize] + [np.zeros(1)])
    schema.plan()  # The core compares the sizes that it reads from the text with numpy's.
    for leaf, (path, dtype, dims) in zip(schema.leaves, read_schema(schema.text), strict=True):
        again = known_dtype(dtype)
        assert (path, dims) == (leaf.name, leaf.shape)
        assert again.itemsize == leaf.dtype.itemsize and dtype_text(again) == dtype_text(leaf.dtype)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_change_of_a_text_gives_a_schema_mismatch_and_nothing_else(data):
    schema = Schema.of({"a": np.zeros(4), "b": np.zeros(2, [("x", "<f4"), ("y", "<M8[ns]", (3,))])})
    text = bytearray(schema.text)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    assert isinstance(schema.explain(ForeignSchema("there", bytes(text))), rollway.SchemaMismatch)
    with contextlib.suppress(rollway.SchemaMismatch):
        RecordSchema.from_text(bytes(text))
