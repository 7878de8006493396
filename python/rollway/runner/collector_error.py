"""Collector errors: why a collector's process ended, as an error in the learner.

A collector that raises sends its traceback through a pipe, as text of limited length, without pickle. For one that was
killed, the exit code, the signal and the kernel's counters say what happened. The supervisor uses this; programs that
start their own processes may, too.
"""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from rollway._core import shm_directory
from rollway.errors import CollectorError
from rollway.machine.cgroup import Cgroup

# In characters. Even if each takes the 6 bytes of an escape, all of it fits into an empty pipe (64 KiB).
_MAX_KIND, _MAX_MESSAGE, _MAX_TRACEBACK = 200, 2_000, 8_000

_HINTS = {
    signal.SIGKILL: "SIGKILL comes from outside: the kernel's out-of-memory killer, a container's limit, or a user.",
    signal.SIGBUS: "SIGBUS means that shared memory could not be had: a full /dev/shm, or a file that was cut short.",
    signal.SIGSEGV: "SIGSEGV is a fault in native code: the simulator, a driver, an extension. PYTHONFAULTHANDLER=1 in "
    "the environment makes the collector print where it was.",
    signal.SIGABRT: "SIGABRT comes from native code that found an error: look above for its message on stderr.",
    signal.SIGILL: "SIGILL is native code built for another CPU.",
    signal.SIGFPE: "SIGFPE is an integer division by zero in native code.",
    signal.SIGTERM: "SIGTERM is a request to end, from a scheduler or a user.",
    signal.SIGXCPU: "SIGXCPU means that a limit on CPU time (ulimit -t) was reached.",
}


@dataclass(frozen=True)
class Failure:
    """An exception, as text.

    >>> try:
    ...     raise ValueError("no such env")
    ... except ValueError as error:
    ...     failure = Failure.decode(Failure.of(error).encode())
    >>> failure.kind, failure.message, "no such env" in failure.traceback
    ('ValueError', 'no such env', True)
    """

    kind: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The text of an exception. Long texts lose their middle."""
        text = "".join(traceback.format_exception(error))
        kind = type(error).__qualname__
        try:
            message = str(error)
        except Exception as failed:  # noqa: BLE001 - any class may be raised here
            message = f"(its __str__ raised {type(failed).__qualname__})"
        return cls(_shortened(kind, _MAX_KIND), _shortened(message, _MAX_MESSAGE), _shortened(text, _MAX_TRACEBACK))

    def encode(self) -> bytes:
        """As bytes that fit into an empty pipe."""
        return json.dumps(asdict(self), ensure_ascii=False).encode("utf-8", "backslashreplace")

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """What `encode` gave."""
        fields = json.loads(data)
        return cls(str(fields["kind"]), str(fields["message"]), str(fields["traceback"]))


def build_error_pipe() -> tuple[Connection, Connection]:
    """A pipe for one failure: the learner's end, and the collector's."""
    return get_context("spawn").Pipe(duplex=False)


@contextmanager
def collector_error_guard(error_conn: Connection) -> Iterator[None]:
    """Sends what the block raises through the pipe, and raises it again."""
    try:
        yield
    except BaseException as error:
        if not (isinstance(error, SystemExit) and error.code in (None, 0)):
            error_conn.send_bytes(Failure.of(error).encode())
        raise


@dataclass(frozen=True)
class OomKills:
    """How often the kernel has killed a process because memory was short, to compare with a later count."""

    in_cgroup: int | None
    on_machine: int | None

    @classmethod
    def count(cls, root: Path = Path("/")) -> Self:
        """Reads the counters; ``None`` where they cannot be read."""
        return cls(Cgroup(root).oom_kills(), _vmstat_oom_kills(root / "proc/vmstat"))

    def since(self, earlier: OomKills) -> str:
        """What happened between two counts, in words; empty when they do not say."""
        if self.in_cgroup is not None and earlier.in_cgroup is not None and self.in_cgroup > earlier.in_cgroup:
            return (
                f"It was out of memory: this control group's oom_kill count went from {earlier.in_cgroup} to "
                f"{self.in_cgroup}. Use fewer environments or collectors, or raise the limit."
            )
        if self.on_machine is not None and earlier.on_machine is not None:
            if self.on_machine > earlier.on_machine:
                return (
                    "Probably out of memory: the machine's oom_kill count (/proc/vmstat) went from "
                    f"{earlier.on_machine} to {self.on_machine}. Use fewer environments or collectors."
                )
            return "The kernel counts no out-of-memory kill since the collectors were started, so a process sent it."
        return ""


def format_collector_death(
    exitcode: int | None, traceback_text: str | None = None, oom_kills_before: OomKills | None = None
) -> str:
    """Says how a collector ended: its traceback, or its signal with a hint, or its exit code.

    >>> print(format_collector_death(3))
    exited with code 3, without a Python exception: os._exit, or native code that called exit.
    """
    if traceback_text is not None:
        return f"raised an exception:\n\n{traceback_text.rstrip()}"
    if exitcode is None:
        return "ended; its exit code is not known."
    number = signal_of(exitcode)
    if number is None:
        return f"exited with code {exitcode}, without a Python exception: os._exit, or native code that called exit."
    hints = [_HINTS.get(number, "")]
    if number == signal.SIGKILL and oom_kills_before is not None:
        hints.append(OomKills.count().since(oom_kills_before))
    if number == signal.SIGBUS:
        hints.append(_shm_now())
    words = " ".join(hint for hint in hints if hint)
    return f"was killed by {number.name} (exit code {exitcode}). {words}".rstrip()


def signal_of(exitcode: int | None) -> signal.Signals | None:
    """The signal that an exit code stands for, as Python or as a shell writes it."""
    if exitcode is None or 0 <= exitcode <= 128:
        return None
    number = -exitcode if exitcode < 0 else exitcode - 128
    return signal.Signals(number) if number in set(signal.Signals) else None


def collector_error(
    index: int, pid: int, exitcode: int | None, failure: Failure | None, oom_kills_before: OomKills | None = None
) -> CollectorError:
    """The error that the learner raises for a collector's end."""
    number = signal_of(exitcode) if failure is None else None
    text = failure.traceback if failure else None
    error = CollectorError(f"collector {index} (pid {pid}) {format_collector_death(exitcode, text, oom_kills_before)}")
    error.index, error.pid, error.exitcode = index, pid, exitcode
    error.signal_name = number.name if number else None
    if failure:
        error.kind, error.message, error.traceback_text = failure.kind, failure.message, failure.traceback
    return error


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2 - 40  # for the text between
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _shm_now() -> str:
    directory = shm_directory()
    try:
        stat = os.statvfs(directory)
    except OSError:
        return ""
    free, total = stat.f_bavail * stat.f_frsize / 2**20, stat.f_blocks * stat.f_frsize / 2**20
    return f"Now {free:,.0f} of {total:,.0f} MiB are free in {directory}; `rollway doctor` says how to enlarge it."


def _vmstat_oom_kills(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
