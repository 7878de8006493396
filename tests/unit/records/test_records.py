"""Records within one process: reading, releasing, waiting, policies, lifetimes."""

import asyncio
import contextlib
import gc
import json
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollway
from rollway import RecordKey, ShmRecordClient, _core
from rollway.records import server as record_server
from tests.support.processes import until
from tests.support.segments import overwrite

SCHEMA = {"tokens": "int32[*]", "logprobs": "float32[*]", "score": "float32[]"}
KEY = RecordKey("run", "train", 0, "task", 0)


def trajectory(n, seed=0):
    return {
        "tokens": np.arange(n, dtype=np.int32) + seed,
        "logprobs": np.linspace(0, 1, n, dtype=np.float32),
        "score": np.float32(seed),
    }


def equal(record, data):
    return all(np.array_equal(record[name], data[name]) for name in data)


@pytest.fixture
def server():
    with rollway.RecordServer(SCHEMA, lane_bytes=1 << 20, lanes=4) as server:
        yield server


@pytest.fixture(scope="module")
def shared_server():
    with rollway.RecordServer(SCHEMA) as server:
        yield server


@pytest.mark.parametrize("n", [0, 1, 7, 1000, 100_000])
def test_a_record_comes_out_as_it_went_in(server, n):
    server.submit(trajectory(n, 3), key=KEY, metadata={"n": n, "nested": [1, None, "ü"]}, version=9)
    record = server.read()
    assert equal(record, trajectory(n, 3))
    assert record.key == KEY and record.metadata == {"n": n, "nested": [1, None, "ü"]} and record.version == 9
    assert record.sequence == 0 and not record.is_tombstone and len(record) == 3
    assert set(record.fields) == set(SCHEMA) and record.nbytes >= 8 * n


def test_views_are_read_only_and_not_copies(server):
    server.submit(trajectory(5))
    record = server.read()
    assert not record["tokens"].flags.writeable and not record["tokens"].flags.owndata
    assert record["tokens"].ctypes.data == record["tokens"].ctypes.data
    copies = record.copy()
    copies["tokens"][:] = 0
    assert record["tokens"][1] == 1


def test_metadata_may_be_bytes_json_or_nothing(server):
    for metadata in (b"\x00raw", {"a": float("inf")}, None, "text", 0, []):
        server.submit(trajectory(1), metadata=metadata)
    got = [record.metadata for record in server.read_many(6)]
    assert got == [b"\x00raw", {"a": float("inf")}, None, "text", 0, []]
    server.submit(trajectory(1), metadata=b"")
    assert server.read().metadata is None


def test_metadata_that_json_cannot_say_is_refused(server):
    with pytest.raises(rollway.InvalidArgument, match="JSON"):
        server.submit(trajectory(1), metadata={"x": object()})
    assert server.try_read() is None


def test_numbers_of_numpy_in_metadata_are_numbers(server):
    given = {"bool": np.bool_(1), "int": np.int64(-3), "large": np.uint64(2**64 - 1), "float": np.float32(0.5)}
    server.submit(trajectory(1), metadata=given)
    server.submit(trajectory(1), metadata={**given, "nan": np.float32("nan"), "zero_d": np.array(7), 1: "no text"})
    plain, by_python = (record.metadata for record in server.read_many(2))
    assert plain == {"bool": True, "int": -3, "large": 2**64 - 1, "float": 0.5} and plain["bool"] is True
    assert by_python.pop("nan") != 0 and by_python == {**plain, "zero_d": 7, "1": "no text"}


def test_an_array_in_metadata_is_refused_with_what_to_do(server):
    with pytest.raises(
        rollway.InvalidArgument, match=r"Send it as a field of the record, or as a list with .tolist\(\)"
    ):
        server.submit(trajectory(1), metadata={"x": np.zeros(3)})
    assert server.try_read() is None


def test_large_metadata_is_kept_whole(server):
    text = "x" * 300_000
    server.submit(trajectory(1), metadata={"text": text})
    assert server.read().metadata["text"] == text


def test_values_are_the_views_in_the_order_of_the_schema(server):
    server.submit(trajectory(3, seed=5))
    with server.read() as record:
        tokens, logprobs, score = record.values()
        assert equal(record, {"tokens": tokens, "logprobs": logprobs, "score": score})
        assert not tokens.flags.writeable and tokens.base is record


