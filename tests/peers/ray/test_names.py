"""Names of runs: found, waited for, taken, withdrawn, and those whose learner is gone; each ends in time."""

import contextlib
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import rollway
from rollway.errors import ClusterUnavailable, InvalidArgument, LearnerUnreachable, ProtocolMismatch, RunNameTaken
from rollway.integrations.ray import cluster, connect, publish
from rollway.integrations.ray.node_forwarder import NodeForwarder, node_actor_name
from rollway.integrations.ray.node_link import Run
from rollway.integrations.ray.publication import registry_name
from tests.peers.ray.conftest import NAMESPACE, WAIT_S
from tests.support.processes import until

EXAMPLE = {"x": np.zeros(2, np.float32)}

LEARNER = """
    import os, sys, ray, rollway, numpy as np
    from rollway.integrations.ray import publish
    ray.init(address=sys.argv[1], namespace=sys.argv[2], log_to_driver=False)
    with rollway.Server({"x": np.zeros(2, np.float32)}, 1, rollway.ShmTransport()) as server:
        with publish(sys.argv[3], server, reconnect_timeout_s=float(sys.argv[4])):
            print("published", flush=True)
            if sys.stdin.readline().strip() == "fail":
                raise SystemExit(3)
    print("withdrawn", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def learner(address, child):
    """Starts a learner in a process of its own."""

    def start(run, linger_s=60):
        one = child(LEARNER, address, NAMESPACE, run, linger_s)
        one.says("published")
        return one

    return start


@pytest.fixture
def server():
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport()) as server:
        yield server


def task_sends(run, value):
    with connect(run).client() as client:
        client.send({"x": np.full(2, value, np.float32)})
        client.wait()
        return type(client).__name__


def taken(server):
    with server.sample(timeout=WAIT_S) as sample:
        return sample["x"][0, 0]


def test_a_worker_that_is_there_first_waits_for_the_learner(ray, server, monkeypatch):
    looked = threading.Event()

    def look(*arguments, find=cluster.find_actor):
        found = find(*arguments)
        looked.set()
        return found

    monkeypatch.setattr(cluster, "find_actor", look)
    with ThreadPoolExecutor() as pool:
        early = pool.submit(task_sends, "early", 3)
        assert looked.wait(30)
        with publish("early", server):
            assert taken(server) == 3
            assert early.result(60) == "ShmClient"


def test_a_name_that_nobody_has_published_is_an_error_in_time(ray):
    with pytest.raises(LearnerUnreachable, match=r"run 'nobody' gave no answer within 0\.3 s: nothing is published"):
        connect("nobody", 0.3)


def test_a_name_is_taken_while_its_learner_lives(ray, server, learner):
    other = learner("taken")
    with pytest.raises(RunNameTaken, match=rf"'taken' is taken.*pid {other.pid} on "):
        publish("taken", server)
    other.tell()
    other.says("withdrawn")
    with publish("taken", server), connect("taken").client() as client:
        client.send({"x": np.ones(2, np.float32)})
        assert taken(server) == 1


def test_a_killed_learner_is_reported_and_its_name_can_be_taken(ray, server, learner):
    other = learner("killed")
    plane = connect("killed", 0.5)
    other.kill()
    with pytest.raises(LearnerUnreachable, match=rf"its learner \(pid {other.pid} on .*\) died \d+ s ago"):
        connect("killed", 0.5)
    with pytest.raises(LearnerUnreachable, match="died"):
        plane.client()
    with pytest.raises(RunNameTaken, match=r"its learner ended \d+ s ago, and its workers wait"):
        publish("killed", server, if_exists="error")
    with (
        publish("killed", server, if_exists="resume"),
        plane.client() as client,
    ):  # the same plane finds the next learner
        client.send({"x": np.ones(2, np.float32)})
        assert taken(server) == 1


def test_a_learner_that_fails_keeps_its_name_for_the_next_one(ray, server, learner):
    other = learner("failed")
    other.tell("fail")
    other.process.wait()
    with pytest.raises(LearnerUnreachable, match="died"):
        connect("failed", 0.5)
    with pytest.warns(UserWarning, match=r"run 'failed' had a learner that ended \d+ seconds ago") as warned:
        publication = publish("failed", server)
    assert warned[0].filename == __file__
    with publication:
        assert connect("failed").kind == "samples"


def test_what_workers_sent_before_the_run_began_anew_is_thrown_away(ray, server, learner):
    other = learner("again")
    with connect("again", route="forwarder").client() as worker:
        other.kill()
        worker.send({"x": np.ones(2, np.float32)})
        with publish("again", server, if_exists="replace"):
            with pytest.raises(rollway.ConnectionClosedError):
                until(lambda: not worker.send({"x": np.ones(2, np.float32)}), WAIT_S)
            with connect("again", route="forwarder").client() as client:
                client.send({"x": np.full(2, 7, np.float32)})
                assert taken(server) == 7
            assert server.try_sample() is None


def test_a_learner_with_another_schema_cannot_go_on_and_can_begin_anew(ray, learner):
    learner("schema").kill()
    with rollway.Server({"x": np.zeros(2, np.float64)}, 1, rollway.ShmTransport()) as other:
        with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'x' is float64\[2\] here but float32\[2\].*replace"):
            publish("schema", other, if_exists="resume")
        with publish("schema", other, if_exists="replace"), connect("schema").client() as client:
            client.send({"x": np.ones(2)})
            assert taken(other) == 1


def test_a_server_that_is_closed_ends_its_publication(ray):
    server = rollway.Server(EXAMPLE, 1, rollway.ShmTransport())
    publication = publish("server-closed", server)
    with connect("server-closed", route="forwarder").client() as client:
        client.send({"x": np.ones(2, np.float32)})
        assert taken(server) == 1
        server.close()
        with pytest.raises(rollway.ConnectionClosedError):
            until(lambda: not client.send({"x": np.ones(2, np.float32)}), WAIT_S)
    with pytest.raises(LearnerUnreachable):
        connect("server-closed", 0.5)
    assert "closed" in repr(publication)
    publication.close()


def test_a_registry_that_is_stopped_is_an_error_in_time(ray, server):
    with publish("stopped", server):
        (actor,) = [one for one in ray._private.state.actors().values() if one["Name"] == registry_name("stopped")]
        os.kill(actor["Pid"], signal.SIGSTOP)
        try:
            with pytest.raises(
                LearnerUnreachable, match=r"within 0\.5 s: its registry, an actor of Ray, does not answer"
            ):
                connect("stopped", 0.5)
            with pytest.raises(ClusterUnavailable, match=r"the registry of run 'stopped'.* within 0\.5 s"):
                publish("stopped", server, timeout_s=0.5)
        finally:
            os.kill(actor["Pid"], signal.SIGCONT)
        assert connect("stopped").kind == "samples"


def test_a_forwarder_whose_worker_died_before_it_asked_for_a_ring_ends(ray, server):
    with publish("idle", server):
        node, run = cluster.node_id(), Run("idle", connect("idle")._entry.run_id, cluster.namespace())
        name = node_actor_name(run, node)
        actor = cluster.start_actor(NodeForwarder, name, run.space, node, (run, node), max_restarts=-1)
        ray.get(actor.pid.remote())
        until(lambda: cluster.find_actor(name, run.space) is None, WAIT_S)


def test_the_registry_goes_with_the_last_learner(ray, server, learner):
    def is_gone(run):
        try:
            ray.get_actor(registry_name(run), cluster.namespace())
        except ValueError:
            return True
        return False

    with publish("ends", server) as publication:
        assert not is_gone("ends")
    assert "closed" in repr(publication)
    until(lambda: is_gone("ends"), WAIT_S)
    learner("ends", 0.5).kill()
    until(lambda: is_gone("ends"), WAIT_S)


def test_learners_start_another_registry_when_it_is_lost(ray, server):
    with publish("lost", server):
        plane = connect("lost")
        first = plane.client()
        ray.kill(ray.get_actor(registry_name("lost"), cluster.namespace()))
        with first, plane.client() as second:
            for client in (first, second):
                client.send({"x": np.ones(2, np.float32)})
            numbers = {int(server.sample(timeout=WAIT_S).info.producer_ids[0]) for _ in range(2)}
        assert len(numbers) == 2


def test_a_forked_child_does_not_keep_the_name(ray, address, child):
    forks = "child = os.fork() or signal.pause()"
    code = LEARNER.replace('print("published"', f'import signal; {forks}; print(child, flush=True); print("published"')
    one = child(code, address, NAMESPACE, "forked", 60)
    orphan = int(one.line())
    one.says("published")
    one.kill()
    try:
        with pytest.raises(LearnerUnreachable, match="died"):
            connect("forked", 0.5)
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_two_runs_do_not_meet(ray, server):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport()) as other, publish("one", server), publish("two", other):
        task = ray.remote(num_cpus=0, resources={"far": 1})(task_sends)
        ray.get([task.remote("one", 1), task.remote("two", 2)])
        assert (taken(server), taken(other)) == (1, 2)


def test_nothing_waits_for_cpus(ray, server):
    class Idle:
        def there(self):
            return True

    busy = [ray.remote(num_cpus=2)(Idle).remote() for _ in range(2)]
    ray.get([one.there.remote() for one in busy])
    with publish("full", server):
        task = ray.remote(num_cpus=0, resources={"far": 1})(task_sends)
        done = task.remote("full", 5)
        assert taken(server) == 5
        ray.get(done)
    for one in busy:
        ray.kill(one)


def test_another_version_is_refused(ray, server, monkeypatch):
    with publish("versions", server):
        monkeypatch.setattr("rollway.integrations.ray.plane.WIRE_PROTOCOL", 99)
        with pytest.raises(ProtocolMismatch, match=r"'versions' runs Rollway .* this process Rollway .* with 99"):
            connect("versions")


def test_a_process_without_ray_is_told_so(child):
    one = child("""
        import rollway, numpy as np
        from rollway.integrations.ray import cluster, connect, publish
        for call in (lambda: connect("x"), lambda: publish("x", None)):
            try:
                call()
            except rollway.errors.ClusterUnavailable as error:
                print(error)
    """)
    out, _ = one.ends()
    assert out.count("Ray is not initialised in this process: call ray.init()") == 2


def test_what_cannot_be_published_is_refused(ray, server):
    with contextlib.closing(rollway.ReplayBuffer(8, 1, 1)) as replay:
        with pytest.raises(InvalidArgument, match="a replay buffer takes transitions from its own machine only"):
            publish("x", replay)
    with pytest.raises(InvalidArgument, match="give publish"):
        publish("x")
    with pytest.raises(InvalidArgument, match="rank = 1 is out of range"):
        publish("x", server, rank=1)
    with pytest.raises(InvalidArgument, match="the name of a run is empty"):
        publish("", server)
    with pytest.raises(InvalidArgument, match=r"weights is a dict: .*SharedWeightSync"):
        publish("x", server, weights={"w": np.zeros(1)})
    with pytest.raises(InvalidArgument, match="if_exists is 'append'"):
        publish("x", server, if_exists="append")
    for bad in (7, b"x"):
        with pytest.raises(InvalidArgument, match=f"the name of a run is a {type(bad).__name__}"):
            publish(bad, server)
        with pytest.raises(InvalidArgument, match=f"the name of a run is a {type(bad).__name__}"):
            connect(bad)
    for bad in (float("nan"), -1, "60"):
        for refused in (
            lambda bad=bad: connect("x", timeout_s=bad),
            lambda bad=bad: publish("x", server, timeout_s=bad),
            lambda bad=bad: publish("x", server, reconnect_timeout_s=bad),
        ):
            with pytest.raises(InvalidArgument, match=f"timeout_s = {bad} is out of range: seconds from 0 on"):
                refused()
    with pytest.raises(InvalidArgument, match="servers has a server twice"):
        publish("x", servers=[server, server])
    with publish("x", server):
        for choice in ({"key": object()}, {"rank": "0"}):
            with pytest.raises(InvalidArgument, match=r"it must be an? (str|int)"):
                connect("x").client(**choice)
    with pytest.raises(InvalidArgument, match="route is 'tcp'"):
        connect("x", route="tcp")


def test_records_reach_the_learner_from_its_node_and_from_others(ray):
    def send(run, number):
        with connect(run).client() as client:
            client.send({"tokens": np.arange(number, dtype=np.int32)})
            client.wait()
            return type(client).__name__

    with rollway.RecordServer({"tokens": "int32[*]"}, rollway.ShmTransport()) as server, publish("texts", server):
        near = ray.remote(num_cpus=0)(send).remote("texts", 2)
        far = ray.remote(num_cpus=0, resources={"far": 1})(send).remote("texts", 3)
        assert sorted(len(server.read(timeout=WAIT_S)["tokens"]) for _ in range(2)) == [2, 3]
        assert ray.get([near, far]) == ["ShmRecordClient"] * 2
        assert server.stats()["tcp_accepted"] == 1  # that of the other node's forwarder
