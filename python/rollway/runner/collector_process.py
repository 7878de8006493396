"""CollectorProcess: a collector in a process of its own on this machine. Signals reach no other process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from rollway.errors import CollectorError
from rollway.runner.collector import Collector, CollectorPipes, CollectorTarget, StopFlag, run
from rollway.runner.collector_error import Failure, OomKills, collector_error
from rollway.runner.parent_watch import ParentPipe
from rollway.runner.restart_policy import RestartCount
from rollway.runner.supervised_collector import Reports, SupervisedCollector

_spawn = multiprocessing.get_context("spawn")
_MAX_READS = 5_000  # more than a pipe holds: enough for a dead collector, and a busy one cannot delay the learner


def make_stop_flag() -> StopFlag:
    """A flag for processes that this one starts."""
    return StopFlag(*_spawn.Pipe(duplex=False))


class CollectorProcess(SupervisedCollector):
    """One collector: its current process, and what is known of the processes before it."""

    def __init__(
        self, index: int, stop: StopFlag, target: CollectorTarget, faults: RestartCount, oom_kills: OomKills
    ) -> None:
        super().__init__(index, faults)
        self.process: Any = None
        self._pidfd = -1
        self._is_silent = False
        self._reports: Connection
        self._errors: Connection
        self._parent_pipe: ParentPipe
        self._stop, self._target = stop, target
        self._oom_kills = oom_kills

    @property
    def is_running(self) -> bool:
        """Whether it has a process."""
        return self.process is not None

    @property
    def pid(self) -> int:
        """Its process."""
        return int(self.process.pid)

    def start(self) -> None:
        """Spawns its process."""
        self._reports, their_reports = _spawn.Pipe(duplex=False)
        os.set_blocking(their_reports.fileno(), False)  # `Collector.report` never waits
        self._errors, their_errors = _spawn.Pipe(duplex=False)
        self._parent_pipe = ParentPipe(*_spawn.Pipe(duplex=False))
        self._began, self._is_silent = None, False
        collector = Collector(self.index, self.life, self._stop, their_reports)
        pipes = CollectorPipes(their_errors, self._parent_pipe.read_end)
        process = _spawn.Process(target=run, args=(collector, pipes, self._target), name=f"collector-{self.index}")
        # The child inherits the blocked signal, so Ctrl-C causes no traceback while the collector imports. The tracker
        # is started before, because its start unblocks the signal.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
            self._pidfd = os.pidfd_open(int(process.pid or 0))
            self._parent_pipe.arm(int(process.pid or 0))
            self.process = process
        except BaseException:
            self._parent_pipe.close()
            self._reports.close()
            self._errors.close()
            raise
        finally:
            their_reports.close()
            their_errors.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def fds(self) -> list[int]:
        """That of the process, readable when it has ended even if others hold its pipes, and that of its reports."""
        return [self._pidfd] if self._is_silent else [self._pidfd, self._reports.fileno()]

    def has_ended(self, fd: int) -> bool:
        """Whether the descriptor is that of the process."""
        return fd == self._pidfd

    def read_reports(self, reports: Reports) -> None:
        """Takes its reports. A pipe that ends before its process marks it as silent."""
        try:
            for _ in range(_MAX_READS):
                if self._is_silent or not self._reports.poll(0):
                    return
                self._take(self._reports.recv_bytes(), reports)
        except EOFError:
            self._is_silent = True

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal. Only to a process that was not reaped yet: the descriptor and the group are still its own."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)
        if number == signal.SIGKILL:
            self._kill_group()

    def reap(self) -> CollectorError | None:
        """Reaps the ended process, kills the rest of its group, and returns why it ended; ``None`` when it returned."""
        self._kill_group()  # Before it is reaped: until then no other process can have its number.
        self.process.join()
        exitcode, pid = self.process.exitcode, self.pid
        failure = None
        with suppress(EOFError, OSError):  # Nothing was sent, or only a part, because it was killed.
            if self._errors.poll(0):
                failure = Failure.decode(self._errors.recv_bytes())
        self._count_work()
        self._parent_pipe.close()
        self._reports.close()
        self._errors.close()
        os.close(self._pidfd)
        if exitcode is not None:  # None when other code has waited for it: then there is nothing to close.
            self.process.close()
        self.process, self._pidfd = None, -1
        if exitcode == 0 and failure is None:
            return None
        error = collector_error(self.index, pid, exitcode, failure, self._oom_kills)
        if self._began is None:
            error.add_note("It ended before its target was called: if there is no traceback here, look at stderr.")
        return error

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
