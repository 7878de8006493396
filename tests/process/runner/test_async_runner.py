"""A runner and its collectors, as real processes."""

import errno
import os
import pickle
import signal

import numpy as np
import pytest

import rollway
from rollway import AsyncRunner, RestartPolicy, RolloutRingBuffer
from rollway.runner import runner as runner_module
from rollway.runner import training_log
from rollway.runner.collector_process import CollectorProcess
from tests.support.collector_targets import (
    Unpicklable,
    collect,
    count,
    divide_by_zero,
    fail,
    fail_twice,
    leave_with_code_7,
    report_much,
    return_at_once,
    start_a_grandchild,
    wait_without_end,
)
from tests.support.processes import is_gone, until

DIMS = {"num_envs": 2, "num_steps": 3, "obs_dim": 4, "action_dim": 1}


class Runner(AsyncRunner):
    saved = ()

    def __init__(self, **options):
        super().__init__("Toy-v0", {"gravity": 0}, {}, device="cpu", **options)

    def learn(self, max_iterations, save_interval=50, log_dir="logs"):
        for iteration in self.iterations(max_iterations, save_interval, log_dir):
            self.log(doubled=2 * iteration)

    def save(self, path):
        self.saved = (*self.saved, path)


def wait_for_reports(runner, enough):
    found = []

    def look():
        runner.check()
        found.extend(runner.reports())
        return enough(found)

    until(look, timeout=60)
    return found


def test_collectors_fill_a_ring_and_are_stopped_while_they_wait_for_room(name):
    with Runner(num_collectors=2, num_envs=4) as runner:
        ring = runner.own(RolloutRingBuffer(**DIMS, on_full="block", shm_name_prefix=name))
        runner.start_collectors(collect, ring)
        seen = set()
        while seen != {0, 1}:
            assert runner.wait_for_data(ring, timeout=60)
            seen.add(int(ring.read_numpy_views()["obs"].flat[0]))
            ring.advance_read()
        pids = runner.supervisor.pids().values()
        until(lambda: ring.stats()["blocked"] > 0)
    assert all(map(is_gone, pids)) and ring.closed
    assert sorted(runner.reports()) == [(0, {"unwound": 1}), (1, {"unwound": 1})], "they were woken, not terminated"
    runner.close()


@pytest.mark.parametrize(
    ("how", "facts"),
    [
        (divide_by_zero, {"kind": "ZeroDivisionError", "message": "division by zero", "exitcode": 1}),
        (leave_with_code_7, {"kind": None, "exitcode": 7, "signal_name": None}),
        (os.abort, {"signal_name": "SIGABRT", "exitcode": -6}),
    ],
)
def test_the_end_of_a_collector_is_raised_in_the_learners_next_call(how, facts):
    with Runner(num_collectors=2) as runner:
        runner.start_collectors(fail, how)
        with pytest.raises(rollway.CollectorError, match="collector 0") as raised:
            until(runner.check, timeout=60)
        for fact, value in facts.items():
            assert getattr(raised.value, fact) == value
        if how is divide_by_zero:
            assert "in divide_by_zero" in str(raised.value)
        with pytest.raises(rollway.CollectorError):
            runner.check()
        pids = runner.supervisor.pids().values()
        assert len(pids) == 1, "the other goes on until the runner is closed"
    assert all(map(is_gone, pids))


def test_a_wait_for_data_ends_with_the_collectors_error(name):
    with Runner() as runner:
        ring = runner.own(RolloutRingBuffer(**DIMS, shm_name_prefix=name))
        runner.start_collectors(fail, divide_by_zero)
        with pytest.raises(rollway.CollectorError, match="division by zero"):
            runner.wait_for_data(ring, timeout=60)


def test_a_target_that_cannot_be_unpickled_is_an_error_with_its_traceback():
    with Runner() as runner:
        runner.start_collectors(count, Unpicklable())
        with pytest.raises(rollway.CollectorError, match="no such module here"):
            until(runner.check, timeout=60)


