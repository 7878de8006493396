"""CollectorSupervisor: starts collectors, notices their deaths, restarts them, and stops them in the end.

It has no thread and acts only when it is called: `check` reads reports, notices deaths and restarts what is due. It
signals only processes that it started, through descriptors that never refer to another process. `Runner` owns one.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from rollway.errors import CollectorError, InvalidArgument
from rollway.runner.collector import LONGEST_WAIT_S, Collector, CollectorPipes, CollectorTarget, StopFlag, run
from rollway.runner.collector_error import Failure, OomKills, collector_error
from rollway.runner.parent_watch import ParentPipe
from rollway.runner.restart_policy import RestartCount, RestartPolicy

_log = logging.getLogger("rollway.collectors")
_spawn = multiprocessing.get_context("spawn")
_MAX_REPORTS = 10_000
_MAX_READS = 5_000  # more than a pipe holds: enough for a dead collector, and a busy one cannot delay the learner


class CollectorSupervisor:
    """Any number of collector processes under one restart policy.

    Collectors are spawned, not forked: they share only their arguments with the learner. Each runs
    ``target(collector, *args, **kwargs)`` and ends when that returns. They ignore Ctrl-C, and the kernel kills them
    when this process dies.

    Args:
        policy: What to do when one dies.
        stop_timeout_s: How long collectors have to return once they are told to stop.
        kill_timeout_s: How long they have after SIGTERM, before SIGKILL.
    """

    def __init__(
        self, policy: RestartPolicy | None = None, *, stop_timeout_s: float = 10.0, kill_timeout_s: float = 5.0
    ) -> None:
        self._policy = policy or RestartPolicy.never()
        self._stop_timeout_s, self._kill_timeout_s = stop_timeout_s, kill_timeout_s
        self._stop_flag = StopFlag(*_spawn.Pipe(duplex=False))
        self._oom_kills = OomKills.count()
        self._children: list[_CollectorProcess] = []
        self._reports: deque[tuple[int, dict[str, float]]] = deque(maxlen=_MAX_REPORTS)
        self._final_error: CollectorError | None = None
        self._stopped = False
        self._pid = os.getpid()
        self.deaths: list[CollectorError] = []
        """Every death so far, also those that were followed by a restart."""

    def start(self, target: Callable[..., object], count: int, *args: Any, **kwargs: Any) -> None:
        """Starts so many collectors. ``target`` must be importable: a function at the top of a module."""
        if self._stopped:
            raise InvalidArgument("these collectors were stopped: make a new runner")
        if count < 1:
            raise InvalidArgument(f"the number of collectors is {count}: at least 1")
        for _ in range(count):
            calls = CollectorTarget(target, args, kwargs)
            child = _CollectorProcess(len(self._children), self._stop_flag, calls, RestartCount(self._policy))
            self._children.append(child)
            try:
                child.start()
            finally:
                if child.process is None:
                    self._children.remove(child)  # It did not start: the next attempt uses its number again.

    @property
    def alive(self) -> int:
        """Collectors whose process lives."""
        return sum(child.process is not None for child in self._children)

    @property
    def pending(self) -> int:
        """Collectors that will be restarted."""
        return sum(child.restart_at is not None for child in self._children)

    @property
    def restarts(self) -> int:
        """Restarts so far, of all collectors together."""
        return sum(child.life for child in self._children)

    def pids(self) -> dict[int, int]:
        """The process of each living collector."""
        return {child.index: child.pid for child in self._children if child.process is not None}

    def reports(self) -> list[tuple[int, dict[str, float]]]:
        """What collectors have reported since the last call: the index, and the numbers. Of more than 10,000 reports,
        the oldest are dropped.
        """
        self._poll(0.0)
        taken = list(self._reports)
        self._reports.clear()
        return taken

    def check(self) -> None:
        """Notices deaths and applies the policy. Raises `CollectorError` when the policy allows no restart.

        Never waits. Every later call raises the error again.
        """
        self._poll(0.0)
        now = time.monotonic()
        for child in self._children:
            if self._final_error is None and child.restart_at is not None and child.restart_at <= now:
                try:
                    child.restart()
                except OSError as failed:  # Not enough memory, processes or files, which may change.
                    self._on_death(child, child.start_failed(failed))
        if self._final_error is not None:
            raise self._final_error

    def stop(self) -> None:
        """Tells all to stop; those that do not get SIGTERM, then SIGKILL. Returns when all are gone.

        An exception meanwhile (a second Ctrl-C) kills them at once. Safe to call twice. In a forked child it does
        nothing: the collectors are its parent's.
        """
        if self._stopped or not self.is_ours:
            return
        self.tell_to_stop()
        self._stopped = True
        for child in self._children:
            child.restart_at = None
        try:
            self._wait_for_exits(self._stop_timeout_s)
            self._signal(signal.SIGTERM)
            self._wait_for_exits(self._kill_timeout_s)
        finally:
            self._signal(signal.SIGKILL)
            self._wait_for_exits(None)
            self._stop_flag.close()

    def tell_to_stop(self) -> None:
        """Sets the flag that collectors look at, and returns at once."""
        if not self._stopped and self.is_ours:
            self._stop_flag.set()

    @property
    def is_ours(self) -> bool:
        """Whether this process started them; false in a forked child."""
        return self._pid == os.getpid()

    def _signal(self, number: signal.Signals) -> None:
        for child in self._alive():
            child.signal(number)

    def _alive(self) -> list[_CollectorProcess]:
        return [child for child in self._children if child.process is not None]

    def _wait_for_exits(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._alive():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            self._poll(None if left is None else min(left, LONGEST_WAIT_S))

    def _poll(self, timeout: float | None) -> None:
        """Reads reports and reaps dead processes: what there is now, or the first event within ``timeout``."""
        by_fd: dict[int, _CollectorProcess] = {}
        for child in self._alive():
            by_fd[child.pidfd] = child
            if not child.is_silent:
                by_fd[child.reports.fileno()] = child
        # A pidfd is readable when the process has ended, even if others hold its pipes.
        for fd in wait(list(by_fd), timeout):
            assert isinstance(fd, int)
            child = by_fd[fd]
            child.read_reports(self._reports)
            if fd == child.pidfd:
                self._reap(child)

    def _reap(self, child: _CollectorProcess) -> None:
        error = child.reap(self._oom_kills)
        if error is None or self._stop_flag.is_set():
            return  # it returned, or ended in any way after it was told to stop
        self._on_death(child, error)

    def _on_death(self, child: _CollectorProcess, error: CollectorError) -> None:
        """Applies the policy to a death."""
        self.deaths.append(error)
        if child.faults.allows_another():
            child.deaths_in_row = 1 if child.worked_s >= self._policy.healthy_after_s else child.deaths_in_row + 1
            pause = self._policy.pause_s(child.deaths_in_row)
            child.restart_at = time.monotonic() + pause
            _log.warning("restart %d of %s, in %.1f s", child.life + 1, error, pause)
        elif self._final_error is None:
            if child.life:
                error.add_note(f"It had been restarted {child.life} times: {self._policy} allows no more.")
            self._final_error = error


class _CollectorProcess:
    """One collector: its current process, and what is known of the processes before it."""

    def __init__(self, index: int, stop: StopFlag, target: CollectorTarget, faults: RestartCount) -> None:
        self.index = index
        self.faults = faults
        self.life = 0
        self.deaths_in_row = 0
        self.worked_s = 0.0
        self.restart_at: float | None = None
        self.process: Any = None
        self.pidfd = -1
        self.is_silent = False
        self.reports: Connection
        self._errors: Connection
        self._parent_pipe: ParentPipe
        self._began: float | None = None
        self._stop, self._target = stop, target

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def restart(self) -> None:
        self.life += 1
        self.restart_at = None
        self.start()

    def start(self) -> None:
        self.reports, their_reports = _spawn.Pipe(duplex=False)
        self._errors, their_errors = _spawn.Pipe(duplex=False)
        self._parent_pipe = ParentPipe(*_spawn.Pipe(duplex=False))
        self._began, self.is_silent = None, False
        collector = Collector(self.index, self.life, self._stop, their_reports)
        pipes = CollectorPipes(their_errors, self._parent_pipe.read_end)
        process = _spawn.Process(target=run, args=(collector, pipes, self._target), name=f"collector-{self.index}")
        # The child inherits the blocked signal, so Ctrl-C causes no traceback while the collector imports. The tracker
        # is started before, because its start unblocks the signal.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
            self.pidfd = os.pidfd_open(int(process.pid or 0))
            self._parent_pipe.arm(int(process.pid or 0))
            self.process = process
        except BaseException:
            self._parent_pipe.close()
            self.reports.close()
            self._errors.close()
            raise
        finally:
            their_reports.close()
            their_errors.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def start_failed(self, failed: OSError) -> CollectorError:
        """The error for a restart that the system refused."""
        self.worked_s = 0.0
        error = CollectorError(f"collector {self.index} could not be started again: {failed}")
        error.index = self.index
        return error

    def read_reports(self, reports: deque[tuple[int, dict[str, float]]]) -> None:
        """Takes its reports. A pipe that ends before its process marks it as silent."""
        try:
            for _ in range(_MAX_READS):
                if self.is_silent or not self.reports.poll(0):
                    return
                data = self.reports.recv_bytes()
                if data:
                    reports.append((self.index, json.loads(data)))
                else:
                    self._began = time.monotonic()
        except EOFError:
            self.is_silent = True

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal. Only to a process that was not reaped yet: the descriptor and the group are still its own."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)
        if number == signal.SIGKILL:
            self._kill_group()

    def reap(self, oom_kills: OomKills) -> CollectorError | None:
        """Reaps the ended process, kills the rest of its group, and returns why it ended; ``None`` when it returned."""
        self._kill_group()  # Before it is reaped: until then no other process can have its number.
        self.process.join()
        exitcode, pid = self.process.exitcode, self.pid
        failure = None
        with suppress(EOFError, OSError):  # Nothing was sent, or only a part, because it was killed.
            if self._errors.poll(0):
                failure = Failure.decode(self._errors.recv_bytes())
        self.worked_s = 0.0 if self._began is None else time.monotonic() - self._began
        self._parent_pipe.close()
        self.reports.close()
        self._errors.close()
        os.close(self.pidfd)
        if exitcode is not None:  # None when other code has waited for it: then there is nothing to close.
            self.process.close()
        self.process, self.pidfd = None, -1
        if exitcode == 0 and failure is None:
            return None
        error = collector_error(self.index, pid, exitcode, failure, oom_kills)
        if self._began is None:
            error.add_note("It ended before its target was called: if there is no traceback here, look at stderr.")
        return error

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
