"""Whole numbers that do not fit: an InvalidArgument that names the argument, its value and the range, everywhere."""

import asyncio
import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

import rollway

ONE = np.zeros(1, np.int64)
SCHEMA = {"tokens": "int32[*]"}
RECORD = {"tokens": [1, 2]}
KEY = rollway.RecordKey("run", "train", 0, "task", 0)
WEIGHTS = {"w": np.ones(3, np.float32)}


def commit(slot, version):
    with slot:
        slot.version = version


SENDS = {
    "send": lambda client, data, bad: client.send(data, version=bad),
    "try_send": lambda client, data, bad: client.try_send(data, version=bad),
    "send_async": lambda client, data, bad: asyncio.run(client.send_async(data, version=bad)),
}
MANY = {
    "send_many": lambda client, data, bad: client.send_many(data[None], version=bad),
    "try_send_many": lambda client, data, bad: client.try_send_many(data[None], version=bad),
    "send_many_async": lambda client, data, bad: asyncio.run(client.send_many_async(data[None], version=bad)),
}
MANY_RECORDS = {
    "send_many": lambda client, data, bad: client.send_many([data], version=bad),
    "try_send_many": lambda client, data, bad: client.try_send_many([data], version=bad),
    "send_many_async": lambda client, data, bad: asyncio.run(client.send_many_async([data], version=bad)),
}


def versions_of(client, data, calls):
    return {
        f"{client}.{what}": lambda it, bad, call=call: call(getattr(it, client), data, bad)
        for what, call in calls.items()
    }


VERSIONS = {
    **versions_of("shm", ONE, SENDS | MANY),
    **versions_of("tcp", ONE, SENDS | MANY),
    **versions_of("shm_records", RECORD, SENDS | MANY_RECORDS),
    **versions_of("tcp_records", RECORD, SENDS | MANY_RECORDS),
    "slot": lambda it, bad: commit(it.shm.reserve(), bad),
    "record slot": lambda it, bad: commit(it.shm_records.reserve({"tokens": 1}), bad),
    "reserve": lambda it, bad: it.shm_records.reserve({"tokens": 1}, version=bad),
    "reserve over TCP": lambda it, bad: it.tcp_records.reserve({"tokens": 1}, version=bad),
    "tombstone": lambda it, bad: it.shm_records.tombstone(KEY, version=bad),
    "tombstone over TCP": lambda it, bad: it.tcp_records.tombstone(KEY, version=bad),
    "submit": lambda it, bad: it.server.submit(ONE, version=bad),
    "submit_many": lambda it, bad: it.server.submit_many(ONE[None], version=bad),
    "submit of records": lambda it, bad: it.records.submit(RECORD, version=bad),
    "submit_many of records": lambda it, bad: it.records.submit_many([RECORD], version=bad),
    "publish": lambda it, bad: it.records.publish(bad),
}

OTHERS = {
    ("SharedWeightSync.wait_for_version", "version"): lambda it, bad: it.sync.wait_for_version(bad, 0.01),
    ("TcpWeights.wait_for_version", "version"): lambda it, bad: it.mirror.wait_for_version(bad, 0.01),
    ("SharedWeightSync.read_weights_into", "since"): lambda it, bad: it.sync.read_weights_into(WEIGHTS, since=bad),
    ("TcpWeights.read_weights_into", "since"): lambda it, bad: it.mirror.read_weights_into(WEIGHTS, since=bad),
    ("SharedWeightSync", "max_buffers"): lambda _, bad: rollway.SharedWeightSync.from_state_dict(
        WEIGHTS, max_buffers=bad
    ),
    ("SharedWeightSync", "threads"): lambda _, bad: rollway.SharedWeightSync.from_state_dict(WEIGHTS, threads=bad),
    ("TcpWeights", "port"): lambda _, bad: rollway.TcpWeights("127.0.0.1", bad),
    ("TcpWeights", "max_buffers"): lambda it, bad: rollway.TcpWeights("127.0.0.1", it.server.port, max_buffers=bad),
    ("TcpClient", "port"): lambda _, bad: rollway.TcpClient("127.0.0.1", bad, ONE),
    ("TcpClient", "max_inflight_msgs"): lambda it, bad: rollway.TcpClient("127.0.0.1", it.server.port, ONE, bad),
    ("TcpClient", "producer_id"): lambda it, bad: rollway.TcpClient("127.0.0.1", it.server.port, ONE, producer_id=bad),
    ("ShmClient", "producer_id"): lambda it, bad: rollway.ShmClient(it.name, ONE, producer_id=bad),
    ("ShmRecordClient", "producer_id"): lambda it, bad: rollway.ShmRecordClient(
        it.name + "-records", SCHEMA, producer_id=bad
    ),
    ("TcpTransport", "threads"): lambda _, bad: rollway.Server(ONE, 1, rollway.TcpTransport(threads=bad)).start(),
    ("TcpTransport", "max_connections"): lambda _, bad: rollway.Server(
        ONE, 1, rollway.TcpTransport(max_connections=bad)
    ).start(),
    ("TcpTransport", "staging_bytes"): lambda _, bad: rollway.Server(
        ONE, 1, rollway.TcpTransport(staging_bytes=bad)
    ).start(),
    ("Server", "batch_size"): lambda _, bad: rollway.Server(ONE, bad, rollway.TcpTransport()),
    ("Server", "num_buffers"): lambda _, bad: rollway.Server(ONE, 1, rollway.TcpTransport(), num_buffers=bad),
    ("Server.sample", "at_least"): lambda it, bad: it.server.sample(0, at_least=bad),
    ("ShmTransport", "max_peers"): lambda it, bad: rollway.Server(
        ONE, 1, rollway.ShmTransport(it.name + "-peers", max_peers=bad)
    ),
    ("RecordServer", "lanes"): lambda _, bad: rollway.RecordServer(SCHEMA, rollway.TcpTransport(), lanes=bad),
    ("RecordServer", "lane_bytes"): lambda _, bad: rollway.RecordServer(SCHEMA, rollway.TcpTransport(), lane_bytes=bad),
    ("RecordServer", "max_records"): lambda _, bad: rollway.RecordServer(
        SCHEMA, rollway.TcpTransport(), max_records=bad
    ),
    ("RecordServer.read_many", "most"): lambda it, bad: it.records.read_many(bad, 0),
    ("reserve", "the length of leaf 'tokens'"): lambda it, bad: it.shm_records.reserve({"tokens": bad}),
    ("token_batches", "budget"): lambda it, bad: rollway.token_batches([it.record], bad, layout="padded"),
    ("ReplayBuffer", "capacity"): lambda _, bad: rollway.ReplayBuffer(bad, 1, 1),
    ("ReplayBuffer", "obs_dim"): lambda _, bad: rollway.ReplayBuffer(4, bad, 1),
    ("ReplayBuffer", "max_peers"): lambda _, bad: rollway.ReplayBuffer(4, 1, 1, max_peers=bad),
    ("ReplayBuffer", "seed"): lambda _, bad: rollway.ReplayBuffer(4, 1, 1, seed=bad),
    ("RolloutRingBuffer", "num_envs"): lambda _, bad: rollway.RolloutRingBuffer(bad, 1, 1, 1),
    ("RolloutRingBuffer", "num_slots"): lambda _, bad: rollway.RolloutRingBuffer(1, 1, 1, 1, num_slots=bad),
    ("ZeroCopySHMBuffer", "size"): lambda it, bad: rollway.ZeroCopySHMBuffer(it.name + "-z", bad, create=True),
    ("ZeroCopySHMBuffer", "entry_size"): lambda it, bad: rollway.ZeroCopySHMBuffer(it.name + "-z", 1, bad, create=True),
}