def test_a_target_that_cannot_be_pickled_is_an_error_at_once():
    with Runner() as runner:
        with pytest.raises((AttributeError, pickle.PicklingError)):
            runner.start_collectors(lambda collector: None)
        assert runner.supervisor.alive == 0
        runner.check()
        runner.start_collectors(return_at_once)
        assert list(runner.supervisor.pids()) == [0], "who tries again begins with its number"


def test_collectors_are_restarted_as_the_policy_says_and_the_others_go_on():
    policy = RestartPolicy.up_to(2, backoff_s=0.01)
    with Runner(num_collectors=2, restart=policy) as runner:
        runner.start_collectors(fail_twice)
        reports = wait_for_reports(runner, lambda found: any(index == 0 for index, _ in found))
        assert {numbers["life"] for index, numbers in reports if index == 0} == {2}
        assert runner.supervisor.restarts == 2 and runner.supervisor.alive == 2
        assert [death.message for death in runner.supervisor.deaths] == ["life 0", "life 1"]
        steps = [numbers["steps"] for index, numbers in reports if index == 1]
        assert steps == sorted(set(steps)), "the other was not disturbed"
        os.kill(runner.supervisor.pids()[0], signal.SIGKILL)
        with pytest.raises(rollway.CollectorError, match="SIGKILL") as raised:
            until(runner.check)
        assert "restarted 2 times" in raised.value.__notes__[-1]


@pytest.mark.parametrize("policy", [RestartPolicy.always(backoff_s=0.01), RestartPolicy.up_to(1, backoff_s=0.01)])
def test_a_restart_that_the_system_refuses_is_a_death_and_not_the_end(monkeypatch, policy):
    refusals = [OSError(errno.EAGAIN, "no process to be had"), None]

    def restart(member, start=CollectorProcess.start):
        if refusals and (refusal := refusals.pop(0)):
            raise refusal
        start(member)

    with Runner(restart=policy) as runner:
        runner.start_collectors(count)
        monkeypatch.setattr(CollectorProcess, "start", restart)
        os.kill(runner.supervisor.pids()[0], signal.SIGKILL)
        if policy.max_restarts:
            with pytest.raises(rollway.CollectorError, match=r"collector 0 could not be started again.*no process"):
                until(runner.check)
        else:
            wait_for_reports(runner, lambda found: any(numbers["life"] == 2 for _, numbers in found))
            assert runner.supervisor.restarts == 2 and runner.supervisor.alive == 1
        assert len(runner.supervisor.deaths) == 2


def test_processes_of_a_collector_go_with_it():
    with Runner(num_collectors=2, restart=RestartPolicy.always(backoff_s=60, backoff_cap_s=60)) as runner:
        runner.start_collectors(start_a_grandchild)
        reports = dict(wait_for_reports(runner, lambda found: len(found) == 2))
        grandchildren = [int(reports[index]["grandchild"]) for index in (0, 1)]
        os.kill(runner.supervisor.pids()[0], signal.SIGKILL)
        until(lambda: runner.check() or runner.supervisor.deaths)
        until(lambda: is_gone(grandchildren[0]))
        assert not is_gone(grandchildren[1])
    until(lambda: is_gone(grandchildren[1]))


def test_collectors_that_return_are_done(name):
    with Runner(num_collectors=2) as runner:
        ring = runner.own(RolloutRingBuffer(**DIMS, shm_name_prefix=name))
        runner.start_collectors(return_at_once)
        with pytest.raises(rollway.CollectorError, match="every collector has returned"):
            runner.wait_for_data(ring, timeout=60)
        assert sorted(runner.reports()) == [(0, {"done": 1.0}), (1, {"done": 1.0})]
        assert runner.supervisor.alive == 0 and not runner.supervisor.deaths
        runner.check()


