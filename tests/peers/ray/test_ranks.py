"""A learner of several ranks: workers are spread over them, or stay on one; a rank that died comes back."""

import os
import signal
from collections import Counter

import numpy as np
import pytest

import rollway
from rollway.errors import InvalidArgument, LearnerUnreachable, RunNameTaken
from rollway.integrations.ray import connect, publish
from tests.peers.ray.conftest import WAIT_S

EXAMPLE = {"x": np.zeros((), np.int64)}


@pytest.fixture
def servers():
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(), num_buffers=64) as first:
        with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(), num_buffers=64) as second:
            yield [first, second]


def values(server):
    """What has arrived."""
    found = []
    while (sample := server.try_sample()) is not None:
        found.append(int(sample["x"][0]))
        sample.release()
    return found


class Worker:
    def send(self, run, value, **choice):
        with connect(run).client(**choice) as client:
            client.send({"x": value})
            client.wait()
        return os.getpid()


class Learner:
    """One rank, in a process of its own."""

    def __init__(self, run, rank, world_size):
        self.server = rollway.Server(EXAMPLE, 1, rollway.ShmTransport(), num_buffers=64)
        self.publication = publish(run, self.server, rank=rank, world_size=world_size)

    def pid(self):
        return os.getpid()

    def take(self):
        with self.server.sample(timeout=WAIT_S) as sample:
            return int(sample["x"][0])

    def end(self):
        self.publication.close()
        self.server.close()


def test_workers_are_spread_evenly_over_the_ranks(ray, servers):
    with publish("spread", servers=servers) as publication:
        assert publication.ranks == [0, 1]
        clients = [connect("spread").client() for _ in range(3)]
        clients.append(connect("spread").client(rank=0))
        for value, client in enumerate(clients):
            with client:
                client.send({"x": value})
        assert connect("spread").world_size == 2
        assert [values(server) for server in servers] == [[0, 2, 3], [1]]


def test_an_actor_that_is_restarted_stays_on_its_rank(ray, servers):
    with publish("stays", servers=servers):
        workers = [ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Worker).remote() for _ in range(2)]
        for value in range(3):
            pids = ray.get([worker.send.remote("stays", value) for worker in workers])
            os.kill(pids[value % 2], signal.SIGKILL)
        assert [values(server) for server in servers] == [[0, 1, 2]] * 2
        for worker in workers:
            ray.kill(worker)


def test_workers_with_the_same_key_send_to_the_same_rank(ray, servers):
    with publish("keys", servers=servers):
        plane = connect("keys")
        for value in range(16):
            for _ in range(2):
                with plane.client(key=f"group {value}") as client:
                    client.send({"x": value})
        found = [Counter(values(server)) for server in servers]
    assert all(found) and set(found[0]) | set(found[1]) == set(range(16))
    assert not set(found[0]) & set(found[1]) and set(found[0].values()) == {2}


def test_what_makes_no_sense_is_refused(ray, servers):
    with publish("sense", servers=servers):
        plane = connect("sense", 0.3)
        with pytest.raises(InvalidArgument, match="rank or key, not both"):
            plane.client(rank=0, key="a")
        with pytest.raises(InvalidArgument, match="was found, but it has no rank 2: its ranks are 0 to 1"):
            plane.client(rank=2)
    with pytest.raises(InvalidArgument, match="leave them out with servers="):
        publish("sense", servers=servers, rank=1)
    with pytest.raises(InvalidArgument, match="servers is empty"):
        publish("sense", servers=[])


def test_ranks_of_several_processes_come_and_go_under_their_numbers(ray, servers):
    made = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Learner)
    first, second = made.remote("several", 0, 2), made.remote("several", 1, 2)
    pids = ray.get([one.pid.remote() for one in (first, second)])
    with pytest.raises(RunNameTaken, match=r"its rank 1 is pid \d+"):
        publish("several", servers[0], rank=1, world_size=2)
    with pytest.raises(RunNameTaken, match=r"its learners have world_size=2, this one has 3"):
        publish("several", servers[0], rank=2, world_size=3)
    plane = connect("several")
    os.kill(pids[0], signal.SIGKILL)  # it made the registry, and comes back
    for rank, learner in enumerate((first, second)):
        assert ray.get(learner.pid.remote()) != pids[0]
        with plane.client(rank=rank) as client:
            client.send({"x": 7 + rank})
        assert ray.get(learner.take.remote()) == 7 + rank
    ray.get([one.end.remote() for one in (first, second)])
    with pytest.raises(LearnerUnreachable):
        connect("several", 0.3)
    for one in (first, second):
        ray.kill(one)
