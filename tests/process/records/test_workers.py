"""Records between real processes: spawn, fork and forkserver; learners that come back; workers that fork."""

import asyncio
import hashlib
import multiprocessing
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import RecordKey, ShmRecordClient, _core
from tests.support.processes import until

SCHEMA = {"tokens": "int32[*]", "blob": "uint8[*]", "who": "int64[2]"}


def content(worker, counter):
    rng = random.Random(worker * 1_000_003 + counter)
    tokens = np.frombuffer(rng.randbytes(4 * rng.randrange(0, 3000)), np.int32)
    return {
        "tokens": tokens,
        "blob": np.frombuffer(hashlib.sha256(tokens.tobytes()).digest(), np.uint8),
        "who": np.array([worker, counter]),
    }


def produce(name, worker, count):
    with ShmRecordClient(name, SCHEMA, producer_id=worker) as client:
        for counter in range(count):
            key = RecordKey("run", "train", worker, str(counter), 0)
            client.send(content(worker, counter), key=key, metadata={"worker": worker}, version=counter)


def check(record):
    """Every byte of it; gives who sent it, and which it is."""
    worker, counter = record["who"].tolist()
    expected = content(worker, counter)
    assert np.array_equal(record["tokens"], expected["tokens"]) and np.array_equal(record["blob"], expected["blob"])
    assert record.key == RecordKey("run", "train", worker, str(counter), 0) and record.metadata == {"worker": worker}
    assert record.producer_id == worker and record.version == counter
    return worker, counter


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_every_record_of_every_worker_arrives_whole_and_in_order(name, method):
    context = multiprocessing.get_context(method)
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), lane_bytes=1 << 18) as server:
        workers = [context.Process(target=produce, args=(name, worker, 200)) for worker in range(4)]
        for worker in workers:
            worker.start()
        seen = {}
        for _ in range(800):
            with server.read(timeout=60) as record:
                worker, counter = check(record)
            assert seen.setdefault(worker, 0) == counter, "out of order"
            seen[worker] += 1
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        assert server.try_read() is None


def test_workers_take_turns(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server:
        clients = [ShmRecordClient(name, SCHEMA) for _ in range(3)]
        for worker, client in enumerate(clients):
            for counter in range(10):
                client.send(content(worker, counter))
        order = [int(record["who"][0]) for record in server.read_many(30)]
        # However the turns begin, nobody is served twice before everybody was served once.
        for first in range(0, 30, 3):
            assert sorted(order[first : first + 3]) == [0, 1, 2]
        for client in clients:
            client.close()


def test_a_newcomer_gets_an_empty_lane_while_there_is_one(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), lanes=2, max_records=16) as server:
        for worker in range(2):
            with ShmRecordClient(name, SCHEMA) as client:
                for counter in range(16):
                    client.send(content(worker, counter), timeout=10)
        assert len(server.read_many(32)) == 32


def test_a_learner_that_comes_back_goes_on_with_what_was_committed(name, child):
    learner = """
        import sys, rollway
        server = rollway.RecordServer({"tokens": "int32[*]", "blob": "uint8[*]", "who": "int64[2]"}, rollway.ShmTransport(sys.argv[1]))
        print("ready", flush=True)
        for i in range(5):
            server.read().release()
        held = server.read()
        print("holding", flush=True)
        sys.stdin.readline()
    """
    first = child(learner, name)
    first.says("ready")
    client = ShmRecordClient(name, SCHEMA, producer_id=0)
    for counter in range(20):
        key = RecordKey("run", "train", 0, str(counter), 0)
        client.send(content(0, counter), key=key, metadata={"worker": 0}, version=counter)
    first.says("holding")
    first.kill()
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name, if_exists="resume")) as server:
        assert server.resumed
        got = sorted(check(server.read(timeout=30))[1] for _ in range(15))
        assert got == list(range(5, 20)), "the one that the dead learner held comes again, the others once"
        client.close()


def test_a_forked_child_has_a_lane_of_its_own(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server:
        client = ShmRecordClient(name, SCHEMA)
        client.send(content(1, 0))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for counter in range(50):
                    client.send(content(2, counter))
                code = 0
            finally:
                os._exit(code)
        for counter in range(1, 50):
            client.send(content(1, counter))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        seen = {1: [], 2: []}
        for _ in range(100):
            worker, counter = server.read(timeout=30)["who"].tolist()
            seen[worker].append(counter)
        assert seen == {1: list(range(50)), 2: list(range(50))}
        client.close()


def test_a_child_does_not_release_its_parents_records(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), lane_bytes=1 << 16, lanes=1) as server:
        with ShmRecordClient(name, SCHEMA) as client:
            client.send(content(1, 0))
            record = server.read()
            pid = os.fork()
            if pid == 0:
                record.release()
                os._exit(0)
            os.waitpid(pid, 0)
            for counter in range(1, 40):
                client.send(content(1, counter), timeout=30)
                server.read(timeout=30).release()
            assert np.array_equal(record["tokens"], content(1, 0)["tokens"])


