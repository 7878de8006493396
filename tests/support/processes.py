"""Processes that tests start, wait for and kill."""

import mmap
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path


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


class Command:
    """`rollway …` in a session of its own, as under a terminal. ``script`` is another file that starts it."""

    def __init__(self, *args, script=None, cwd=None, **variables):
        started_by = ["-m", "rollway.cli"] if script is None else [script]
        self.process = subprocess.Popen(
            [sys.executable, *started_by, *map(str, args)],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables},
        )

    def line(self, words):
        """Waits for a line of output that has these words."""
        for line in self.process.stdout:
            if words in line:
                return line
        raise AssertionError(f"it never said {words!r}: {self.process.communicate()[1]}")

    def ends(self):
        """Waits for the end: the exit status, the output and the errors."""
        out, err = self.process.communicate(timeout=200)
        return self.process.returncode, out, err


def until(condition, timeout=10.0):
    """Waits for a condition that no event announces."""
    deadline, pause = time.monotonic() + timeout, 0.001
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {timeout} s"
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)  # a condition may take work of busy processes


def session(leader):
    """The processes of a session that have not ended."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            members.append(int(stat.parent.name))
    return members


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
