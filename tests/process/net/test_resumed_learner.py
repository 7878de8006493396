"""Learners that are killed under load and resumed by the next one: its ring has every sample of remote workers once."""

import random
import socket
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import rollway
from rollway.transport import Forwarder
from tests.support.processes import until

EXAMPLE = {"id": np.int64(0), "payload": np.zeros(30, np.float32)}
ROUNDS, SAMPLES, SOON = 10, 400, 60

# It reads nothing: what it read and did not release would be offered again to the next one.
LEARNER = """
import sys, numpy as np, rollway
example = {"id": np.int64(0), "payload": np.zeros(30, np.float32)}
transport = [rollway.ShmTransport(sys.argv[1], if_exists="resume"), rollway.TcpTransport(int(sys.argv[2]))]
with rollway.Server(example, 32, transport, num_buffers=400) as server:
    print(server.port, flush=True)
    sys.stdin.readline()
"""


def value(number):
    return {"id": np.int64(number), "payload": np.full(30, number, np.float32)}


def send_many(client, first):
    for number in range(first, first + SAMPLES):
        client.send(value(number), timeout=SOON)


def take_all(name):
    """What the ring has, by worker."""
    ids = defaultdict(list)
    with rollway.Server(EXAMPLE, 32, rollway.ShmTransport(name, if_exists="resume"), num_buffers=400) as server:
        while True:
            try:
                sample = server.sample(timeout=0, at_least=1)
            except rollway.WaitTimeout:
                return dict(ids)
            with sample:
                assert (sample.batch["payload"] == sample.batch["id"][:, None]).all()
                for worker, number in zip(sample.info.producer_ids, sample.batch["id"], strict=True):
                    ids[int(worker)].append(int(number))


def check(name, workers, count):
    ids = take_all(name)
    assert sorted(ids) == list(range(workers))
    for worker, numbers in ids.items():
        assert sorted(numbers) == list(range(count)), worker


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.mark.parametrize("on_restart", ["raise", "drop", "resend"])
def test_learners_that_are_killed_and_resumed_have_each_sample_once(name, child, port, on_restart):
    rng = random.Random(on_restart)
    node, learner = f"{name}-node", child(LEARNER, name, port)
    assert int(learner.line()) == port
    options = {"on_restart": on_restart, "reconnect_timeout_s": SOON}
    with (
        ThreadPoolExecutor() as threads,
        rollway.TcpClient("127.0.0.1", port, EXAMPLE, producer_id=0, **options) as client,
        Forwarder(node, EXAMPLE, "127.0.0.1", port, rows=16, **options) as forwarder,
        rollway.ShmClient(node, EXAMPLE, producer_id=1) as worker,
    ):
        for first in range(0, ROUNDS * SAMPLES, SAMPLES):
            sends = [threads.submit(send_many, sender, first) for sender in (client, worker)]
            enough = [first + rng.randrange(SAMPLES) for _ in sends]
            until(lambda enough=enough: client.stats()["acknowledged"] >= enough[0], timeout=SOON)
            until(lambda enough=enough: forwarder.stats()["acknowledged"] >= enough[1], timeout=SOON)
            learner.kill()
            learner = child(LEARNER, name, port)
            assert int(learner.line()) == port
            [send.result(SOON) for send in sends]
        client.wait(SOON)
        forwarder.wait(SOON)
        stats = [client.stats(), forwarder.stats()]
    assert [(number["dropped"], number["resent"]) for number in stats] == [(0, 0)] * 2
    learner.kill()
    check(name, 2, ROUNDS * SAMPLES)


def test_a_forwarder_that_follows_a_resumed_learner_to_its_new_address_sends_each_sample_once(name, child):
    rng = random.Random(3)
    node = f"{name}-node"
    with ThreadPoolExecutor() as threads:
        learner = child(LEARNER, name, 0)
        forwarder = Forwarder(node, EXAMPLE, "127.0.0.1", int(learner.line()), rows=16)
        with rollway.ShmClient(node, EXAMPLE, producer_id=0) as worker:
            for first in range(0, 5 * SAMPLES, SAMPLES):
                before = forwarder.stats()["acknowledged"]
                sends = threads.submit(send_many, worker, first)
                enough = rng.randrange(SAMPLES)
                until(lambda: forwarder.stats()["acknowledged"] - before >= enough // 4, timeout=SOON)
                learner.kill()
                learner = child(LEARNER, name, 0)
                port = int(learner.line())
                forwarder.abandon()
                forwarder = Forwarder(node, EXAMPLE, "127.0.0.1", port, rows=16)
                sends.result(SOON)
            forwarder.wait(SOON)
            assert (forwarder.stats()["dropped"], forwarder.stats()["resent"]) == (0, 0)
            forwarder.close()
        learner.kill()
    check(name, 1, 5 * SAMPLES)