def test_a_dict_may_have_another_order_than_the_schema(server):
    data = trajectory(3, seed=5)
    server.submit(dict(reversed(data.items())))
    with server.read() as record:
        assert equal(record, data)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "float32", "float64", "float16"])
def test_plain_lists_become_what_numpy_makes_of_them(dtype):
    values = [0.0, -1.5, 3.25] if dtype.startswith("f") else [0, 1, 100]
    with rollway.RecordServer({"a": f"{dtype}[*]"}) as server:
        for sent in (values, [], tuple(values)):
            server.submit({"a": sent})
            with server.read() as record:
                assert record["a"].dtype == dtype and record["a"].tolist() == list(sent)


@pytest.mark.parametrize("wrong", [[1, 2**31], [1, 2**70], [-(2**31) - 1], [1.5], [1, "2"], [[1], [2]]])
def test_a_list_that_does_not_fit_its_leaf_is_an_error_and_sends_nothing(server, wrong):
    with pytest.raises(rollway.SchemaMismatch, match="tokens"):
        server.submit({"tokens": wrong, "logprobs": [], "score": 0.0})
    assert server.try_read() is None


def test_a_record_keeps_its_room_until_its_last_view_is_gone(server):
    server.submit(trajectory(10))
    view = server.read()["tokens"]
    assert server.stats()["taken_records"] == 1
    assert view.tolist() == list(range(10))
    del view
    gc.collect()
    assert server.stats()["taken_records"] == 0


def test_release_gives_the_room_back_at_once_and_twice_is_once(server):
    server.submit(trajectory(10))
    record = server.read()
    record.release()
    record.release()
    assert record.released and server.stats()["taken_records"] == 0
    with pytest.raises(ValueError, match="released"):
        _ = record.metadata
    assert "released" in repr(record)


def test_views_outlive_the_server():
    with rollway.RecordServer(SCHEMA) as server:
        server.submit(trajectory(10))
        view = server.read()["tokens"]
    assert view.tolist() == list(range(10))


def test_a_record_held_holds_up_nobody(server):
    """In a byte ring the oldest record would be in the way of all others."""
    server.submit(trajectory(1000, 1))
    held = server.read()
    for seed in range(500):  # several times the lane
        server.submit(trajectory(1000, seed), timeout=10)
        with server.read(timeout=10) as record:
            assert record["tokens"][0] == seed
    assert equal(held, trajectory(1000, 1))


def test_records_of_one_worker_keep_their_order(server):
    for seed in range(50):
        server.submit(trajectory(seed % 7, seed))
    got = [float(record["score"]) for record in server.read_many(50)]
    assert got == list(range(50))


def test_a_record_larger_than_the_lane_says_so(server):
    with pytest.raises(rollway.errors.RecordTooLarge, match="lane_bytes"):
        server.submit(trajectory(200_000))
    server.submit(trajectory(3))
    assert server.read()["tokens"].size == 3


def test_a_full_lane_blocks_and_the_timeout_says_why(server):
    while True:
        try:
            server.submit(trajectory(10_000), timeout=0.05)
        except rollway.WaitTimeout as late:
            assert "no room" in str(late)
            break
    server.read().release()
    assert server.submit(trajectory(10_000), timeout=10)


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "error"])
def test_a_full_lane_does_as_the_policy_says(policy):
    with rollway.RecordServer(SCHEMA, lane_bytes=1 << 20, lanes=1, on_full=policy) as server:
        sent = 0
        while sent < 40:
            try:
                server.submit(trajectory(10_000, sent))
            except rollway.RingFull:
                assert policy == "error"
                break
            sent += 1
        got = [int(record["score"]) for record in server.read_many(100)]
        stats = server.stats()
    if policy == "drop_oldest":
        assert got == list(range(40 - len(got), 40)) and stats["dropped_oldest"] == 40 - len(got) > 0
    elif policy == "drop_newest":
        assert got == list(range(len(got))) and stats["dropped_newest"] == 40 - len(got) > 0
    else:
        assert got == list(range(sent))


def test_reading_waits_and_says_who_was_there(server):
    assert server.try_read() is None and server.try_read_many(4) == []
    with pytest.raises(rollway.WaitTimeout, match="no record within"):
        server.read(timeout=0.01)
    with pytest.raises(rollway.WaitTimeout):
        server.read_many(3, timeout=0)


