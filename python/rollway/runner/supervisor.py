"""CollectorSupervisor: starts collectors, hears of their deaths, starts them again, and stops them in the end.

It acts only when it is called: `check` reads reports, notices deaths and restarts what is due; there is no thread. It
touches only the processes that it started, through descriptors that cannot come to mean somebody else. It knows nothing
of rings, weights and training: `AsyncRunner` owns one.
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
from rollway.runner.collector import Collector, Lines, StopFlag, Work, run
from rollway.runner.collector_error import Failure, OomKills, collector_error
from rollway.runner.parent_watch import Lifeline
from rollway.runner.restart_policy import RestartPolicy

_log = logging.getLogger("rollway.collectors")
_spawn = multiprocessing.get_context("spawn")
_MOST_REPORTS = 10_000
_LONGEST_WAIT_S = 1e6  # The milliseconds of poll() are an int.
_MOST_AT_ONCE = 5_000  # More than a pipe holds: all of a dead collector's, and a busy one cannot keep us for ever.


class CollectorSupervisor:
    """A number of collector processes, one policy.

    Collectors are spawned, not forked: they share nothing with the learner but what they are given. Each runs
    ``target(collector, *args, **kwargs)`` and is done when that returns. They ignore Ctrl-C, and the kernel kills them
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
        self._members: list[_Member] = []
        self._reports: deque[tuple[int, dict[str, float]]] = deque(maxlen=_MOST_REPORTS)
        self._given_up: CollectorError | None = None
        self._stopped = False
        self._pid = os.getpid()
        self.deaths: list[CollectorError] = []
        """Every death so far, the forgiven ones too."""

    def start(self, target: Callable[..., object], count: int, *args: Any, **kwargs: Any) -> None:
        """Starts so many collectors. ``target`` must be importable: a function at the top of a module."""
        if self._stopped:
            raise InvalidArgument("these collectors were stopped: make a new runner")
        if count < 1:
            raise InvalidArgument(f"the number of collectors is {count}: at least 1")
        for _ in range(count):
            member = _Member(len(self._members), self._stop_flag, Work(target, args, kwargs))
            self._members.append(member)
            try:
                member.start()
            finally:
                if member.process is None:
                    self._members.remove(member)  # It was never there: who tries again begins with its number.

    @property
    def alive(self) -> int:
        """Collectors whose process lives."""
        return sum(member.process is not None for member in self._members)

    @property
    def pending(self) -> int:
        """Collectors that wait for their restart."""
        return sum(member.due is not None for member in self._members)

    @property
    def restarts(self) -> int:
        """Restarts so far, of all collectors together."""
        return sum(member.life for member in self._members)

    def pids(self) -> dict[int, int]:
        """The process of each living collector."""
        return {member.index: member.pid for member in self._members if member.process is not None}

    def reports(self) -> list[tuple[int, dict[str, float]]]:
        """What collectors have reported since the last call: which one, and its numbers. The oldest go first when
        nobody asks for long.
        """
        self._listen(0.0)
        taken = list(self._reports)
        self._reports.clear()
        return taken

    def check(self) -> None:
        """Notices deaths and does what the policy says. `CollectorError` when it says that this is the end.

        Never waits. An error is raised again by every later call.
        """
        self._listen(0.0)
        now = time.monotonic()
        for member in self._members:
            if self._given_up is None and member.due is not None and member.due <= now:
                try:
                    member.restart()
                except OSError as failed:  # For want of memory, processes or files, which may be better later.
                    self._note(member, member.stillborn(failed))
        if self._given_up is not None:
            raise self._given_up

    def stop(self) -> None:
        """Tells all to stop; those that do not get SIGTERM, then SIGKILL. Returns when all are gone.

        An exception meanwhile (a second Ctrl-C) kills them at once. Safe to call twice. In a forked child it does
        nothing: the collectors are its parent's.
        """
        if self._stopped or not self.is_ours:
            return
        self.tell_to_stop()
        self._stopped = True
        for member in self._members:
            member.due = None
        try:
            self._await_ends(self._stop_timeout_s)
            self._signal(signal.SIGTERM)
            self._await_ends(self._kill_timeout_s)
        finally:
            self._signal(signal.SIGKILL)
            self._await_ends(None)
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
        for member in self._living():
            member.signal(number)

    def _living(self) -> list[_Member]:
        return [member for member in self._members if member.process is not None]

    def _await_ends(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._living():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            self._listen(None if left is None else min(left, _LONGEST_WAIT_S))

    def _listen(self, timeout: float | None) -> None:
        """Reads reports and buries the dead: what there is now, or the first thing to happen within ``timeout``."""
        ears: dict[int, _Member] = {}
        for member in self._living():
            ears[member.pidfd] = member
            if not member.mute:
                ears[member.reports.fileno()] = member
        # A pidfd is readable when the process has ended, whoever else holds its pipes.
        for fd in wait(list(ears), timeout):
            assert isinstance(fd, int)
            member = ears[fd]
            member.listen(self._reports)
            if fd == member.pidfd:
                self._bury(member)

    def _bury(self, member: _Member) -> None:
        error = member.bury(self._oom_kills)
        if error is None or self._stop_flag.is_set():
            return  # It returned, or it was told to end and did so in its own way.
        self._note(member, error)

    def _note(self, member: _Member, error: CollectorError) -> None:
        """Does what the policy says of a death."""
        self.deaths.append(error)
        if self._policy.allows(member.life):
            member.deaths_in_row = 1 if member.worked_s >= self._policy.healthy_after_s else member.deaths_in_row + 1
            pause = self._policy.pause_s(member.deaths_in_row)
            member.due = time.monotonic() + pause
            _log.warning("restart %d of %s, in %.1f s", member.life + 1, error, pause)
        elif self._given_up is None:
            if member.life:
                error.add_note(f"It had been restarted {member.life} times, which is what the policy allows.")
            self._given_up = error


class _Member:
    """One collector: its process now, and what is known of its lives before."""

    def __init__(self, index: int, stop: StopFlag, work: Work) -> None:
        self.index = index
        self.life = 0
        self.deaths_in_row = 0
        self.worked_s = 0.0
        self.due: float | None = None
        self.process: Any = None
        self.pidfd = -1
        self.mute = False
        self.reports: Connection
        self._errors: Connection
        self._lifeline: Lifeline
        self._began: float | None = None
        self._stop, self._work = stop, work

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def restart(self) -> None:
        self.life += 1
        self.due = None
        self.start()

    def start(self) -> None:
        self.reports, their_reports = _spawn.Pipe(duplex=False)
        self._errors, their_errors = _spawn.Pipe(duplex=False)
        self._lifeline = Lifeline(*_spawn.Pipe(duplex=False))
        self._began, self.mute = None, False
        collector = Collector(self.index, self.life, self._stop, their_reports)
        lines = Lines(their_errors, self._lifeline.read_end)
        process = _spawn.Process(target=run, args=(collector, lines, self._work), name=f"collector-{self.index}")
        # Blocked, and so inherited as blocked: a Ctrl-C while the collector imports is not a traceback of its own. The
        # tracker is started before, because starting it unblocks the signal.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
            self.pidfd = os.pidfd_open(int(process.pid or 0))
            self._lifeline.arm(int(process.pid or 0))
            self.process = process
        except BaseException:
            self._lifeline.close()
            self.reports.close()
            self._errors.close()
            raise
        finally:
            their_reports.close()
            their_errors.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def stillborn(self, failed: OSError) -> CollectorError:
        """The system would not give a process for it."""
        self.worked_s = 0.0
        error = CollectorError(f"collector {self.index} could not be started again: {failed}")
        error.index = self.index
        return error

    def listen(self, reports: deque[tuple[int, dict[str, float]]]) -> None:
        """Takes what it has reported. A pipe that ends before its process does is mute."""
        try:
            for _ in range(_MOST_AT_ONCE):
                if self.mute or not self.reports.poll(0):
                    return
                data = self.reports.recv_bytes()
                if data:
                    reports.append((self.index, json.loads(data)))
                else:
                    self._began = time.monotonic()
        except EOFError:
            self.mute = True

    def signal(self, number: signal.Signals) -> None:
        """Only to a process that was not reaped yet: the descriptor and the group are still its own."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)
        if number == signal.SIGKILL:
            self._kill_group()

    def bury(self, oom_kills: OomKills) -> CollectorError | None:
        """The process has ended: kills what is left of its group, and says why it ended; ``None`` when it returned."""
        self._kill_group()  # Before it is reaped: until then its number cannot be another's.
        self.process.join()
        exitcode, pid = self.process.exitcode, self.pid
        failure = None
        with suppress(EOFError, OSError):  # Nothing was sent, or half of it: it was killed.
            if self._errors.poll(0):
                failure = Failure.decode(self._errors.recv_bytes())
        self.worked_s = 0.0 if self._began is None else time.monotonic() - self._began
        self._lifeline.close()
        self.reports.close()
        self._errors.close()
        os.close(self.pidfd)
        if exitcode is not None:  # Somebody else has waited for it: then nobody knows, and there is nothing to close.
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
