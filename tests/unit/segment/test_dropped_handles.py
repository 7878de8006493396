"""A handle that is dropped without `close` gives up what it holds at once, without Python's cyclic collector."""

import asyncio
import gc
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import rollway
from tests.support.processes import until

SEATS = 4  # of which the learner has one
SAMPLE = {"obs": np.zeros(2, np.float32)}
SCHEMA = {"tokens": "int32[*]"}
RECORD = {"tokens": [1, 2, 3]}


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """Leaves out of every collection what was there before: it is large, and the tests are many."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def no_collector(frozen):
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Kind:
    """A class of handles: how to make the server that they attach to, and one of them."""

    def __init__(self, server, attach, data):
        self.server, self.attach, self.data = server, attach, data

    def lengths(self):
        return [{"tokens": 3}] if self.data is RECORD else []


def _ring(name, transport, max_peers=SEATS):
    # As many samples as a test sends go into it, and then it is full.
    return rollway.Server(SAMPLE, batch_size=8, transport=transport or rollway.ShmTransport(name, max_peers=max_peers))


def _records(name, transport, max_peers=SEATS):
    transport = transport or rollway.ShmTransport(name, max_peers=max_peers)
    return rollway.RecordServer(SCHEMA, transport, lane_bytes=1 << 16, lanes=SEATS - 1)


KINDS = {
    "ShmClient": Kind(
        lambda name: _ring(name, None),
        lambda server: rollway.ShmClient(server.name, SAMPLE, connect_timeout_s=0.0),
        SAMPLE,
    ),
    "ShmRecordClient": Kind(
        lambda name: _records(name, None),
        lambda server: rollway.ShmRecordClient(server.name, SCHEMA, connect_timeout_s=0.0),
        RECORD,
    ),
    "TcpClient": Kind(
        lambda name: _ring(name, rollway.TcpTransport()),
        lambda server: rollway.TcpClient("localhost", server.port, SAMPLE),
        SAMPLE,
    ),
    "TcpRecordClient": Kind(
        lambda name: _records(name, rollway.TcpTransport()),
        lambda server: rollway.TcpRecordClient("localhost", server.port, SCHEMA),
        RECORD,
    ),
}


def _send(client, kind):
    client.send(kind.data)


def _reserve(client, kind):
    if hasattr(client, "reserve"):
        with client.reserve(*kind.lengths()):
            pass
    if hasattr(client, "reserve") and kind.data is RECORD:
        client.reserve(*kind.lengths()).abort()


def _raise(client, kind):
    with pytest.raises((rollway.SchemaMismatch, rollway.InvalidArgument, TypeError, ValueError)):
        client.send({"nothing": object()})


def _send_async(client, kind):
    asyncio.run(client.send_async(kind.data))


def _nothing(client, kind):
    pass


USES = {use.__name__.strip("_"): use for use in (_nothing, _send, _reserve, _raise, _send_async)}


def _drain(server):
    """Makes room for the next one."""
    if isinstance(server, rollway.Server):
        server.flush()
        while (sample := server.try_sample()) is not None:
            sample.release()
    else:
        server.try_read_many(1000)


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_a_client_that_is_dropped_without_close_is_gone_at_once(kind, use, name):
    with kind.server(name) as server:
        server.start()
        for _ in range(SEATS + 3):
            client = kind.attach(server)
            use(client, kind)
            gone = weakref.ref(client)
            del client
            assert gone() is None
            _drain(server)
        until(lambda: server.stats()["producers_alive"] == 0)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_a_client_that_waited_in_a_loop_and_is_dropped_leaves_no_thread_behind(kind, name):
    async def fill_and_drop():
        client = kind.attach(server)
        for _ in range(100_000):
            try:
                await client.send_async(kind.data, timeout=0.02)
            except rollway.WaitTimeout:
                break
        gone = weakref.ref(client)
        del client
        assert gone() is None
        # The loop is told, and lets go of the descriptor; then the native thread ends.
        deadline = time.monotonic() + 10
        while _sentries() > before:
            assert time.monotonic() < deadline, "the thread that waited for the client did not end"
            await asyncio.sleep(0.001)

    with kind.server(name) as server:
        server.start()
        before = _sentries()
        asyncio.run(fill_and_drop())
        _drain(server)
        until(lambda: server.stats()["producers_alive"] == 0)


def _sentries():
    return sum(task.read_text().strip() == "rollway-eventfd" for task in Path("/proc/self/task").glob("*/comm"))


def _served(name):
    server = rollway.Server(SAMPLE, 1, [rollway.ShmTransport(name), rollway.TcpTransport()])
    server.start()
    server.submit(SAMPLE)
    server.sample()
    return server


def _record_served(name):
    server = rollway.RecordServer(SCHEMA, [rollway.ShmTransport(name), rollway.TcpTransport()])
    server.start()
    server.submit(RECORD)
    server.read()
    return server


def _served_in_a_loop(name):
    server = rollway.Server(SAMPLE, 1, rollway.ShmTransport(name))

    async def sample():
        waiting = asyncio.ensure_future(server.sample_async(10.0))
        await asyncio.sleep(0)
        server.submit(SAMPLE)
        await waiting

    asyncio.run(sample())
    return server


def _records_served_in_a_loop(name):
    server = rollway.RecordServer(SCHEMA, rollway.ShmTransport(name))

    async def read():
        waiting = asyncio.ensure_future(server.read_async(10.0))
        await asyncio.sleep(0)
        server.submit(RECORD)
        await waiting

    asyncio.run(read())
    return server


def _weights(name):
    sync = rollway.SharedWeightSync.from_state_dict({"w": np.ones(2)}, shm_name=name)
    sync.serve(rollway.TcpTransport())
    sync.write_weights({"w": np.ones(2)})
    return sync


def _replay(name):
    buffer = rollway.ReplayBuffer(10, 2, 1, name=name)
    obs, row = np.zeros((3, 2), np.float32), np.zeros(3, np.float32)
    buffer.add(obs, np.zeros((3, 1), np.float32), row, obs, row, row)
    buffer.sample(2)
    return buffer


LEARNERS = {
    "Server": _served,
    "Server in a loop": _served_in_a_loop,
    "RecordServer": _record_served,
    "RecordServer in a loop": _records_served_in_a_loop,
    "SharedWeightSync": _weights,
    "ReplayBuffer": _replay,
    "RolloutRingBuffer": lambda name: rollway.RolloutRingBuffer(1, 2, 3, 1, shm_name_prefix=name),
    "ZeroCopySHMBuffer": lambda name: rollway.ZeroCopySHMBuffer(name, create=True),
    "SharedObsNormStats": lambda name: rollway.SharedObsNormStats(max_obs_dim=4, name=name),
}


@pytest.mark.parametrize("make", LEARNERS.values(), ids=LEARNERS.keys())
def test_a_learner_that_is_dropped_without_close_frees_its_name_at_once(make, name):
    for _ in range(SEATS):
        handle = make(name)
        gone = weakref.ref(handle)
        del handle
        assert gone() is None
        left = [segment.state for segment in rollway.segments() if segment.name == name]
        assert left == (["stale"] if make is _replay else [])  # its rows stay for the next learner
        rollway.gc()


@pytest.fixture
def learner(request, name):
    """The creator's handle, with three seats for others."""
    with LEARNERS[request.param](name) as learner:
        yield learner