def test_a_reader_is_woken_by_the_record(server):
    got = []
    thread = threading.Thread(target=lambda: got.append(server.read(timeout=30)))
    thread.start()
    server.submit(trajectory(4, 1))
    thread.join()
    assert equal(got[0], trajectory(4, 1))


def test_a_writer_is_woken_by_the_release(server):
    while True:
        try:
            server.submit(trajectory(10_000), timeout=0)
        except rollway.WaitTimeout:
            break
        except rollway.RingFull:
            break
    done = threading.Event()
    thread = threading.Thread(target=lambda: (server.submit(trajectory(10_000), timeout=30), done.set()))
    thread.start()
    server.read().release()
    assert done.wait(30)
    thread.join()


def test_reserve_writes_in_place_and_commits_what_was_used(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server, ShmRecordClient(name, SCHEMA) as client:
        with client.reserve({"tokens": 4096, "logprobs": 4096}, key=KEY, metadata={"a": 1}) as slot:
            slot["tokens"][:3] = 1, 2, 3
            slot["logprobs"][:2] = 0.5, 0.25
            slot["score"][...] = 4
            slot.version = 5
            slot.commit({"tokens": 3, "logprobs": 2})
        record = server.read()
        assert record["tokens"].tolist() == [1, 2, 3] and record["logprobs"].tolist() == [0.5, 0.25]
        assert record["score"] == 4 and record.key == KEY and record.metadata == {"a": 1} and record.version == 5
        assert record.nbytes < 200


def test_a_reservation_that_fails_is_never_seen(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server, ShmRecordClient(name, SCHEMA) as client:
        with pytest.raises(ZeroDivisionError), client.reserve({"tokens": 5, "logprobs": 5}):
            _ = 1 / 0
        client.send(trajectory(2, 7))
        assert server.read()["tokens"].tolist() == [7, 8]
        assert server.stats()["reserved_records"] == 0


def test_open_reservations_commit_in_any_order(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server, ShmRecordClient(name, SCHEMA) as client:
        first, second = (client.reserve({"tokens": 1, "logprobs": 0}) for _ in range(2))
        first["tokens"][:], second["tokens"][:] = 1, 2
        second.commit()
        assert server.read(timeout=10)["tokens"].tolist() == [2]
        first.commit()
        assert server.read(timeout=10)["tokens"].tolist() == [1]
        with pytest.raises(rollway.InvalidArgument, match="already"):
            first.commit()
        assert not first["tokens"].flags.writeable


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ({"tokens": 1}, "'logprobs' is missing"),
        ({"tokens": 1, "logprobs": 1, "score": 1}, "fixed shape"),
        ({"tokens": 1, "logprobs": 1, "x": 1}, "given for 'x', which is no leaf; those with one are tokens, logprobs"),
        ({"toks": 1, "logprobs": 1}, "given for 'toks', which is no leaf"),
    ],
)
def test_reserve_says_what_is_wrong_with_the_lengths(name, lengths, said):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)), ShmRecordClient(name, SCHEMA) as client:
        with pytest.raises(rollway.SchemaMismatch, match=said):
            client.reserve(lengths)


def test_more_rows_than_reserved_are_refused(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)), ShmRecordClient(name, SCHEMA) as client:
        slot = client.reserve({"tokens": 2, "logprobs": 2})
        with pytest.raises(ValueError, match="room for 2 rows, not for 3"):
            slot.commit({"tokens": 3, "logprobs": 2})
        slot.abort()


