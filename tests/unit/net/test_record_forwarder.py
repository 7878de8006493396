"""RecordForwarder: one connection for the records of all workers of a node, through lanes of the node."""

import gc

import numpy as np
import pytest

import rollway
from rollway.errors import SegmentInUse, SegmentNotFound
from rollway.inspect import Inspection
from rollway.transport import RecordForwarder
from tests.support.processes import until

SCHEMA = {"tokens": "int32[*]", "score": "float32[]"}
KEY = rollway.RecordKey("run", "train", 4, "item", 2)


def record(step):
    return {"tokens": np.arange(step, dtype=np.int32), "score": step}


@pytest.fixture
def server():
    with rollway.RecordServer(SCHEMA, rollway.TcpTransport(), lane_bytes=64 << 10, max_records=8) as server:
        yield server


def scores_of(server, count):
    """The scores of each worker, in the order in which they came."""
    seen = {}
    for _ in range(count):
        got = server.read(timeout=20)
        assert got["tokens"].tolist() == list(range(int(got["score"])))
        seen.setdefault(got.producer_id, []).append(int(got["score"]))
    return seen


def test_records_of_a_node_reach_the_learner_as_if_its_workers_were_its_own(server, name):
    with RecordForwarder(name, SCHEMA, "localhost", server.port) as forwarder:
        with (
            rollway.ShmRecordClient(name, SCHEMA, producer_id=5) as five,
            rollway.ShmRecordClient(forwarder.name, SCHEMA) as other,
        ):
            five.send(record(0), key=KEY, metadata={"stop": "length"}, version=7)
            got = server.read(timeout=20)
            assert (got.producer_id, got.sequence, got.version) == (5, 0, 7)
            assert (got.key, got.metadata) == (KEY, {"stop": "length"})
            for step in range(1, 6):
                five.send(record(step))
                other.send_many([record(10 + step)])
            assert scores_of(server, 10) == {5: [1, 2, 3, 4, 5], other.producer_id: [11, 12, 13, 14, 15]}
            assert other.producer_id >= 2**31
        forwarder.wait(timeout=20)
        stats = forwarder.stats()
        assert (stats["sent"], stats["acknowledged"], stats["ready_records"]) == (11, 11, 0)
        assert forwarder.connected and not forwarder.over and forwarder.error is None
    assert forwarder.closed and forwarder.over and forwarder.error is None
    assert repr(forwarder) == f"<rollway.RecordForwarder {name!r} to localhost:{server.port}: closed>"


def test_a_worker_behind_a_forwarder_learns_which_weights_are_the_newest(server, name):
    server.publish(4)
    with RecordForwarder(name, SCHEMA, "localhost", server.port):
        with rollway.ShmRecordClient(name, SCHEMA) as worker:
            until(lambda: worker.published_version == 4)


def test_what_a_learner_has_no_room_for_stays_for_the_next_forwarder(server, name):
    forwarder = RecordForwarder(name, SCHEMA, "localhost", server.port)
    with rollway.ShmRecordClient(name, SCHEMA, producer_id=1) as worker:
        for step in range(40):
            worker.send(record(step))
        with pytest.raises(rollway.WaitTimeout, match="records are committed there and not acknowledged, connected"):
            forwarder.wait(timeout=0.05)
        with pytest.raises(rollway.ConnectionClosedError, match=r"records stay in the segment.*same name"):
            forwarder.close(timeout=0.05)
        assert forwarder.closed
        with RecordForwarder(name, SCHEMA, "localhost", server.port):
            assert scores_of(server, 40) == {1: list(range(40))}


def test_an_abandoned_forwarder_leaves_its_records_and_a_discarded_one_ends_its_workers(server, name):
    forwarder = RecordForwarder(name, SCHEMA, "localhost", server.port)
    with rollway.ShmRecordClient(name, SCHEMA, producer_id=1) as worker:
        worker.send(record(0))
        forwarder.wait(timeout=20)
        forwarder.abandon()
        worker.send(record(1))
        forwarder = RecordForwarder(name, SCHEMA, "localhost", server.port)
        assert scores_of(server, 2) == {1: [0, 1]}
        forwarder.discard()
        with pytest.raises(rollway.ConnectionClosedError):
            worker.send(record(2))
    assert forwarder.over and name not in [segment.name for segment in rollway.segments()]


def test_a_forwarder_of_records_that_is_not_closed_leaves_no_empty_segment(server, name):
    forwarder = RecordForwarder(name, SCHEMA, "localhost", server.port)
    with pytest.raises(SegmentInUse, match="has a forwarder or a learner already"):
        RecordForwarder(name, SCHEMA, "localhost", server.port)
    del forwarder
    gc.collect()
    assert name not in [segment.name for segment in rollway.segments()]


def test_a_record_that_the_learner_has_no_lane_for_ends_the_forwarder_and_stays(server, name):
    forwarder = RecordForwarder(name, SCHEMA, "localhost", server.port)
    with rollway.ShmRecordClient(name, SCHEMA) as worker:
        worker.send(record(20_000))
        until(lambda: forwarder.over)
        assert "lane_bytes" in forwarder.error and "1 records stay in the segment" in forwarder.error
        forwarder.discard()
    rollway.gc()


def test_wrong_learners_are_errors_that_say_why(server, name):
    with pytest.raises(rollway.LearnerUnreachable):
        RecordForwarder(name, SCHEMA, "localhost", 1, connect_timeout_s=0.1)
    with pytest.raises(rollway.SchemaMismatch, match="score"):
        RecordForwarder(name, SCHEMA | {"score": "float64[]"}, "localhost", server.port)
    with rollway.Server({"obs": np.zeros(2)}, 1, transport=rollway.TcpTransport()) as samples:
        with pytest.raises(rollway.errors.ProtocolMismatch, match="samples"):
            RecordForwarder(name, SCHEMA, "localhost", samples.port)
    assert name not in [segment.name for segment in rollway.segments()]


@pytest.mark.parametrize("bad", [{"token": ""}, {"ca": "/no/such/file"}])
def test_a_forwarder_that_cannot_be_made_leaves_nothing(server, name, bad):
    with pytest.raises(rollway.RollwayError):
        RecordForwarder(name, SCHEMA, "localhost", server.port, **bad)
    with pytest.raises(SegmentNotFound):
        Inspection(name)
