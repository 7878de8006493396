"""Runner: the learner's process of an asynchronous algorithm: its collectors, its shared memory, its log.

A subclass writes `learn` (and `save`). This class starts collectors, raises their errors, closes the resources that it
was given, and counts and logs iterations. It knows no algorithm, no environment and no network.
"""

from __future__ import annotations

import atexit
import multiprocessing.util  # noqa: F401 - its exit is registered before ours
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rollway.errors import CollectorError, InvalidArgument
from rollway.runner.restart_policy import RestartPolicy
from rollway.runner.supervisor import CollectorSupervisor, Placement
from rollway.runner.training_log import TrainingLog
from rollway.segment.closes_on_exit import ClosesOnExit

Resource = TypeVar("Resource")
Progress = Mapping[str, float]

_SLICE_S = 0.25  # how often a wait checks for deaths; data ends it at once


class _Waitable(Protocol):
    """What `Runner.wait_for_data` can wait for, like a `RolloutRing`."""

    def wait_for_data(self, timeout: float = ...) -> bool: ...


class Runner(ClosesOnExit, ABC):
    """The learner of an asynchronous algorithm, and the processes that collect for it.

    A collector that raises or dies raises `CollectorError` in the learner's next call of `check`, `wait_for_data` or
    `iterations`, with its traceback or its signal; or it is started again, as ``restart`` says, while the others
    continue. When the learner dies, by whatever signal, the kernel kills its collectors. `close` (or the end of the
    ``with`` block, or of the interpreter) stops them and removes the shared memory. One thread may use a runner.

    Args:
        num_collectors: Processes.
        num_envs: Environments of all collectors together, one for each when left out; see `envs_of`.
        restart: What to do when one of them dies; the first death is an error when left out.
        stop_timeout_s: How long collectors have to return when the runner is closed, before they get SIGTERM. After the
            same time again, but at most 5 s, they get SIGKILL.
        on_progress: Called with plain numbers after every iteration; see `log`.
        placement: Where the collectors run: `rollway.integrations.ray.RayPlacement` makes them actors on any node of a
            Ray cluster. Left out, they are processes of this machine.

    >>> class Counting(Runner):
    ...     def learn(self, max_iterations, save_interval=50, log_dir="logs"):
    ...         for iteration in self.iterations(max_iterations, save_interval, log_dir):
    ...             self.log(squared=iteration**2)
    ...     def save(self, path):
    ...         path.write_text("weights")
    >>> import tempfile
    >>> rows = []
    >>> with tempfile.TemporaryDirectory() as logs:
    ...     with Counting(on_progress=rows.append) as runner:
    ...         runner.learn(3, save_interval=2, log_dir=logs)
    ...     sorted(path.name for path in Path(logs).glob("iteration_*"))
    ['iteration_2', 'iteration_3']
    >>> [row["squared"] for row in rows]
    [1.0, 4.0, 9.0]
    """

    env_name: str = ""
    """The environment, for a subclass that names one."""

    def __init__(
        self,
        *,
        num_collectors: int = 1,
        num_envs: int | None = None,
        restart: RestartPolicy | None = None,
        stop_timeout_s: float = 10.0,
        on_progress: Callable[[Progress], None] | None = None,
        placement: Placement | None = None,
    ) -> None:
        num_envs = num_collectors if num_envs is None else num_envs
        if not 1 <= num_collectors <= num_envs:
            raise InvalidArgument(f"num_collectors = {num_collectors} must be between 1 and num_envs = {num_envs}")
        self.num_envs = num_envs
        self.num_collectors = num_collectors
        supervise = CollectorSupervisor if placement is None else placement.supervisor
        self._supervisor = supervise(restart, stop_timeout_s=stop_timeout_s, kill_timeout_s=min(stop_timeout_s, 5.0))
        self._resources = ExitStack()
        self._on_progress = on_progress
        self._numbers: dict[str, float] = {}
        # Also when it is dropped without `close`; see `close_all` for the end of the interpreter.
        self._finalizer = weakref.finalize(self, _end, self._supervisor, self._resources)
        self._finalizer.atexit = False
        _open.add(self)

    @abstractmethod
    def learn(self, max_iterations: int, save_interval: int = 50, log_dir: str = "logs") -> None:
        """Trains. The subclass's own; `iterations`, `wait_for_data` and `log` make it short."""

    def save(self, path: Path) -> None:
        """Writes a checkpoint to ``path``. The subclass's own; without one nothing is saved."""

    # ── shared memory ───────────────────────────────────────────────────────────────────────────────────────────────

    def own(self, resource: Resource) -> Resource:
        """Hands a ring, a buffer or weights to the runner, which closes and unlinks it in the end. Returns it."""
        end = getattr(resource, "cleanup", None) or getattr(resource, "close", None)
        if end is None:
            raise InvalidArgument(f"{resource!r} has neither cleanup() nor close(): a runner cannot own it")
        self._resources.callback(end)
        return resource

    # ── collectors ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start_collectors(self, target: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Starts ``num_collectors`` processes that run ``target(collector, *args, **kwargs)``.

        ``target`` is a function at the top of a module. Its arguments are pickled, as rings and weights can be. It
        returns when ``collector.stop.is_set()``, and may send numbers with ``collector.report(steps=128)``.
        """
        self._supervisor.start(target, self.num_collectors, *args, **kwargs)

    def envs_of(self, index: int) -> int:
        """How many of ``num_envs`` belong to one collector: as even as can be."""
        return self.num_envs // self.num_collectors + (index < self.num_envs % self.num_collectors)

    def check(self) -> None:
        """Restarts what is due; raises `CollectorError` when a collector is lost for good. Never waits."""
        self._supervisor.check()

    def wait_for_data(self, source: _Waitable, timeout: float = 60.0) -> bool:
        """Waits for ``source.wait_for_data`` and checks the collectors meanwhile. False after ``timeout`` seconds.

        `CollectorError` also when every collector has returned and all data was read.
        """
        deadline = time.monotonic() + timeout
        while True:
            over = not self._supervisor.alive and not self._supervisor.pending
            left = deadline - time.monotonic()
            if source.wait_for_data(max(0.0, 0.0 if over else min(left, _SLICE_S))):
                return True
            self.check()
            if over:
                raise CollectorError("every collector has returned, and all their data was read")
            if left <= 0:
                return False

    def reports(self) -> list[tuple[int, dict[str, float]]]:
        """What collectors have reported since the last call: the index, and the numbers."""
        return self._supervisor.reports()

    @property
    def supervisor(self) -> CollectorSupervisor:
        """The supervisor of the collectors: which live, which died of what, how many restarts."""
        return self._supervisor

    # ── iterations ──────────────────────────────────────────────────────────────────────────────────────────────────

    def iterations(
        self, max_iterations: int, save_interval: int = 50, log_dir: str | Path = "logs", *, first: int = 1
    ) -> Iterator[int]:
        """Counts ``max_iterations`` from ``first`` on: the loop of `learn`.

        Before each it checks the collectors. After each it writes what `log` was given to ``log_dir`` and hands it to
        ``on_progress``; every ``save_interval`` of them, and after the last, it calls ``save(log_dir/iteration_N)``.
        """
        if save_interval < 1:
            raise InvalidArgument(f"save_interval = {save_interval} is out of range: at least 1")
        with TrainingLog(log_dir) as log:
            last = first + max_iterations - 1
            for iteration in range(first, last + 1):
                self.check()
                yield iteration
                alive, restarts = self._supervisor.alive, self._supervisor.restarts
                numbers = {**self._numbers, "collectors_alive": float(alive), "restarts": float(restarts)}
                self._numbers = {}
                log.write(iteration, numbers)
                if self._on_progress is not None:
                    self._on_progress({"iteration": float(iteration), **numbers})
                if iteration % save_interval == 0 or iteration == last:
                    self.save(log.log_dir / f"iteration_{iteration}")

    def log(self, **numbers: float) -> None:
        """Adds numbers to the log of this iteration."""
        self._numbers.update({name: float(value) for name, value in numbers.items()})

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Stops the collectors, closes and unlinks what it owns. Safe to call twice.

        Collectors are told to stop first; then the rings are closed, so that collectors that wait in one return; those
        that still do not return get SIGTERM, then SIGKILL.
        """
        _open.discard(self)
        self._finalizer()

    def __repr__(self) -> str:
        state = f"{self._supervisor.alive} collectors" if self._finalizer.alive else "closed"
        name = f"{self.env_name} " if self.env_name else ""
        return f"<rollway.{type(self).__name__} {name}{state}>"


def _end(supervisor: CollectorSupervisor, resources: ExitStack) -> None:
    if not supervisor.is_ours:
        return  # a forked child: everything belongs to the parent
    supervisor.tell_to_stop()
    try:
        resources.close()  # wakes collectors that wait for room
    finally:
        supervisor.stop()


_open: weakref.WeakSet[Runner] = weakref.WeakSet()


def close_all() -> None:
    """Closes every runner of this process that is open. At the end of the interpreter."""
    with ExitStack() as stack:  # closes every runner, also after one that raises
        for runner in list(_open):
            stack.callback(runner.close)


weakref.finalize(Runner, int)  # registers the exit of weakref before ours: it closes rings, and ends finalisers
atexit.register(close_all)  # registered after that of multiprocessing, so it runs before: that one waits for children
