"""Crew: the worker processes of a vector environment. Starts them, hears from them, and ends them; only its own."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any

from gymnasium import Env
from gymnasium.vector.utils import CloudpickleWrapper, clear_mpi_env_vars

from rollway.vector_env.worker import Orders, describe_end, work

Maker = Callable[[], Env[Any, Any]]


class WorkerGone(Exception):
    """A worker's process has ended. Never reaches the user."""

    def __init__(self, worker: int) -> None:
        super().__init__(worker)
        self.worker = worker


class WorkerSilent(Exception):
    """A worker has not answered in time. Never reaches the user."""

    def __init__(self, worker: int) -> None:
        super().__init__(worker)
        self.worker = worker


def packed(message: Any) -> bytes:
    """A message as it travels, to be sent once nothing can go wrong any more."""
    return bytes(ForkingPickler.dumps(message))


class Crew:
    """Processes and pipes, by worker."""

    def __init__(self, makers: Sequence[Maker], shares: Sequence[range], context: str | None, daemon: bool) -> None:
        self._context: BaseContext = multiprocessing.get_context(context)
        self._makers, self._shares, self._daemon = makers, shares, daemon
        self._processes: list[Any] = [None] * len(shares)
        self._pipes: list[Connection | None] = [None] * len(shares)

    def start(self, orders: Orders) -> int:
        """Starts a worker, and gives back its process id."""
        worker = orders.worker
        ours, theirs = multiprocessing.Pipe()
        share = self._shares[worker]
        process = self._context.Process(  # type: ignore[attr-defined]  # every context has it
            target=work,
            name=f"rollway-env-{worker}",
            args=(
                replace(orders, envs=share),
                [CloudpickleWrapper(make) for make in self._makers[share.start : share.stop]],
                theirs,
            ),
            daemon=self._daemon,
        )
        with clear_mpi_env_vars():
            process.start()
        theirs.close()
        self._processes[worker], self._pipes[worker] = process, ours
        return int(process.pid)

    def pid(self, worker: int) -> int | None:
        """Of a worker's process."""
        process = self._processes[worker]
        return None if process is None else process.pid

    def send(self, worker: int, letter: bytes) -> None:
        """To a worker, by its pipe."""
        pipe = self._pipes[worker]
        assert pipe is not None  # started
        try:
            pipe.send_bytes(letter)
        except (BrokenPipeError, ConnectionResetError):
            raise WorkerGone(worker) from None

    def receive(self, worker: int, deadline: float | None = None) -> Any:
        """From a worker, by its pipe. What it sent before it died is still heard."""
        pipe, process = self._pipes[worker], self._processes[worker]
        assert pipe is not None  # started
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait([pipe, process.sentinel], left)
        if not ready:
            raise WorkerSilent(worker)
        if pipe not in ready and not pipe.poll(0):
            raise WorkerGone(worker)
        try:
            return pipe.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerGone(worker) from None

    def estate(self, worker: int) -> list[Any]:
        """What a worker had sent before it ended, and nobody has heard yet."""
        pipe, left = self._pipes[worker], []
        try:
            while pipe is not None and pipe.poll(0):
                left.append(pipe.recv())
        except (EOFError, OSError):
            pass  # The last word may be half a word.
        return left

    def bury(self, worker: int) -> str:
        """Makes sure that a worker has ended, and says how it did."""
        process, pipe = self._processes[worker], self._pipes[worker]
        # Its lock goes a moment before the kernel tells how it ended.
        process.join(1.0)
        ended = describe_end(process.exitcode)
        if process.exitcode is None:
            process.kill()
            process.join()
        if pipe is not None:
            pipe.close()
        self._pipes[worker] = None
        return ended

    def kill(self, worker: int) -> None:
        """Ends a worker that does not answer."""
        self._processes[worker].kill()
        self._processes[worker].join()

    def dismiss(self, timeout: float) -> None:
        """Waits until all have ended, and kills those who have not in time."""
        for worker, pipe in enumerate(self._pipes):
            if pipe is not None:
                pipe.close()
                self._pipes[worker] = None
        deadline = time.monotonic() + timeout
        for process in self._processes:
            if process is not None:
                process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            if process is not None and process.exitcode is None:
                process.kill()
                process.join()
