"""Collectors of a runner as actors of Ray: errors, deaths, reports and the order to stop are as on one machine."""

import os
import signal

import numpy as np
import pytest

import rollway
from rollway import AsyncRunner, RestartPolicy, RolloutRingBuffer, SharedWeightSync
from rollway.errors import CollectorError, InvalidArgument
from rollway.integrations.ray import RayPlacement
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


def leave(collector):
    os._exit(7)


def reports_of(runner, enough):
    found = []

    def look():
        runner.check()
        found.extend(runner.reports())
        return enough(found)

    until(look, timeout=60)
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
