"""Crew: the demo's worker processes, as the learner sees them. Starts them, gives orders, hears of deaths.

Orders and reports go through one pipe per worker, and deaths are told by the operating system: nothing here is shared
between workers, so that one of them can be killed at any moment without harm to the others.
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
    """A worker that ended before its time."""

    worker: int
    pid: int
    how: str

    def __str__(self) -> str:
        return f"worker {self.worker} (pid {self.pid}) {self.how}"


class Crew:
    """Worker processes. Leaving the ``with`` block ends them all: it asks them, or after an error it kills them.

    Args:
        size: How many.
        queue_size: Room in `queue`, the multiprocessing.Queue that all of them can also send through.
    """

    def __init__(self, size: int, queue_size: int) -> None:
        self.size = size
        resource_tracker.ensure_running()  # not while signals are held back: it lets them through
        with signals.held_back():  # a semaphore that is made, and not noted yet, would stay in /dev/shm
            self.queue: Any = _SPAWN.Queue(queue_size)
        self.deaths: list[Death] = []
        self._processes: list[SpawnProcess] = []
        self._pipes: dict[int, Connection] = {}
        self._reports: dict[int, Report] = {}
        self._failures: dict[int, str] = {}
        self._busy: set[int] = set()

    def __enter__(self) -> Crew:
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

    def order(self, job: Job, who: int | None = None) -> None:
        """Gives a job to one worker, or to all."""
        self._reports.clear()
        for index, pipe in self._pipes.items():
            if who in (None, index):
                self._busy.add(index)
                with contextlib.suppress(OSError):  # dead: `listen` will notice
                    pipe.send(job)

    def listen(self, timeout_s: float) -> bool:
        """Waits for reports and deaths, at most so long. True when nobody is busy any more."""
        sentinels = {p.sentinel: i for i, p in enumerate(self._processes) if i in self._pipes}
        pipes = {pipe: index for index, pipe in self._pipes.items()}
        for ready in connection.wait([*sentinels, *pipes], timeout_s):
            if isinstance(ready, Connection):
                self._hear(pipes[ready], ready)
        for index in [i for s, i in sentinels.items() if i in self._pipes and connection.wait([s], 0)]:
            self._bury(index)
        return not self._busy

    def report(self, worker: int) -> Report | None:
        """What a worker said about its last job; ``None`` if it died first."""
        return self._reports.get(worker)

    def _start(self) -> None:
        with signals.held_back():  # so Ctrl-C cannot reach a worker before it has learnt to ignore it
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
        while not self.listen(deadline - time.monotonic()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the workers did not start within {_START_S:g} s")

    def _hear(self, index: int, pipe: Connection) -> bool:
        """Takes what a worker says; false when it will say no more."""
        try:
            said = pipe.recv()
        except (EOFError, OSError):
            return False  # the sentinel will tell
        if isinstance(said, Failure):
            self._failures[index] = said.why
        else:
            self._reports[index] = said
            self._busy.discard(index)
        return True

    def _bury(self, index: int) -> None:
        process, pipe = self._processes[index], self._pipes.pop(index)
        while pipe.poll() and self._hear(index, pipe):
            pass
        pipe.close()
        process.join()
        self._busy.discard(index)
        self.deaths.append(Death(index, process.pid or 0, _how(process.exitcode, self._failures.get(index))))

    def _end(self, kill: bool) -> None:
        with signals.held_back():
            for pipe in self._pipes.values():
                pipe.close()
            deadline = time.monotonic() + (0 if kill else _LEAVE_S)
            for process in self._processes:
                process.join(max(0, deadline - time.monotonic()))
                if process.exitcode is None:
                    process.kill()
                process.join()
            self.queue.close()


def _how(exit_code: int | None, failure: str | None) -> str:
    if failure is not None:
        return f"failed: {failure}"
    if exit_code is not None and exit_code < 0:
        try:
            return f"was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"was killed by signal {-exit_code}"
    return f"ended early with exit code {exit_code}"
