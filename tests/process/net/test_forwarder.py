"""Forwarders and their workers as processes, killed under load: the learner has every sample of every worker once."""

import random
from collections import defaultdict

import numpy as np
import pytest

import rollway
from rollway.transport import Forwarder
from tests.support.processes import Child, until

EXAMPLE = {"step": np.int64(0), "obs": np.zeros(30, np.float32)}

FORWARDER = """
import sys, numpy as np
from rollway.transport import Forwarder
example = {"step": np.int64(0), "obs": np.zeros(30, np.float32)}
forwarder = Forwarder(sys.argv[1], example, "localhost", int(sys.argv[2]), rows=16, num_buffers=6)
print("ready", flush=True)
sys.stdin.readline()
forwarder.close(60)
"""

# Says after each hundred samples how many it has sent.
WORKER = """
import sys, numpy as np, rollway
example = {"step": np.int64(0), "obs": np.zeros(30, np.float32)}
with rollway.ShmClient(sys.argv[1], example, producer_id=int(sys.argv[2])) as client:
    step = 0
    while True:
        client.send({"step": step, "obs": np.full(30, step, np.float32)})
        step += 1
        if step % 100 == 0:
            print(step, flush=True)
"""


class Seen:
    """What the learner has, by worker."""

    def __init__(self):
        self.steps = defaultdict(list)

    def take(self, server):
        """One batch, if there is one."""
        try:
            got = server.sample(timeout=0.02, at_least=1)
        except rollway.WaitTimeout:
            return False
        steps, sequences = got.batch["step"], got.info.sequences
        assert (steps == sequences).all()
        assert (got.batch["obs"] == steps[:, None].astype(np.float32)).all()
        for worker, step in zip(got.info.producer_ids.tolist(), steps.tolist(), strict=True):
            self.steps[worker].append(step)
        return True

    def check(self):
        for worker, steps in self.steps.items():
            assert sorted(steps) == list(range(len(steps))), worker


@pytest.fixture
def server():
    with rollway.Server(EXAMPLE, batch_size=8, transport=rollway.TcpTransport(), num_buffers=4) as server:
        yield server


def test_killed_forwarders_and_workers_lose_nothing_and_send_nothing_twice(server, name):
    rng = random.Random(7)
    seen = Seen()
    forwarder = Child(FORWARDER, name, server.port)
    forwarder.says("ready")
    workers = {number: Child(WORKER, name, number) for number in range(2)}
    acknowledged = dict.fromkeys(workers, 0)
    for round_number in range(20):
        for _ in range(rng.randrange(5, 40)):
            seen.take(server)
        if round_number % 3 == 2:
            number, worker = workers.popitem()
            worker.process.kill()
            said = worker.process.communicate()[0].split()
            acknowledged[number] = int(said[-1]) if said else 0
            workers[number + 2] = Child(WORKER, name, number + 2)
            acknowledged[number + 2] = 0
        else:
            forwarder.kill()
            forwarder = Child(FORWARDER, name, server.port)
            forwarder.says("ready")
    for number, worker in workers.items():
        worker.process.kill()
        said = worker.process.communicate()[0].split()
        acknowledged[number] = int(said[-1]) if said else 0
    forwarder.tell()
    until(lambda: not seen.take(server) and forwarder.process.poll() is not None, 60)
    forwarder.ends()
    while seen.take(server):
        pass
    seen.check()
    for number, sent in acknowledged.items():
        assert len(seen.steps[number]) >= sent, number
    assert server.stats()["tcp_resumed"] >= 5


def test_a_node_waits_for_a_restarted_learner(name):
    def learner():
        transport = rollway.TcpTransport(port, token="shared")
        return rollway.Server(EXAMPLE, batch_size=8, transport=transport, num_buffers=4)

    port = 0
    with learner() as first:
        port = first.port
        forwarder = Forwarder(name, EXAMPLE, "localhost", port, token="shared")
        with rollway.ShmClient(name, EXAMPLE, producer_id=3) as worker:
            worker.send({"step": 0, "obs": np.zeros(30, np.float32)})
            forwarder.wait(30)
    until(lambda: not forwarder.connected)
    with rollway.ShmClient(name, EXAMPLE, producer_id=4) as worker:
        for step in range(8):
            worker.send({"step": step, "obs": np.full(30, step, np.float32)})
        assert forwarder.last_error is not None and not forwarder.over
        with learner() as second:
            seen = Seen()
            until(lambda: seen.take(second) and len(seen.steps[4]) == 8, 60)
            seen.check()
            assert forwarder.stats()["dropped"] == 0
            forwarder.close()
