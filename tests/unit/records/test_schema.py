"""What a record may look like, and what is said about one that does not."""

import re

import numpy as np
import pytest

import rollway
from rollway import RecordKey, RecordSchema, SchemaMismatch

SCHEMA = RecordSchema({"tokens": "int32[*]", "hidden": "float16[*,4]", "score": "float32[]", "box": "int64[2]"})


def test_leaves_are_what_the_notation_says():
    assert [str(leaf) for leaf in SCHEMA.values()] == ["int32[*]", "float16[*,4]", "float32[]", "int64[2]"]
    assert [leaf.row_bytes for leaf in SCHEMA.values()] == [4, 8, 4, 16]


def test_the_text_of_a_schema_gives_it_back():
    assert RecordSchema.from_text(SCHEMA.text).text == SCHEMA.text


def test_bfloat16_is_a_dtype():
    schema = RecordSchema({"x": "bfloat16[*]"})
    assert schema["x"].dtype.itemsize == 2
    assert RecordSchema.from_text(schema.text).text == schema.text


@pytest.mark.parametrize(
    "dtype",
    ["S5", "U3", "bool", "float8_e4m3fn", "longdouble", "datetime64", "complex64", "V3", "void24", "float8_e5m2"],
)
def test_the_text_of_any_dtype_gives_it_back(dtype):
    schema = RecordSchema({"x": f"{dtype}[*,2]"})
    again = RecordSchema.from_text(schema.text)
    assert again.leaves == schema.leaves and again.text == schema.text


def test_plain_bytes_are_sent_as_they_are_and_nothing_becomes_plain_bytes(name):
    schema = {"x": "V3[*]", "y": "V3[2]"}
    two = np.frombuffer(b"abcdef", "V3")
    with rollway.RecordServer(schema, rollway.ShmTransport(name)) as server:
        with rollway.ShmRecordClient(name, schema) as client:
            client.send({"x": two, "y": two})
            client.send({"x": list(two), "y": two})
            for record in server.read_many(2, timeout=10):
                assert record["x"].dtype == record["y"].dtype == np.dtype("V3")
                assert record["x"].tobytes() == record["y"].tobytes() == b"abcdef"
                record.release()
            for other in ([b"abc", b"def"], [1, 2], np.zeros(2, "V4"), np.zeros(2, "S3")):
                with pytest.raises(SchemaMismatch, match=r"leaf 'x' is .*\|V3\[\*\]"):
                    client.send({"x": other, "y": two})


def test_the_byte_order_in_a_text_is_kept():
    assert RecordSchema.from_text(b'[["x",">i4",["*"]]]')["x"].dtype == np.dtype(">i4")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'[["a","nope",[1]]]', "dtype is not known"),
        (b'[["a","",[1]]]', "dtype is not known"),
        (b'[["a",null,[1]]]', "not of the form"),
        (b"[[\"a\",\"[('b', '<i4')]\",[1]]]", "dtype is not known"),
        (b'[["a","<i4",[1.5]]]', "not of the form"),
        (b'[["a","<i4",[01]]]', "out of range"),
        (b'[["a","<i4","3"]]', "not of the form"),
        (b'[["a","<i4",[3,"*"]]]', "out of range"),
        (b'[["a","|O",[]]]', "dtype is not known"),
        (b'[["a","|S0",[]]]', "no bytes"),
        (b'[["a","<i4",[]],["a","<i4",[]]]', "same name"),
        (b'[["a","<i4",[]]] ', "something follows"),
        (b"[]", "no leaves"),
        (b"{}", "these records cannot be read"),
        (b"7", "these records cannot be read"),
        (b"\xff", "these records cannot be read"),
    ],
)
def test_a_text_that_is_no_schema_is_refused(text, said):
    with pytest.raises(SchemaMismatch, match=said):
        RecordSchema.from_text(text)


@pytest.mark.parametrize(
    "notation", ["int32", "int32[*", "int32[3,*]", "int32[-1]", "nonsense[*]", "object[*]", 7, "U[2]"]
)
def test_a_bad_notation_names_its_leaf(notation):
    with pytest.raises(SchemaMismatch, match="'tokens'"):
        RecordSchema({"tokens": notation})


def test_a_schema_needs_a_leaf():
    with pytest.raises(SchemaMismatch, match="no leaves"):
        RecordSchema({})
    for other in (["tokens"], "tokens", None):
        with pytest.raises(SchemaMismatch, match="it must be a dict, like"):
            RecordSchema(other)


