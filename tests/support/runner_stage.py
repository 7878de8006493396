"""A learner and collectors that the tests of deaths kill: importable, as spawned collectors must be."""

import os
import signal
import subprocess
import sys
import time

import rollway

DIMS = {"num_envs": 2, "num_steps": 4, "obs_dim": 8, "action_dim": 1}


class Learner(rollway.AsyncRunner):
    def learn(self, max_iterations, save_interval=50, log_dir="logs"):
        raise NotImplementedError


def collect(collector, ring):
    while not collector.stop.is_set():
        with ring.writing() as rollout:
            for array in rollout.values():
                array[...] = collector.index


def hang_with_the_gil(collector, ring):
    """Never returns from native code and never lets go of the GIL; ignores what can be ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"pid {os.getpid()}\n", end="", flush=True)  # in one write, so that two collectors do not mix
    import ctypes

    ctypes.PyDLL(None).pause()


def keep_a_grandchild(collector, ring):
    sleeper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print(f"pid {sleeper.pid}\n", end="", flush=True)
    collect(collector, ring)


def import_slowly(collector, ring):
    raise AssertionError("not reached: the learner is killed before")


class Slow:
    """Takes long to unpickle, like a module that takes long to import."""

    def __reduce__(self):
        return _sleep, (60,)


def _sleep(seconds):
    time.sleep(seconds)


def learn(name, target, in_thread=False, extra=(), stop_timeout_s=5.0):
    """Says its collectors' pids, then 'go', then trains for ever."""
    import threading

    with Learner("toy", {}, {}, device="cpu", num_collectors=2, stop_timeout_s=stop_timeout_s) as runner:
        ring = runner.own(rollway.RolloutRingBuffer(**DIMS, num_slots=6, shm_name_prefix=name))
        start = lambda: runner.start_collectors(target, ring, *extra)  # noqa: E731
        if in_thread:
            thread = threading.Thread(target=start)
            thread.start()
            thread.join()
        else:
            start()
        print(*(f"pid {pid}" for pid in runner.supervisor.pids().values()), sep="\n", flush=True)
        if target is collect:
            assert runner.wait_for_data(ring, timeout=60)
        print("go", flush=True)
        while True:
            runner.wait_for_data(ring, timeout=60)
            ring.advance_read()