def test_a_tombstone_has_a_key_and_a_reason(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server, ShmRecordClient(name, SCHEMA) as client:
        client.tombstone(KEY, "all scores equal", version=3)
        record = server.read()
        assert record.is_tombstone and record.key == KEY and record.metadata == {"reason": "all scores equal"}
        assert record["tokens"].size == 0 and record.version == 3


def test_the_published_version_reaches_the_workers(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server, ShmRecordClient(name, SCHEMA) as client:
        assert client.published_version == 0
        server.publish(17)
        assert client.published_version == 17


def test_another_schema_is_named_on_attach(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)):
        with pytest.raises(
            rollway.SchemaMismatch, match=r"'tokens' is int64\[\*\] here but int32\[\*\] in segment.*the same schema"
        ):
            ShmRecordClient(name, {**SCHEMA, "tokens": "int64[*]"})


def test_a_ring_is_no_place_for_records(name):
    with rollway.Server({"x": np.zeros(1)}, 1, rollway.ShmTransport(name)):
        with pytest.raises(
            rollway.SchemaMismatch, match=r"holds the samples of a Server .*, not the records of a RecordS"
        ):
            ShmRecordClient(name, SCHEMA)


def test_more_workers_than_lanes_are_refused_until_one_leaves(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), lanes=2):
        first, second = ShmRecordClient(name, SCHEMA), ShmRecordClient(name, SCHEMA)
        with pytest.raises(rollway.errors.NoLaneLeft, match="2 lanes"):
            ShmRecordClient(name, SCHEMA)
        first.close()
        ShmRecordClient(name, SCHEMA).close()
        second.close()


def test_what_a_worker_left_behind_is_read_after_it_is_gone(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), lanes=1) as server:
        for seed in range(3):
            with ShmRecordClient(name, SCHEMA) as client:
                client.send(trajectory(100, seed))
        assert [int(record["score"]) for record in server.read_many(3)] == [0, 1, 2]


def test_closing_ends_everybodys_waits(name):
    server = rollway.RecordServer(SCHEMA, rollway.ShmTransport(name))
    client = ShmRecordClient(name, SCHEMA)
    got = []
    thread = threading.Thread(target=lambda: got.append(server.read()))
    thread.start()
    until(lambda: server.stats() is not None)
    server.close()
    thread.join(30)
    assert got == [None]
    with pytest.raises(rollway.ConnectionClosedError):
        client.send(trajectory(1))
    assert server.read_many(2) == [] and client.closed
    assert asyncio.run(server.read_async()) is None and asyncio.run(server.read_many_async(2)) == []
    for try_read in (server.try_read, lambda: server.try_read_many(2)):
        with pytest.raises(rollway.ConnectionClosedError):
            try_read()
    client.close()


def test_two_learners_share_the_records(name):
    with (
        rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as one,
        rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as two,
    ):
        assert two.resumed
        with ShmRecordClient(name, SCHEMA) as client:
            for seed in range(10):
                client.send(trajectory(5, seed))
        got = [int(record["score"]) for record in one.read_many(4) + two.read_many(100)]
        assert sorted(got) == list(range(10))


def test_asyncio_reads_and_sends_wait_without_a_thread_each(name):
    async def main():
        with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), lane_bytes=1 << 18) as server:
            with ShmRecordClient(name, SCHEMA) as client:
                reader = asyncio.create_task(server.read_many_async(100))
                await asyncio.sleep(0)
                for seed in range(50):
                    await client.send_async(trajectory(10, seed))
                first = await reader
                rest = []
                while len(first) + len(rest) < 50:
                    rest += await server.read_many_async(100, timeout=30)
                assert [int(record["score"]) for record in first + rest] == list(range(50))
                del first, rest
                with pytest.raises(rollway.WaitTimeout):
                    await server.read_async(timeout=0.01)
                # A lane full of large records: senders wait for the reader.
                senders = [asyncio.create_task(client.send_async(trajectory(10_000, seed))) for seed in range(20)]
                got = []
                while len(got) < 20:
                    with await server.read_async(timeout=30) as record:
                        got.append(int(record["score"]))
                await asyncio.gather(*senders)
                assert sorted(got) == list(range(20))

    asyncio.run(main())


def test_a_tombstone_waits_for_room_without_a_thread(name):
    async def main():
        with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), lane_bytes=1 << 16) as server:
            with ShmRecordClient(name, SCHEMA) as client:
                assert await client.tombstone_async(KEY, "at once", version=3)
                while client.try_send(trajectory(1000)) or client.try_send(trajectory(0)):
                    pass
                with pytest.raises(rollway.WaitTimeout):
                    await client.tombstone_async(KEY, "no" * 500, timeout=0.01)
                waiting = asyncio.create_task(client.tombstone_async(KEY, "later" * 200, timeout=30))
                await asyncio.sleep(0)
                assert not waiting.done()
                reasons = []
                while len(reasons) < 2:
                    with await server.read_async(timeout=30) as record:
                        reasons += [record.metadata["reason"]] if record.is_tombstone else []
                assert reasons == ["at once", "later" * 200]
                assert await waiting

    asyncio.run(main())


