"""WorkerProcesses: the demo's worker processes. A `CollectorSupervisor` starts them and notices deaths.

Jobs and reports go through one pipe per worker. Workers share nothing with each other, so one of them can be killed at
any moment without harm to the others.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from rollway.cli import signals
from rollway.cli.demo.worker import Job, Report, work
from rollway.runner.collector_error import signal_of
from rollway.runner.supervisor import CollectorSupervisor

_SPAWN = multiprocessing.get_context("spawn")
_START_S = 60.0
_LEAVE_S = 2.0


@dataclass(frozen=True)
class Death:
    """A worker that ended too early."""

    worker: int
    pid: int
    how: str

    def __str__(self) -> str:
        return f"worker {self.worker} (pid {self.pid}) {self.how}"


class WorkerProcesses:
    """The worker processes. The end of the ``with`` block ends them all.

    Args:
        size: How many.
        queue_size: Room in `queue`, the multiprocessing.Queue that all of them can also send through.
    """

    def __init__(self, size: int, queue_size: int) -> None:
        self.size = size
        resource_tracker.ensure_running()  # not while signals are deferred: its start would unblock them
        with signals.deferred():  # an interrupted Queue() would leave a semaphore in /dev/shm
            self.queue: Any = _SPAWN.Queue(queue_size)
        self._supervisor = CollectorSupervisor(stop_timeout_s=0.0, kill_timeout_s=_LEAVE_S)
        self._pipes: dict[int, Connection] = {}
        self._reports: dict[int, Report] = {}
        self._busy = set(range(size))

    def __enter__(self) -> WorkerProcesses:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def pids(self) -> list[int]:
        """The process ids of the living workers."""
        return list(self._supervisor.pids().values())

    @property
    def deaths(self) -> list[Death]:
        """The workers that died, in order."""
        return [
            Death(e.index, e.pid, _describe_exit(e.exitcode, f"{e.kind}: {e.message}" if e.kind else None))
            for e in self._supervisor.deaths
        ]

    def assign(self, job: Job, worker: int | None = None) -> None:
        """Gives a job to one worker, or to all."""
        self._reports.clear()
        for index, pipe in self._pipes.items():
            if worker in (None, index):
                self._busy.add(index)
                with contextlib.suppress(OSError):  # dead: `poll` will notice
                    pipe.send(job)

    def poll(self, timeout: float) -> bool:
        """Waits for reports and deaths, at most ``timeout`` seconds. True when no worker is busy any more."""
        ready = connection.wait(list(self._pipes.values()), timeout)
        for index, pipe in [one for one in self._pipes.items() if one[1] in ready]:
            try:
                self._reports[index] = pipe.recv()
                self._busy.discard(index)
            except (EOFError, OSError):  # the worker has ended
                self._pipes.pop(index).close()
        self._supervisor.reports()  # notices deaths
        self._busy.intersection_update(self._supervisor.pids())
        return not self._busy

    def report(self, worker: int) -> Report | None:
        """The report of a worker about its last job; ``None`` if it died first."""
        return self._reports.get(worker)

    def _start(self) -> None:
        with signals.deferred():  # no worker is left behind half started
            for index in range(self.size):
                self._pipes[index], theirs = _SPAWN.Pipe()
                self._supervisor.start(work, 1, self.size, theirs, self.queue)
                theirs.close()
        deadline = time.monotonic() + _START_S
        while not self.poll(deadline - time.monotonic()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the workers did not start within {_START_S:g} s")

    def _end(self) -> None:
        with signals.deferred():
            for pipe in self._pipes.values():
                pipe.close()
            self._supervisor.stop()
            self.queue.close()


def _describe_exit(exit_code: int | None, failure: str | None) -> str:
    if failure is not None:
        return f"failed: {failure}"
    if exit_code is not None and exit_code < 0:
        known = signal_of(exit_code)
        return f"was killed by {f'signal {-exit_code}' if known is None else known.name}"
    return f"ended early with exit code {exit_code}"
