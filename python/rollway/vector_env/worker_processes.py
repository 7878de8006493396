"""WorkerProcesses: the worker processes of one vector environment. Starts and stops them, and moves messages."""

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
from rollway.vector_env.pipe import FOREVER_S, CallerPipe, WorkerGone, WorkerTimeout, packed
from rollway.vector_env.protocol import WorkerSettings, describe_envs, raise_fault
from rollway.vector_env.worker import work

Maker = Callable[[], Env[Any, Any]]


class WorkerProcesses:
    """The processes and pipes of the workers, which are numbered from 0."""

    def __init__(self, makers: Sequence[Maker], envs_of: Sequence[range], context: str | None, daemon: bool) -> None:
        self._context: BaseContext = multiprocessing.get_context(context)
        self._makers, self._daemon = makers, daemon
        self.envs_of = envs_of
        """The environments of each worker."""
        self.worker_of = [worker for worker, envs in enumerate(envs_of) for _ in envs]
        """The worker of each environment."""
        self._processes: list[Any] = [None] * len(envs_of)
        self._pidfds: list[int | None] = [None] * len(envs_of)
        """Readable when a process has ended, even if others hold its pipes. ``None``: there is no such process."""
        self._pipes: list[CallerPipe | None] = [None] * len(envs_of)
        self.unflushed: set[int] = set()
        """Workers to which a message may not have been sent completely."""
        _all_worker_processes.add(self)

    def start(self, settings: WorkerSettings) -> int:
        """Starts a worker, and returns its process id."""
        with _interrupts_held(self._context.get_start_method()):
            return self._start(settings)

    def _start(self, settings: WorkerSettings) -> int:
        worker = settings.worker
        ours, theirs = multiprocessing.Pipe()
        envs = self.envs_of[worker]
        process = self._context.Process(  # type: ignore[attr-defined]  # every context has it
            target=work,
            name=f"rollway-env-{worker}",
            args=(
                replace(settings, envs=envs),
                [CloudpickleWrapper(make) for make in self._makers[envs.start : envs.stop]],
                theirs,
            ),
            daemon=self._daemon,
        )
        with clear_mpi_env_vars():
            process.start()
        theirs.close()
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:  # it has ended, and another thread has waited for it
            pidfd = os.dup(process.sentinel)
        self._forget(worker)
        self._processes[worker], self._pidfds[worker], self._pipes[worker] = process, pidfd, CallerPipe(ours, pidfd)
        return int(process.pid)

    def pid(self, worker: int) -> int | None:
        """The process id of a worker."""
        process = self._processes[worker]
        return None if process is None else process.pid

    def put(self, worker: int, payload: bytes) -> int:
        """Queues a message for a worker, and returns its number; `flush` sends it."""
        self.unflushed.add(worker)
        return self.pipe(worker).put(payload)

    def flush(self, worker: int, deadline: float | None = None) -> None:
        """Sends what is queued for a worker. After `WorkerTimeout` the rest is still queued."""
        self.pipe(worker).flush(deadline)
        self.unflushed.discard(worker)

    def receive_expected(self, worker: int, expected: str) -> Any:
        """The content of the next message, which must be of this kind. For workers that start for the first time."""
        envs = list(self.envs_of[worker])
        try:
            pipe = self.pipe(worker)
            kind, content = pipe.receive(None)
        except WorkerGone:
            how = self.reap(worker)
            raise EnvDied(f"{describe_envs(envs)} could not be made: the worker process ended, {how}", envs) from None
        pipe.pop_received()
        if kind == "fault":
            env, fault = content
            raise_fault([env], fault, "could not be made")
        assert kind == expected
        return content

    def unread_messages(self, worker: int) -> list[Any]:
        """Takes what a worker had sent before it ended and was not received yet."""
        pipe = self._pipes[worker]
        return [] if pipe is None else pipe.unread_messages()

    def pipe(self, worker: int) -> CallerPipe:
        """The pipe to a worker. Raises `WorkerGone` when the worker has ended and was reaped."""
        pipe = self._pipes[worker]
        if pipe is None:
            raise WorkerGone
        return pipe

    def reap(self, worker: int) -> str:
        """Makes sure that a worker has ended, and returns how it ended, in words."""
        process, pipe = self._processes[worker], self._pipes[worker]
        # The kernel drops its lock a moment before it reports how it ended.
        has_ended = self._ends_within(worker, 1.0)
        ended = describe_exit(process.exitcode if has_ended else None)
        if not has_ended:
            self.kill(worker)
        if pipe is not None:
            pipe.close()
        self._pipes[worker] = None
        self.unflushed.discard(worker)
        return ended

    def kill(self, worker: int) -> None:
        """Kills a worker, and waits for its end."""
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

    def cancel_start(self) -> None:
        """Tells workers that wait for the layout that there will be none.

        A closed pipe would not end them, because a forked worker holds both ends of it.
        """
        for pipe in self._pipes:
            if pipe is not None:
                pipe.put(packed(None))
                with contextlib.suppress(WorkerGone, WorkerTimeout):
                    pipe.flush(time.monotonic())

    def stop(self, timeout: float) -> None:
        """Waits until all workers have ended, and kills those that have not in time."""
        for worker, pipe in enumerate(self._pipes):
            if pipe is not None:
                pipe.close()
                self._pipes[worker] = None
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
        """For a forked child: keeps multiprocessing from ending the parent's daemons when the child ends."""
        getattr(multiprocessing.process, "_children", set()).difference_update(self._processes)

    def _forget(self, worker: int) -> None:
        pidfd, self._pidfds[worker] = self._pidfds[worker], None
        if pidfd is not None:
            os.close(pidfd)


def describe_exit(exitcode: int | None) -> str:
    """How a process ended, for people."""
    if exitcode is None:
        return "it still runs, but has given up its work"
    if exitcode < 0:
        known = signal_of(exitcode)
        name = f"signal {-exitcode}" if known is None else known.name  # real-time signals have none
        hints = {"SIGKILL": " (out of memory, or kill -9?)", "SIGBUS": " (is /dev/shm full?)"}
        return f"killed by {name}{hints.get(name, '')}"
    return f"it called exit with code {exitcode}" if exitcode else "it exited in the middle of its work, with code 0"


@contextlib.contextmanager
def _interrupts_held(method: str) -> Iterator[None]:
    """Blocks SIGINT until a worker is started and recorded. The worker unblocks it once it ignores it.

    A terminal sends Ctrl-C to all processes. A worker that is still importing would end with a useless traceback.
    """
    if method == "forkserver":  # a server that is started now would give the mask to all that it forks
        yield
        return
    if method == "spawn":
        resource_tracker.ensure_running()  # to start it later would unblock SIGINT
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


_all_worker_processes: weakref.WeakSet[WorkerProcesses] = weakref.WeakSet()


def _disown_all() -> None:
    for workers in list(_all_worker_processes):
        workers.disown()


os.register_at_fork(after_in_child=_disown_all)
