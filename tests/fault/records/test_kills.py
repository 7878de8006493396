"""Records under death: workers and learners killed anywhere; nothing lost, repeated or torn; a stopped one is not dead."""

import os
import random
import signal
import time

import numpy as np
import pytest

import rollway
from tests.support.processes import Ledger, forked, until

SCHEMA = {"id": "int64[3]", "tokens": "int32[*]", "sums": "int64[*]"}


def content(worker, life, counter):
    length = random.Random(worker * 7919 + life * 104_729 + counter).randrange(0, 4000)
    tokens = (np.arange(length, dtype=np.int32) * 31 + worker * 1009 + life * 7919 + counter) ^ 0x5A5A
    return {"id": np.array([worker, life, counter]), "tokens": tokens, "sums": np.array([length, int(tokens.sum())])}


def produce(name, worker, life, ledger, index, limit):
    """Sends and writes in place, in turn, and notes each commit."""
    client = rollway.ShmRecordClient(name, SCHEMA, producer_id=worker, peer_timeout_s=None)
    for sent in range(limit):
        data = content(worker, life, sent)
        if sent % 2:
            client.send(data)
        else:
            room = {"tokens": len(data["tokens"]) + sent % 5, "sums": 2}
            with client.reserve(room) as slot:
                slot["id"][:] = data["id"]
                slot["tokens"][: len(data["tokens"])] = data["tokens"]
                slot["sums"][:] = data["sums"]
                slot.commit({"tokens": len(data["tokens"]), "sums": 2})
        ledger.note(index, sent + 1)
    client.close()


class Tally:
    """What arrived."""

    def __init__(self):
        self.seen = {}

    def add(self, record):
        worker, life, counter = record["id"].tolist()
        expected = content(worker, life, counter)
        for leaf in ("tokens", "sums"):
            assert np.array_equal(record[leaf], expected[leaf]), f"torn: {worker} {life} {counter}"
        mine = self.seen.setdefault((worker, life), set())
        assert counter not in mine, f"repeated: {worker} {life} {counter}"
        mine.add(counter)

    def check(self, worker, life, committed):
        """Everything committed arrived; beyond it at most the one that was committed and not yet noted."""
        mine = self.seen.get((worker, life), set())
        assert mine == set(range(len(mine))), f"a gap in {worker} {life}"
        assert committed <= len(mine) <= committed + 1, f"{worker} {life}: {committed} sent, {len(mine)} seen"


def storm(name, producers, kills, seed=0):
    rng = random.Random(seed)
    ledger = Ledger(producers + kills)
    tally, lives = Tally(), []
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), lane_bytes=1 << 18, lanes=producers + 1) as server:

        def start(worker, life):
            index = len(lives)
            lives.append((worker, life, forked(produce, name, worker, life, ledger, index, 10**9)))
            return index

        alive = [start(worker, 0) for worker in range(producers)]
        held = []
        for _ in range(kills):
            for _ in range(rng.randrange(20, 200)):
                record = server.read(timeout=60)
                tally.add(record)
                if rng.random() < 0.02:
                    held.append(record)  # some are held while everything around them goes on
                if len(held) > 20:
                    held.pop(rng.randrange(len(held))).release()
                del record
            victim = rng.randrange(producers)
            worker, life, pid = lives[alive[victim]]
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            alive[victim] = start(worker, life + 1)
        for index in alive:
            os.kill(lives[index][2], signal.SIGKILL)
            os.waitpid(lives[index][2], 0)
        while (record := server.try_read()) is not None:
            tally.add(record)
            del record
        for index, (worker, life, _) in enumerate(lives):
            tally.check(worker, life, ledger.read(index))
        stats = server.stats()
        assert stats["reserved_records"] == 0 and stats["ready_records"] == 0
        assert stats["taken_records"] == len(held)


def test_killed_workers_lose_tear_and_repeat_nothing(name):
    storm(name, 4, 40)


@pytest.mark.soak
def test_killed_workers_lose_tear_and_repeat_nothing_for_long(name):
    storm(name, 8, 1000, seed=1)


def test_a_stopped_worker_is_not_dead_and_stops_nobody(name, child):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name), lanes=3) as server:
        stopped = child(
            """
            import sys, rollway
            client = rollway.ShmRecordClient(sys.argv[1], {"id": "int64[3]", "tokens": "int32[*]", "sums": "int64[*]"})
            slot = client.reserve({"tokens": 10, "sums": 0})
            slot["tokens"][:] = 1
            print("reserved", flush=True)
            sys.stdin.readline()
            slot["tokens"][:] += 1
            slot.commit()
            print("committed", flush=True)
            sys.stdin.readline()
            """,
            name,
        )
        stopped.says("reserved")
        stopped.stop()
        with rollway.ShmRecordClient(name, SCHEMA) as client:
            for counter in range(300):
                client.send(content(1, 0, counter), timeout=30)
                server.read(timeout=30).release()
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            with pytest.raises(rollway.WaitTimeout):
                server.read(timeout=0.05)  # looks around, and finds nobody dead
        assert server.stats()["reserved_records"] == 1
        stopped.resume()
        stopped.tell()
        assert server.read(timeout=30)["tokens"].tolist() == [2] * 10
        stopped.says("committed")


def test_killed_learners_lose_nothing(name):
    """Learners die with records in their hands: those come again, and what was released does not."""
    released, holding = Ledger(300), Ledger(1)

    def learn(life):
        server = rollway.RecordServer(SCHEMA, rollway.ShmTransport(name))
        for _ in range(30):
            with server.read() as record:
                counter = int(record["id"][2])
            released.note(counter, released.read(counter) + 1)
        held = [server.read() for _ in range(3)]
        holding.note(0, life * len(held))
        signal.pause()

    tally = Tally()
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as keeper:
        producer = forked(produce, name, 0, 0, Ledger(1), 0, 300)
        for life in range(1, 6):
            pid = forked(learn, life)
            until(lambda life=life: holding.read(0) == life * 3, 60)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for _ in range(300 - 5 * 30):
            tally.add(keeper.read(timeout=60))
        assert os.waitstatus_to_exitcode(os.waitpid(producer, 0)[1]) == 0
        assert keeper.try_read() is None
    came = [released.read(counter) + (counter in tally.seen[0, 0]) for counter in range(300)]
    assert came == [1] * 300


def test_one_who_only_tries_gets_what_a_killed_learner_held(name):
    def take_and_die():
        server = rollway.RecordServer(SCHEMA, rollway.ShmTransport(name))
        held = [server.read(timeout=10) for _ in range(3)]
        os.kill(os.getpid(), signal.SIGKILL if held else 0)

    came = []
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server:
        with rollway.ShmRecordClient(name, SCHEMA) as client:
            for counter in range(3):
                client.send(content(0, 0, counter))
            os.waitpid(forked(take_and_die), 0)

            def try_once():
                if (record := server.try_read()) is not None:
                    came.append(int(record["id"][2]))
                return len(came) == 3

            until(try_once)
    assert came == [0, 1, 2]
