"""Records over TCP: the same calls as in shared memory, what a client is told, and who is let in."""

import asyncio
import contextlib
import gc
import re

import numpy as np
import pytest

import rollway
from tests.support.processes import until

SCHEMA = {"tokens": "int32[*]", "logprobs": "float32[*]", "score": "float32[]"}
KEY = rollway.RecordKey("run", "train", 3, "instance", 1)


@pytest.fixture
def server():
    with rollway.RecordServer(SCHEMA, rollway.TcpTransport(), lane_bytes=1 << 20) as server:
        yield server


@pytest.fixture
def client(server):
    with connect(server) as client:
        yield client


def connect(server, schema=SCHEMA, **options):
    return rollway.TcpRecordClient("127.0.0.1", server.port, schema, **options)


def record(length, score=1.0):
    tokens = np.arange(length, dtype=np.int32)
    return {"tokens": tokens, "logprobs": -tokens.astype(np.float32), "score": np.float32(score)}


def test_records_arrive_with_everything_that_was_said_about_them(server, client):
    assert client.send(record(5, 0.5), key=KEY, metadata={"stop": "length"}, version=7)
    client.wait(timeout=10)
    received = server.read(timeout=10)
    assert received["tokens"].tolist() == [0, 1, 2, 3, 4]
    assert received["logprobs"].tolist() == [0.0, -1.0, -2.0, -3.0, -4.0]
    assert (float(received["score"]), received.key, received.metadata) == (0.5, KEY, {"stop": "length"})
    assert (received.version, received.sequence, received.producer_id) == (7, 0, client.producer_id)
    assert (client.unacknowledged, client.stats()["sent"]) == (0, 1)


def test_a_record_that_does_not_fit_the_schema_is_refused_by_name_and_never_read(server, client):
    class Lying(rollway.RecordSchema):
        """Says that it is the learner's schema, and lays out its records otherwise."""

        text = property(lambda _: server.schema.text)

    liar = connect(server, Lying({"tokens": "int32[]", "logprobs": "float32[*]", "score": "float32[]"}), producer_id=77)
    with pytest.raises(rollway.ConnectionClosedError, match="record 0 of producer 77 does not fit"):
        liar.send(record(5) | {"tokens": np.int32(5)})
        liar.wait(timeout=10)
    client.send(record(3))
    assert len(server.read(timeout=10)["tokens"]) == 3
    assert server.stats()["tcp_refused_records"] == 1
    (refusal,) = server.refusals
    assert "127.0.0.1" in refusal and "producer 77" in refusal
    with pytest.raises(rollway.WaitTimeout, match="producer 77"):
        server.read(timeout=0.01)
    with contextlib.suppress(rollway.ConnectionClosedError):
        liar.close()


def test_lists_are_taken_and_sizes_go_from_nothing_to_more_than_a_message(server, client):
    lengths = [0, 1, 3, 1000, 100_000, 2]
    for length in lengths:
        client.send({"tokens": list(range(length)), "logprobs": [0.0] * length, "score": 1})
    received = [server.read(timeout=10) for _ in lengths]
    assert [len(one["tokens"]) for one in received] == lengths
    assert all((one["tokens"] == np.arange(len(one["tokens"]))).all() for one in received)
    assert [one.sequence for one in received] == list(range(6))


def test_remote_and_local_workers_feed_one_server(name):
    with (
        rollway.RecordServer(SCHEMA, [rollway.ShmTransport(name), rollway.TcpTransport()]) as server,
        connect(server, producer_id=11) as remote,
        rollway.ShmRecordClient(name, SCHEMA, producer_id=12) as local,
    ):
        for length in range(20):
            remote.send(record(length))
            local.send(record(length))
        remote.wait(timeout=10)
        received = [server.read(timeout=10) for _ in range(40)]
        for worker in (11, 12):
            assert [len(one["tokens"]) for one in received if one.producer_id == worker] == list(range(20))
        assert server.stats()["producers_alive"] == 2
        assert server.stats()["tcp_samples"] == 20