@pytest.fixture(scope="module")
def it():
    """One of everything, for all tests of this file."""
    name = f"test-numbers-{np.random.default_rng().integers(2**63)}"
    with contextlib.ExitStack() as stack:
        sync = stack.enter_context(rollway.SharedWeightSync.from_state_dict(WEIGHTS))
        both = [rollway.ShmTransport(name), rollway.TcpTransport(weights=sync)]
        server = stack.enter_context(rollway.Server(ONE, 1, both))
        both = [rollway.ShmTransport(name + "-records"), rollway.TcpTransport()]
        records = stack.enter_context(rollway.RecordServer(SCHEMA, both, lane_bytes=1 << 16))
        records.submit(RECORD)
        yield SimpleNamespace(
            name=name,
            sync=sync,
            server=server,
            records=records,
            record=records.read(timeout=10),
            mirror=stack.enter_context(rollway.TcpWeights("127.0.0.1", server.port)),
            shm=stack.enter_context(rollway.ShmClient(name, ONE)),
            tcp=stack.enter_context(rollway.TcpClient("127.0.0.1", server.port, ONE)),
            shm_records=stack.enter_context(rollway.ShmRecordClient(name + "-records", SCHEMA)),
            tcp_records=stack.enter_context(rollway.TcpRecordClient("127.0.0.1", records.port, SCHEMA)),
        )


def refused(call, what, bad):
    with pytest.raises(rollway.InvalidArgument) as raised:
        call()
    assert str(raised.value).startswith(f"{what} = {bad} is out of range: "), str(raised.value)


@pytest.mark.parametrize("call", VERSIONS.values(), ids=VERSIONS)
def test_a_version_that_a_sample_cannot_have_is_named(it, call):
    for bad in (-1, 2**32, 2**40, 2**70):
        refused(lambda bad=bad: call(it, bad), "version", bad)
    assert it.server.stats()["ready_samples"] == 0 and it.records.stats()["records_committed"] == 1


@pytest.mark.parametrize("asked", OTHERS, ids=" ".join)
def test_a_number_that_fits_no_word_is_named(it, asked):
    for bad in (-1, 2**64, -(2**70)):
        refused(lambda bad=bad: OTHERS[asked](it, bad), asked[1], bad)


def test_what_is_no_whole_number_is_still_a_type_error(it):
    for bad in ("7", 1.5, None):
        with pytest.raises(TypeError):
            it.shm.send(ONE, version=bad)


def test_a_number_of_thousands_of_digits_is_not_written_out(it):
    with pytest.raises(rollway.InvalidArgument, match=r"^version = a very long number is out of range: "):
        it.shm.send(ONE, version=10**5000)


@pytest.mark.parametrize("dims", ["4294967296,4294967296", "2305843009213693952", "0,9223372036854775808"])
def test_a_leaf_of_records_larger_than_an_address_space_is_refused(dims):
    with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'x' .* larger than an address space"):
        rollway.RecordSchema({"x": f"float32[{dims}]"})
