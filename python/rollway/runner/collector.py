"""Collector: what a collector's process knows of its runner: its number, whether to stop, how to report.

The supervisor makes one for each process and gives it to the target as its first argument.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from rollway.errors import ConnectionClosedError, InvalidArgument
from rollway.runner import parent_watch
from rollway.runner.collector_error import collector_error_guard

LONGEST_WAIT_S = 1e6  # the milliseconds of poll() are an int
_MAX_REPORT_BYTES = 4_000  # less than PIPE_BUF: a report is written whole or not at all


class _Polls(Protocol):
    """A `Connection` from the learner, or what stands for one on another machine."""

    def poll(self, timeout: float | None) -> bool: ...
    def close(self) -> None: ...


class _Sends(Protocol):
    """A `Connection` to the learner, or what stands for one on another machine."""

    def send_bytes(self, data: bytes, /) -> None: ...


class StopFlag:
    """Set once by the learner, or by its death, and seen by every collector. Waiting for it costs no CPU.

    The flag is a pipe with a message in it that is never read. It has the methods of `multiprocessing.Event`.
    """

    def __init__(self, read_end: _Polls, write_end: Connection | None = None) -> None:
        self._read_end = read_end
        self._write_end = write_end

    def is_set(self) -> bool:
        """Whether the collector must stop. One system call, no waiting."""
        return self._read_end.poll(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set, at most ``timeout`` seconds. Whether it is."""
        return self._read_end.poll(None if timeout is None or timeout > LONGEST_WAIT_S else timeout)

    def set(self) -> None:
        """Tells every collector to stop. Only in the learner."""
        if self._write_end is None:
            raise InvalidArgument("only the learner sets the stop flag; a collector stops by returning")
        if not self.is_set():
            self._write_end.send_bytes(b"")

    def close(self) -> None:
        """Closes the pipe. Only in the learner."""
        self._read_end.close()
        if self._write_end is not None:
            self._write_end.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_read_end": self._read_end, "_write_end": None}


@dataclass(frozen=True)
class Collector:
    """What the target of a collector process gets as its first argument."""

    index: int
    """The number of this collector, counted from 0; the same after a restart."""
    life: int
    """How often it was restarted."""
    stop: StopFlag
    """Set when the target has to return."""
    _reports: _Sends

    def report(self, **numbers: float) -> bool:
        """Sends plain numbers to the learner, which gets them from `Runner.reports`. Never waits.

        False when there is no room, because the learner has not read reports for long; then nothing was sent.
        """
        data = json.dumps({name: float(value) for name, value in numbers.items()}).encode()
        if len(data) > _MAX_REPORT_BYTES:
            raise InvalidArgument(f"a report has room for {_MAX_REPORT_BYTES} bytes of JSON, not {len(data)}")
        try:
            self._reports.send_bytes(data)
        except BlockingIOError:
            return False
        return True

    def report_begin(self) -> None:
        """Tells the learner that the target begins. The runner calls it."""
        self._reports.send_bytes(b"")


@dataclass(frozen=True)
class CollectorPipes:
    """The pipes between a collector's process and its learner, besides those of `Collector`."""

    errors: Connection
    parent_pipe: Connection
    """The read end of the parent's pipe, which the child inherits."""


class CollectorTarget:
    """What a collector process calls. It is unpickled late, where a failure (a missing module) can be reported."""

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call = (target, args, kwargs)

    def __getstate__(self) -> bytes:
        return bytes(ForkingPickler.dumps(self._call))

    def __setstate__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def call(self, collector: Collector) -> None:
        """Unpickles the target and calls it. Only in the child."""
        target, args, kwargs = ForkingPickler.loads(self._pickled)
        collector.report_begin()
        target(collector, *args, **kwargs)


def run(collector: Collector, pipes: CollectorPipes, target: CollectorTarget) -> None:
    """The main function of a collector's process. Multiprocessing calls it in the child."""
    parent_watch.die_with_parent(pipes.parent_pipe.fileno())
    # The learner handles Ctrl-C, and tells collectors to stop. Until here the signal was blocked.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        with collector_error_guard(pipes.errors):
            try:
                target.call(collector)
            except ConnectionClosedError:
                if not collector.stop.is_set():
                    raise  # otherwise the learner has closed the rings to wake this collector
    except Exception:  # noqa: BLE001 - the learner has its text; this process ends
        sys.exit(1)
