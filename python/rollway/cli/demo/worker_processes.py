"""WorkerProcesses: the demo's worker processes. Starts them, assigns jobs, reads reports, notices deaths.

Jobs and reports go through one pipe per worker, and the operating system reports deaths. Workers share nothing with
each other, so one of them can be killed at any moment without harm to the others.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any

from rollway.cli import signals
from rollway.cli.demo.worker import Failure, Job, Report, work

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
    """The worker processes. The end of the ``with`` block ends them all; after an error it kills them.

    Args:
        size: How many.
        queue_size: Room in `queue`, the multiprocessing.Queue that all of them can also send through.
    """

    def __init__(self, size: int, queue_size: int) -> None:
        self.size = size
        resource_tracker.ensure_running()  # not while signals are held back: it lets them through
        with signals.deferred():  # a semaphore that is made, and not noted yet, would stay in /dev/shm
            self.queue: Any = _SPAWN.Queue(queue_size)
        self.deaths: list[Death] = []
        self._processes: list[SpawnProcess] = []
        self._pipes: dict[int, Connection] = {}
        self._reports: dict[int, Report] = {}
        self._failures: dict[int, str] = {}
        self._busy: set[int] = set()

    def __enter__(self) -> WorkerProcesses:
        try:
            self._start()
        except BaseException:
            self._end(kill=True)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end(kill=kind is not None or bool(self.deaths))

    @property
    def pids(self) -> list[int]:
        """The process ids, by worker."""
        return [process.pid or 0 for process in self._processes]

    def assign(self, job: Job, who: int | None = None) -> None:
        """Gives a job to one worker, or to all."""
        self._reports.clear()
        for index, pipe in self._pipes.items():
            if who in (None, index):
                self._busy.add(index)
                with contextlib.suppress(OSError):  # dead: `poll` will notice
                    pipe.send(job)

    def poll(self, timeout: float) -> bool:
        """Waits for reports and deaths, at most so long. True when no worker is busy any more."""
        sentinels = {p.sentinel: i for i, p in enumerate(self._processes) if i in self._pipes}
        pipes = {pipe: index for index, pipe in self._pipes.items()}
        for ready in connection.wait([*sentinels, *pipes], timeout):
            if isinstance(ready, Connection):
                self._receive(pipes[ready], ready)
        for index in [i for s, i in sentinels.items() if i in self._pipes and connection.wait([s], 0)]:
            self._reap(index)
        return not self._busy

    def report(self, worker: int) -> Report | None:
        """The report of a worker about its last job; ``None`` if it died first."""
        return self._reports.get(worker)

    def _start(self) -> None:
        with signals.deferred():  # so Ctrl-C cannot reach a worker before it ignores it
            for index in range(self.size):
                ours, theirs = _SPAWN.Pipe()
                process = _SPAWN.Process(
                    target=work, args=(index, self.size, theirs, self.queue), name=f"worker-{index}", daemon=True
                )
                process.start()
                theirs.close()
                self._processes.append(process)
                self._pipes[index] = ours
        self._busy = set(range(self.size))
        deadline = time.monotonic() + _START_S
        while not self.poll(deadline - time.monotonic()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the workers did not start within {_START_S:g} s")

    def _receive(self, index: int, pipe: Connection) -> bool:
        """Reads a message of a worker; false when no more will come."""
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            return False  # the sentinel will tell
        if isinstance(message, Failure):
            self._failures[index] = message.why
        else:
            self._reports[index] = message
            self._busy.discard(index)
        return True

    def _reap(self, index: int) -> None:
        process, pipe = self._processes[index], self._pipes.pop(index)
        while pipe.poll() and self._receive(index, pipe):
            pass
        pipe.close()
        process.join()
        self._busy.discard(index)
        self.deaths.append(Death(index, process.pid or 0, _describe_exit(process.exitcode, self._failures.get(index))))

    def _end(self, kill: bool) -> None:
        with signals.deferred():
            for pipe in self._pipes.values():
                pipe.close()
            deadline = time.monotonic() + (0 if kill else _LEAVE_S)
            for process in self._processes:
                process.join(max(0, deadline - time.monotonic()))
                if process.exitcode is None:
                    process.kill()
                process.join()
            self.queue.close()


def _describe_exit(exit_code: int | None, failure: str | None) -> str:
    if failure is not None:
        return f"failed: {failure}"
    if exit_code is not None and exit_code < 0:
        try:
            return f"was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"was killed by signal {-exit_code}"
    return f"ended early with exit code {exit_code}"