ATTACHERS = {
    "SharedWeightSync": rollway.SharedWeightSync.attach,
    "ReplayBuffer": rollway.ReplayBuffer.attach,
    "ZeroCopySHMBuffer": rollway.ZeroCopySHMBuffer,
}


@pytest.mark.parametrize(("learner", "attach"), ATTACHERS.items(), ids=ATTACHERS.keys(), indirect=["learner"])
def test_one_that_attached_and_is_dropped_is_gone_at_once(learner, attach, name):
    for _ in range(SEATS):
        handle = attach(name)
        gone = weakref.ref(handle)
        del handle
        assert gone() is None


def test_weights_over_tcp_that_are_dropped_without_close_are_gone_at_once(name):
    with rollway.SharedWeightSync.from_state_dict({"w": np.ones(2)}) as sync, sync.serve(rollway.TcpTransport()) as end:
        for _ in range(3):
            weights = rollway.TcpWeights("localhost", end.port, name=name)
            weights.wait_for_version(1)
            weights.read_weights()
            gone = weakref.ref(weights)
            del weights
            assert gone() is None


def test_vector_environments_that_are_dropped_without_close_are_gone_at_once():
    envs = rollway.make_vec("CartPole-v1", 2, num_workers=1)
    envs.reset(seed=1)
    envs.step(envs.action_space.sample())
    gone = weakref.ref(envs)
    del envs
    assert gone() is None
