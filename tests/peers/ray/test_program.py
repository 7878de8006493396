"""The program that users write: a learner publishes its server and weights, actors on any node connect by name."""

import numpy as np

import rollway
from rollway.integrations.ray import connect, publish
from tests.peers.ray.conftest import WAIT_S

EXAMPLE = {"obs": np.zeros(4, np.float32), "version": np.zeros((), np.int64)}


class Worker:
    def run(self, name, steps):
        plane = connect(name)
        with plane.client() as client, plane.weights() as policy:
            mine = {"w": np.zeros(3, np.float32)}
            policy.wait_for_version(1, timeout=WAIT_S)
            version = policy.read_weights_into(mine)
            for step in range(steps):
                client.send({"obs": np.full(4, step, np.float32), "version": version})
            client.wait()
        return mine["w"].tolist(), version


def taken(server):
    with server.sample(timeout=WAIT_S) as sample:
        return {name: leaf.copy() for name, leaf in sample.batch.items()}, sample.info


def test_workers_of_two_nodes_send_to_a_learner_that_they_find_by_name(ray, name):
    weights = rollway.SharedWeightSync.from_state_dict({"w": np.full(3, 7, np.float32)})
    near = ray.remote(num_cpus=0)(Worker).remote()
    far = ray.remote(num_cpus=0, resources={"far": 1})(Worker).remote()
    ring = rollway.ShmTransport(name)
    with weights, rollway.Server(EXAMPLE, 32, transport=ring) as server, publish("run1", server, weights=weights):
        done = [worker.run.remote("run1", 64) for worker in (near, far)]
        batches = [taken(server) for _ in range(4)]
        assert ray.get(done) == [([7.0, 7.0, 7.0], 1)] * 2
    steps = np.concatenate([batch["obs"][:, 0] for batch, _ in batches])
    producers = np.concatenate([info.producer_ids for _, info in batches])
    assert len(set(producers)) == 2
    for producer in set(producers):
        assert steps[producers == producer].tolist() == list(range(64))
