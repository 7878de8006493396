"""connect_timeout_s: every kind of worker waits that long for its learner, and no longer."""

import contextlib
import inspect
import socket
import threading

import numpy as np
import pytest

import rollway

ONE = np.zeros(1, np.int64)
SCHEMA = {"tokens": "int32[*]"}
WEIGHTS = {"w": np.zeros(2, np.float32)}


@contextlib.contextmanager
def weights_on(port):
    with rollway.SharedWeightSync.from_state_dict(WEIGHTS) as sync, sync.serve(rollway.TcpTransport(port=port)):
        yield


# The worker, and its learner, at a name or a port.
BY_NAME = {
    "ShmClient": (
        lambda name, limit: rollway.ShmClient(name, ONE, connect_timeout_s=limit),
        lambda name: rollway.Server(ONE, 1, rollway.ShmTransport(name)),
    ),
    "ShmRecordClient": (
        lambda name, limit: rollway.ShmRecordClient(name, SCHEMA, connect_timeout_s=limit),
        lambda name: rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)),
    ),
    "SharedWeightSync": (
        lambda name, limit: rollway.SharedWeightSync.attach(name, connect_timeout_s=limit),
        lambda name: rollway.SharedWeightSync.from_state_dict(WEIGHTS, shm_name=name),
    ),
    "ReplayBuffer": (
        lambda name, limit: rollway.ReplayBuffer.attach(name, connect_timeout_s=limit),
        lambda name: rollway.ReplayBuffer(4, 2, 1, name=name),
    ),
    "RolloutRingBuffer": (
        lambda name, limit: rollway.RolloutRingBuffer.attach(name, 2, 3, 4, 1, connect_timeout_s=limit),
        lambda name: rollway.RolloutRingBuffer(2, 3, 4, 1, shm_name_prefix=name),
    ),
}
BY_PORT = {
    "TcpClient": (
        lambda port, limit: rollway.TcpClient("127.0.0.1", port, ONE, connect_timeout_s=limit),
        lambda port: rollway.Server(ONE, 1, rollway.TcpTransport(port=port)),
    ),
    "TcpRecordClient": (
        lambda port, limit: rollway.TcpRecordClient("127.0.0.1", port, SCHEMA, connect_timeout_s=limit),
        lambda port: rollway.RecordServer(SCHEMA, rollway.TcpTransport(port=port)),
    ),
    "TcpWeights": (
        lambda port, limit: rollway.TcpWeights("127.0.0.1", port, connect_timeout_s=limit),
        weights_on,
    ),
}


@pytest.fixture
def port():
    """A port with nobody behind it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def comes_late(worker, learner, place):
    """The worker is there before its learner, and connects."""
    begun, connected = threading.Event(), threading.Event()

    def work():
        begun.set()
        with worker(place, 60):
            connected.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(10) and not connected.wait(0.02)
    with learner(place):
        assert connected.wait(30)
        thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize(("worker", "learner"), BY_NAME.values(), ids=BY_NAME)
def test_a_worker_waits_for_the_name_of_its_learner(name, worker, learner):
    comes_late(worker, learner, name)


@pytest.mark.parametrize(("worker", "learner"), BY_PORT.values(), ids=BY_PORT)
def test_a_worker_waits_for_the_port_of_its_learner(port, worker, learner):
    comes_late(worker, learner, port)


@pytest.mark.parametrize("limit", [0, 0.05])
@pytest.mark.parametrize("kind", [*BY_NAME, *BY_PORT])
def test_a_worker_whose_learner_does_not_come_is_told_where_it_looked(name, port, kind, limit):
    (worker, _), place = (BY_NAME[kind], name) if kind in BY_NAME else (BY_PORT[kind], port)
    error = rollway.SegmentNotFound if kind in BY_NAME else rollway.LearnerUnreachable
    with pytest.raises(error, match=str(place)):
        worker(place, limit)


@pytest.mark.parametrize("kind", BY_PORT)
def test_a_worker_that_nobody_answers_is_told_so(kind):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        with pytest.raises(rollway.LearnerUnreachable, match="it did not answer in time"):
            BY_PORT[kind][0](mute.getsockname()[1], 0.1)


@pytest.mark.parametrize("kind", [*BY_NAME, *BY_PORT])
@pytest.mark.parametrize("limit", [-1, float("nan")])
def test_a_time_that_is_none_is_refused(name, port, kind, limit):
    (worker, _), place = (BY_NAME[kind], name) if kind in BY_NAME else (BY_PORT[kind], port)
    with pytest.raises(rollway.InvalidArgument, match="a timeout must be a number of seconds >= 0"):
        worker(place, limit)


def test_every_way_to_attach_waits_equally_long_unless_it_is_told():
    attaches = [
        rollway.ShmClient.__new__,
        rollway.ShmRecordClient.__new__,
        rollway.TcpClient.__new__,
        rollway.TcpRecordClient.__new__,
        rollway.TcpWeights.__init__,
        rollway.SharedWeightSync.attach,
        rollway.ReplayBuffer.attach,
        rollway.RolloutRingBuffer.attach,
    ]
    waits = {attach.__qualname__: inspect.signature(attach).parameters["connect_timeout_s"] for attach in attaches}
    assert {name: wait.default for name, wait in waits.items()} == dict.fromkeys(waits, 10.0)


@pytest.mark.parametrize("kind", BY_NAME)
def test_a_name_that_comes_and_goes_is_waited_for(name, kind):
    worker, learner = BY_NAME[kind]
    over = threading.Event()

    def come_and_go():
        while not over.is_set():
            with contextlib.suppress(rollway.RollwayError), learner(name):
                pass

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(100):
            worker(name, 30.0).close()
    finally:
        over.set()
        thread.join()
    rollway.gc()
