"""`send_many` of records: several in one call, in shared memory and over TCP; all or nothing where one of them is wrong."""

import asyncio
import threading
from contextlib import ExitStack, suppress

import numpy as np
import pytest

import rollway
from rollway import RecordKey
from tests.support.processes import until

SCHEMA = {"tokens": "int32[*]", "score": "float32[]"}
LANE = 1 << 20


def trajectory(n, seed=0):
    return {"tokens": np.arange(n, dtype=np.int32) + seed, "score": np.float32(seed)}


def key(index):
    return RecordKey("run", "train", 0, "task", index)


def numbers(records):
    return [int(record["score"]) for record in records]


@pytest.fixture(params=["shm", "tcp"])
def pair(request, name):
    """A server, and a client of one kind."""
    with ExitStack() as stack:
        yield connected(request.param, name, stack, lane_bytes=LANE)


def connected(kind, name, stack, max_inflight_msgs=256, **options):
    transport = rollway.ShmTransport(name) if kind == "shm" else rollway.TcpTransport()
    server = stack.enter_context(rollway.RecordServer(SCHEMA, transport, lanes=2, **options))
    server.start()
    if kind == "shm":
        return server, stack.enter_context(rollway.ShmRecordClient(name, SCHEMA))
    remote = rollway.TcpRecordClient("localhost", server.port, SCHEMA, max_inflight_msgs=max_inflight_msgs)
    stack.callback(close_in_vain, remote)
    return server, remote


def close_in_vain(remote):
    """What nobody reads is never acknowledged."""
    with suppress(rollway.WaitTimeout, rollway.ConnectionClosedError):
        remote.close(timeout=0)


def narrow(kind, name, stack):
    """A lane of eight records."""
    return connected(kind, name, stack, max_records=8, lane_bytes=LANE, max_inflight_msgs=1)


def read(server, count):
    """Reads so many, and lets each go."""
    found = []
    while len(found) < count:
        with server.read(timeout=30) as record:
            found.append(int(record["score"]))
    return found


def test_records_come_in_their_order_with_everything_that_was_said_about_each(pair):
    server, client = pair
    metadata = [{"n": 0}, None, b"\x00raw", [1, "ü"]]
    keys = [key(0), key(1), None, key(3)]
    data = [trajectory(n, n) for n in (5, 0, 1000, 2)]
    assert client.send_many(data, keys=keys, metadata=metadata, version=[1, 2, 3, 2**32 - 1]) == 4
    got = [server.read(timeout=10) for _ in range(4)]
    assert [record["tokens"].tolist() for record in got] == [each["tokens"].tolist() for each in data]
    assert [record.key for record in got] == keys and [record.metadata for record in got] == metadata
    assert [record.version for record in got] == [1, 2, 3, 2**32 - 1]
    assert [record.sequence for record in got] == [0, 1, 2, 3]
    assert {record.producer_id for record in got} == {client.producer_id}


def test_one_version_is_for_all_and_a_tuple_is_as_good_as_a_list(pair):
    server, client = pair
    assert client.send_many((trajectory(1), trajectory(2)), keys=(key(0), key(1)), metadata=({}, 3), version=9) == 2
    got = [server.read(timeout=10) for _ in range(2)]
    assert [(record.version, record.key, record.metadata) for record in got] == [(9, key(0), {}), (9, key(1), 3)]


def test_nothing_is_nothing(pair):
    server, client = pair
    assert client.send_many([]) == client.try_send_many(()) == client.send_many([], keys=[], metadata=[]) == 0
    assert server.try_read() is None


def test_the_learner_submits_several(name):
    with rollway.RecordServer(SCHEMA) as server:
        assert server.submit_many([trajectory(1, 4), trajectory(2, 5)], keys=[key(0), key(1)], version=3) == 2
        got = server.read_many(2)
        assert numbers(got) == [4, 5] and [record.key for record in got] == [key(0), key(1)]


