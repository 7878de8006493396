"""A look at a vector environment: which worker the caller waits for."""

import os
import threading
from pathlib import Path

import rollway
from rollway import _core
from rollway.inspect import Inspection, Interval
from rollway.inspect.verdict import judge
from tests.support.processes import until
from tests.support.vector_env_toys import counters

CALM, SLOW = 0, 6


def test_the_worker_that_the_caller_waits_for_is_named(tmp_path):
    gate = tmp_path / "gate"
    with rollway.make_vec(counters(4, gate=gate), num_workers=2) as envs:
        envs.reset(seed=1)
        (path,) = Path(_core.shm_directory()).glob(f"rollway.auto-{os.getpid()}-*")
        inspection = Inspection(path.name.removeprefix("rollway."))
        step = threading.Thread(target=envs.step, args=([CALM, CALM, CALM, SLOW],))
        step.start()

        def one_is_late():
            look = inspection.look()
            late = [one for one in look.givers if one.writing]
            return look.takers[0].activity == "wait_data" and len(late) == 1

        until(one_is_late)
        before = inspection.look()
        after = inspection.look()
        assert (after.kind, after.numbers["envs"], after.numbers["workers"]) == ("vector env", 4, 2)
        (late,) = (one for one in after.givers if one.writing)
        verdict = judge(Interval(before, after))
        assert (verdict.culprit, verdict.pids) == ("worker", (late.pid,))
        assert f"for pid {late.pid} with " in verdict.lines[0]
        gate.touch()
        step.join()
        look = inspection.look()
        assert look.numbers["unanswered"] == 0 and all(one.committed for one in look.givers)
