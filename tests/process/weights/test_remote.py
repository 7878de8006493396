"""Weights down and samples up between real processes: workers, a learner that is killed and comes back, one that is stopped."""

import os
import signal
import socket

import numpy as np
import pytest

import rollway
from tests.support.processes import until

SOON = 30
LEAVES = 4
WORDS = 20_000

WORKER = """
import sys, numpy as np, rollway
port, rounds = map(int, sys.argv[1:3])
mine = {f"w{i}": np.zeros(20_000, np.int64) for i in range(4)}
with rollway.TcpWeights("127.0.0.1", port, like=mine) as weights, \\
     rollway.TcpClient("127.0.0.1", port, {"seen": np.zeros(2, np.int64)}) as client:
    version = 0
    for _ in range(rounds):
        weights.wait_for_version(version + 1, 30)
        version = weights.read_weights_into(mine)
        values = {int(value) for leaf in mine.values() for value in (leaf.min(), leaf.max())}
        client.send({"seen": np.array([len(values), values.pop()])}, version=version)
        client.wait(30)
"""

LEARNER = """
import sys, numpy as np, rollway
port, name, number = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
weights = {f"w{i}": np.full(20_000, number, np.int64) for i in range(4)}
sync = rollway.SharedWeightSync.from_state_dict(weights, shm_name=name)
sync.serve(rollway.TcpTransport(port))
print(sync.version, flush=True)
for line in sys.stdin:
    sync.write_weights({key: np.full(20_000, int(line), np.int64) for key in weights})
    print(sync.version, flush=True)
"""


def tree(number):
    return {f"w{i}": np.full(WORDS, number, np.int64) for i in range(LEAVES)}


def number(weights):
    """What fills the leaves."""
    values = {int(value) for leaf in weights.read_weights().values() for value in (leaf.min(), leaf.max())}
    assert len(values) == 1, "torn"
    return values.pop()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_remote_workers_send_samples_made_with_versions_that_they_fetched(child):
    workers, rounds = 2, 5
    with rollway.SharedWeightSync.from_state_dict(tree(1)) as sync:
        with rollway.Server({"seen": np.zeros(2, np.int64)}, 1, rollway.TcpTransport(weights=sync)) as server:
            running = [child(WORKER, server.port, rounds) for _ in range(workers)]
            for _ in range(workers * rounds):
                with server.sample(timeout=SOON) as sample:
                    (kinds, value), version = sample.batch["seen"][0].tolist(), sample.info.versions[0]
                assert kinds == 1, "a torn version"
                assert value == version, "the version that the sample names"
                sync.write_weights(tree(sync.version + 1))
            for worker in running:
                worker.ends()


def test_a_killed_learner_that_comes_back_goes_on_with_its_versions(child, name):
    port = free_port()
    learner = child(LEARNER, port, name, 10)
    learner.says("1")
    with rollway.TcpWeights("127.0.0.1", port) as weights:
        weights.wait_for_version(1, SOON)
        learner.tell("20")
        learner.says("2")
        weights.wait_for_version(2, SOON)
        learner.kill()
        until(lambda: not weights.connected)
        assert number(weights) == 20
        again = child(LEARNER, port, name, 30)
        again.says("3")
        assert weights.wait_for_version(3, SOON) == 3
        assert number(weights) == 30 and weights.stats()["lineages"] == 0
        again.tell("40")
        assert weights.wait_for_version(4, SOON) == 4 and number(weights) == 40
        again.ends()


def test_a_killed_learner_that_begins_anew_is_followed(child, name):
    port = free_port()
    learner = child(LEARNER, port, name, 10)
    learner.says("1")
    with rollway.TcpWeights("127.0.0.1", port) as weights:
        for version, value in enumerate((20, 30, 40), 2):
            learner.tell(str(value))
            assert weights.wait_for_version(version, SOON) == version
        learner.kill()
        rollway.gc()
        again = child(LEARNER, port, name, 50)
        again.says("1")
        assert weights.wait_for_version(5, SOON) == 1, "its first version is the next one"
        assert number(weights) == 50 and weights.stats()["lineages"] == 1
        again.ends()


