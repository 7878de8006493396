"""Deaths around a runner: no collector outlives its learner, and the learner outlives its collectors."""

import os
import signal

import pytest

import rollway
from tests import ROOT
from tests.support.processes import is_gone, until
from tests.support.runner_stage import DIMS, Learner, collect

CHECKOUT = str(ROOT)


def learner(child, name, target, **options):
    code = f"import sys; sys.path.insert(0, {CHECKOUT!r}); from tests.support import runner_stage as s; s.learn({name!r}, s.{target}, **{options})"
    return child(code)


def pids_until_go(learner, pids, more=0):
    """The pids that it and its collectors say; ``more``: how many follow its 'go' at the latest."""
    go = False
    while not go or len(pids) < more:
        line = learner.line()
        assert line, learner.process.communicate()[1]
        go = go or line == "go"
        if line.startswith("pid "):
            pids.append(int(line.split()[1]))
    return pids


def is_collected(name):
    """A process shows as ended when its first thread has; the last one lets go of the segment."""
    rollway.gc()
    return not any(segment.name == name for segment in rollway.segments())


@pytest.mark.parametrize(
    ("target", "in_thread", "processes"),
    [("collect", False, 2), ("collect", True, 2), ("hang_with_the_gil", True, 4), ("keep_a_grandchild", False, 4)],
)
def test_nobody_outlives_a_killed_learner(child, target, in_thread, processes):
    name = f"test-{os.getpid()}-orphans-{target[:4]}"
    one = learner(child, name, target, in_thread=in_thread)
    pids = set(pids_until_go(one, [], processes))
    assert not any(map(is_gone, pids))
    one.kill()
    until(lambda: all(map(is_gone, pids)), timeout=10)
    until(lambda: is_collected(name))


def test_a_learner_killed_while_its_collectors_still_import_leaves_none(child):
    name = f"test-{os.getpid()}-boot"
    code = (
        f"import sys; sys.path.insert(0, {CHECKOUT!r}); from tests.support import runner_stage as s; "
        f"s.learn({name!r}, s.import_slowly, extra=(s.Slow(),))"
    )
    one = child(code)
    pids = pids_until_go(one, [], 2)
    one.kill()
    until(lambda: all(map(is_gone, pids)), timeout=10)
    until(lambda: is_collected(name))


@pytest.mark.parametrize(
    ("target", "lines", "patience"),
    [("collect", 2, 30.0), ("hang_with_the_gil", 4, 0.1), ("import_slowly", 2, 30.0)],  # the last: while they import
)
def test_ctrl_c_ends_all_cleanly(child, target, lines, patience):
    name = f"test-{os.getpid()}-ctrl-c"
    one = learner(child, name, target, stop_timeout_s=patience)
    pids = pids_until_go(one, [], lines)
    for pid in {one.pid, *pids}:  # as a terminal does: to all of them
        os.kill(pid, signal.SIGINT)
    _, errors = one.process.communicate(timeout=60)
    assert one.process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1 and errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert all(map(is_gone, pids))
    assert not [segment for segment in rollway.segments() if segment.name == name]


def test_a_runner_that_is_forgotten_ends_with_the_interpreter(child):
    name = f"test-{os.getpid()}-forgotten"
    one = child(
        f"""
        import sys; sys.path.insert(0, {CHECKOUT!r})
        import rollway; from tests.support import runner_stage as s
        runner = s.Learner("toy", {{}}, {{}}, device="cpu", num_collectors=1)
        ring = runner.own(rollway.RolloutRingBuffer(**s.DIMS, shm_name_prefix={name!r}))
        runner.start_collectors(s.collect, ring)
        assert runner.wait_for_data(ring, timeout=60)
        """
    )
    one.ends(0, timeout=60)
    assert not [segment for segment in rollway.segments() if segment.name == name]


def test_collectors_killed_again_and_again_do_not_stop_the_run(name):
    policy = rollway.RestartPolicy.always(backoff_s=0.01)
    with Learner("toy", {}, {}, device="cpu", num_collectors=2, restart=policy) as runner:
        ring = runner.own(rollway.RolloutRingBuffer(**DIMS, num_slots=4, shm_name_prefix=name))
        runner.start_collectors(collect, ring)
        for kill in range(3):
            for _ in range(20):
                assert runner.wait_for_data(ring, timeout=60)
                views = ring.read_numpy_views().values()
                assert len({float(view.flat[k]) for view in views for k in (0, -1)}) == 1, "torn"
                del views
                ring.advance_read()
            pids = runner.supervisor.pids()
            os.kill(pids[kill % 2], signal.SIGKILL)
            until(lambda before=kill: runner.check() or runner.supervisor.restarts > before)
        assert [death.signal_name for death in runner.supervisor.deaths] == ["SIGKILL"] * 3
        assert ring.stats()["claimed_slots"] <= 4
