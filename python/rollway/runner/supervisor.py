"""CollectorSupervisor: starts collectors, notices their deaths, restarts them, and stops them in the end.

It has no thread and acts only when it is called: `check` reads reports, notices deaths and restarts what is due. It
signals only processes that it started, through descriptors that never refer to another process. `Runner` owns one.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any, Protocol

from rollway.errors import CollectorError, InvalidArgument
from rollway.runner.collector import LONGEST_WAIT_S, CollectorTarget, StopFlag
from rollway.runner.collector_error import OomKills
from rollway.runner.collector_process import CollectorProcess, make_stop_flag
from rollway.runner.restart_policy import RestartCount, RestartPolicy
from rollway.runner.supervised_collector import Reports, SupervisedCollector

_log = logging.getLogger("rollway.collectors")
_MAX_REPORTS = 10_000


class LearnerStopFlag(Protocol):
    """The learner's end of what tells collectors to stop: a `StopFlag`, or one that reaches other machines."""

    def is_set(self) -> bool:
        """Whether they were told."""
        ...

    def set(self) -> None:
        """Tells them."""
        ...

    def close(self) -> None:
        """Lets go of it, when all are gone."""
        ...


class Placement(Protocol):
    """Where collectors run, if not in processes of this machine: `rollway.integrations.ray.RayPlacement` is one."""

    def supervisor(
        self, policy: RestartPolicy | None, *, stop_timeout_s: float, kill_timeout_s: float
    ) -> CollectorSupervisor:
        """What starts, watches and ends the collectors there."""
        ...


class CollectorSupervisor:
    """Any number of collector processes under one restart policy.

    Collectors are spawned, not forked: they share only their arguments with the learner. Each runs
    ``target(collector, *args, **kwargs)`` and ends when that returns. They ignore Ctrl-C, and the kernel kills them
    when this process dies.

    Args:
        policy: What to do when one dies.
        stop_timeout_s: How long collectors have to return once they are told to stop.
        kill_timeout_s: How long they have after SIGTERM, before SIGKILL.
        stop_flag: What tells them to stop; that of processes when left out.
    """

    def __init__(
        self,
        policy: RestartPolicy | None = None,
        *,
        stop_timeout_s: float = 10.0,
        kill_timeout_s: float = 5.0,
        stop_flag: LearnerStopFlag | None = None,
    ) -> None:
        self._policy = policy or RestartPolicy.never()
        self._stop_timeout_s, self._kill_timeout_s = stop_timeout_s, kill_timeout_s
        self._stop_flag = stop_flag or make_stop_flag()
        self._oom_kills = OomKills.count()
        self._children: list[SupervisedCollector] = []
        self._reports: Reports = deque(maxlen=_MAX_REPORTS)
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
        make = self._maker(target, args, kwargs)
        for _ in range(count):
            child = make(len(self._children))
            self._children.append(child)
            try:
                child.start()
            finally:
                if not child.is_running:
                    self._children.remove(child)  # It did not start: the next attempt uses its number again.

    def _maker(
        self, target: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[int], SupervisedCollector]:
        """Makes collectors by their numbers, not started."""
        stop, call = self._stop_flag, CollectorTarget(target, args, kwargs)
        assert isinstance(stop, StopFlag)
        return lambda index: CollectorProcess(index, stop, call, RestartCount(self._policy), self._oom_kills)

    @property
    def alive(self) -> int:
        """Collectors whose process lives."""
        return len(self._alive())

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
        return {child.index: pid for child in self._alive() if (pid := child.pid) is not None}

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

    def _alive(self) -> list[SupervisedCollector]:
        return [child for child in self._children if child.is_running]

    def _wait_for_exits(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._alive():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            self._poll(None if left is None else min(left, LONGEST_WAIT_S))

    def _poll(self, timeout: float | None) -> None:
        """Reads reports and reaps dead processes: what there is now, or the first event within ``timeout``."""
        by_fd = {fd: child for child in self._alive() for fd in child.fds()}
        for fd in wait(list(by_fd), timeout):
            assert isinstance(fd, int)
            child = by_fd[fd]
            child.read_reports(self._reports)
            if child.has_ended(fd):
                self._reap(child)

    def _reap(self, child: SupervisedCollector) -> None:
        error = child.reap()
        if error is None or self._stop_flag.is_set():
            return  # it returned, or ended in any way after it was told to stop
        self._on_death(child, error)

    def _on_death(self, child: SupervisedCollector, error: CollectorError) -> None:
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
