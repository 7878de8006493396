"""AsyncRunner: the learner's process of an asynchronous algorithm: its collectors, its shared memory, its log.

A subclass writes `learn` (and `save`). This class starts collectors and brings their errors back, closes what it was
given to own, and does the book-keeping of iterations. It knows no algorithm, no environment and no network.
"""

from __future__ import annotations

import atexit
import multiprocessing.util  # noqa: F401 - its exit is registered before ours
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from rollway.errors import CollectorError, InvalidArgument
from rollway.runner.restart_policy import RestartPolicy
from rollway.runner.supervisor import CollectorSupervisor
from rollway.runner.training_log import TrainingLog

Resource = TypeVar("Resource")
Progress = Mapping[str, float]

_SLICE_S = 0.25  # Data ends a wait at once; news of a death is looked for this often.


class _Waitable(Protocol):
    """What `AsyncRunner.wait_for_data` can wait for, like a `RolloutRingBuffer`."""

    def wait_for_data(self, timeout: float = ...) -> bool: ...


class AsyncRunner(ABC):
    """The learner of an asynchronous algorithm, and the processes that collect for it.

    A collector that raises or dies raises `CollectorError` in the learner's next call of `check`, `wait_for_data` or
    `iterations`, with its traceback or its signal; or it is started again, as ``restart`` says, while the others go on.
    When the learner dies, by whatever signal, the kernel kills its collectors. `close` (or the end of the ``with``
    block, or of the interpreter) stops them and gives the shared memory back. One thread uses a runner.

    Args:
        env_name: Kept for the subclass, as are the next two.
        env_cfg_overrides: Changes to the environment's settings.
        rl_cfg: The algorithm's settings.
        device: Where the learner computes: ``"cuda"`` if there is one, else ``"cpu"``, when left out.
        collector_device: Where collectors compute; as ``device`` when left out.
        sim_backend: Kept for the subclass.
        num_envs: Environments of all collectors together; see `envs_of`.
        num_collectors: Processes.
        restart: What to do when one of them dies; the first death is an error when left out.
        stop_timeout_s: How long collectors have to return when the runner is closed, before they get SIGTERM; and at
            most 5 s of it once more before SIGKILL.
        on_progress: Called with plain numbers after every iteration; see `log`.

    >>> class Counting(AsyncRunner):
    ...     def learn(self, max_iterations, save_interval=50, log_dir="logs"):
    ...         for iteration in self.iterations(max_iterations, save_interval, log_dir):
    ...             self.log(squared=iteration**2)
    ...     def save(self, path):
    ...         path.write_text("weights")
    >>> import tempfile
    >>> rows = []
    >>> with tempfile.TemporaryDirectory() as logs:
    ...     with Counting("none", {}, {}, device="cpu", on_progress=rows.append) as runner:
    ...         runner.learn(3, save_interval=2, log_dir=logs)
    ...     sorted(path.name for path in Path(logs).glob("iteration_*"))
    ['iteration_2', 'iteration_3']
    >>> [row["squared"] for row in rows]
    [1.0, 4.0, 9.0]
    """

    def __init__(
        self,
        env_name: str,
        env_cfg_overrides: dict[str, Any] | None,
        rl_cfg: dict[str, Any],
        *,
        device: str | None = None,
        collector_device: str | None = None,
        sim_backend: str = "mujoco",
        num_envs: int = 4096,
        num_collectors: int = 1,
        restart: RestartPolicy | None = None,
        stop_timeout_s: float = 10.0,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        if not 1 <= num_collectors <= num_envs:
            raise InvalidArgument(f"num_collectors = {num_collectors} must be between 1 and num_envs = {num_envs}")
        self.env_name = env_name
        self.env_cfg_overrides = dict(env_cfg_overrides or {})
        self.rl_cfg = rl_cfg
        self.device = device or default_device()
        self.collector_device = collector_device or self.device
        self.sim_backend = sim_backend
        self.num_envs = num_envs
        self.num_collectors = num_collectors
        self._supervisor = CollectorSupervisor(
            restart, stop_timeout_s=stop_timeout_s, kill_timeout_s=min(stop_timeout_s, 5.0)
        )
        self._resources = ExitStack()
        self._on_progress = on_progress
        self._numbers: dict[str, float] = {}
        # Also when it is dropped without `close`; see `_close_all` for the end of the interpreter.
        self._finalizer = weakref.finalize(self, _end, self._supervisor, self._resources)
        self._finalizer.atexit = False
        _open.add(self)

    @abstractmethod
    def learn(self, max_iterations: int, save_interval: int = 50, log_dir: str = "logs") -> None:
        """Trains. The subclass's own; `iterations`, `wait_for_data` and `log` make it short."""

    def save(self, path: Path) -> None:  # noqa: B027 - a subclass need not save
        """Writes a checkpoint to ``path``. The subclass's own; without one nothing is saved."""

    # ── shared memory ───────────────────────────────────────────────────────────────────────────────────────────────

    def own(self, resource: Resource) -> Resource:
        """Hands a ring, a buffer or weights to the runner, which closes and unlinks it in the end. Returns it."""
        end = getattr(resource, "cleanup", None) or getattr(resource, "close", None)
        if end is None:
            raise InvalidArgument(f"{resource!r} has neither cleanup() nor close(), so nobody can own it")
        self._resources.callback(end)
        return resource

    # ── collectors ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start_collectors(self, target: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Starts ``num_collectors`` processes that run ``target(collector, *args, **kwargs)``.

        ``target`` is a function at the top of a module; what it is given is pickled, as rings and weights can be. It
        returns when ``collector.stop.is_set()``, and may send numbers by ``collector.report(steps=128)``.
        """
        self._supervisor.start(target, self.num_collectors, *args, **kwargs)

    def envs_of(self, index: int) -> int:
        """How many of ``num_envs`` belong to one collector: as even as can be."""
        return self.num_envs // self.num_collectors + (index < self.num_envs % self.num_collectors)

    def check(self) -> None:
        """Restarts what is due; raises `CollectorError` when a collector is lost for good. Never waits."""
        self._supervisor.check()

    def wait_for_data(self, source: _Waitable, timeout: float = 60.0) -> bool:
        """Waits for ``source.wait_for_data`` while it checks the collectors. False when the time was over.

        `CollectorError` also when every collector has returned and there is no more data to come.
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
        """What collectors have reported since the last call: which one, and its numbers."""
        return self._supervisor.reports()

    @property
    def supervisor(self) -> CollectorSupervisor:
        """The supervisor of the collectors: which live, which died of what, how many restarts."""
        return self._supervisor

    # ── iterations ──────────────────────────────────────────────────────────────────────────────────────────────────

    def iterations(self, max_iterations: int, save_interval: int = 50, log_dir: str | Path = "logs") -> Iterator[int]:
        """Counts from 1 to ``max_iterations``: the loop of `learn`.

        Before each it checks the collectors. After each it writes what `log` was given to ``log_dir`` and hands it to
        ``on_progress``; every ``save_interval`` of them, and after the last, it calls ``save(log_dir/iteration_N)``.
        """
        if save_interval < 1:
            raise InvalidArgument(f"save_interval = {save_interval} is out of range: at least 1")
        with TrainingLog(log_dir) as log:
            for iteration in range(1, max_iterations + 1):
                self.check()
                yield iteration
                alive, restarts = self._supervisor.alive, self._supervisor.restarts
                numbers = {**self._numbers, "collectors_alive": float(alive), "restarts": float(restarts)}
                self._numbers = {}
                log.write(iteration, numbers)
                if self._on_progress is not None:
                    self._on_progress({"iteration": float(iteration), **numbers})
                if iteration % save_interval == 0 or iteration == max_iterations:
                    self.save(log.log_dir / f"iteration_{iteration}")

    def log(self, **numbers: float) -> None:
        """Notes numbers of this iteration."""
        self._numbers.update({name: float(value) for name, value in numbers.items()})

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Stops the collectors, closes and unlinks what it owns. Safe to call twice.

        Collectors are told to stop first; then the rings are closed, so that collectors that wait in one return; those
        that still do not return get SIGTERM, then SIGKILL.
        """
        _open.discard(self)
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"{self._supervisor.alive} collectors" if self._finalizer.alive else "closed"
        return f"<rollway.{type(self).__name__} {self.env_name} {state}>"


def default_device() -> str:
    """``"cuda"`` where torch is installed and finds one, else ``"cpu"``."""
    if find_spec("torch") is None:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _end(supervisor: CollectorSupervisor, resources: ExitStack) -> None:
    if not supervisor.is_ours:
        return  # In a forked child: all of it belongs to the parent.
    supervisor.tell_to_stop()
    try:
        resources.close()  # Wakes collectors that wait for room.
    finally:
        supervisor.stop()


_open: weakref.WeakSet[AsyncRunner] = weakref.WeakSet()


def _close_all() -> None:
    with ExitStack() as stack:  # closes every runner, also after one that raises
        for runner in list(_open):
            stack.callback(runner.close)


atexit.register(_close_all)  # After that of multiprocessing, hence run before it: that one waits for all children.
