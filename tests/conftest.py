"""Fixtures: names that nobody else uses, and a check that no test leaves a file in shared memory."""

import contextlib
import fcntl
import mmap
import os
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import rollway
from authority import Authority
from rollway import _core


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="run the long tests, at full size")


def pytest_configure(config):
    # A shell that runs us in the background has Ctrl-C ignored, and every process of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "soak: the full size of a test that also runs small; needs --soak")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--soak"):
        return
    kept = [item for item in items if "soak" not in item.keywords]
    config.hook.pytest_deselected(items=[item for item in items if "soak" in item.keywords])
    items[:] = kept


@pytest.fixture(scope="session", autouse=True)
def _collected():
    """Removes the token files of learners that the tests killed."""
    yield
    rollway.gc()


@pytest.fixture
def name():
    """A segment name of this test's own; fails the test if the segment is still there afterwards."""
    name = f"test-{os.getpid()}-{secrets.token_hex(4)}"
    yield name
    path = Path(_core.shm_directory()) / f"rollway.{name}"
    left = path.exists()
    rollway.gc()
    assert not left, f"{path} was left behind"


@contextlib.contextmanager
def token_passed_on(learner_port, port):
    """Lets workers of this user find the token of the learner also on the port of a proxy in front of it."""
    found = list(Path(_core.shm_directory()).glob(f"rollway-token.*.127.0.0.1.{learner_port}"))
    if not found:  # a learner that was given its token
        yield
        return
    path = found[0].with_name(found[0].name.removesuffix(str(learner_port)) + str(port))
    with path.open("x") as file:
        path.chmod(0o600)
        fcntl.flock(file, fcntl.LOCK_EX)  # what nobody has locked is what a dead learner left behind
        file.write(found[0].read_text())
        file.flush()
        try:
            yield
        finally:
            path.unlink()


def overwrite(name, old, new):
    """Writes over the first ``old`` in a segment, as a process might that knows nothing of this library."""
    assert len(old) == len(new)
    path = Path(_core.shm_directory()) / f"rollway.{name}"
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        at = memory.find(old)
        assert at >= 0
        memory[at : at + len(old)] = new


@pytest.fixture
def example():
    """A transition: the smallest honest sample."""
    return {"obs": np.zeros(4, np.float32), "reward": np.zeros(1, np.float32)}


class Child:
    """A Python process of its own, running a snippet; killed at the end of the test if it still lives."""

    def __init__(self, code, *args):
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self):
        return self.process.pid

    def says(self, expected):
        """Waits for a line of output."""
        line = self.process.stdout.readline().strip()
        if line != expected:
            raise AssertionError(f"expected {expected!r}, got {line!r}: {self.process.communicate()[1]}")

    def line(self):
        return self.process.stdout.readline().strip()

    def tell(self, line=""):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """SIGSTOP, and waits until the kernel has stopped it."""
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")

    def resume(self):
        os.kill(self.pid, signal.SIGCONT)

    def ends(self, code=0, timeout=30):
        out, err = self.process.communicate(timeout=timeout)
        assert self.process.returncode == code, f"exit code {self.process.returncode}\n{out}\n{err}"
        return out, err


@pytest.fixture
def child():
    """Starts children: ``child("code", arg, …)``."""
    children = []

    def start(code, *args):
        children.append(Child(code, *args))
        return children[-1]

    yield start
    for one in children:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def until(condition, timeout=10.0):
    """Waits for a condition that no event announces."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {timeout} s"
        time.sleep(0.001)


def is_gone(pid):
    """Whether a process has ended, perhaps as a zombie that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def forked(target, *args):
    """Runs it in a forked child, whose pid it gives; the exit status is 0 when it returned."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            target(*args)
            code = 0
        finally:
            os._exit(code)
    return pid


class Ledger:
    """Numbers in memory that outlives the processes that note them: what each worker has certainly committed."""

    def __init__(self, size):
        self.memory = mmap.mmap(-1, size * 8)

    def note(self, index, value):
        struct.pack_into("q", self.memory, index * 8, value)

    def read(self, index):
        return struct.unpack_from("q", self.memory, index * 8)[0]


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("making certificates needs openssl(1)")
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def certificate(authority):
    return authority.issue("DNS:learner.example", "IP:127.0.0.1")
