"""Copies of weights that other hosts fetch from, each in a process of its own: kills, restarts, late joiners, what the learner sends."""

import numpy as np
import pytest

import rollway
from tests.process.weights.test_remote import LEARNER, SOON, free_port, number, tree
from tests.support.processes import until

NODE = """
import sys, rollway
port, name = int(sys.argv[1]), sys.argv[2]
weights = rollway.TcpWeights("127.0.0.1", port, name=name, on_close="wait")
print(weights.serve(rollway.TcpTransport()).port, flush=True)
for line in sys.stdin:
    print(weights.wait_for_version(int(line), 30), flush=True)
"""


def serve(weights):
    return weights.serve(rollway.TcpTransport())


def test_a_killed_node_is_replaced_and_its_children_keep_their_readers(child, name):
    with rollway.SharedWeightSync.from_state_dict(tree(1)) as sync, serve(sync) as learner:
        node = child(NODE, learner.port, f"{name}-node")
        with rollway.TcpWeights("127.0.0.1", int(node.line()), name=name) as last:
            with rollway.SharedWeightSync.attach(name) as worker:
                assert worker.wait_for_version(1, SOON) == 1
                node.kill()
                until(lambda: not last.connected)
                assert number(worker) == 1, "the last version stays"
                sync.write_weights(tree(2))
                last.redirect("127.0.0.1", learner.port)
                assert worker.wait_for_version(2, SOON) == 2
                assert number(worker) == 2
        rollway.gc()


def test_a_node_that_is_killed_and_started_again_goes_on_under_its_name(child, name):
    with rollway.SharedWeightSync.from_state_dict(tree(1)) as sync, serve(sync) as learner:
        node = child(NODE, learner.port, f"{name}-node")
        with rollway.TcpWeights("127.0.0.1", int(node.line()), name=name) as last:
            assert last.wait_for_version(1, SOON) == 1
            node.kill()
            again = child(NODE, learner.port, f"{name}-node")
            last.redirect("127.0.0.1", int(again.line()))
            sync.write_weights(tree(2))
            assert last.wait_for_version(2, SOON) == 2
            again.ends()
        assert number(sync) == 2


def test_a_killed_learner_that_begins_anew_is_followed_by_nodes_and_their_children(child, name):
    port = free_port()
    learner = child(LEARNER, port, name, 10)
    learner.says("1")
    with rollway.TcpWeights("127.0.0.1", port) as node, serve(node) as endpoint:
        with rollway.TcpWeights("127.0.0.1", endpoint.port) as last:
            for version, value in enumerate((20, 30, 40), 2):
                learner.tell(str(value))
                assert last.wait_for_version(version, SOON) == version
            learner.kill()
            rollway.gc()
            again = child(LEARNER, port, name, 50)
            again.says("1")
            assert last.wait_for_version(5, SOON) == 1, "its first version is the next one"
            assert number(last) == number(node) == 50
            again.ends()


def test_a_killed_learner_that_goes_on_is_followed_by_nodes_and_their_children(child, name):
    port = free_port()
    learner = child(LEARNER, port, name, 10)
    learner.says("1")
    with rollway.TcpWeights("127.0.0.1", port) as node, serve(node) as endpoint:
        with rollway.TcpWeights("127.0.0.1", endpoint.port) as last:
            assert last.wait_for_version(1, SOON) == 1
            learner.kill()
            again = child(LEARNER, port, name, 20)
            again.says("2")
            assert last.wait_for_version(2, SOON) == 2
            assert number(last) == 20 and last.stats()["connects"] == 1, "its own connection did not break"
            again.ends()


@pytest.mark.parametrize("fan_out", [1, 2])
def test_the_learner_sends_as_many_copies_as_its_fan_out_and_not_one_per_node(fan_out):
    nodes = 6
    leaf = np.zeros(1 << 17)  # 1 MiB
    with rollway.SharedWeightSync.from_state_dict({"w": leaf}) as sync, serve(sync) as learner:
        endpoints, copies = [learner], []
        try:
            for node in range(nodes):
                parent = 0 if node < fan_out else node - fan_out + 1
                copies.append(rollway.TcpWeights("127.0.0.1", endpoints[parent].port))
                assert copies[-1].wait_for_version(1, SOON) == 1, "a late joiner gets the latest version at once"
                endpoints.append(serve(copies[-1]))
            for version in (2, 3):
                sync.write_weights({"w": leaf + version})
                for copy in copies:
                    assert copy.wait_for_version(version, SOON) == version
            stats = learner.stats()
            assert stats["tcp_weight_clients"] == fan_out
            assert stats["tcp_versions"] == 3 * fan_out
            assert stats["tcp_weight_bytes"] == 3 * fan_out * leaf.nbytes
            assert all(copy.read_weights()["w"][-1] == 3 for copy in copies)
        finally:
            for copy in reversed(copies):
                copy.close()
