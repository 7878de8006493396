"""Forwarder: one connection for all workers of a node, through a ring of the node."""

import contextlib
import gc

import numpy as np
import pytest

import rollway
from rollway._core import discard_forwarded
from rollway.errors import SegmentInUse, SegmentNotFound
from rollway.inspect import Inspection, why
from rollway.metrics import segments_openmetrics
from rollway.transport import Forwarder
from tests.support.processes import until

EXAMPLE = {"step": np.int64(0), "obs": np.zeros(3, np.float32)}


def sample(step):
    return {"step": step, "obs": np.full(3, step, np.float32)}


@pytest.fixture
def server():
    with rollway.Server(EXAMPLE, batch_size=4, transport=rollway.TcpTransport(), num_buffers=4) as server:
        yield server


def take(server):
    """The next batch, also an unfinished one."""
    while True:
        with contextlib.suppress(rollway.WaitTimeout):
            return server.sample(timeout=0.01, at_least=1)


def steps_of(server, count):
    """The steps of each worker, in the order in which they came."""
    seen = {}
    left = count
    while left > 0:
        got = take(server)
        for producer, step in zip(got.info.producer_ids.tolist(), got.batch["step"].tolist(), strict=True):
            seen.setdefault(producer, []).append(step)
        left -= got.info.size
    assert left == 0
    return seen


def test_workers_of_a_node_reach_the_learner_through_its_forwarder(server, name):
    with Forwarder(name, EXAMPLE, "localhost", server.port) as forwarder:
        with (
            rollway.ShmClient(name, EXAMPLE, producer_id=5) as five,
            rollway.ShmClient(forwarder.name, EXAMPLE) as other,
        ):
            for step in range(6):
                five.send(sample(step), version=step)
                other.send(sample(10 + step))
            assert steps_of(server, 12) == {5: list(range(6)), other.producer_id: list(range(10, 16))}
            assert other.producer_id >= 2**31
        forwarder.wait(timeout=20)
        stats = forwarder.stats()
        assert (stats["sent"], stats["acknowledged"], stats["ready_samples"]) == (12, 12, 0)
        assert forwarder.connected and not forwarder.over and forwarder.error is None
    assert forwarder.closed and forwarder.over and forwarder.error is None
    assert repr(forwarder) == f"<rollway.Forwarder {name!r} to localhost:{server.port}: closed>"


def test_a_worker_learns_that_the_forwarder_is_closed(server, name):
    forwarder = Forwarder(name, EXAMPLE, "localhost", server.port)
    with rollway.ShmClient(name, EXAMPLE) as worker:
        worker.send(sample(0))
        forwarder.close()
        forwarder.close()
        with pytest.raises(rollway.ConnectionClosedError):
            worker.send(sample(1))
    assert list(steps_of(server, 1).values()) == [[0]]


def test_a_second_forwarder_of_that_name_is_refused(server, name):
    with Forwarder(name, EXAMPLE, "localhost", server.port):
        with pytest.raises(SegmentInUse, match="has a forwarder or a learner already"):
            Forwarder(name, EXAMPLE, "localhost", server.port)


def test_what_a_learner_has_no_room_for_stays_for_the_next_forwarder(server, name):
    forwarder = Forwarder(name, EXAMPLE, "localhost", server.port)
    with rollway.ShmClient(name, EXAMPLE, producer_id=1) as worker:
        for step in range(40):
            worker.send(sample(step))
        with pytest.raises(rollway.WaitTimeout, match="are committed there and not acknowledged, connected"):
            forwarder.wait(timeout=0.05)
        with pytest.raises(rollway.ConnectionClosedError, match=f"samples stay in the segment.*same name|{name}"):
            forwarder.close(timeout=0.05)
        assert forwarder.closed
        with Forwarder(name, EXAMPLE, "localhost", server.port):
            assert steps_of(server, 40) == {1: list(range(40))}


def test_a_forwarder_that_is_not_closed_leaves_nothing_behind_but_samples(server, name):
    forwarder = Forwarder(name, EXAMPLE, "localhost", server.port)
    del forwarder
    gc.collect()
    assert name not in [segment.name for segment in rollway.segments()]


def test_a_learner_that_never_comes_is_an_error_and_leaves_no_segment(name):
    with pytest.raises(rollway.LearnerUnreachable):
        Forwarder(name, EXAMPLE, "localhost", 1, connect_timeout_s=0.1)
    assert name not in [segment.name for segment in rollway.segments()]