@pytest.mark.parametrize("way", ["send_many", "try_send_many", "send_many_async"])
def test_many_records_of_all_sizes_arrive_whole(pair, way):
    server, client = pair
    lengths = [0, 1, 70_000, 3, 1000, 100_000, 2] * 10  # more than a run, and some that are one alone
    got = []

    def collect():
        while len(got) < len(lengths):
            with server.read(timeout=30) as record:
                got.append((record.sequence, len(record["tokens"]), int(record["tokens"].sum(dtype=np.int64))))

    reader = threading.Thread(target=collect)
    reader.start()
    data, sent = [trajectory(n) for n in lengths], 0
    while sent < len(data):
        call = getattr(client, way)(data[sent:])
        sent += asyncio.run(call) if way == "send_many_async" else call
    reader.join(30)
    assert got == [(number, n, n * (n - 1) // 2) for number, n in enumerate(lengths)]


def test_what_is_not_plain_is_converted(pair):
    server, client = pair
    data = [{"tokens": [1, 2], "score": 1}, trajectory(2, 2), {"score": np.float32(3), "tokens": (0, 1, 2)}]
    assert client.send_many(data) == 3
    assert [server.read(timeout=10)["tokens"].tolist() for _ in range(3)] == [[1, 2], [2, 3], [0, 1, 2]]


# ── what is wrong is said before anything is sent ──────────────────────────────────────────────────────────────────

WRONG = {
    "a missing leaf": ({"data": {"tokens": [1]}}, rollway.SchemaMismatch, "score"),
    "a dtype": ({"data": {"tokens": np.ones(2), "score": 1.0}}, rollway.SchemaMismatch, "tokens"),
    "no dict": ({"data": 5}, rollway.SchemaMismatch, "int"),
    "too large": ({"data": trajectory(LANE)}, rollway.errors.RecordTooLarge, "lane_bytes"),
    "a key": ({"keys": "k"}, rollway.InvalidArgument, "RecordKey"),
    "metadata": ({"metadata": {"x": object()}}, rollway.InvalidArgument, "JSON"),
    "a version": ({"version": -1}, rollway.InvalidArgument, "version"),
}


@pytest.mark.parametrize("way", ["send_many", "try_send_many", "send_many_async"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_record_that_is_wrong_is_named_and_nothing_is_sent(pair, wrong, way):
    server, client = pair
    replaced, error, words = WRONG[wrong]
    given = {"data": [trajectory(1)] * 4, "keys": [None] * 4, "metadata": [None] * 4, "version": [0] * 4}
    for what, bad in replaced.items():
        given[what] = [*given[what][:2], bad, given[what][3]]
    with pytest.raises(error, match=rf"^record 2: .*{words}") as raised:
        call = getattr(client, way)(given.pop("data"), **given)
        asyncio.run(call)
    assert raised.value.sent == 0
    assert client.send(trajectory(1, 9)) and int(server.read(timeout=10)["score"]) == 9


class Odd(Exception):
    """Somebody else's, which says nothing."""


class Refuses:
    def __array__(self, *_, **__):
        raise Odd(1, 2)


def test_an_error_that_is_not_ours_is_raised_with_a_note(pair):
    with pytest.raises(Odd) as raised:
        pair[1].send_many([trajectory(1), {"tokens": Refuses(), "score": 0.0}])
    assert raised.value.args == (1, 2) and raised.value.__notes__ == ["in record 1 of send_many"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"data": trajectory(1)}, "data is a dict; send_many takes a list or tuple"),
        ({"data": (trajectory(1) for _ in range(2))}, "data is a generator"),
        ({"keys": [key(0)]}, "keys has 1 items for 2 records"),
        ({"keys": key(0)}, "keys has 5 items for 2 records"),
        ({"metadata": {"a": 1, "b": 2}}, "metadata is a dict"),
        ({"metadata": [None] * 3}, "metadata has 3 items for 2 records"),
        ({"version": [1, 2, 3]}, "version has 3 items for 2 records"),
    ],
)
def test_lists_that_do_not_go_together_are_refused(pair, given, words):
    server, client = pair
    with pytest.raises(rollway.InvalidArgument, match=words):
        client.send_many(**{"data": [trajectory(1)] * 2, **given})
    with pytest.raises(rollway.InvalidArgument, match=words):
        asyncio.run(client.send_many_async(**{"data": [trajectory(1)] * 2, **given}))
    assert server.try_read() is None


def test_what_is_no_timeout_is_refused(pair):
    with pytest.raises(rollway.InvalidArgument, match="timeout"):
        pair[1].send_many([trajectory(1)], timeout=-1)


class Thief:
    """Becomes an array, and takes those of the records before it out of their dicts."""

    def __init__(self, victims):
        self.victims, self.others = victims, []

    def __array__(self, *_, **__):
        for victim in self.victims:
            n = len(victim.pop("tokens"))
            self.others += [
                np.full(n, 666, np.int32) for _ in range(50)
            ]  # one of them where it was, if nobody holds it
        return np.array([3], np.int32)


def test_arrays_that_the_conversion_of_another_record_takes_away_are_sent_all_the_same(pair):
    server, client = pair
    before, after = trajectory(1000, 1), trajectory(1000, 2)
    data = [before, {"tokens": Thief([before]), "score": 0.0}, after, {"tokens": Thief([after]), "score": 0.0}]
    assert client.send_many(data) == 4
    got = [server.read(timeout=10)["tokens"].tolist() for _ in range(4)]
    assert got == [list(range(1, 1001)), [3], list(range(2, 1002)), [3]]


# ── when there is no room ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["shm", "tcp"])
def test_one_that_waits_goes_on_when_room_is_released(kind, name):
    with ExitStack() as stack:
        server, client = narrow(kind, name, stack)
        sent = []
        data = [trajectory(100, seed) for seed in range(100)]
        sender = threading.Thread(target=lambda: sent.append(client.send_many(data)))
        sender.start()
        assert read(server, 100) == list(range(100))
        sender.join(30)
        assert sent == [100]


@pytest.mark.parametrize("timeout", [0.05, 0])
def test_one_that_finds_no_room_in_time_says_how_many_are_sent(name, timeout):
    with ExitStack() as stack:
        server, client = narrow("shm", name, stack)
        client.send_many([trajectory(1, seed) for seed in range(3)])
        error = rollway.WaitTimeout if timeout else rollway.RingFull
        with pytest.raises(error, match="of all lanes, 8 records") as raised:
            client.send_many([trajectory(1, seed) for seed in range(3, 20)], timeout=timeout)
        assert raised.value.sent == 5
        assert client.try_send_many([trajectory(1)] * 3) == 0
        assert read(server, 8) == list(range(8)) and server.try_read() is None
        assert client.try_send_many([trajectory(1)] * 10) == 8


def test_one_that_finds_no_room_in_time_over_tcp_says_how_many_are_sent(name):
    with ExitStack() as stack:
        server, client = narrow("tcp", name, stack)
        with pytest.raises(rollway.WaitTimeout) as raised:
            client.send_many([trajectory(10_000, seed) for seed in range(1000)], timeout=0.2)
        sent = raised.value.sent
        with pytest.raises(rollway.RingFull) as raised:
            client.send_many([trajectory(10_000)], timeout=0)
        assert 8 <= sent < 1000 and raised.value.sent == 0 and client.try_send_many([trajectory(10_000)]) == 0
        assert read(server, sent) == list(range(sent))
        assert server.try_read() is None


@pytest.mark.parametrize("kind", ["shm", "tcp"])
@pytest.mark.parametrize("closes", ["server", "client"])
def test_a_close_ends_one_that_waits_and_says_how_many_are_sent(kind, closes, name):
    with ExitStack() as stack:
        server, client = narrow(kind, name, stack)
        raised = []

        def send():
            try:
                client.send_many([trajectory(10_000, seed) for seed in range(1000)])
            except rollway.ConnectionClosedError as error:
                raised.append(error.sent)

        sender = threading.Thread(target=send)
        sender.start()
        until(lambda: server.stats()["ready_records"] == 8)
        server.close() if closes == "server" else close_in_vain(client) if kind == "tcp" else client.close()
        sender.join(30)
        assert raised == [8] if kind == "shm" else 8 <= raised[0] < 1000


def test_one_that_waits_for_a_learner_that_died_says_how_many_are_sent(name, child):
    learner = child(
        f"""
        import rollway
        server = rollway.RecordServer({SCHEMA}, rollway.ShmTransport("{name}"), max_records=8)
        server.start()
        print("ready", flush=True)
        server.read(); input()
        """
    )
    learner.says("ready")
    with rollway.ShmRecordClient(name, SCHEMA, peer_timeout_s=0) as client:
        learner.process.kill()
        learner.process.wait()
        with pytest.raises(rollway.PeerDied) as raised:
            client.send_many([trajectory(1)] * 20)
        assert raised.value.sent == 8
    rollway.gc()


@pytest.mark.parametrize(
    ("policy", "sent", "left"),
    [("drop_newest", 8, range(8)), ("drop_oldest", 20, range(12, 20)), ("error", 8, range(8))],
)
@pytest.mark.parametrize("way", ["send_many", "try_send_many", "send_many_async"])
def test_policies(name, policy, sent, left, way):
    with ExitStack() as stack:
        server, client = connected("shm", name, stack, max_records=8, lane_bytes=LANE, on_full=policy)
        data, found = [trajectory(1, seed) for seed in range(20)], None
        try:
            found = getattr(client, way)(data)
            found = asyncio.run(found) if way == "send_many_async" else found
        except rollway.RingFull as full:
            assert policy == "error" and way != "try_send_many"
            found = full.sent
        assert found == sent and numbers(server.read_many(20)) == [*left]
        dropped = server.stats()
        assert dropped["dropped_newest"] + dropped["dropped_oldest"] == (0 if policy == "error" else 12)


def test_a_record_that_is_dropped_stops_none_behind_it(name):
    with ExitStack() as stack:
        server, client = connected("shm", name, stack, lane_bytes=1 << 16, on_full="drop_newest")
        # The second and the fourth find no room; the small ones do.
        data = [trajectory(n, seed) for seed, n in enumerate([10_000, 10_000, 1, 10_000, 2])]
        assert client.send_many(data) == 3
        assert numbers(server.read_many(5)) == [0, 2, 4] and server.stats()["dropped_newest"] == 2


def test_threads_share_a_client(pair):
    server, client = pair
    data = [[trajectory(10, 1000 * thread + seed) for seed in range(300)] for thread in range(3)]
    threads = [threading.Thread(target=client.send_many, args=(each,)) for each in data]
    for thread in threads:
        thread.start()
    found, sequences = [], []
    while len(found) < 900:
        with server.read(timeout=30) as record:
            found.append(int(record["score"]))
            sequences.append(record.sequence)
    for thread in threads:
        thread.join(30)
    for thread in range(3):
        mine = [number for number in found if number // 1000 == thread]
        assert mine == [1000 * thread + seed for seed in range(300)]
    assert sorted(sequences) == list(range(900))


# ── asyncio ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["shm", "tcp"])
def test_a_coroutine_waits_for_room_and_says_how_far_it_came(kind, name):
    async def main(server, client):
        data, keys = [trajectory(10_000, seed) for seed in range(100)], [key(seed) for seed in range(100)]
        sending = asyncio.create_task(client.send_many_async(data, keys=keys, version=list(range(100))))
        await asyncio.sleep(0)
        data.clear()  # what is given to it is its own
        found = []
        while len(found) < 100:
            with await server.read_async(timeout=30) as record:
                found.append((int(record["score"]), record.key.repetition_id, record.version))
        assert await sending == 100 and found == [(seed, seed, seed) for seed in range(100)]

        with pytest.raises(rollway.WaitTimeout) as late:
            await client.send_many_async([trajectory(10_000)] * 1000, timeout=0.2)
        assert 8 <= late.value.sent < 1000
        blocked = asyncio.create_task(client.send_many_async([trajectory(10_000)] * 3))
        await asyncio.sleep(0.05)
        blocked.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await blocked
        assert cancelled.value.sent == 0
        for _ in range(late.value.sent):
            (await server.read_async(timeout=30)).release()
        assert server.try_read() is None

    with ExitStack() as stack:
        asyncio.run(main(*narrow(kind, name, stack)))


def test_a_coroutine_sends_a_list_that_is_much_longer_than_its_lane(name):
    async def main(server, client):
        sending = asyncio.create_task(client.send_many_async([trajectory(1, seed) for seed in range(1000)]))
        found = []
        while len(found) < 1000:
            for record in await server.read_many_async(8, timeout=30):
                found.append(int(record["score"]))
                record.release()
        assert await sending == 1000 and found == list(range(1000))

    with ExitStack() as stack:
        asyncio.run(main(*narrow("shm", name, stack)))


def test_a_coroutine_that_is_cancelled_in_between_says_how_many_are_sent(name):
    async def main(server, client):
        sending = asyncio.create_task(client.send_many_async([trajectory(1, seed) for seed in range(20)]))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError) as late:
            await asyncio.wait_for(sending, 0.05)
        assert late.value.__cause__.sent == 8
        assert numbers(server.read_many(20)) == list(range(8))

    with ExitStack() as stack:
        asyncio.run(main(*narrow("shm", name, stack)))