def test_a_learner_that_closed_its_weights_is_followed_by_the_next_where_asked_for(child, name):
    port = free_port()
    learner = child(LEARNER.replace("sync.serve", "endpoint = sync.serve") + "sync.cleanup()\n", port, name, 10)
    learner.says("1")
    with (
        rollway.TcpWeights("127.0.0.1", port) as leaves,
        rollway.TcpWeights("127.0.0.1", port, on_close="wait") as stays,
    ):
        for weights in (leaves, stays):
            assert weights.wait_for_version(1, SOON) == 1
        learner.ends()
        with pytest.raises(rollway.ConnectionClosedError):
            leaves.wait_for_version(2, SOON)
        again = child(LEARNER, port, name, 50)
        again.says("1")
        assert stays.wait_for_version(2, SOON) == 1, "the first version of the next learner"
        assert (number(stays), number(leaves)) == (50, 10)
        again.ends()


def test_what_to_do_when_the_learner_closes_is_one_of_two_words():
    with pytest.raises(ValueError, match="on_close is 'resend'; it must be 'raise' or 'wait'"):
        rollway.TcpWeights("127.0.0.1", 1, on_close="resend")


def test_a_learner_that_is_stopped_is_taken_for_gone_and_found_again(child, name):
    port = free_port()
    learner = child(LEARNER, port, name, 10)
    learner.says("1")
    with rollway.TcpWeights("127.0.0.1", port, keepalive_s=0.1) as weights:
        weights.wait_for_version(1, SOON)
        learner.stop()
        until(lambda: not weights.connected, timeout=SOON)
        assert number(weights) == 10
        learner.resume()
        learner.tell("20")
        assert weights.wait_for_version(2, SOON) == 2 and number(weights) == 20
    learner.ends()


def test_a_copy_whose_keeper_was_killed_is_gone_on_with_under_its_name(child, name):
    with rollway.SharedWeightSync.from_state_dict(tree(1)) as sync, sync.serve(rollway.TcpTransport()) as endpoint:
        code = """
        import sys, rollway
        weights = rollway.TcpWeights("127.0.0.1", int(sys.argv[1]), name=sys.argv[2])
        weights.wait_for_version(1, 30)
        print("here", flush=True)
        sys.stdin.read()
        """
        keeper = child(code, endpoint.port, name)
        keeper.says("here")
        with rollway.SharedWeightSync.attach(name) as reader:
            keeper.kill()
            assert number(reader) == 1, "the last whole version stays"
            with rollway.TcpWeights("127.0.0.1", endpoint.port, name=name):
                sync.write_weights(tree(2))
                assert reader.wait_for_version(2, SOON) == 2, "in the segment where the reader is"
                assert number(reader) == 2


def test_killed_workers_leave_nothing_that_keeps_the_learner(child):
    with rollway.SharedWeightSync.from_state_dict(tree(1)) as sync, sync.serve(rollway.TcpTransport()) as endpoint:
        code = """
        import sys, rollway
        weights = rollway.TcpWeights("127.0.0.1", int(sys.argv[1]))
        weights.wait_for_version(1, 30)
        print("here", flush=True)
        sys.stdin.read()
        """
        workers = [child(code, endpoint.port) for _ in range(2)]
        for worker in workers:
            worker.says("here")
        assert endpoint.stats()["tcp_weight_clients"] == 2
        for worker in workers:
            worker.kill()
        sync.write_weights(tree(2))
        until(lambda: endpoint.stats()["tcp_weight_clients"] == 0)
        assert sync.stats()["overtaken"] == 0


def test_ctrl_c_ends_a_wait(child):
    with rollway.SharedWeightSync.from_state_dict(tree(1)) as sync, sync.serve(rollway.TcpTransport()) as endpoint:
        worker = child(
            """
            import sys, rollway
            weights = rollway.TcpWeights("127.0.0.1", int(sys.argv[1]))
            weights.wait_for_version(1, 30)
            try:
                print("waiting", flush=True)
                weights.wait_for_version(2)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            """,
            endpoint.port,
        )
        worker.says("waiting")
        os.kill(worker.pid, signal.SIGINT)
        worker.says("interrupted")
        worker.ends()


def test_a_forked_child_is_told_to_make_its_own_or_attach_by_name(name):
    with rollway.SharedWeightSync.from_state_dict(tree(7)) as sync, sync.serve(rollway.TcpTransport()) as endpoint:
        with rollway.TcpWeights("127.0.0.1", endpoint.port, name=name) as weights:
            weights.wait_for_version(1, SOON)
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    with pytest.raises(rollway.errors.NotInThisProcess):
                        weights.read_weights()
                    with rollway.SharedWeightSync.attach(name) as mine:
                        code = 0 if number(mine) == 7 else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
