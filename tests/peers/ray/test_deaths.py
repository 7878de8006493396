"""Workers on another node send through its forwarder; each of those who take part is killed, and the samples counted."""

import os
import signal
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import _core
from rollway.integrations.ray import cluster, connect, publish
from rollway.integrations.ray.publication import registry_name
from tests.peers.ray.conftest import NAMESPACE, WAIT_S, add_node
from tests.support.processes import is_gone, until

EXAMPLE = {"life": np.zeros((), np.int64), "step": np.zeros((), np.int64), "obs": np.zeros(64, np.float32)}


class Worker:
    """Sends numbered samples, and says in a file what the last one was that it had sent."""

    def run(self, run, journal, steps):
        life = len(list(Path(journal).glob("*"))) + os.getpid() * 1000
        noted = Path(journal) / str(life)
        noted.touch()
        with connect(run).client() as client, noted.open("r+b", 0) as file:
            for step in range(steps):
                client.send({"life": life, "step": step, "obs": np.full(64, step, np.float32)})
                file.seek(0)
                file.write(step.to_bytes(8, "little"))
        return life

    def pid(self):
        return os.getpid()


class Taker:
    """Takes all samples, in a thread."""

    def __init__(self, server):
        self.steps = defaultdict(list)
        self._server = server
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self):
        while True:
            try:
                sample = self._server.sample(timeout=0.5, at_least=1)
            except rollway.WaitTimeout:
                continue
            if sample is None:
                return
            with sample:
                assert (sample["obs"] == sample["step"][:, None]).all()
                for life, step in zip(sample["life"].tolist(), sample["step"].tolist(), strict=True):
                    self.steps[life].append(step)

    @property
    def total(self):
        return sum(map(len, list(self.steps.values())))

    def check(self, journal):
        """Every sample that was sent is there, once and in its order."""
        for noted in journal.glob("*"):
            last = int.from_bytes(noted.read_bytes(), "little") if noted.stat().st_size else -1
            until(lambda: len(self.steps[int(noted.name)]) > last, WAIT_S)
            assert self.steps[int(noted.name)] == list(range(len(self.steps[int(noted.name)])))


@pytest.fixture
def far(ray):
    """Starts workers on the second node."""
    made = []

    def start(count=1, **options):
        made.extend(ray.remote(num_cpus=0, resources={"far": 1}, **options)(Worker).remote() for _ in range(count))
        return made[-count:]

    yield start
    for worker in made:
        ray.kill(worker)


@pytest.fixture
def learner():
    with rollway.Server(EXAMPLE, 32, rollway.ShmTransport(), num_buffers=8) as server:
        yield server


def node_actor(ray, run, at):
    """The forwarder of a node, by default the second one."""
    (node,) = {node["NodeID"] for node in ray.nodes() if node["Alive"] and at in node["Resources"]}
    named = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    (name,) = [name for name in named if name.startswith(f"rollway:{run}:") and name.endswith(node)]
    return ray.get_actor(name, cluster.namespace())


def node_pid(ray, run, other_than=(), at="far"):
    """The process of that forwarder, once Ray has restarted it."""
    found = []

    def is_up():
        try:
            found.append(ray.get(node_actor(ray, run, at).pid.remote(), timeout=WAIT_S))
        except (ray.exceptions.RayActorError, ValueError):  # Ray restarts it, or it has no name yet
            return False
        return found[-1] not in other_than

    until(is_up, WAIT_S)
    return found[-1]


def node_segments(run):
    return list(Path(_core.shm_directory()).glob(f"rollway.ray-{run}-*"))


def test_a_killed_forwarder_loses_and_repeats_nothing(ray, far, learner, tmp_path):
    with publish("forwarder-dies", learner):
        taker = Taker(learner)
        workers = far(2)
        done = [worker.run.remote("forwarder-dies", tmp_path, 60_000) for worker in workers]
        killed = set()
        for round_ in range(3):
            until(lambda: taker.total > 10_000 * (round_ + 1), WAIT_S)
            pid = node_pid(ray, "forwarder-dies", killed)
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        lives = ray.get(done)
        until(lambda: taker.total >= 120_000, WAIT_S)
        for life in lives:
            assert sorted(taker.steps[life]) == list(range(60_000))
        assert len(killed) == 3
    until(lambda: not node_segments("forwarder-dies"), WAIT_S)


