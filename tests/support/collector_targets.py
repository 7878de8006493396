"""What the collectors of test_async_runner do. Apart from it, because every one of their processes imports it."""

import os
import subprocess
import sys
from pathlib import Path

import rollway


def collect(collector, ring):
    try:
        while not collector.stop.is_set():
            with ring.writing(version=collector.life) as rollout:
                for array in rollout.values():
                    array[...] = collector.index
    finally:
        collector.report(unwound=1)


def count(collector):
    steps = 0
    while not collector.stop.wait(0.001):
        steps += 1
        collector.report(steps=steps, life=collector.life)


def fail(collector, how):
    collector.report(pid=os.getpid())
    if collector.index == 0:
        how()
    collector.stop.wait()


def wait_without_end(collector):
    collector.stop.wait(float("inf"))
    collector.report(unwound=1)


def divide_by_zero():
    return 1 / 0


def leave_with_code_7():
    os._exit(7)


def fail_twice(collector):
    if collector.index == 0 and collector.life < 2:
        raise ValueError(f"life {collector.life}")
    count(collector)


def start_a_grandchild(collector):
    sleeper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    collector.report(grandchild=sleeper.pid)
    collector.stop.wait()


def return_at_once(collector):
    collector.report(done=1)


class Unpicklable:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise ImportError("no such module here")


def report_much(collector):
    try:
        collector.report(**{f"name{i}": i for i in range(1000)})
    except rollway.InvalidArgument:
        collector.report(refused=1)
    n = 0
    while collector.report(n=n):
        n += 1


def note_the_stop(collector, path):
    collector.report(begun=1)
    collector.stop.wait()
    Path(path).touch()