def test_a_tombstone_says_that_a_key_will_never_come(server, client):
    client.tombstone(KEY, "the environment crashed")
    received = server.read(timeout=10)
    assert received.is_tombstone and received.key == KEY
    assert received.metadata == {"reason": "the environment crashed"}


def test_a_slot_is_sent_when_it_is_committed(server, client):
    with client.reserve({"tokens": 4096, "logprobs": 4096}, key=KEY, version=2) as slot:
        slot["tokens"][:3] = 4, 5, 6
        slot["logprobs"][:2] = -1, -2
        slot["score"][...] = 3
        slot.commit({"tokens": 3, "logprobs": 2})
    received = server.read(timeout=10)
    assert (received["tokens"].tolist(), received["logprobs"].tolist()) == ([4, 5, 6], [-1.0, -2.0])
    assert (float(received["score"]), received.key, received.version) == (3.0, KEY, 2)


def test_a_slot_that_was_not_committed_is_not_sent_and_its_arrays_stay_readable(server, client):
    with pytest.raises(ZeroDivisionError), client.reserve({"tokens": 2, "logprobs": 0}) as slot:
        tokens = slot["tokens"]
        tokens[:] = 8
        raise ZeroDivisionError
    del slot
    gc.collect()
    assert tokens.tolist() == [8, 8] and not tokens.flags.writeable
    client.send(record(1))
    assert len(server.read(timeout=10)["tokens"]) == 1


def test_a_record_larger_than_a_lane_is_an_error_and_the_client_goes_on(server, client):
    with pytest.raises(rollway.errors.RecordTooLarge, match="lane_bytes"):
        client.send(record(1 << 20))
    with pytest.raises(rollway.errors.RecordTooLarge, match="lane_bytes"):
        client.reserve({"tokens": 1 << 20, "logprobs": 0})
    client.send(record(2))
    assert len(server.read(timeout=10)["tokens"]) == 2


def test_a_learner_that_does_not_read_slows_its_clients(server):
    with connect(server, max_inflight_msgs=1) as client:
        sent = 0
        # Until nothing moves any more: what has no room in the lane waits with the client.
        with pytest.raises(rollway.WaitTimeout, match="records are not acknowledged"):
            while client.send(record(20_000), timeout=0.2):
                sent += 1
        assert not client.try_send(record(20_000))
        with pytest.raises(rollway.RingFull):
            client.send(record(20_000), timeout=0.0)
        with pytest.raises(rollway.WaitTimeout):
            client.reserve({"tokens": 20_000, "logprobs": 0}, timeout=0.01)
        received = 0
        while received < sent:
            received += len(server.read_many(100, timeout=10))
        client.wait(timeout=10)
        assert client.unacknowledged == 0


def test_asyncio_waits_for_room(server):
    async def send(client, count):
        for _ in range(count):
            assert await client.send_async(record(20_000), timeout=10)
        await client.wait_async(timeout=10)

    async def read(count):
        for _ in range(count):
            (await server.read_async(timeout=10)).release()

    async def both(client):
        await asyncio.gather(send(client, 60), read(60))

    with connect(server, max_inflight_msgs=1) as client:
        asyncio.run(both(client))


def test_a_tombstone_waits_for_room_without_a_thread(server):
    async def waits(client):
        while client.try_send(record(20_000)):
            pass
        telling = asyncio.create_task(client.tombstone_async(KEY, "later" * 60_000, timeout=10))
        while True:
            with await server.read_async(timeout=10) as read:
                if read.is_tombstone:
                    break
        assert await telling

    with connect(server, max_inflight_msgs=1) as client:
        asyncio.run(waits(client))


