"""`rollway demo` as a person runs it: to its end, into Ctrl-C, and with a worker killed under way."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import rollway
from tests.support.processes import until

DEADLINE_S = 60


class DemoProcess:
    """A demo in a session of its own, as under a terminal."""

    def __init__(self, *args):
        self.lines = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rollway.cli", "demo", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def reads(self, pattern):
        """Reads on until a line matches."""
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line like {pattern!r} in {self.lines}: {self.process.stderr.read()}")

    def workers(self):
        return [int(pid) for pid in self.reads(r"workers: pid ([\d, ]+)").group(1).split(", ")]

    def streams_through_rollway(self, workers=4):
        """Waits until the workers and the learner are all attached to the ring."""
        self.reads("measuring: Rollway throughput")
        until(lambda: any(segment.alive == workers + 1 for segment in rollway.segments()), DEADLINE_S)

    def ends(self):
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, "".join(self.lines) + out, err

    def session(self):
        """Everybody who was started by it and still lives."""
        members = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z":
                members.append(int(stat.parent.name))
        return members


@pytest.fixture
def demo(monkeypatch):
    """Starts demos, in a shared-memory directory of their own; they must leave neither file nor process behind."""
    shm = Path(tempfile.mkdtemp(prefix="test-demo-", dir="/dev/shm"))
    monkeypatch.setenv("ROLLWAY_SHM_DIR", str(shm))
    started = []

    def start(*args):
        started.append(DemoProcess(*args))
        return started[-1]

    yield start
    try:
        for one in started:
            until(lambda one=one: not one.session(), DEADLINE_S)
        assert list(shm.iterdir()) == []
    finally:
        for one in started:
            for pid in one.session():
                os.kill(pid, signal.SIGKILL)
            one.process.communicate()
        shutil.rmtree(shm)


def verified(text):
    found = re.search(r"^verified ([\d,]+) samples: 0 lost, 0 repeated, 0 torn$", text, re.MULTILINE)
    assert found, text
    return int(found.group(1).replace(",", ""))


def test_it_ends_with_a_table_and_every_sample_verified(demo):
    code, out, err = demo("--seconds", "1").ends()
    assert code == 0, out + err
    assert err == ""
    assert verified(out) > 0
    for word in ("samples/s", "GB/s", "latency p50", "latency p99", "multiprocessing.Queue", "advantage"):
        assert word in out
    assert "\x1b" not in out and "\r" not in out


def test_json_is_all_that_it_prints(demo):
    code, out, err = demo("--seconds", "0.5", "--workers", "2", "--json").ends()
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert result["ok"] and result["verified"] > 0
    assert (result["lost"], result["repeated"], result["torn"], result["deaths"]) == (0, 0, 0, [])
    for figures in result["paths"].values():
        assert all(value > 0 for value in figures.values())


@pytest.mark.parametrize("moment", ["1 learner", "measuring: Rollway throughput", "measuring: multiprocessing.Queue"])
def test_ctrl_c_ends_it_cleanly_at_any_time(demo, moment):
    running = demo("--seconds", "2")
    running.reads(moment)
    os.killpg(running.process.pid, signal.SIGINT)  # as the terminal does: to the workers, too
    code, out, err = running.ends()
    assert code == 130, out + err
    assert "Stopped by Ctrl-C" in out
    assert err == ""


def test_a_signal_to_terminate_cleans_up_as_well(demo):
    running = demo("--seconds", "30")
    running.streams_through_rollway()
    running.process.terminate()
    code, _, err = running.ends()
    assert (code, err) == (128 + signal.SIGTERM, "")


def test_a_killed_worker_is_reported_and_the_others_go_on(demo):
    running = demo("--seconds", "3")
    victim = running.workers()[2]
    running.streams_through_rollway()
    os.kill(victim, signal.SIGKILL)
    code, out, err = running.ends()
    assert code == 1, out + err
    assert f"worker 2 (pid {victim}) was killed by SIGKILL" in out
    assert "The other 3 went on" in out
    assert verified(out) > 0
    assert err == ""


def test_a_worker_killed_at_the_queue_is_reported_and_nothing_hangs(demo):
    running = demo("--seconds", "3")
    victim = running.workers()[0]
    running.reads("measuring: multiprocessing.Queue throughput")
    os.kill(victim, signal.SIGKILL)
    code, out, err = running.ends()
    assert code == 1, out + err
    assert f"worker 0 (pid {victim}) was killed by SIGKILL" in out
    assert verified(out) > 0  # what came through Rollway before
    assert err == ""


def test_workers_do_not_outlive_a_killed_learner(demo):
    running = demo("--seconds", "60")
    running.streams_through_rollway()
    running.process.kill()
    running.process.wait()
    until(lambda: not running.session(), DEADLINE_S)
    rollway.gc()  # if the last worker did not take the segment with it
    assert rollway.segments() == []
