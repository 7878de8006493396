"""Groups as records and back, for anything that a group may hold; and names for anything that an item may be."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rollway
from rollway.integrations.atropos import ATROPOS_SCHEMA, decode_group, decode_trajectory, encode_group
from rollway.integrations.atropos.identity import instance_id
from rollway.records import metadata as record_metadata


class Arrived:
    """What a reader gets, without the ring: the metadata has been JSON, and the arrays fit the schema."""

    def __init__(self, encoded, repetition):
        self.key = rollway.RecordKey("run", "train", 0, "task", repetition)
        self.metadata = record_metadata.decode(record_metadata.encode(encoded.metadata))
        schema = rollway.RecordSchema(ATROPOS_SCHEMA)
        assert list(encoded.data) == list(schema)
        self.fields = dict(zip(schema, schema.conform(encoded.data), strict=True))

    def __getitem__(self, leaf):
        return self.fields[leaf]


def there_and_back(group):
    records = [Arrived(encoded, repetition) for repetition, encoded in enumerate(encode_group(group))]
    return decode_group(reversed(records))


token = st.integers(-(2**31), 2**31 - 1)
number = st.floats(allow_nan=False) | st.integers(-(2**60), 2**60)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def groups(draw):
    size = draw(st.integers(1, 5))

    def each(of):
        return st.lists(of, min_size=size, max_size=size)

    group = {
        "tokens": draw(each(st.lists(token, max_size=20))),
        "masks": draw(each(st.lists(token, max_size=20))),
        "scores": draw(each(number)),
    }
    numbers = st.lists(number, max_size=20) | number | st.none()
    optional = {
        "advantages": each(numbers) | st.just([]),
        "ref_logprobs": each(numbers) | st.just([]),
        "inference_logprobs": each(numbers),
        "messages": each(json_value) | st.just([]),
        "generation_params": st.dictionaries(st.text(), json_value, max_size=3),
        "group_overrides": st.dictionaries(st.text(), json_value, max_size=3),
        "overrides": each(st.dictionaries(st.text(), json_value, max_size=3)),
        "images": json_value | each(json_value),
        "distill_token_ids": each(st.lists(st.lists(token, min_size=2, max_size=2) | st.lists(token), max_size=6)),
        "distill_logprobs": each(st.lists(st.lists(number, max_size=3), max_size=6)),
        "env_id": st.integers(0, 9),
        "something new": json_value,
    }
    for name, values in optional.items():
        presence = draw(st.sampled_from(["absent", "none", "there"]))
        if presence != "absent":
            group[name] = draw(values) if presence == "there" else None
    return group


@settings(max_examples=150, deadline=None)
@given(groups())
def test_any_group_comes_back_equal(group):
    before = json.dumps(group, default=repr)
    assert there_and_back(group) == group
    assert json.dumps(group, default=repr) == before, "encoding left the group as it was"


def test_numbers_travel_as_arrays_and_the_rest_as_metadata():
    group = {
        "tokens": [[5, 6, 7], [5, 8]],
        "masks": [[-100, 6, 7], [-100, 8]],
        "scores": [1, False],
        "inference_logprobs": [[1.0, -0.1, -math.inf], [1.0, -0.3]],
        "advantages": [0.5, -0.5],
        "distill_token_ids": [[[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4]]],
        "messages": [[{"role": "user", "content": "hi"}], []],
        "generation_params": {"n": 2},
        "images": None,
    }
    first, second = encode_group(group)
    assert first.data["inference_logprobs"].tolist() == [1.0, -0.1, -math.inf]
    assert second.data["distill_token_ids"].tolist() == [1, 2, 3, 4]
    assert (second.data["score"], second.data["advantages"].tolist()) == (0.0, [-0.5])
    assert first.metadata["own"] == {"messages": [{"role": "user", "content": "hi"}]}
    assert first.metadata["whole"] == second.metadata["whole"] == {"generation_params": {"n": 2}, "images": None}
    assert first.metadata["group_size"] == 2
    alone = decode_trajectory(Arrived(second, 1))
    assert (alone["scores"], alone["messages"], alone["generation_params"]) == (0.0, [], {"n": 2})
    assert alone["distill_token_ids"].tolist() == [[1, 2], [3, 4]]


def test_arrays_and_tensors_are_as_good_as_lists():
    group = {
        "tokens": [np.array([1, 2], np.int64), torch.tensor([3])],
        "masks": np.array([[1, 2], [3, 4]]),
        "scores": torch.tensor([0.5, 0.25]),
        "images": [np.zeros((2, 2), np.uint8), b"\x00png"],
        "generation_params": {"temperature": np.float32(0.5)},
    }
    assert there_and_back(group) == {
        "tokens": [[1, 2], [3]],
        "masks": [[1, 2], [3, 4]],
        "scores": [0.5, 0.25],
        "images": [[[0, 0], [0, 0]], b"\x00png"],
        "generation_params": {"temperature": 0.5},
    }


@pytest.mark.parametrize(
    ("group", "complaint"),
    [
        ({"tokens": [[2**31]], "masks": [[1]], "scores": [1.0]}, "'tokens' of trajectory 0 .* 32 bits"),
        ({"tokens": [[1]], "masks": [[0.5]], "scores": [1.0]}, "'masks' of trajectory 0"),
        ({"tokens": [[1], [2]], "masks": [[1]], "scores": [1.0]}, "they have {'tokens': 2, 'masks': 1, 'scores': 1}"),
        ({"tokens": [], "masks": [], "scores": []}, "one entry for each trajectory"),
        ({"tokens": [[1]], "masks": None, "scores": [1.0]}, "needs 'masks'"),
        ({"tokens": [[1]], "masks": [[1]], "scores": [1.0], "images": object()}, "field 'images' holds a object"),
    ],
)
def test_what_cannot_be_sent_is_named(group, complaint):
    with pytest.raises(rollway.RollwayError, match=complaint):
        encode_group(group)


def test_half_a_group_is_not_taken_for_a_whole_one():
    records = [
        Arrived(encoded, repetition)
        for repetition, encoded in enumerate(
            encode_group({"tokens": [[1]] * 3, "masks": [[1]] * 3, "scores": [1.0] * 3})
        )
    ]
    with pytest.raises(rollway.InvalidArgument, match=r"has 3 trajectories; these are \[0, 2\]"):
        decode_group([records[0], records[2]])
    with pytest.raises(rollway.InvalidArgument, match="at least one"):
        decode_group([])
    records[1].key = records[1].key._replace(step=1)
    with pytest.raises(rollway.InvalidArgument, match="different groups"):
        decode_group(records)


@pytest.mark.parametrize(
    "odd",
    [
        {"leaves": {"tokens": [7]}},
        {"leaves": {"tokens": "x"}},
        {"leaves": {"nothing": None}},
        {"leaves": {"scores": None, "tokens": None}, "own": {"masks": {"MARKER": "x"}}},
        {"bytes": "", "whole": {"a": {"": "not base64"}}},
        {"own": []},
        {"group_size": 10**12},
        {"group_size": True},
    ],
)
def test_a_description_that_makes_no_sense_is_an_error_that_names_the_record(odd):
    encoded = encode_group({"tokens": [[1, 2]], "masks": [[1, 2]], "scores": [1.0]})[0]
    marker = encoded.metadata["bytes"]
    said = json.loads(json.dumps({**encoded.metadata, **odd}).replace("MARKER", marker))
    record = Arrived(encoded._replace(metadata=said), 0)
    for decode in (decode_trajectory, lambda record: decode_group([record])):
        with pytest.raises(rollway.InvalidArgument, match="RecordKey\\(run='run'"):
            decode(record)


def test_the_same_item_has_the_same_name_in_every_process():
    code = """
from rollway.integrations.atropos.identity import instance_id
message = frozenset({"role": "user", "content": "what is 2 + 2?"}.items())
print(instance_id((tuple([message]), "4", {"b": {1, 2, "x"}, "a": None})))
"""
    names = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(names) == 1
    assert len(names.pop().strip()) == 16


def test_an_item_with_an_id_of_its_own_keeps_it():
    assert instance_id({"task_id": "HumanEval/3", "prompt": "…"}) == "HumanEval/3"
    assert instance_id({"id": 0}) == "0"
    assert instance_id(np.int64(7)) == instance_id(7) == instance_id("7") == "7"
    assert instance_id({"id": None, "q": 1}) != instance_id({"id": None, "q": 2})
    assert instance_id(["a", "b"]) != instance_id(["ab"])
    with pytest.raises(TypeError, match=r"holds a object.*instance_id=lambda"):
        instance_id(object())