@pytest.mark.parametrize("reason", ["", "half a character: \ud800"])
def test_a_tombstone_says_any_reason(name, reason):
    transports = [rollway.ShmTransport(name), rollway.TcpTransport()]
    with rollway.RecordServer(SCHEMA, transports) as server:
        clients = ShmRecordClient(name, SCHEMA), rollway.TcpRecordClient("localhost", server.port, SCHEMA)
        for client in clients:
            with client:
                assert client.tombstone(KEY, reason)
            assert server.read(30).metadata == {"reason": reason}


def test_threads_that_submit_at_once_share_one_lane(monkeypatch):
    began = threading.Barrier(2)

    class Unhurried:
        """Between asking whether there is a producer and noting a new one, everybody else comes to the same question."""

        @staticmethod
        def _beside(*arguments):
            with contextlib.suppress(threading.BrokenBarrierError):
                began.wait(0.2)  # for a second one, of which there is none
            return _core.RecordProducer._beside(*arguments)

    monkeypatch.setattr(record_server, "RecordProducer", Unhurried)
    with rollway.RecordServer(SCHEMA, lanes=1) as server, ThreadPoolExecutor(2) as threads:
        assert [*threads.map(server.submit, [trajectory(1)] * 2)] == [True, True]
        assert len(server.read_many(2)) == 2


def test_a_record_that_was_released_says_so(server):
    server.submit(trajectory(1), key=KEY)
    record = server.read()
    record.release()
    with pytest.raises(rollway.InvalidArgument, match="was released: read its key"):
        record.key


def counts(client):
    """The numbers of a client, without the times: those grow while it waits."""
    return {key: value for key, value in client.stats().items() if not key.endswith("_ns")}


def test_asyncio_reserves_when_there_is_room(name):
    async def read_keyed(server):
        while (record := await server.read_async(timeout=30)).key is None:
            record.release()
        return record

    async def main():
        with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), lane_bytes=1 << 16) as server:
            with ShmRecordClient(name, SCHEMA) as client:
                while client.try_send(trajectory(1000)) or client.try_send(trajectory(0)):
                    pass
                with pytest.raises(rollway.WaitTimeout):
                    await client.reserve_async({"tokens": 1000, "logprobs": 1000}, timeout=0.01)
                before = counts(client)
                given_up, waiting = (
                    asyncio.create_task(client.reserve_async({"tokens": n, "logprobs": n}, key=KEY, version=3))
                    for n in (900, 1000)
                )
                await asyncio.sleep(0)
                given_up.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await given_up
                assert not waiting.done() and counts(client) == before
                reading = asyncio.create_task(read_keyed(server))
                with await waiting as slot:
                    slot["tokens"][:2], slot["score"][...] = (4, 5), 0.5
                    slot.commit({"tokens": 2, "logprobs": 0})
                record = await reading
                assert (record["tokens"].tolist(), record.key, record.version) == ([4, 5], KEY, 3)

    asyncio.run(main())


def test_a_coroutine_that_waits_to_reserve_sleeps_until_there_is_room_for_it(name):
    async def main():
        with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), lane_bytes=1 << 16) as server:
            with ShmRecordClient(name, SCHEMA) as client:
                client.send(trajectory(6000))
                tries, reserve = [], client.reserve
                client.reserve = lambda *args, **kwargs: [tries.append(1), reserve(*args, **kwargs)][1]
                with pytest.raises(rollway.WaitTimeout):  # there is room, but not so much
                    await client.reserve_async({"tokens": 6000, "logprobs": 6000}, timeout=0.2)
                assert len(tries) <= 2
                server.read().release()

    asyncio.run(main())


@pytest.mark.parametrize("policy", ["error", "drop_newest"])
def test_a_coroutine_whose_client_does_not_block_is_told_at_once_that_there_is_no_room(name, policy):
    async def main():
        with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), lane_bytes=1 << 16):
            with ShmRecordClient(name, SCHEMA, on_full=policy) as client:
                slot = await client.reserve_async({"tokens": 8000, "logprobs": 8000 - 500})
                with pytest.raises(rollway.RingFull):
                    await client.reserve_async({"tokens": 8000, "logprobs": 8000 - 500})
                slot.abort()

    asyncio.run(main())


