"""Collector: what a collector's process knows of its runner: who it is, whether to stop, how to report.

The supervisor makes one for each process and hands it to the target as its first argument. It moves no experience:
rings and buffers do.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from rollway.errors import ConnectionClosedError, InvalidArgument
from rollway.runner import parent_watch
from rollway.runner.collector_error import collector_error_guard

_FOR_EVER_S = 1e6  # The milliseconds of poll() are an int.
_MOST_BYTES = 4_000  # Less than PIPE_BUF: a report is written whole or not at all.


class StopFlag:
    """Set once by the learner, seen by every collector; also set by the learner's death. Waiting for it costs nothing.

    The flag is a pipe with a byte in it that nobody takes out. It has the calls of `multiprocessing.Event`.
    """

    def __init__(self, read_end: Connection, write_end: Connection | None = None) -> None:
        self._read_end = read_end
        self._write_end = write_end

    def is_set(self) -> bool:
        """Whether the collector shall stop. One system call, no waiting."""
        return self._read_end.poll(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set, at most so many seconds."""
        return self._read_end.poll(None if timeout is None or timeout > _FOR_EVER_S else timeout)

    def set(self) -> None:
        """In the learner: tells every collector to stop."""
        if self._write_end is None:
            raise InvalidArgument("only the learner sets the stop flag; a collector stops by returning")
        if not self.is_set():
            self._write_end.send_bytes(b"")

    def close(self) -> None:
        """In the learner: gives the pipe back."""
        self._read_end.close()
        if self._write_end is not None:
            self._write_end.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_read_end": self._read_end, "_write_end": None}


@dataclass(frozen=True)
class Collector:
    """A collector's own end of its runner."""

    index: int
    """Which of the collectors, counted from 0; the same after a restart."""
    life: int
    """How often it was restarted."""
    stop: StopFlag
    """Set when it shall return from its target."""
    _reports: Connection

    def report(self, **numbers: float) -> bool:
        """Sends plain numbers to the learner, who finds them in `AsyncRunner.reports`. Never waits.

        False when the learner has not looked for so long that there is no room; then nothing was sent.
        """
        data = json.dumps({name: float(value) for name, value in numbers.items()}).encode()
        if len(data) > _MOST_BYTES:
            raise InvalidArgument(f"a report has room for {_MOST_BYTES} bytes of JSON, not {len(data)}")
        try:
            self._reports.send_bytes(data)
        except BlockingIOError:
            return False
        return True

    def report_begin(self) -> None:
        """Says that the target begins. The runner does this."""
        self._reports.send_bytes(b"")


@dataclass(frozen=True)
class Lines:
    """What ties a collector's process to its learner, besides the `Collector` that the target gets."""

    errors: Connection
    lifeline: Connection
    """The read end of the lifeline, which the child inherits."""


class Work:
    """What a collector shall do. It is unpickled where a failure (a module that is not there) can be reported."""

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call = (target, args, kwargs)

    def __getstate__(self) -> bytes:
        return bytes(ForkingPickler.dumps(self._call))

    def __setstate__(self, parcel: bytes) -> None:
        self._parcel = parcel

    def do(self, collector: Collector) -> None:
        """In the child: unpacks the target and calls it."""
        target, args, kwargs = ForkingPickler.loads(self._parcel)
        collector.report_begin()
        target(collector, *args, **kwargs)


def run(collector: Collector, lines: Lines, work: Work) -> None:
    """The whole life of a collector's process. Called by multiprocessing, in the child."""
    parent_watch.follow(lines.lifeline.fileno())
    # Ctrl-C is the learner's: it tells us to stop. Until here the signal was blocked.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.set_blocking(collector._reports.fileno(), False)
    try:
        with collector_error_guard(lines.errors):
            try:
                work.do(collector)
            except ConnectionClosedError:
                if not collector.stop.is_set():
                    raise  # Otherwise the learner has closed the rings to wake us, as it should.
    except Exception:  # noqa: BLE001 - the learner has its text; this process ends
        sys.exit(1)