@pytest.fixture
def server():
    with rollway.RecordServer({"tokens": "int32[*]", "score": "float32[]"}) as server:
        yield server


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"tokens": np.zeros(3, np.int64), "score": 1.0}, r"'tokens' is int64\[3\] here but int32\[\*\]"),
        ({"tokens": np.zeros((3, 1), np.int32), "score": 1.0}, r"'tokens' is int32\[3,1\]"),
        ({"tokens": np.int32(3), "score": 1.0}, r"'tokens' is int32\[\]"),
        ({"tokens": [1.5], "score": 1.0}, "'tokens' is a list of float64"),
        ({"tokens": [2**31], "score": 1.0}, "'tokens'"),
        ({"tokens": [[1], [2, 3]], "score": 1.0}, "'tokens'"),
        ({"tokens": ["a"], "score": 1.0}, "'tokens'"),
        ({"tokens": [1], "score": np.zeros(1, np.float32)}, r"'score' is float32\[1\]"),
        ({"tokens": [1], "score": "high"}, "'score'"),
        ({"tokens": [1]}, "missing 'score'"),
        ({"tokens": [1], "score": 1.0, "extra": 1}, "unexpected 'extra'"),
        ([1, 2], "a record is a dict"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_nothing_is_written(server, record, said):
    with pytest.raises(SchemaMismatch, match=said):
        server.submit(record)
    assert server.try_read() is None
    assert server.stats()["reserved_records"] == 0


def test_an_empty_list_is_what_a_leaf_without_rows_or_without_room_wants():
    with rollway.RecordServer({"fixed": "int8[0]", "ragged": "int8[*,3]", "none": "int8[*,0]"}) as server:
        server.submit({"fixed": [], "ragged": [], "none": []})
        with server.read() as record:
            assert [leaf.shape for leaf in record.values()] == [(0,), (0, 3), (0, 0)]
    with rollway.RecordServer({"fixed": "int8[3]"}) as server:
        with pytest.raises(SchemaMismatch, match=r"'fixed' is int8\[0\] here but int8\[3\]"):
            server.submit({"fixed": []})


@pytest.mark.parametrize(
    "tokens",
    [
        np.array([1, 2, 3], np.int32),
        np.array([1, 0, 2, 0, 3], np.int32)[::2],
        [1, 2, 3],
        (1, 2, 3),
        np.array([1, 2, 3], ">i4").astype("<i4"),
    ],
)
def test_what_fits_is_taken_in_any_form(server, tokens):
    server.submit({"score": np.float32(2), "tokens": tokens})
    record = server.read()
    assert record["tokens"].tolist() == [1, 2, 3] and record["score"] == 2


@pytest.mark.parametrize(
    ("notation", "value", "said"),
    [
        ("U3[*]", ["hello"], "list of <U5"),
        ("S3[*]", [b"hello"], "list of |S5"),
        ("U3[*]", [1], "list of int64"),
        ("float32[*]", [1.0, 1e300], "list of float64"),
        ("float16[*]", [70000], "list of int64"),
        ("float16[2]", [1.0, -70000.0], "list of float64"),
        ("bfloat16[*]", [1e300], "list of float64"),
        ("bfloat16[*]", [1 + 2j], "list of complex128"),
        ("complex64[*]", [1e300j], "list of complex128"),
        ("float32[]", 1e300, "does not fit"),
        ("float16[]", 70000.0, "does not fit"),
        ("float16[]", 70000, "does not fit"),
    ],
)
def test_a_value_that_would_become_another_is_refused(notation, value, said):
    with rollway.RecordServer({"tokens": "int32[*]", "x": notation}) as server:
        with pytest.raises(SchemaMismatch, match=f"'x' is .*{re.escape(said)}"):
            server.submit({"tokens": [1], "x": value})
        assert server.try_read() is None


@pytest.mark.parametrize(
    ("notation", "value"),
    [
        ("U3[*]", ["hey", "a"]),
        ("float32[*]", [0.1, float("inf"), float("nan")]),
        ("float16[*]", [0.1, 65504]),
        ("float32[]", float("-inf")),
        ("float16[]", float("nan")),
    ],
)
def test_rounding_and_infinities_are_no_change(notation, value):
    with rollway.RecordServer({"tokens": "int32[*]", "x": notation}) as server:
        server.submit({"tokens": [1], "x": value})
        got = server.read()["x"]
        assert np.array_equal(got, np.asarray(value, got.dtype), equal_nan=got.dtype.kind == "f")


def test_a_key_survives_its_packing():
    key = RecordKey("run", "eval", -1, "Straße 🛣", 2**40)
    assert RecordKey.unpack(key.pack()) == key
    assert key.group == ("run", "eval", -1, "Straße 🛣")


@pytest.mark.parametrize(
    "key", [RecordKey(1, "a", 0, "b", 0), RecordKey("r", "p", 2**63, "i", 0), RecordKey("x" * 70_000, "p", 0, "i", 0)]
)
def test_what_is_no_key_is_refused(server, key):
    with pytest.raises(rollway.InvalidArgument, match="is not a key"):
        server.submit({"tokens": [1], "score": 1.0}, key=key)


@pytest.mark.parametrize("packed", [b"", b"short", RecordKey("run", "p", 0, "", 0).pack()[:-2]])
def test_bytes_that_are_no_key_are_an_error(packed):
    with pytest.raises(rollway.InvalidArgument, match="not a key"):
        RecordKey.unpack(packed)


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint64", "float16", "bool"]
)
def test_python_numbers_fit_leaves_that_can_hold_them(dtype):
    good = {"float": [0, -3, 1.5, 1e30], "int": [0, -3, 100], "uint": [0, 100], "bool": [True, False]}
    bad = {"float": ["x", None, 1j], "int": [1.5, 2**63, "x"], "uint": [-1, 2**64, 1.0], "bool": [2, 0.0]}
    kind = dtype.rstrip("0123456789")
    with rollway.RecordServer({"a": f"{dtype}[]", "tokens": "int32[*]", "b": f"{dtype}[]"}) as server:
        for value in good[kind]:
            if dtype == "float16" and value == 1e30:
                continue
            for form in (value, np.asarray(value, dtype), np.dtype(dtype).type(value)):
                server.submit({"a": form, "tokens": [1], "b": value})
                record = server.read()
                assert record["a"] == record["b"] == np.dtype(dtype).type(value) and record["a"].dtype == dtype
        for value in bad[kind]:
            with pytest.raises(SchemaMismatch, match="'b'"):
                server.submit({"a": good[kind][0], "tokens": [1], "b": value})
        if kind in ("int", "uint"):
            limits = np.iinfo(dtype)
            for value in (limits.min, limits.max):
                server.submit({"a": int(value), "tokens": [], "b": int(value)})
                assert int(server.read()["b"]) == value
            for value in (int(limits.min) - 1, int(limits.max) + 1):
                with pytest.raises(SchemaMismatch, match="'a'"):
                    server.submit({"a": value, "tokens": [], "b": 0})