def test_memory_is_taken_as_it_is_used(name):
    with rollway.RecordServer(
        SCHEMA, rollway.ShmTransport(name), lane_bytes=1 << 30, lanes=64, max_records=4096
    ) as server:
        path = Path(rollway._core.shm_directory()) / f"rollway.{name}"
        before = os.stat(path).st_blocks * 512
        with ShmRecordClient(name, SCHEMA, producer_id=1) as client:
            for seed in range(100):
                client.send(trajectory(10_000, seed))
            bytes_in_flight = 100 * 80_000
            used = os.stat(path).st_blocks * 512 - before
            assert bytes_in_flight <= used < bytes_in_flight * 1.2 + (1 << 20)
        assert len(server.read_many(100)) == 100


def test_segments_lists_records(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)):
        assert name in [segment.name for segment in rollway.segments()]


@pytest.mark.parametrize(
    "bad", [{"lanes": 0}, {"lane_bytes": 0}, {"max_records": 0}, {"lanes": 10**9}, {"lane_bytes": 1 << 62}]
)
def test_numbers_out_of_range_are_refused(bad):
    with pytest.raises((rollway.InvalidArgument, rollway.NotEnoughMemory)):
        rollway.RecordServer(SCHEMA, **bad)


NATIVE = [
    {},
    {"a": 1, "b": [1.5, None, True, 'x\n"\\\u0001'], "c": {"d": -(2**63), "e": 1e300, "f": -0.0}},
    "Straße 🛣",
    [[[[1]]]],
    5e-324,
    0.1,
    2**62,
]
PYTHON = [float("nan"), float("-inf"), 2**70, {1: "a"}, {"a": (1, 2)}, "\ud800", [True, np.float64(1.5)]]


@pytest.mark.parametrize("metadata", [*NATIVE, *PYTHON], ids=repr)
def test_metadata_is_what_pythons_json_makes_of_it(server, metadata):
    server.submit(trajectory(1), metadata=metadata)
    record = server.read()
    expected = json.loads(json.dumps(metadata))
    assert repr(record.metadata) == repr(expected), "the same, also where == is not"
    assert record.metadata is record.metadata, "decoded once"


def test_metadata_that_is_nested_too_deeply_is_refused(server):
    deep = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(rollway.InvalidArgument, match="JSON"):
        server.submit(trajectory(1), metadata=deep)
    while deep:  # by hand: too deep for some to take apart
        deep = deep.pop()