def test_a_learner_with_another_schema_is_an_error_that_names_the_leaf(server, name):
    with pytest.raises(rollway.SchemaMismatch, match="obs"):
        Forwarder(name, EXAMPLE | {"obs": np.zeros(4, np.float32)}, "localhost", server.port)


def test_a_server_of_records_refuses_a_forwarder(name):
    with rollway.RecordServer({"tokens": "int32[*]"}, transport=rollway.TcpTransport()) as records:
        with pytest.raises(rollway.errors.ProtocolMismatch, match="records"):
            Forwarder(name, EXAMPLE, "localhost", records.port)


def test_a_learner_that_closes_ends_a_forwarder_that_raises(name):
    with rollway.Server(EXAMPLE, batch_size=4, transport=rollway.TcpTransport()) as server:
        forwarder = Forwarder(name, EXAMPLE, "localhost", server.port, on_restart="raise")
    until(lambda: forwarder.over)
    assert "has ended" in forwarder.error
    with pytest.raises(rollway.ConnectionClosedError, match="samples stay in the segment"):
        forwarder.wait(timeout=20)


@pytest.mark.parametrize("sizes", [{"rows": 1, "num_buffers": 2}, {"rows": 3}, {"num_buffers": 5}])
def test_the_sizes_of_the_ring_can_be_chosen(server, name, sizes):
    with Forwarder(name, EXAMPLE, "localhost", server.port, **sizes) as forwarder:
        with rollway.ShmClient(name, EXAMPLE) as worker:
            for step in range(9):
                worker.send(sample(step))
            assert list(steps_of(server, 9).values()) == [list(range(9))]
        stats = forwarder.stats()
        assert stats["batch_size"] == sizes.get("rows", 1024)


def test_a_forwarder_that_is_discarded_ends_its_workers(server, name):
    forwarder = Forwarder(name, EXAMPLE, "localhost", server.port, rows=4)
    with rollway.ShmClient(name, EXAMPLE) as worker:
        worker.send(sample(0))
        forwarder.discard()
        with pytest.raises(rollway.ConnectionClosedError):
            worker.send(sample(1))
    forwarder.discard()
    assert forwarder.over


def test_a_ring_that_no_forwarder_comes_back_for_can_be_removed(server, name):
    forwarder = Forwarder(name, EXAMPLE, "localhost", server.port, rows=4)
    with rollway.ShmClient(name, EXAMPLE) as worker:
        with pytest.raises(SegmentInUse):
            discard_forwarded(name)
        forwarder.abandon()
        worker.send(sample(0))
        discard_forwarded(name)
        with pytest.raises(rollway.ConnectionClosedError):
            worker.send(sample(1))
    with pytest.raises(SegmentNotFound):
        discard_forwarded(name)


def test_a_forwarder_that_is_abandoned_leaves_the_ring_to_the_next(server, name):
    forwarder = Forwarder(name, EXAMPLE, "localhost", server.port, rows=4)
    with rollway.ShmClient(name, EXAMPLE, producer_id=1) as worker:
        worker.send(sample(0))
        forwarder.wait(timeout=20)
        forwarder.abandon()
        worker.send(sample(1))
        with Forwarder(name, EXAMPLE, "localhost", server.port, rows=4):
            assert steps_of(server, 2) == {1: [0, 1]}


def test_whoever_looks_at_the_ring_of_a_node_sees_a_forwarder(server, name):
    with Forwarder(name, EXAMPLE, "localhost", server.port), rollway.ShmClient(name, EXAMPLE):
        assert [one.role for one in Inspection(name).look().takers] == ["forwarder"]
        first, takers, _ = why(name, seconds=0.05).lines
        assert "forwarder" in first and takers.startswith("forwarder: pid ")
        exported = segments_openmetrics(name)
        assert f'role="forwarder",segment="{name}",state="alive"}} 1.0' in exported
        assert f'role="learner",segment="{name}"' not in exported


@pytest.mark.parametrize("bad", [{"token": ""}, {"ca": "/no/such/file"}])
def test_a_forwarder_that_cannot_be_made_leaves_nothing(server, name, bad):
    with pytest.raises(rollway.RollwayError):
        Forwarder(name, EXAMPLE, "localhost", server.port, **bad)
    with pytest.raises(SegmentNotFound):
        Inspection(name)