class RecordWorker:
    """Sends numbered records of different lengths."""

    def run(self, run, count):
        with connect(run).client() as client:
            for step in range(count):
                client.send({"step": step, "tokens": np.full(step % 500, step, np.int32)})
            return client.producer_id


def test_a_killed_forwarder_loses_and_repeats_no_record(ray):
    schema = {"step": "int64[]", "tokens": "int32[*]"}
    with rollway.RecordServer(schema, rollway.ShmTransport()) as server, publish("record-forwarder-dies", server):
        workers = [ray.remote(num_cpus=0, resources={"far": 1})(RecordWorker).remote() for _ in range(2)]
        done = [worker.run.remote("record-forwarder-dies", 20_000) for worker in workers]
        steps, killed = defaultdict(list), set()
        for number in range(40_000):
            with server.read(timeout=120) as record:
                step = int(record["step"])
                assert record["tokens"].tolist() == [step] * (step % 500)
                assert record.sequence == step
                steps[record.producer_id].append(step)
            if number in (4_000, 12_000, 20_000):
                pid = node_pid(ray, "record-forwarder-dies", killed)
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
        assert steps == {worker: list(range(20_000)) for worker in ray.get(done)}
        assert server.try_read() is None and len(killed) == 3
        for worker in workers:
            ray.kill(worker)
    until(lambda: not node_segments("record-forwarder-dies"), WAIT_S)