IDLE_WORKER = """
import sys, rollway
client = rollway.ShmRecordClient(sys.argv[1], {"tokens": "int32[*]", "blob": "uint8[*]", "who": "int64[2]"})
print("ready", flush=True)
sys.stdin.readline()
"""


def test_the_death_of_every_worker_ends_the_wait(name, child):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), peer_timeout_s=0.05) as server:
        worker = child(IDLE_WORKER, name)
        worker.says("ready")
        worker.kill()
        with pytest.raises(rollway.PeerDied):
            server.read(timeout=30)


@pytest.mark.parametrize("call", [lambda server: server.read_async(), lambda server: server.read_many_async(3)])
def test_the_death_of_every_worker_ends_the_wait_of_a_coroutine(name, child, call):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), peer_timeout_s=0.05) as server:
        worker = child(IDLE_WORKER, name)
        worker.says("ready")

        async def main():
            reading = asyncio.create_task(call(server))
            await asyncio.sleep(0)
            worker.kill()
            with pytest.raises(rollway.PeerDied, match=f"pid {worker.pid}"):
                await asyncio.wait_for(reading, 30)

        asyncio.run(main())


def test_a_coroutine_that_reads_hears_that_the_records_were_shut_down(name):
    server = rollway.RecordServer(SCHEMA, rollway.ShmTransport(name))
    with rollway.ShmRecordClient(name, SCHEMA) as client:
        client.send(content(1, 1))

        async def main():
            reading = [asyncio.create_task(server.read_async()) for _ in range(2)]
            many = asyncio.create_task(server.read_many_async(3))
            await asyncio.wait(reading, return_when="FIRST_COMPLETED", timeout=30)
            await asyncio.to_thread(server.close)
            assert await many == []
            records = [record for record in await asyncio.gather(*reading) if record is not None]
            assert len(records) == 1, "what was sent before is read"
            records[0].release()
            assert await server.read_async() is None

        asyncio.run(main())
        with pytest.raises(rollway.ConnectionClosedError):
            asyncio.run(client.send_async(content(1, 2)))


