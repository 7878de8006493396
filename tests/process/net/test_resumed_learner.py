"""Learners that are killed under load and resumed by the next one: it has every sample and record of remote workers once."""

import random
import socket
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import rollway
from rollway.transport import Forwarder, RecordForwarder
from tests.support.processes import until

EXAMPLE = {"id": np.int64(0), "payload": np.zeros(30, np.float32)}
SCHEMA = {"id": "int64[]", "payload": "float32[*]"}
ROUNDS, SAMPLES, SOON = 10, 400, 60

# They read nothing: what they read and did not release would be offered again to the next one.
LEARNER = """
import sys, numpy as np, rollway
example = {"id": np.int64(0), "payload": np.zeros(30, np.float32)}
transport = [rollway.ShmTransport(sys.argv[1], if_exists="resume"), rollway.TcpTransport(int(sys.argv[2]))]
with rollway.Server(example, 32, transport, num_buffers=400) as server:
    print(server.port, flush=True)
    sys.stdin.readline()
"""

RECORD_LEARNER = """
import sys, rollway
transport = [rollway.ShmTransport(sys.argv[1], if_exists="resume"), rollway.TcpTransport(int(sys.argv[2]))]
with rollway.RecordServer({"id": "int64[]", "payload": "float32[*]"}, transport) as server:
    print(server.port, flush=True)
    sys.stdin.readline()
"""


class Samples:
    """Samples of one size, and a ring that has room for all of them."""

    code, batch = LEARNER, {"rows": 16}
    connect = staticmethod(lambda port, **options: rollway.TcpClient("127.0.0.1", port, EXAMPLE, **options))
    forward = staticmethod(lambda node, port, **options: Forwarder(node, EXAMPLE, "127.0.0.1", port, **options))
    work = staticmethod(lambda node, **options: rollway.ShmClient(node, EXAMPLE, **options))

    @staticmethod
    def value(number):
        return {"id": np.int64(number), "payload": np.full(30, number, np.float32)}

    @staticmethod
    def take_all(name):
        """What the ring has: worker and number."""
        with rollway.Server(EXAMPLE, 32, rollway.ShmTransport(name, if_exists="resume"), num_buffers=400) as server:
            while True:
                try:
                    sample = server.sample(timeout=0, at_least=1)
                except rollway.WaitTimeout:
                    return
                with sample:
                    assert (sample.batch["payload"] == sample.batch["id"][:, None]).all()
                    yield from zip(sample.info.producer_ids.tolist(), sample.batch["id"].tolist(), strict=True)


class Records:
    """Records of many sizes, and lanes that have room for all of them."""

    code, batch = RECORD_LEARNER, {}
    connect = staticmethod(lambda port, **options: rollway.TcpRecordClient("127.0.0.1", port, SCHEMA, **options))
    forward = staticmethod(lambda node, port, **options: RecordForwarder(node, SCHEMA, "127.0.0.1", port, **options))
    work = staticmethod(lambda node, **options: rollway.ShmRecordClient(node, SCHEMA, **options))

    @staticmethod
    def value(number):
        return {"id": np.int64(number), "payload": np.full(number % 50, number, np.float32)}

    @staticmethod
    def take_all(name):
        """What the lanes have: worker and number."""
        with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name, if_exists="resume")) as server:
            while record := server.try_read():
                with record:
                    number = int(record["id"])
                    assert record["payload"].tolist() == [number] * (number % 50)
                    yield record.producer_id, number


@pytest.fixture(params=[Samples, Records], ids=["samples", "records"])
def kind(request):
    return request.param


def send_many(kind, client, numbers):
    for number in numbers:
        client.send(kind.value(number), timeout=SOON)


def check(kind, name, workers, count):
    ids = defaultdict(list)
    for worker, number in kind.take_all(name):
        ids[worker].append(number)
    assert sorted(ids) == list(range(workers))
    for worker, numbers in ids.items():
        assert sorted(numbers) == list(range(count)), worker


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.mark.parametrize("on_restart", ["raise", "drop", "resend"])
def test_learners_that_are_killed_and_resumed_have_everything_once(kind, name, child, port, on_restart):
    rng = random.Random(on_restart)
    node, learner = f"{name}-node", child(kind.code, name, port)
    assert int(learner.line()) == port
    options = {"on_restart": on_restart, "reconnect_timeout_s": SOON}
    with (
        ThreadPoolExecutor() as threads,
        kind.connect(port, producer_id=0, **options) as client,
        kind.forward(node, port, **kind.batch, **options) as forwarder,
        kind.work(node, producer_id=1) as worker,
    ):
        for first in range(0, ROUNDS * SAMPLES, SAMPLES):
            half = first + rng.randrange(SAMPLES)
            sends = [threads.submit(send_many, kind, sender, range(first, half)) for sender in (client, worker)]
            [send.result(SOON) for send in sends]  # the last of it is on its way
            end = first + SAMPLES
            sends = [threads.submit(send_many, kind, sender, range(half, end)) for sender in (client, worker)]
            learner.kill()
            learner = child(kind.code, name, port)
            assert int(learner.line()) == port
            [send.result(SOON) for send in sends]
            client.wait(SOON)
            forwarder.wait(SOON)
        stats = [client.stats(), forwarder.stats()]
    assert [(number["dropped"], number["resent"]) for number in stats] == [(0, 0)] * 2
    learner.kill()
    check(kind, name, 2, ROUNDS * SAMPLES)


def test_a_forwarder_that_follows_a_resumed_learner_to_its_new_address_sends_all_once(kind, name, child):
    rng = random.Random(3)
    node = f"{name}-node"
    with ThreadPoolExecutor() as threads:
        learner = child(kind.code, name, 0)
        forwarder = kind.forward(node, int(learner.line()), **kind.batch)
        with kind.work(node, producer_id=0) as worker:
            for first in range(0, 5 * SAMPLES, SAMPLES):
                before = forwarder.stats()["acknowledged"]
                sends = threads.submit(send_many, kind, worker, range(first, first + SAMPLES))
                enough = rng.randrange(SAMPLES)
                until(lambda: forwarder.stats()["acknowledged"] - before >= enough // 4, timeout=SOON)
                learner.kill()
                learner = child(kind.code, name, 0)
                port = int(learner.line())
                forwarder.abandon()
                forwarder = kind.forward(node, port, **kind.batch)
                sends.result(SOON)
            forwarder.wait(SOON)
            assert (forwarder.stats()["dropped"], forwarder.stats()["resent"]) == (0, 0)
            forwarder.close()
        learner.kill()
    check(kind, name, 1, 5 * SAMPLES)