def test_a_killed_worker_loses_nothing_that_it_has_sent_and_comes_back(ray, far, learner, tmp_path):
    with publish("worker-dies", learner):
        taker = Taker(learner)
        (worker,) = far(1, max_restarts=-1, max_task_retries=-1)
        worker.run.remote("worker-dies", tmp_path, 1 << 40)
        for life in range(2):
            until(lambda: len(taker.steps) > life and taker.total > 1000 * (life + 1), WAIT_S)
            os.kill(int(max(tmp_path.glob("*"), key=lambda path: path.stat().st_ctime).name) // 1000, signal.SIGKILL)
        until(lambda: len(taker.steps) > 2, WAIT_S)
        ray.kill(worker)
        taker.check(tmp_path)


LEARNER = """
    import sys, ray, rollway, numpy as np
    from rollway.integrations.ray import publish
    ray.init(address=sys.argv[1], namespace=sys.argv[2], log_to_driver=False)
    example = {"life": np.zeros((), np.int64), "step": np.zeros((), np.int64), "obs": np.zeros(64, np.float32)}
    with rollway.Server(example, 32, rollway.ShmTransport(), num_buffers=8) as server, publish(sys.argv[3], server):
        for number, sample in enumerate(server.dataset_iter()):
            if number == 20:
                print("learns", flush=True)
"""


def test_workers_go_on_with_the_learner_that_comes_after_a_killed_one(ray, far, learner, tmp_path, child, address):
    first = child(LEARNER, address, NAMESPACE, "learner-dies")
    (worker,) = far()
    done = worker.run.remote("learner-dies", tmp_path, 50_000)
    first.says("learns")
    first.kill()
    with publish("learner-dies", learner, if_exists="resume"):
        taker = Taker(learner)
        life = ray.get(done)
        until(lambda: taker.steps[life][-1:] == [49_999], WAIT_S)
        steps = taker.steps[life]
        assert steps == list(range(steps[0], 50_000)) and steps[0] > 0  # what the first one had, or had been sent


class LostLearner:
    """Takes what comes, until it is killed; the registry is on its node."""

    def __init__(self, run):
        self.server = rollway.Server(EXAMPLE, 32, rollway.ShmTransport(), num_buffers=8)
        self.publication = publish(run, self.server)
        self.taker = Taker(self.server)

    def has(self, count):
        until(lambda: self.taker.total >= count, WAIT_S)
        return os.getpid()


@pytest.mark.parametrize("also", ["the registry", "the registry and the forwarder", "its node"])
def test_what_waits_on_nodes_reaches_the_next_learner_when_this_dies_with(ray, ray_cluster, learner, also):
    run = "dies-with-" + also.replace(" ", "-")
    node = add_node(ray_cluster, num_cpus=1, resources={"doomed": 1})
    first = ray.remote(num_cpus=0, resources={"doomed": 1})(LostLearner).remote(run)
    pid = ray.get(first.has.remote(0))
    worker = ray.remote(num_cpus=0, resources={"far": 1})(Holding).remote(run)
    life = ray.get(worker.send.remote(range(100)))
    ray.get(first.has.remote(100))
    forwarder = node_pid(ray, run)
    registry = ray.get_actor(registry_name(run), cluster.namespace())
    os.kill(pid, signal.SIGSTOP)  # so that it starts no other registry
    if also == "its node":
        ray_cluster.remove_node(node, allow_graceful=False)
    ray.kill(registry)
    os.kill(pid, signal.SIGKILL)
    if "forwarder" in also:
        os.kill(forwarder, signal.SIGKILL)
    until(lambda: is_gone(pid), WAIT_S)
    for first in range(100, 1000, 100):
        ray.get(worker.send.remote(range(first, first + 100)))
    with publish(run, learner, if_exists="resume"):
        taker = Taker(learner)
        until(lambda: taker.steps[life][-1:] == [999], WAIT_S)
        ray.get(worker.send.remote(range(1000, 1100)))
        until(lambda: taker.steps[life][-1:] == [1099], WAIT_S)
        steps = taker.steps[life]
        assert steps == list(range(steps[0], 1100))  # the first ones may be under way to the first learner
    ray.kill(worker)
    if also != "its node":
        ray_cluster.remove_node(node)
    until(lambda: not node_segments(run), WAIT_S)


WEIGHTS = """
    import sys, ray, rollway, numpy as np
    from rollway.integrations.ray import publish
    ray.init(address=sys.argv[1], namespace=sys.argv[2], log_to_driver=False)
    weights = rollway.SharedWeightSync.from_state_dict({"w": np.full(3, float(sys.argv[4]))})
    with weights, rollway.Server({"x": np.zeros(1)}, 1) as server, publish(sys.argv[3], server, weights=weights):
        print("published", flush=True)
        sys.stdin.readline()
"""


class Reader:
    def read(self, run):
        with connect(run).weights() as weights:
            weights.wait_for_version(1, timeout=WAIT_S)
            return weights.name, float(weights.read_weights()["w"][0])


def test_all_workers_of_a_node_read_one_copy_of_the_weights_also_of_the_next_learner(ray, child, address):
    first = child(WEIGHTS, address, NAMESPACE, "weights", 1.0)
    first.says("published")
    readers = [ray.remote(num_cpus=0, resources={"far": 1})(Reader).remote() for _ in range(2)]
    followers = [
        ray.remote(num_cpus=0, resources=at, runtime_env={"env_vars": env})(Follower).remote("weights")
        for at, env in (({"far": 1}, {}), ({"node:__internal_head__": 0.001}, {"ROLLWAY_RAY_FORWARD": "0"}))
    ]
    assert ray.get([follower.wait.remote(1) for follower in followers]) == [1.0] * 2
    copies = ray.get([reader.read.remote("weights") for reader in readers])
    assert len({name for name, _ in copies}) == 1 and copies[0][0].startswith("ray-weights-")
    assert {value for _, value in copies} == {1.0}
    pid = node_pid(ray, "weights")
    first.kill()
    second = child(WEIGHTS, address, NAMESPACE, "weights", 2.0)
    second.says("published")
    until(lambda: ray.get(readers[0].read.remote("weights"))[1] == 2.0, WAIT_S)
    until(lambda: ray.get([follower.read.remote() for follower in followers]) == [2.0] * 2, WAIT_S)
    assert node_pid(ray, "weights") == pid
    second.tell()
    second.ends()
    ray.get([follower.close.remote() for follower in followers])  # the last reader removes the copy
    until(lambda: not node_segments("weights"), WAIT_S)
    for actor in readers + followers:
        ray.kill(actor)


class Follower:
    """Reads each version as it comes."""

    def __init__(self, run):
        self.weights = connect(run).weights()

    def wait(self, version):
        self.weights.wait_for_version(version, timeout=WAIT_S)
        return self.read()

    def read(self):
        return float(self.weights.read_weights()["w"][0])

    def close(self):
        self.weights.close()


def test_nodes_fetch_weights_from_each_other(ray, ray_cluster):
    third = add_node(ray_cluster, num_cpus=1, resources={"third": 1})
    weights = rollway.SharedWeightSync.from_state_dict({"w": np.full(3, 1.0)})
    with weights, rollway.Server({"x": np.zeros(1)}, 1) as server:
        with publish("tree", server, weights=weights, weights_fan_out=1):
            made = [ray.remote(num_cpus=0, resources={at: 1})(Follower) for at in ("far", "third")]
            followers = []
            for one in made:  # in this order: the third node fetches from the second
                followers.append(one.remote("tree"))
                assert ray.get(followers[-1].wait.remote(1)) == 1.0
            assert server.stats()["tcp_connections"] == 1
            os.kill(node_pid(ray, "tree"), signal.SIGKILL)
            for version in (2, 3):
                weights.write_weights({"w": np.full(3, float(version))})
                assert ray.get([follower.wait.remote(version) for follower in followers]) == [version] * 2
    for follower in followers:
        ray.kill(follower)
    ray_cluster.remove_node(third)


def test_workers_are_told_when_the_learner_withdraws(ray, far, learner, tmp_path):
    with publish("withdraws", learner):
        taker = Taker(learner)
        (worker,) = far()
        done = worker.run.remote("withdraws", tmp_path, 1 << 40)
        until(lambda: taker.total > 100, WAIT_S)
        assert node_segments("withdraws")
    with pytest.raises(rollway.ConnectionClosedError):
        ray.get(done)
    until(lambda: not node_segments("withdraws"), WAIT_S)

    def is_gone():
        try:
            return not node_actor(ray, "withdraws", "far")
        except ValueError:
            return True

    until(is_gone, WAIT_S)


def test_a_forwarder_that_comes_back_after_the_end_of_the_run_removes_the_ring(ray, far, learner, tmp_path):
    weights = rollway.SharedWeightSync.from_state_dict({"w": np.ones(3)})
    with weights, publish("ended", learner, weights=weights):
        taker = Taker(learner)
        (worker,) = far()
        reader = ray.remote(num_cpus=0, resources={"far": 1})(Follower).remote("ended")
        done = worker.run.remote("ended", tmp_path, 1 << 40)
        assert ray.get(reader.wait.remote(1)) == 1.0
        until(lambda: taker.total > 100, WAIT_S)
        os.kill(node_pid(ray, "ended"), signal.SIGKILL)  # Ray has not restarted it when the name is withdrawn
    for call in (done, reader.wait.remote(2)):
        with pytest.raises((rollway.ConnectionClosedError, rollway.PeerDied)):  # the latter if Ray takes a minute
            ray.get(call)
    until(lambda: not node_segments("ended"), WAIT_S)
    ray.kill(reader)


class Holding:
    """Sends, and lives on: what it has sent stays in the ring while the forwarder is stopped."""

    def __init__(self, run):
        self.client = connect(run).client()

    def send(self, steps):
        for step in steps:
            self.client.send({"life": os.getpid(), "step": step, "obs": np.full(64, step, np.float32)})
        return os.getpid()


def test_a_node_that_dies_stops_no_other_which_sends_what_it_left(ray, ray_cluster, far, learner, tmp_path):
    with publish("node-dies", learner):
        taker = Taker(learner)
        doomed = add_node(ray_cluster, num_cpus=1, resources={"doomed": 1})
        worker = ray.remote(num_cpus=0, resources={"doomed": 1})(Holding).remote("node-dies")
        far()[0].run.remote("node-dies", tmp_path, 1 << 40)
        life = ray.get(worker.send.remote(range(100)))
        until(lambda: len(taker.steps) == 2 and len(taker.steps[life]) == 100, WAIT_S)
        pid, stopped = node_pid(ray, "node-dies"), node_pid(ray, "node-dies", at="doomed")
        os.kill(stopped, signal.SIGSTOP)
        ray.get(worker.send.remote(range(100, 200)))
        assert len(taker.steps[life]) == 100
        ray_cluster.remove_node(doomed, allow_graceful=False)
        with suppress(ProcessLookupError):  # Ray may have ended it, with the node
            os.kill(stopped, signal.SIGKILL)  # others notice by themselves that their raylet is gone
        before = taker.total
        until(lambda: taker.total > before + 5000 and len(taker.steps[life]) == 200, WAIT_S)
        assert sorted(taker.steps[life]) == list(range(200))
        late = add_node(ray_cluster, num_cpus=1, resources={"late": 1})
        ray.get(ray.remote(num_cpus=0, resources={"late": 1})(Worker).remote().run.remote("node-dies", tmp_path, 100))
        until(lambda: len(taker.steps) == 3, WAIT_S)
        assert node_pid(ray, "node-dies") == pid
        ray_cluster.remove_node(late, allow_graceful=False)
        until(lambda: len(node_segments("node-dies")) == 1, WAIT_S)  # the others were taken over
    until(lambda: not node_segments("node-dies"), WAIT_S)