def test_metadata_of_somebody_who_writes_no_json_is_an_error_and_the_rest_can_be_read(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server:
        for said in ("mine", "[" * 200_000):
            server.submit(trajectory(3), key=KEY, metadata=said)
            overwrite(name, f'"{said}"'.encode(), b"!" + said.encode() + b"!" if said == "mine" else b"[" * 200_002)
            with server.read() as record:
                with pytest.raises(rollway.InvalidArgument, match="is not JSON"):
                    record.metadata
                assert record.key == KEY and equal(record, trajectory(3))


def test_metadata_that_contains_itself_is_refused(server):
    circle = []
    circle.append(circle)
    with pytest.raises(rollway.InvalidArgument, match="JSON"):
        server.submit(trajectory(1), metadata=circle)


@settings(deadline=None)
@given(st.builds(RecordKey, st.text(), st.text(), st.integers(-(2**63), 2**63 - 1), st.text(), st.integers(-1, 2**62)))
def test_a_key_comes_out_as_it_went_in(shared_server, key):
    shared_server.submit(trajectory(0), key=key)
    record = shared_server.read()
    assert record.key == key and type(record.key) is RecordKey and type(record.key.step) is int


@pytest.mark.parametrize("key", [("run", "train", 0, "task", 0), "task", 7])
def test_a_key_that_is_none_is_said_to_be_none(key):
    with rollway.RecordServer({"x": "int32[*]"}) as server, pytest.raises(rollway.InvalidArgument, match="RecordKey"):
        server.submit({"x": [1]}, key=key)


def test_one_damaged_record_is_told_of_and_costs_no_other(name):
    transport = rollway.ShmTransport(name)
    with rollway.RecordServer({"tokens": "int32[*]"}, transport, lanes=1, lane_bytes=1 << 16) as server:
        rows = [np.full(40, 1000 + row, np.int32) for row in range(5)]
        for row in rows:
            server.submit({"tokens": row})
        file = Path(_core.shm_directory()) / f"rollway.{name}"
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as memory:
            counts = memory.find(rows[2].tobytes()) - 16  # of its key, its metadata and its tokens
            memory[counts + 8 : counts + 12] = (7).to_bytes(4, "little")
        with pytest.raises(rollway.errors.SegmentDamaged, match="length of a record"):
            server.read_many(5)
        whole = [record["tokens"][0] for record in server.read_many(5, timeout=1)]
        assert whole == [1000, 1001, 1003, 1004]


def test_a_record_that_is_detached_reads_as_before_and_its_room_is_free():
    schema = {"tokens": "int32[*]", "weights": "float64[*, 3]", "score": "float32[]"}
    key = rollway.RecordKey("run", "train", 1, "a", 2)
    with rollway.RecordServer(schema, lane_bytes=4096, max_records=2) as server:
        server.submit({"tokens": [1, 2, 3], "weights": np.ones((2, 3)), "score": 0.5}, key=key, metadata={"a": [1]})
        record = server.read()
        old = record["tokens"]
        record.detach()
        record.detach()
        assert server.stats()["taken_records"] == 0 and not record.released
        for _ in range(8):  # the room is used anew, again and again
            assert server.submit({"tokens": [9] * 900, "weights": np.zeros((0, 3)), "score": 9}, timeout=10)
            server.read().release()
        assert old.tolist() == [9, 9, 9], "a view of before is of the room"
        assert record["tokens"].tolist() == [1, 2, 3] and record["weights"].tolist() == [[1] * 3] * 2
        assert record["weights"].flags.aligned and not record["tokens"].flags.writeable
        assert (record.key, record.metadata, float(record["score"])) == (key, {"a": [1]}, 0.5)
        padded = rollway.pad([record], leaves=["tokens"], length=4)
        assert padded.fields["tokens"].tolist() == [[1, 2, 3, 0]]
        kept = record["tokens"]
        record.release()
        assert record.released and kept.tolist() == [1, 2, 3]
        with pytest.raises(rollway.InvalidArgument, match="released"):
            rollway.pad([record])
        record.detach()
        assert record.released, "what is released cannot be kept"


def test_an_assembler_detaches_all_that_it_holds():
    with rollway.RecordServer({"tokens": "int32[*]"}) as server:
        for instance, repetition in (("a", 0), ("a", 1), ("b", 0)):
            key = rollway.RecordKey("run", "train", 0, instance, repetition)
            server.submit({"tokens": [repetition]}, key=key)
        assembler = rollway.GroupAssembler(2)
        for record in server.read_many(3):
            assembler.add(record)
        del record
        assembler.detach()
        assert server.stats()["taken_records"] == 0 and assembler.held == 3
        assert [record["tokens"].tolist() for record in assembler.pop().records] == [[0], [1]]


def test_a_batch_that_was_planned_before_a_record_was_detached_is_refused():
    with rollway.RecordServer({"tokens": "int32[*]"}) as server:
        server.submit({"tokens": [1, 2, 3]})
        record, out = server.read(), np.zeros(3, np.int32)
        table = _core.RecordTable([record])
        record.detach()
        with pytest.raises(rollway.InvalidArgument, match="record 0 of the batch was released or detached"):
            table.assemble([(0, out)], [], None, False)
        _core.RecordTable([record]).assemble([(0, out)], [], None, False)
        assert out.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "read",
    [
        lambda server: server.read(0.001),
        lambda server: server.read_many(2, 0.001),
        lambda server: asyncio.run(server.read_async(0.001)),
        lambda server: asyncio.run(server.read_many_async(2, 0.001)),
    ],
)
def test_a_wait_that_ends_while_the_server_closes_finds_it_shut_down(read):
    class Closing:
        def __getattr__(self, name):
            if name == "producers":  # the message of a timeout asks
                server.close()
            return getattr(consumer, name)

    server = rollway.RecordServer(SCHEMA)
    consumer, server._consumer = server._consumer, Closing()
    assert not read(server)