def test_iterations_are_logged_reported_and_saved(tmp_path):
    seen = []
    with Runner(on_progress=seen.append) as runner:
        runner.learn(5, save_interval=2, log_dir=str(tmp_path))
    rows = training_log.read(tmp_path)
    assert [row["doubled"] for row in rows] == [row["doubled"] for row in seen] == [2, 4, 6, 8, 10]
    assert [row["iteration"] for row in seen] == [1, 2, 3, 4, 5] and seen[0]["restarts"] == 0
    assert [path.name for path in runner.saved] == ["iteration_2", "iteration_4", "iteration_5"]


def test_everything_owned_is_closed_even_when_one_fails():
    closed = []

    class Owned:
        def __init__(self, fails=False):
            self.fails = fails

        def cleanup(self):
            closed.append(self)
            if self.fails:
                raise OSError("cannot")

    runner = Runner()
    owned = [runner.own(Owned()), runner.own(Owned(fails=True)), runner.own(Owned())]
    with pytest.raises(rollway.InvalidArgument, match="neither"):
        runner.own(object())
    with pytest.raises(OSError, match="cannot"):
        runner.close()
    assert closed == owned[::-1]
    runner.close()


def test_the_end_of_the_interpreter_closes_every_runner_even_when_one_fails():
    runners = [Runner() for _ in range(3)]

    class Failing:
        def close(self):
            raise RuntimeError("this one cannot be closed")

    for runner in runners:
        runner.own(Failing())
    with pytest.raises(RuntimeError, match="this one cannot be closed"):
        runner_module.close_all()
    assert all(repr(runner).endswith("closed>") for runner in runners)


def test_collectors_of_a_runner_that_is_never_closed_are_told_to_stop(child, tmp_path):
    learner = child(
        """
        import sys
        from tests.process.runner.test_async_runner import Runner, wait_for_reports
        from tests.support.collector_targets import note_the_stop

        runner = Runner()
        runner.start_collectors(note_the_stop, sys.argv[1])
        wait_for_reports(runner, len)
        """,
        tmp_path / "noted",
    )
    learner.ends()
    assert (tmp_path / "noted").exists()


def test_environments_are_dealt_evenly():
    runner = Runner(num_envs=10, num_collectors=4)
    assert [runner.envs_of(index) for index in range(4)] == [3, 3, 2, 2]
    runner.close()
    with pytest.raises(rollway.InvalidArgument, match="num_collectors"):
        Runner(num_envs=2, num_collectors=3)
    assert "closed" in repr(runner)


def test_the_signature_of_unilab_is_kept():
    class Theirs(AsyncRunner):
        def learn(self, max_iterations, save_interval=50, log_dir="logs"):
            pass

    runner = Theirs(
        "Go2", {"a": 1}, {"lr": 1e-3}, device="cpu", collector_device="cpu", sim_backend="motrix", num_envs=8
    )
    assert (runner.env_name, runner.env_cfg_overrides, runner.rl_cfg) == ("Go2", {"a": 1}, {"lr": 1e-3})
    assert (runner.device, runner.collector_device, runner.sim_backend, runner.num_envs) == ("cpu", "cpu", "motrix", 8)
    runner.close()
    with pytest.raises(TypeError, match="abstract"):
        AsyncRunner("Go2", {}, {})


def test_a_report_is_refused_when_it_is_too_long_and_dropped_when_nobody_looks():
    with Runner() as runner:
        runner.start_collectors(report_much)
        # Nobody looks until it has said so by returning.
        until(lambda: is_gone(next(iter(runner.supervisor.pids().values()))), timeout=60)
        refusal, *reports = runner.reports()
        assert refusal == (0, {"refused": 1})
        reports = [numbers["n"] for _, numbers in reports]
        assert 100 < len(reports) < 100_000 and reports == list(np.arange(len(reports)))


def test_patience_without_end_is_no_sigkill():
    with Runner(stop_timeout_s=float("inf")) as runner:
        runner.start_collectors(wait_without_end)
    assert runner.reports() == [(0, {"unwound": 1.0})]
