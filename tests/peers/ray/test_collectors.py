"""Collectors of a runner as actors of Ray: errors, deaths, reports and the order to stop are as on one machine."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import AsyncRunner, RestartPolicy, RolloutRingBuffer, SharedWeightSync, _core
from rollway.errors import CollectorError, InvalidArgument
from rollway.integrations.ray import RayPlacement
from tests.peers.ray.conftest import NAMESPACE, WAIT_S
from tests.support.processes import is_gone, until

DIMS = {"num_envs": 2, "num_steps": 3, "obs_dim": 4, "action_dim": 1}


class Runner(AsyncRunner):
    def __init__(self, placement=None, **options):
        placement = placement or RayPlacement(num_cpus=0)
        super().__init__("Toy-v0", {}, {}, device="cpu", placement=placement, **options)

    def learn(self, max_iterations, save_interval=50, log_dir="logs"):
        raise NotImplementedError


def report_until_stop(collector, start=0):
    collector.report(index=collector.index, life=collector.life, pid=os.getpid(), start=start)
    collector.stop.wait()
    collector.report(stopped=1)


def divide_by_zero(collector):
    return 1 / 0


def never_stop(collector):
    collector.report(begun=1)
    while True:
        signal.pause()


def collect(collector, ring, weights):
    """Fills rollouts with the weights, until it is told to stop or woken."""
    try:
        while not collector.stop.is_set():
            ring.wait_for_slot()
            with ring.writing(version=weights.version) as rollout:
                rollout["obs"][:] = collector.index
                rollout["rewards"][:] = weights.read_weights()["w"][0]
    finally:
        collector.report(unwound=1)


def write_numbers(collector, ring, count):
    for number in range(count):
        with ring.writing() as rollout:
            rollout["rewards"][:] = number
    collector.report(written=count)
    collector.stop.wait()


def take_until(runner, ring, enough):
    """The newest weight of each collector, as its rollouts say."""
    seen = {}
    while not enough(seen):
        assert runner.wait_for_data(ring, timeout=WAIT_S)
        views = ring.read_numpy_views()
        seen[int(views["obs"].flat[0])] = float(views["rewards"].flat[0])
        ring.advance_read()
    return seen


def segments():
    return list(Path(_core.shm_directory()).glob("rollway.*"))


def reports_of(runner, enough):
    found = []

    def look():
        runner.check()
        found.extend(runner.reports())
        return enough(found)

    until(look, timeout=WAIT_S)
    return found


def test_collectors_report_and_are_told_to_stop(ray):
    with Runner(num_collectors=2) as runner:
        runner.start_collectors(report_until_stop, start=5)
        found = reports_of(runner, lambda found: len(found) == 2)
        assert {index: numbers["index"] for index, numbers in found} == {0: 0, 1: 1}
        assert all(numbers["start"] == 5 and numbers["life"] == 0 for _, numbers in found)
        pids = runner.supervisor.pids()
        assert {index: numbers["pid"] for index, numbers in found} == pids
    assert sorted(runner.reports()) == [(0, {"stopped": 1}), (1, {"stopped": 1})], "they returned"
    until(lambda: all(map(is_gone, pids.values())))


def test_what_a_collector_raises_is_raised_in_the_learner_with_its_traceback(ray):
    with Runner() as runner:
        runner.start_collectors(divide_by_zero)
        with pytest.raises(CollectorError, match=r"(?s)collector 0 \(pid \d+ on .*in divide_by_zero") as raised:
            until(runner.check, timeout=WAIT_S)
        assert (raised.value.kind, raised.value.message) == ("ZeroDivisionError", "division by zero")
        with pytest.raises(CollectorError):
            runner.check()


def test_killed_collectors_are_restarted_as_the_policy_says_and_the_others_go_on(ray):
    with Runner(num_collectors=2, restart=RestartPolicy.up_to(1, backoff_s=0.01)) as runner:
        runner.start_collectors(report_until_stop)
        reports_of(runner, lambda found: len(found) == 2)
        first = runner.supervisor.pids()
        os.kill(first[0], signal.SIGKILL)
        ((index, numbers),) = reports_of(runner, lambda found: len(found) == 1)
        assert (index, numbers["life"]) == (0, 1)
        assert runner.supervisor.restarts == 1 and runner.supervisor.pids()[1] == first[1]
        assert "was lost. Ray says: " in str(runner.supervisor.deaths[0])
        os.kill(runner.supervisor.pids()[0], signal.SIGKILL)
        with pytest.raises(CollectorError, match=f"collector 0 .pid {runner.supervisor.pids()[0]} on") as raised:
            until(runner.check, timeout=WAIT_S)
        assert "restarted 1 times" in raised.value.__notes__[-1]


def test_collectors_that_do_not_stop_are_killed(ray):
    with Runner(stop_timeout_s=0.1) as runner:
        runner.start_collectors(never_stop)
        reports_of(runner, len)
        pids = runner.supervisor.pids()
    until(lambda: all(map(is_gone, pids.values())))


def test_collectors_that_ray_cannot_place_are_an_error_and_end_with_the_runner(ray):
    with Runner(RayPlacement(resources={"none such": 1}, start_timeout_s=0.5), num_collectors=2) as runner:
        runner.start_collectors(report_until_stop)
        assert (runner.supervisor.alive, runner.supervisor.pending, runner.supervisor.pids()) == (0, 2, {})
        with pytest.raises(CollectorError, match=r"placed none of 2 collectors .* takes 1 CPU, 1 none such"):
            until(runner.check, timeout=WAIT_S)


@pytest.mark.parametrize("route", ["auto", "forwarder"])
def test_collectors_of_two_nodes_write_rollouts_by_the_newest_weights(ray, route):
    weights = SharedWeightSync.from_state_dict({"w": np.full(3, 7, np.float32)})
    placement = RayPlacement(num_cpus=1, route=route)  # each of the nodes has two
    with Runner(placement, num_collectors=4) as runner:
        ring, weights = runner.own(RolloutRingBuffer(**DIMS, num_slots=4, on_full="block")), runner.own(weights)
        runner.start_collectors(collect, ring, weights)
        seen = take_until(runner, ring, lambda seen: len(seen) == 4)
        assert set(seen.values()) == {7.0}
        weights.write_weights({"w": np.full(3, 8, np.float32)})
        take_until(runner, ring, lambda seen: seen == dict.fromkeys(range(4), 8.0))
        until(lambda: ring.stats()["ready_samples"] == 4)  # they wait for room
        assert len(set(runner.supervisor.nodes().values())) == 2
    assert sorted(runner.reports()) == [(index, {"unwound": 1}) for index in range(4)], "they were woken"
    until(lambda: not segments(), WAIT_S)


def test_what_only_one_machine_can_share_is_refused(ray):
    with Runner() as runner:
        replay = runner.own(rollway.ReplayBuffer(64, 4, 1, "cpu"))
        with pytest.raises(InvalidArgument, match="a ReplayBuffer is for processes of one machine"):
            runner.start_collectors(report_until_stop, {"replay": [replay]})
        weights = runner.own(SharedWeightSync.from_state_dict({"w": np.zeros(1)}))
        with pytest.raises(InvalidArgument, match="1 WeightSync but 0 RolloutRing"):
            runner.start_collectors(report_until_stop, weights)
        assert runner.supervisor.alive == 0


def test_a_node_drops_the_oldest_rollout_where_the_ring_does(ray):
    with Runner(RayPlacement(num_cpus=0, route="forwarder")) as runner:
        ring = runner.own(RolloutRingBuffer(**DIMS, num_slots=2))
        runner.start_collectors(write_numbers, ring, 100)
        reports_of(runner, len)  # it has not waited for the learner
        numbers = []
        while not numbers or numbers[-1] != 99:
            assert runner.wait_for_data(ring, timeout=WAIT_S)
            numbers.append(int(ring.read_numpy_views()["rewards"].flat[0]))
            ring.advance_read()
    assert numbers == sorted(numbers) and len(numbers) < 100
    until(lambda: not segments(), WAIT_S)


LEARNER = """
    import os, signal, sys
    import ray
    from tests.peers.ray.test_collectors import *

    ray.init(address=sys.argv[1], namespace=sys.argv[2], log_to_driver=False)
    # On the node of this process no forwarder lives on for a minute.
    resources = {"node:__internal_head__": 0.001} if sys.argv[3] == "killed" else {"far": 1}
    runner = Runner(RayPlacement(num_cpus=0, resources=resources))
    ring = runner.own(RolloutRingBuffer(**DIMS, on_full="block"))
    weights = runner.own(SharedWeightSync.from_state_dict({"w": np.zeros(3, np.float32)}))
    runner.start_collectors(collect, ring, weights)
    while not runner.wait_for_data(ring):
        pass
    print(*runner.supervisor.pids().values(), flush=True)
    if sys.argv[3] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("how", "code"), [("ends", 0), ("killed", -signal.SIGKILL)])
def test_collectors_end_with_a_learner_that_does_not_close_its_runner(ray, address, child, how, code):
    learner = child(LEARNER, address, NAMESPACE, how)
    pid = int(learner.line())
    learner.ends(code)
    until(lambda: is_gone(pid), WAIT_S)

    def is_clean():
        if how == "killed":
            rollway.gc()
        return not segments()

    until(is_clean, WAIT_S)