def test_a_reservation_waits_for_room_without_a_thread(server):
    async def waits(client):
        while client.try_send(record(20_000)):
            pass
        reading = asyncio.create_task(read_keyed())
        with await client.reserve_async({"tokens": 20_000, "logprobs": 0}, key=KEY, timeout=10) as slot:
            slot["tokens"][:2] = 4, 5
            slot.commit({"tokens": 2, "logprobs": 0})
        assert (await reading)["tokens"].tolist() == [4, 5]

    async def read_keyed():
        while (read := await server.read_async(timeout=10)).key is None:
            read.release()
        return read

    with connect(server, max_inflight_msgs=1) as client:
        asyncio.run(waits(client))


def test_clients_are_told_how_many_records_wait(server, client):
    for _ in range(3):
        client.send(record(5))
    assert client.learner_news() == (0, 3)
    until(lambda: server.stats()["ready_records"] == 3)
    server.read(timeout=10)
    server.publish(2)
    until(lambda: client.learner_news() == (2, 2))


def test_clients_hear_of_new_weights(server, client):
    assert client.published_version == 0
    server.publish(5)
    client.send(record(1))
    client.wait(timeout=10)
    assert client.published_version == 5
    with connect(server) as another:
        assert another.published_version == 5


def test_another_schema_is_refused_with_the_name_of_the_leaf(server):
    other = {**SCHEMA, "score": "float64[]"}
    with pytest.raises(rollway.SchemaMismatch, match="score"):
        connect(server, other)
    until(lambda: server.refusals)
    assert len(server.refusals) == 1 and "score" in server.refusals[0]
    with pytest.raises(rollway.WaitTimeout, match="score"):
        server.read(timeout=0.01)


def test_clients_of_samples_and_records_are_told_apart(server, example):
    with pytest.raises(rollway.errors.ProtocolMismatch, match="takes records"):
        rollway.TcpClient("127.0.0.1", server.port, example)
    with (
        rollway.Server(example, batch_size=1, transport=rollway.TcpTransport()) as ring,
        pytest.raises(rollway.errors.ProtocolMismatch, match="takes samples"),
    ):
        connect(ring)


def test_a_token_is_asked_for():
    with rollway.RecordServer(SCHEMA, rollway.TcpTransport(token="open sesame")) as server:
        with pytest.raises(rollway.NotAuthorized):
            connect(server)
        with connect(server, token="open sesame") as client:
            client.send(record(1))
        assert server.read(timeout=10).sequence == 0


def test_policies_hold_for_remote_workers():
    with (
        rollway.RecordServer(SCHEMA, rollway.TcpTransport(), lane_bytes=64 << 10, on_full="drop_oldest") as server,
        connect(server) as client,
    ):
        for score in range(30):
            client.send(record(1000, score))
        client.wait(timeout=10)
        scores = [float(one["score"]) for one in server.read_many(100, timeout=10)]
        assert scores == list(range(30 - len(scores), 30))
        assert server.stats()["dropped_oldest"] == 30 - len(scores)


def test_a_closed_server_ends_its_clients_and_says_what_is_lost():
    with rollway.RecordServer(SCHEMA, rollway.TcpTransport(), lane_bytes=64 << 10) as server:
        client = connect(server)
        for _ in range(20):
            client.send(record(1000))
        until(lambda: client.unacknowledged < 20)
    with pytest.raises(rollway.ConnectionClosedError) as error:
        client.wait(timeout=10)
    assert error.value.unacknowledged == client.unacknowledged > 0
    assert re.search(r"\d+ records, from number \d+ on, are not acknowledged", str(error.value))
    with pytest.raises(rollway.ConnectionClosedError):
        client.close()
    client.close()
    assert client.closed and "closed" in repr(client)


def test_a_forgotten_client_delivers_what_it_has(server):
    client = connect(server)
    client.send(record(3))
    del client
    gc.collect()
    assert len(server.read(timeout=10)["tokens"]) == 3


def test_a_transport_gives_its_lane_back():
    with rollway.RecordServer(SCHEMA, rollway.TcpTransport(), lanes=1) as server:
        with pytest.raises(rollway.errors.NoLaneLeft):
            server.submit(record(1))
        server.endpoints[0].stop()
        assert server.submit(record(1))
        server.read(timeout=10)
