"""Crew: the worker processes of a vector environment. Starts them, hears from them, and ends them; only its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from typing import Any

from gymnasium import Env
from gymnasium.vector.utils import CloudpickleWrapper, clear_mpi_env_vars

from rollway.errors import EnvDied
from rollway.runner.collector_error import signal_of
from rollway.vector_env.pipe import FOREVER_S, Wire, WorkerGone, WorkerSilent, packed
from rollway.vector_env.protocol import Orders, named, raise_fault
from rollway.vector_env.worker import work

Maker = Callable[[], Env[Any, Any]]


class Crew:
    """Processes and pipes, by worker."""

    def __init__(self, makers: Sequence[Maker], shares: Sequence[range], context: str | None, daemon: bool) -> None:
        self._context: BaseContext = multiprocessing.get_context(context)
        self._makers, self._daemon = makers, daemon
        self.shares = shares
        """The environments of each worker."""
        self.worker_of = [worker for worker, share in enumerate(shares) for _ in share]
        """By environment."""
        self._processes: list[Any] = [None] * len(shares)
        self._pidfds: list[int | None] = [None] * len(shares)
        """Readable when a process has ended, whoever else holds its pipes. ``None``: there is no such process."""
        self._wires: list[Wire | None] = [None] * len(shares)
        self.owing: set[int] = set()
        """Workers to whom a message may not have been sent to its end."""
        _crews.add(self)

    def start(self, orders: Orders) -> int:
        """Starts a worker, and gives back its process id."""
        with _interrupts_held(self._context.get_start_method()):
            return self._start(orders)

    def _start(self, orders: Orders) -> int:
        worker = orders.worker
        ours, theirs = multiprocessing.Pipe()
        share = self.shares[worker]
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
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:  # it has ended, and somebody has waited for it
            pidfd = os.dup(process.sentinel)
        self._forget(worker)
        self._processes[worker], self._pidfds[worker], self._wires[worker] = process, pidfd, Wire(ours, pidfd)
        return int(process.pid)

    def pid(self, worker: int) -> int | None:
        """Of a worker's process."""
        process = self._processes[worker]
        return None if process is None else process.pid

    def put(self, worker: int, letter: bytes) -> int:
        """For a worker, by its pipe; `flush` sends it. Its number."""
        self.owing.add(worker)
        return self._wire(worker).put(letter)

    def flush(self, worker: int, deadline: float | None = None) -> None:
        """Sends what is owed to a worker. `WorkerSilent`: the rest of it still is."""
        self._wire(worker).flush(deadline)
        self.owing.discard(worker)

    def receive(self, worker: int, deadline: float | None = None) -> Any:
        """The next word of a worker, until it is `done`. What it sent before it died is still heard."""
        return self._wire(worker).receive(deadline)

    def done(self, worker: int) -> None:
        """The next word of a worker is another."""
        self._wire(worker).done()

    def hear(self, worker: int, expected: str) -> Any:
        """A worker's word while it is being started for the first time."""
        envs = list(self.shares[worker])
        try:
            kind, content = self.receive(worker)
        except WorkerGone:
            how = self.bury(worker)
            raise EnvDied(f"{named(envs)} could not be made: the worker process ended, {how}", envs) from None
        self.done(worker)
        if kind == "fault":
            env, fault = content
            raise_fault([env], fault, "could not be made")
        assert kind == expected
        return content

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
        has_ended = self._ends_within(worker, 1.0)
        ended = describe_end(process.exitcode if has_ended else None)
        if not has_ended:
            self.kill(worker)
        if wire is not None:
            wire.close()
        self._wires[worker] = None
        self.owing.discard(worker)
        return ended

    def kill(self, worker: int) -> None:
        """Ends a worker that does not answer."""
        self._processes[worker].kill()
        self._ends_within(worker, FOREVER_S)

    def _ends_within(self, worker: int, timeout: float) -> bool:
        """Whether a worker has ended, or does so in time."""
        pidfd = self._pidfds[worker]
        if pidfd is None:
            return True
        if not wait([pidfd], timeout):
            return False
        self._processes[worker].join()
        return True

    def send_home(self) -> None:
        """Tells workers that wait for their blueprint that there will be none.

        That their pipe is closed does not tell them: one that was forked holds both ends of it.
        """
        for wire in self._wires:
            if wire is not None:
                wire.put(packed(None))
                with contextlib.suppress(WorkerGone, WorkerSilent):
                    wire.flush(time.monotonic())

    def dismiss(self, timeout: float) -> None:
        """Waits until all have ended, and kills those who have not in time."""
        for worker, wire in enumerate(self._wires):
            if wire is not None:
                wire.close()
                self._wires[worker] = None
        deadline = time.monotonic() + min(timeout, FOREVER_S)
        late = [
            worker
            for worker in range(len(self._processes))
            if not self._ends_within(worker, max(0.0, deadline - time.monotonic()))
        ]
        for worker in late:
            self.kill(worker)
        for worker in range(len(self._processes)):
            self._forget(worker)

    def disown(self) -> None:
        """In a forked child: multiprocessing would end its daemons, our parent's, when this process ends."""
        getattr(multiprocessing.process, "_children", set()).difference_update(self._processes)

    def _forget(self, worker: int) -> None:
        pidfd, self._pidfds[worker] = self._pidfds[worker], None
        if pidfd is not None:
            os.close(pidfd)


def describe_end(exitcode: int | None) -> str:
    """How a process ended, for people."""
    if exitcode is None:
        return "it is still there, but has left its work"
    if exitcode < 0:
        known = signal_of(exitcode)
        name = f"signal {-exitcode}" if known is None else known.name  # those of real time have none
        hints = {"SIGKILL": " (out of memory, or somebody's kill -9?)", "SIGBUS": " (is /dev/shm full?)"}
        return f"killed by {name}{hints.get(name, '')}"
    return f"it called exit with code {exitcode}" if exitcode else "it exited in the middle of its work, with code 0"


@contextlib.contextmanager
def _interrupts_held(method: str) -> Iterator[None]:
    """Ctrl-C waits until a worker is started and known, and does not reach it before it can say that it ignores it.

    A terminal sends it to all processes. One that is still importing would end with a traceback of no use to anybody.
    """
    if method == "forkserver":  # a server that is started now would hand it on to all that it ever forks
        yield
        return
    if method == "spawn":
        resource_tracker.ensure_running()  # when it is started it lets interrupts through
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


def _disown_all() -> None:
    for crew in list(_crews):
        crew.disown()


os.register_at_fork(after_in_child=_disown_all)
