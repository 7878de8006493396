"""`rollway.inspect.peek`: the newest of each kind of segment, copied and summed up, and nothing consumed."""

import json

import numpy as np
import pytest

import rollway
from rollway.inspect import peek
from rollway.inspect.peek import jsonable
from rollway.replay import TransitionBuffer
from rollway.weights import WeightSync

KEY = rollway.RecordKey("run", "train", 0, "task", 1)


def by_name(seen):
    return {leaf.name: leaf for leaf in seen.leaves}


def test_the_newest_samples_come_first_and_stay_for_the_learner(name):
    example = {"obs": np.zeros(2, np.float32), "done": np.bool_(False)}
    with rollway.Server(example, 4, rollway.ShmTransport(name)) as server:
        for step in range(6):
            server.submit({"obs": np.full(2, step, np.float32), "done": np.bool_(step == 5)}, version=step)
        seen = peek(name, 2)
        assert [item.version for item in seen.items] == [5, 4]
        assert seen.items[0].leaves["obs"].tolist() == [5, 5] and seen.items[0].leaves["done"] == np.True_
        assert seen.schema == {"done": "bool[]", "obs": "float32[2]"}
        leaf = by_name(peek(name, 100))["obs"]
        assert (leaf.values, leaf.minimum, leaf.maximum, leaf.mean, leaf.zeros) == (12, 0, 5, 2.5, 2)
        assert sum(leaf.histogram) == 12
        assert server.sample().batch["obs"][:, 0].tolist() == [0, 1, 2, 3]


def test_nans_and_infinities_are_counted_and_left_out_of_the_range(name):
    with rollway.Server({"reward": np.zeros(4)}, 1, rollway.ShmTransport(name)) as server:
        server.submit({"reward": np.array([np.nan, np.inf, -2.0, 3.0])})
        leaf = by_name(peek(name))["reward"]
        assert (leaf.nans, leaf.infinities, leaf.minimum, leaf.maximum) == (1, 1, -2, 3)
        server.submit({"reward": np.full(4, np.nan)})
        leaf = by_name(peek(name, 1))["reward"]
        assert (leaf.nans, leaf.minimum, leaf.histogram) == (4, None, ())


def test_records_come_with_key_metadata_and_tombstones(name):
    schema = {"tokens": "int32[n]", "mask": "bool[n]", "score": "float32[]"}
    with rollway.RecordServer(schema, rollway.ShmTransport(name)) as server:
        with rollway.ShmRecordClient(name, schema) as client:
            record = {"tokens": [1, 2, 3], "mask": [True, False, True], "score": 0.5}
            messages = [{"role": "user", "content": "2 + 2?"}]
            client.send(record, key=KEY, metadata={"messages": messages}, version=4)
            client.send(record, metadata=b"\xff")
            client.tombstone(KEY, "too long")
            grave, plain, full = peek(name).items
        assert (full.key, full.metadata, full.version) == (KEY, {"messages": messages}, 4)
        assert full.leaves["tokens"].tolist() == [1, 2, 3] and full.leaves["score"] == 0.5
        assert (plain.key, plain.metadata) == (None, b"\xff")
        assert (grave.tombstone, grave.key, grave.metadata, grave.leaves) == (True, KEY, {"reason": "too long"}, {})
        assert by_name(peek(name))["tokens"].values == 6
        server.read().release()
        assert len(peek(name).items) == 2, "what was released is gone"
        assert server.stats()["ready_records"] == 2


def test_rows_of_a_replay_buffer_are_found_from_the_last_one_back(name):
    buffer = TransitionBuffer(4, 1, 1, name=name)
    for step in range(6):
        row = np.full((1, 1), step)
        buffer.add(row, row, row[0], row, np.zeros(1), np.zeros(1))
    seen = peek(name, 10)
    assert [item.leaves["rewards"].item() for item in seen.items] == [5, 4, 3, 2]
    assert seen.items[0].age_s is None
    buffer.close()


def test_the_newest_weights_are_seen_and_a_nan_in_them(name):
    with WeightSync({"a": (3,), "b": {"c": (2, 2)}}, name=name) as writer:
        assert peek(name).items == ()
        writer.write_weights({"a": np.array([1, np.nan, 3], np.float32), "b": {"c": np.eye(2, dtype=np.float32)}})
        seen = peek(name)
        assert (seen.items[0].version, by_name(seen)["a"].nans) == (1, 1)
        assert seen.items[0].leaves["b/c"].tolist() == [[1, 0], [0, 1]]


def test_arrays_that_are_no_numbers_have_no_range(name):
    example = {"text": np.array("abcde"), "pair": np.zeros((), [("x", "<f4"), ("n", "<i2")]), "z": np.complex64(0)}
    with rollway.Server(example, 1, rollway.ShmTransport(name)) as server:
        server.submit(
            {"text": np.array("hello"), "pair": np.zeros((), example["pair"].dtype), "z": np.complex64(3 + 4j)}
        )
        seen = peek(name)
        assert by_name(seen)["text"].minimum is None and by_name(seen)["pair"].values == 1
        assert by_name(seen)["z"].maximum == 5
        assert json.loads(json.dumps(jsonable(seen), allow_nan=False))["items"][0]["leaves"]["text"]["values"] == [
            "hello"
        ]


def test_json_has_text_for_what_json_does_not_have(name):
    with rollway.Server({"reward": np.zeros(2)}, 1, rollway.ShmTransport(name)) as server:
        server.submit({"reward": np.array([np.nan, 1.0])})
        text = json.dumps(jsonable(peek(name)), allow_nan=False)
        assert json.loads(text)["items"][0]["leaves"]["reward"] == {"shape": [2], "values": ["nan", 1.0]}


def test_what_has_nothing_to_show_says_so(name):
    with rollway.Server({"x": np.zeros(1)}, 1, rollway.ShmTransport(name)):
        seen = peek(name)
        assert seen.items == () and seen.leaves[0].values == 0
        with pytest.raises(rollway.InvalidArgument, match="at least 1"):
            peek(name, 0)
    with pytest.raises(rollway.SegmentNotFound):
        peek(name)
