"""Leaves with the same letter as their first dimension have one length in each record: unequal ones are refused."""

import contextlib
import re

import numpy as np
import pytest

import rollway
from rollway.schema.record import RecordSchema
from tests.support.segments import overwrite

SCHEMA = {
    "tokens": "int32[n]",
    "logprobs": "float32[n]",
    "image": "uint8[m,2]",
    "notes": "int8[*]",
    "score": "float32[]",
}
UNEQUAL = r"leaf 'tokens' has length 4 and leaf 'logprobs' has length 3; the schema ties them"


def record(tokens=4, logprobs=4, image=2, notes=1):
    return {
        "tokens": np.arange(tokens, dtype=np.int32),
        "logprobs": np.zeros(logprobs, np.float32),
        "image": np.zeros((image, 2), np.uint8),
        "notes": np.zeros(notes, np.int8),
        "score": np.float32(1),
    }


@contextlib.contextmanager
def submitting(name):
    with rollway.RecordServer(SCHEMA) as server:
        yield server, server.submit, server.submit_many, None


@contextlib.contextmanager
def sharing(name):
    with (
        rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server,
        rollway.ShmRecordClient(name, SCHEMA) as client,
    ):
        yield server, client.send, client.send_many, client.reserve


@contextlib.contextmanager
def connected(name):
    with (
        rollway.RecordServer(SCHEMA, rollway.TcpTransport()) as server,
        rollway.TcpRecordClient("127.0.0.1", server.port, SCHEMA) as client,
    ):
        yield server, client.send, client.send_many, client.reserve


@pytest.mark.parametrize("way", [submitting, sharing, connected])
def test_unequal_lengths_of_tied_leaves_are_refused_with_their_names(way, name):
    with way(name) as (server, send, send_many, reserve):
        with pytest.raises(rollway.SchemaMismatch, match=UNEQUAL):
            send(record(logprobs=3))
        with pytest.raises(rollway.SchemaMismatch, match=UNEQUAL):
            send({**record(logprobs=3), "tokens": [1, 2, 3, 4], "score": 1})
        with pytest.raises(rollway.SchemaMismatch, match=f"record 1: {UNEQUAL}"):
            send_many([record(), record(logprobs=3)])
        if reserve is not None:
            lengths = {"tokens": 4, "logprobs": 4, "image": 9, "notes": 0}
            with pytest.raises(rollway.SchemaMismatch, match=UNEQUAL):
                reserve(lengths | {"logprobs": 3})
            with reserve(lengths) as slot:
                slot["tokens"][:] = 7
                with pytest.raises(rollway.SchemaMismatch, match=r"length 2 and leaf 'logprobs' has length 1"):
                    slot.commit(lengths | {"tokens": 2, "logprobs": 1})
                slot.commit(lengths | {"tokens": 2, "logprobs": 2})
            assert server.read(timeout=10)["tokens"].tolist() == [7, 7]
        send(record(image=9))
        assert len(server.read(timeout=10)["tokens"]) == 4
        assert server.try_read() is None


def test_the_other_letters_and_the_star_have_lengths_of_their_own(name):
    with sharing(name) as (server, send, _, _):
        send(record(tokens=5, logprobs=5, image=1, notes=7))
        read = server.read(timeout=10)
        assert [len(read[leaf]) for leaf in ("tokens", "logprobs", "image", "notes")] == [5, 5, 1, 7]


def test_a_tombstone_has_no_lengths(name):
    with sharing(name) as (server, *_), rollway.ShmRecordClient(name, SCHEMA) as client:
        client.tombstone(rollway.RecordKey("run", "train", 0, "task", 0))
        assert server.read(timeout=10).is_tombstone


@pytest.mark.parametrize("theirs", ["float32[*]", "float32[m]"])
def test_a_worker_that_ties_otherwise_is_told_which_leaf(theirs, name):
    other = {**SCHEMA, "logprobs": theirs}
    said = re.escape(f"leaf 'logprobs' is {theirs} here but float32[n]")
    with sharing(name) as (server, *_):
        with pytest.raises(rollway.SchemaMismatch, match=said):
            rollway.ShmRecordClient(name, other)
    with connected(name) as (server, *_):
        with pytest.raises(rollway.SchemaMismatch, match=said):
            rollway.TcpRecordClient("127.0.0.1", server.port, other)


def test_bytes_that_break_a_tie_are_damage_and_not_data(name):
    """Of a process that knows nothing of the tie: its counts lie in front of each record."""
    with sharing(name) as (server, send, _, _):
        send(record(tokens=123, logprobs=123))
        counts = np.array([123, 123], "<u4").tobytes()
        overwrite(name, counts, np.array([123, 122], "<u4").tobytes())
        with pytest.raises(rollway.errors.SegmentDamaged, match="tied have different lengths"):
            server.read(timeout=10)


def test_a_remote_worker_that_breaks_a_tie_is_refused(name):
    class Lying(RecordSchema):
        """Says that it is the learner's schema, and does not check."""

        text = property(lambda _: RecordSchema(SCHEMA).text)

    with connected(name) as (server, *_):
        liar = rollway.TcpRecordClient("127.0.0.1", server.port, Lying({**SCHEMA, "logprobs": "float32[*]"}))
        with pytest.raises(rollway.ConnectionClosedError, match="does not fit"):
            liar.send(record(logprobs=3))
            liar.wait(timeout=10)
        with contextlib.suppress(rollway.ConnectionClosedError):
            liar.close()
        assert server.stats()["tcp_refused_records"] == 1


def test_the_schema_is_the_same_when_it_is_read_from_its_text():
    schema = RecordSchema(SCHEMA)
    again = RecordSchema.from_text(schema.text)
    assert again.text == schema.text and again["tokens"] == schema["tokens"] and str(again["image"]) == "uint8[m,2]"
    pair = RecordSchema({"tokens": (("n",), np.int32)})
    assert pair["tokens"] == schema["tokens"]


@pytest.mark.parametrize("wrong", ["int32[nn]", "int32[4,n]", "int32[n,n]", "int32[ä]", "int32[-]"])
def test_only_one_letter_in_front_ties(wrong):
    with pytest.raises(rollway.SchemaMismatch, match=r"only its first dimension may be '\*' or a letter"):
        RecordSchema({"tokens": wrong})


def test_samples_have_one_shape(name):
    with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'x' is float32\[n\]: samples have one shape"):
        rollway.Server({"x": "float32[n]"}, 1)
