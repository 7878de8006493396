"""Records as padded and packed batches, against the plain way of doing it."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollway

SCHEMA = {"tokens": "int32[*]", "hidden": "float16[*,3]", "score": "float32[]", "flags": "uint8[*]"}


def data(n, flags=2):
    return {
        "tokens": np.arange(n, dtype=np.int32) + 100 * n,
        "hidden": np.arange(3 * n, dtype=np.float16).reshape(n, 3),
        "score": np.float32(n),
        "flags": np.arange(flags, dtype=np.uint8),
    }


@pytest.fixture(scope="module")
def server():
    with rollway.RecordServer(SCHEMA) as server:
        yield server


def records(server, lengths):
    for n in lengths:
        server.submit(data(n), timeout=10)
    got = []
    while len(got) < len(lengths):
        got += server.read_many(len(lengths) - len(got), timeout=10)
    return got


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    left=st.booleans(),
    extra=st.none() | st.integers(0, 9),
)
def test_padding_is_what_a_loop_would_make(server, lengths, left, extra):
    taken = records(server, lengths)
    length = None if extra is None else max(max(lengths), 2) + extra
    batch = rollway.pad(taken, length=length, side="left" if left else "right", fill={"tokens": -1, "hidden": 0.5})
    width = max(lengths) if length is None else length
    for row, n in enumerate(lengths):
        at = slice(width - n, width) if left else slice(0, n)
        tokens, hidden = np.full(width, -1, np.int32), np.full((width, 3), 0.5, np.float16)
        tokens[at], hidden[at] = data(n)["tokens"], data(n)["hidden"]
        assert np.array_equal(batch.fields["tokens"][row], tokens)
        assert np.array_equal(batch.fields["hidden"][row], hidden)
        mask = np.zeros(width, np.int8)
        mask[at] = 1
        assert np.array_equal(batch.mask[row], mask)
    assert batch.lengths.tolist() == lengths and batch.fields["score"].tolist() == lengths
    assert batch.fields["flags"].shape == (len(lengths), 2 if length is None else length)


@settings(deadline=None, max_examples=60)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12))
def test_packing_is_concatenation(server, lengths):
    batch = rollway.pack(records(server, lengths))
    assert np.array_equal(batch.fields["tokens"], np.concatenate([data(n)["tokens"] for n in lengths]))
    assert np.array_equal(batch.fields["hidden"], np.concatenate([data(n)["hidden"] for n in lengths]))
    assert batch.cu_seqlens.dtype == np.int32 and batch.cu_seqlens.tolist() == [0, *np.cumsum(lengths)]
    assert batch.max_length == max(lengths) and batch.fields["score"].tolist() == lengths


@settings(deadline=None, max_examples=60)
@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12), budget=st.integers(30, 90), packed=st.booleans())
def test_token_batches_keep_within_the_budget_and_lose_nothing(server, lengths, budget, packed):
    taken = records(server, lengths)
    batches = rollway.token_batches(taken, budget, layout="packed" if packed else "padded")
    assert [record for batch in batches for record in batch] == taken
    sizes = [[len(record["tokens"]) for record in batch] for batch in batches]
    cost = (lambda one: sum(one)) if packed else (lambda one: len(one) * max(one))
    assert all(cost(one) <= budget for one in sizes)
    for one, after in itertools.pairwise(sizes):
        assert cost([*one, after[0]]) > budget, "a batch was closed before it was full"


def test_a_record_beyond_the_budget_is_named(server):
    with pytest.raises(rollway.InvalidArgument, match="record 1"):
        rollway.token_batches(records(server, [3, 50]), 40, layout="packed")


def test_nothing_is_cut(server):
    with pytest.raises(rollway.InvalidArgument, match=r"record 1 has 9 rows of 'tokens', more than length = 5"):
        rollway.pad(records(server, [3, 9]), length=5, leaves=["tokens"])


def test_batches_go_straight_into_tensors(server, torch):
    taken = records(server, [2, 4])
    out = {"tokens": torch.full((2, 4), 7, dtype=torch.int32), "mask": torch.empty(2, 4, dtype=torch.int8)}
    batch = rollway.pad(taken, leaves=["tokens", "score"], out=out)
    assert batch.fields["tokens"] is out["tokens"] and batch.mask is out["mask"]
    assert out["tokens"].tolist() == [[200, 201, 0, 0], [400, 401, 402, 403]]
    room = torch.zeros(100, dtype=torch.int32)
    packed = rollway.pack(taken, leaves=["tokens"], out={"tokens": room})
    assert packed.fields["tokens"].data_ptr() == room.data_ptr() and packed.fields["tokens"].shape == (6,)
    assert room[:6].tolist() == [200, 201, 400, 401, 402, 403] and room[6:].sum() == 0


def test_the_torch_view_shares_the_memory(server, torch):
    batch = rollway.pad(records(server, [2]))
    tensors = batch.torch()
    assert tensors.fields["tokens"].data_ptr() == batch.fields["tokens"].ctypes.data
    packed = rollway.pack(records(server, [2, 3])).torch()
    assert packed.cu_seqlens.tolist() == [0, 2, 5] and packed.cu_seqlens.dtype == torch.int32


def test_bfloat16_goes_to_torch(torch):
    with rollway.RecordServer({"x": "bfloat16[*]"}) as server:
        server.submit({"x": torch.tensor([1.5, -2.0], dtype=torch.bfloat16)})
        fields = rollway.pad(server.read_many(1)).torch().fields
        assert fields["x"].dtype == torch.bfloat16 and fields["x"].tolist() == [[1.5, -2.0]]


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ({"tokens": np.zeros((2, 4), np.int64)}, r"out\['tokens'\] is int64\[2,4\], but the batch needs int32\[2,4\]"),
        ({"tokens": np.zeros((2, 3), np.int32)}, r"needs int32\[2,4\]"),
        ({"nothing": np.zeros(1)}, "'nothing', which the batch does not"),
        ({"tokens": np.zeros((4, 2), np.int32).T}, "contiguous"),
    ],
)
def test_an_output_that_does_not_fit_is_refused(server, out, said):
    with pytest.raises(rollway.InvalidArgument, match=said):
        rollway.pad(records(server, [2, 4]), leaves=["tokens"], out=out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"out": np.zeros((2, 4), np.int32)}, "out is a ndarray; give a dict by leaf"),
        ({"out": {"tokens": [[0] * 4] * 2}}, r"out\['tokens'\] is a list; it must be a numpy array or a CPU tensor"),
        ({"out": {"tokens": np.zeros((2, 8), np.int32)[:, ::2]}}, r"out\['tokens'\] must be contiguous, and writable"),
        (
            {"out": {"tokens": np.broadcast_to(np.int32(0), (2, 4))}},
            r"out\['tokens'\] must be contiguous, and writable",
        ),
        ({"fill": -1}, r"fill is -1; give it by leaf, like {'tokens': -1}"),
        ({"leaves": "tokens"}, r"leaves is the text 'tokens'; give a list, like \['tokens'\]"),
        ({"leaves": []}, "the batch has no ragged leaf"),
    ],
)
def test_what_is_given_in_another_form_is_refused_by_name(server, arguments, said):
    with pytest.raises(rollway.InvalidArgument, match=said):
        rollway.pad(records(server, [2, 4]), **{"leaves": ["tokens"], **arguments})


def test_a_tensor_on_another_device_is_refused_by_name(server, torch):
    elsewhere = torch.zeros((2, 4), dtype=torch.int32, device="meta")
    with pytest.raises(rollway.InvalidArgument, match=r"out\['tokens'\] is on meta; it must"):
        rollway.pad(records(server, [2, 4]), leaves=["tokens"], out={"tokens": elsewhere})


def test_an_output_without_dimensions_is_refused(server):
    with pytest.raises(rollway.InvalidArgument, match=r"is int32\[\], but the batch needs int32\[6\]"):
        rollway.pack(records(server, [2, 4]), leaves=["tokens"], out={"tokens": np.zeros((), np.int32)})


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        ({"tokenz": -1}, "'tokenz', which is no ragged leaf; those are tokens, hidden, flags"),
        ({"score": -1}, "'score', which is no ragged leaf"),
        ({"tokens": 1.7}, r"fill\['tokens'\] is 1.7, which is no int32"),
        ({"tokens": 2**40}, "no int32"),
        ({"tokens": 2**70}, "no int32"),
        ({"tokens": float("nan")}, "no int32"),
        ({"tokens": "x"}, "no int32"),
        ({"tokens": [7, 8]}, "no int32"),
        ({"flags": -1}, "no uint8"),
        ({"hidden": 1e300}, r"no float16 or a row of \[3\]"),
    ],
)
def test_a_filling_that_would_not_be_what_was_asked_for_is_refused(server, fill, said):
    with pytest.raises(rollway.InvalidArgument, match=said):
        rollway.pad(records(server, [2, 4]), fill=fill)


def test_a_filling_may_be_any_number_that_the_leaf_can_hold(server):
    fill = {"tokens": -100.0, "hidden": [0.1, 2, float("-inf")], "flags": True}
    fields = rollway.pad(records(server, [0, 1]), length=3, fill=fill).fields
    assert fields["tokens"][0].tolist() == [-100] * 3 and fields["flags"][0].tolist() == [0, 1, 1]
    assert np.array_equal(fields["hidden"][0], np.array([fill["hidden"]] * 3, np.float16))
    assert rollway.pad(records(server, [1]), leaves=["flags"], fill=fill, length=3).fields["flags"][0, 2] == 1


@pytest.mark.parametrize("length", [-1, 2**62, 2**63, 10**100])
def test_a_length_that_no_array_can_have_is_refused_with_its_range(server, length):
    with pytest.raises(rollway.InvalidArgument, match=rf"length = {length} is out of range: 0 to [\d,]+ for 2 records"):
        rollway.pad(records(server, [0, 0]), length=length)


def test_released_records_and_empty_batches_are_refused(server):
    taken = records(server, [2])
    taken[0].release()
    with pytest.raises(rollway.InvalidArgument, match="released"):
        rollway.pad(taken)
    with pytest.raises(rollway.InvalidArgument, match="at least one"):
        rollway.pack([])
    with pytest.raises(rollway.InvalidArgument, match="no leaf 'x'"):
        rollway.pack(records(server, [1]), leaves=["x"])
    with pytest.raises(rollway.InvalidArgument, match="no ragged leaf"):
        rollway.pad(records(server, [1]), leaves=["score"])
    assert rollway.token_batches([], 10, layout="packed") == []


def test_records_of_two_schemas_do_not_make_a_batch(server):
    with rollway.RecordServer({"tokens": "int32[*]"}) as other:
        other.submit({"tokens": [1]})
        with pytest.raises(rollway.SchemaMismatch, match="one schema"):
            rollway.pad([*records(server, [1]), other.read()], leaves=["tokens"])
