"""Crew: the worker processes of a vector environment. Starts them, hears from them, and ends them; only its own."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.context import BaseContext
from typing import Any

from gymnasium import Env
from gymnasium.vector.utils import CloudpickleWrapper, clear_mpi_env_vars

from rollway.vector_env.wire import FOREVER_S, Wire, WorkerGone
from rollway.vector_env.worker import Orders, describe_end, work

Maker = Callable[[], Env[Any, Any]]


class Crew:
    """Processes and pipes, by worker."""

    def __init__(self, makers: Sequence[Maker], shares: Sequence[range], context: str | None, daemon: bool) -> None:
        self._context: BaseContext = multiprocessing.get_context(context)
        self._makers, self._shares, self._daemon = makers, shares, daemon
        self._processes: list[Any] = [None] * len(shares)
        self._wires: list[Wire | None] = [None] * len(shares)
        self.owing: set[int] = set()
        """Workers to whom a message was not sent to its end."""

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
        self._processes[worker], self._wires[worker] = process, Wire(ours, process.sentinel)
        return int(process.pid)

    def pid(self, worker: int) -> int | None:
        """Of a worker's process."""
        process = self._processes[worker]
        return None if process is None else process.pid

    def send(self, worker: int, letter: bytes, deadline: float | None = None) -> None:
        """To a worker, by its pipe. `WorkerSilent`: the rest of it is owed, and goes with `flush`."""
        self.owing.add(worker)
        self._wire(worker).send(letter, deadline)
        self.owing.discard(worker)

    def flush(self, worker: int, deadline: float | None) -> None:
        """Sends what is owed to a worker."""
        self._wire(worker).flush(deadline)
        self.owing.discard(worker)

    def receive(self, worker: int, deadline: float | None = None) -> Any:
        """From a worker, by its pipe. What it sent before it died is still heard."""
        return self._wire(worker).receive(deadline)

    def estate(self, worker: int) -> list[Any]:
        """What a worker had sent before it ended, and nobody has heard yet."""
        wire = self._wires[worker]
        return [] if wire is None else wire.estate()

    def _wire(self, worker: int) -> Wire:
        wire = self._wires[worker]
        if wire is None:
            raise WorkerGone  # and is buried
        return wire

    def bury(self, worker: int) -> str:
        """Makes sure that a worker has ended, and says how it did."""
        process, wire = self._processes[worker], self._wires[worker]
        # Its lock goes a moment before the kernel tells how it ended.
        process.join(1.0)
        ended = describe_end(process.exitcode)
        if process.exitcode is None:
            process.kill()
            process.join()
        if wire is not None:
            wire.close()
        self._wires[worker] = None
        self.owing.discard(worker)
        return ended

    def kill(self, worker: int) -> None:
        """Ends a worker that does not answer."""
        self._processes[worker].kill()
        self._processes[worker].join()

    def dismiss(self, timeout: float) -> None:
        """Waits until all have ended, and kills those who have not in time."""
        for worker, wire in enumerate(self._wires):
            if wire is not None:
                wire.close()
                self._wires[worker] = None
        deadline = time.monotonic() + min(timeout, FOREVER_S)
        for process in self._processes:
            if process is not None:
                process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            if process is not None and process.exitcode is None:
                process.kill()
                process.join()