LEARNER = """
    import sys, numpy as np, rollway
    schema = {"tokens": "int32[*]", "blob": "uint8[*]", "who": "int64[2]"}
    if sys.argv[2] == "records":
        server = rollway.RecordServer(schema, rollway.ShmTransport(sys.argv[1]), lane_bytes=1 << 16)
    else:
        server = rollway.Server({"x": np.zeros(100)}, 2, rollway.ShmTransport(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("kind", ["records", "ring"])
def test_a_coroutine_that_waits_for_room_hears_of_the_learners_death(name, child, kind):
    learner = child(LEARNER, name, kind)
    learner.says("ready")
    if kind == "records":
        client, data = ShmRecordClient(name, SCHEMA, peer_timeout_s=0.05), content(1, 1)
    else:
        client, data = rollway.ShmClient(name, {"x": np.zeros(100)}, peer_timeout_s=0.05), {"x": np.zeros(100)}

    async def fill():
        while True:
            await client.send_async(data)

    async def main():
        filling = asyncio.create_task(fill())
        await asyncio.sleep(0)
        learner.kill()
        with pytest.raises(rollway.PeerDied, match=str(learner.pid)):
            await asyncio.wait_for(filling, 60)

    asyncio.run(main())
    client.close()
    until(lambda: any(segment.name == name for segment in rollway.gc()))  # once the waiting thread has let go of it


@pytest.mark.parametrize("kind", ["records", "ring"])
def test_a_coroutine_that_waits_for_room_hears_that_no_learner_can_come(name, child, kind):
    """As after a learner that was killed in the middle of `close`, when it had taken the name away."""
    learner = child(LEARNER, name, kind)
    learner.says("ready")
    if kind == "records":
        client, data = ShmRecordClient(name, SCHEMA, peer_timeout_s=None), content(1, 1)
    else:
        client, data = rollway.ShmClient(name, {"x": np.zeros(100)}, peer_timeout_s=None), {"x": np.zeros(100)}

    async def fill():
        while True:
            await client.send_async(data)

    (Path(_core.shm_directory()) / f"rollway.{name}").unlink()
    learner.kill()
    with pytest.raises(rollway.PeerDied, match=rf"pid {learner.pid}.*the name is gone.*attach to it anew"):
        asyncio.run(asyncio.wait_for(fill(), 60))
    client.close()


@pytest.mark.parametrize(
    "call",
    [
        "server.read()",
        "server.read_many(2)",
        "fill(client); client.send(record)",
        "fill(client); client.reserve({'tokens': 900})",
        "fill(client); client.tombstone(rollway.RecordKey('run', 'train', 0, 'x' * 4000, 0))",
        "fill(remote); remote.send(record)",
        "fill(remote); remote.wait()",
        "client.send_many([record] * 3)",
        "remote.send_many([record] * 900)",
    ],
)
def test_ctrl_c_ends_every_wait(child, call):
    waiting = child(
        f"""
        import sys, numpy as np, rollway
        schema, record = {{"tokens": "int32[*]"}}, {{"tokens": np.zeros(900, np.int32)}}
        def fill(client):  # a lane has room for one; another is on its way
            for _ in range(2 if client is remote else 1): client.send(record)
        shm = rollway.ShmTransport()
        with rollway.RecordServer(schema, [shm, rollway.TcpTransport()], lanes=2, lane_bytes=4096) as server:
            client = rollway.ShmRecordClient(server.name, schema)
            remote = rollway.TcpRecordClient("127.0.0.1", server.port, schema, max_inflight_msgs=1)
            print("ready", flush=True)
            try:
                {call}
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            server.close()
            client.close()
            try:
                remote.close(timeout=0)
            except (rollway.WaitTimeout, rollway.ConnectionClosedError):
                pass  # what nobody had read was never taken
        """
    )
    waiting.says("ready")
    until(lambda: "futex" in Path(f"/proc/{waiting.pid}/wchan").read_text() or waiting.process.poll() is not None)
    os.kill(waiting.pid, signal.SIGINT)
    waiting.says("interrupted")
    waiting.ends()


@pytest.mark.parametrize("sender", ["client", "remote"])
def test_ctrl_c_in_a_send_many_says_how_many_were_sent(child, sender):
    waiting = child(
        f"""
        import rollway
        schema, transports = {{"n": "int32[]"}}, [rollway.ShmTransport(), rollway.TcpTransport()]
        with rollway.RecordServer(schema, transports, lanes=2, max_records=8) as server:
            client = rollway.ShmRecordClient(server.name, schema)
            remote = rollway.TcpRecordClient("127.0.0.1", server.port, schema, max_inflight_msgs=1)
            print("ready", flush=True)
            try:
                {sender}.send_many([{{"n": n}} for n in range(100_000)])
            except KeyboardInterrupt as interrupted:
                sent = interrupted.sent
            with {sender}:
                found = []
                while len(found) < sent:
                    with server.read(timeout=30) as record:
                        found.append(int(record["n"]))
                print(0 < sent < 100_000, found == list(range(sent)), server.try_read(), flush=True)
        """
    )
    waiting.says("ready")
    until(lambda: "futex" in Path(f"/proc/{waiting.pid}/wchan").read_text() or waiting.process.poll() is not None)
    os.kill(waiting.pid, signal.SIGINT)
    waiting.says("True True None")
    waiting.ends()


def test_records_are_not_replaced_by_records_of_another_size(name, child):
    code = """
    import sys
    import rollway
    server = rollway.RecordServer({"tokens": "int32[*]"}, rollway.ShmTransport(sys.argv[1]), lane_bytes=1 << 16)
    server.submit({"tokens": [1, 2, 3]})
    print("ready", flush=True)
    sys.stdin.readline()
    """
    learner = child(code, name)
    learner.says("ready")
    learner.kill()
    schema, resume = {"tokens": "int32[*]"}, rollway.ShmTransport(name, if_exists="resume")
    for options, what in [
        ({"lane_bytes": 1 << 17}, "lane_bytes = 65536, but 131072"),
        ({"lane_bytes": 1 << 16, "lanes": 3}, "lanes = 64, but 3"),
    ]:
        with pytest.raises(rollway.errors.GeometryMismatch, match=what):
            rollway.RecordServer(schema, resume, **options)
    with rollway.RecordServer(schema, resume, lane_bytes=1 << 16) as server:
        assert server.read(timeout=10)["tokens"].tolist() == [1, 2, 3]
