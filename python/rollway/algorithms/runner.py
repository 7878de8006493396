"""AlgorithmRunner: what the runners of APPO and SAC have in common: construction, the loop, progress, saving.

`AppoRunner` and `SacRunner` define one iteration and what a collector does. `Runner` handles processes, deaths and
restarts.
"""

from __future__ import annotations

import os
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rollway.algorithms import checkpoints
from rollway.algorithms.environment import Environment
from rollway.algorithms.learner import Learner
from rollway.algorithms.policy import Algorithm, Policy, storable
from rollway.algorithms.progress import Progress, ProgressTracker
from rollway.algorithms.settings import AppoSettings, SacSettings
from rollway.errors import InvalidArgument
from rollway.runner.restart_policy import RestartPolicy
from rollway.runner.runner import Runner
from rollway.runner.supervisor import Placement
from rollway.weights.weight_sync import WeightSync

_RESTART = RestartPolicy.always(backoff_s=0.2, backoff_cap_s=5.0)


class AlgorithmRunner(Runner):
    """A learner in this process, collectors in others. Use it as a context manager, or call `close`.

    Args:
        env_name: A Gymnasium environment, such as ``"CartPole-v1"``.
        env_cfg_overrides: Keyword arguments for `gymnasium.make`.
        rl_cfg: Settings by name.
        wrappers: What each environment is wrapped in, the first first: ``"module:name"`` of classes or functions that
            take an environment.
        device: Where the learner computes. Small networks are fastest on the CPU, which is the default.
        num_envs: Environments of all collectors together.
        num_collectors: Processes that collect, with equal shares of the environments.
        restart: What to do when a collector dies. By default a killed collector is always restarted, and an exception
            of a collector is raised here.
        on_progress: Called with plain numbers after every iteration.
        placement: Where the collectors run, if not in processes of this machine; see `Runner`. For APPO.
    """

    _algorithm: Algorithm
    _settings_class: type[AppoSettings] | type[SacSettings]
    learner: Learner
    weights: WeightSync
    version: int = 0
    """The number of the weights that were published last."""

    def __init__(
        self,
        env_name: str,
        env_cfg_overrides: Mapping[str, Any] | None = None,
        rl_cfg: Mapping[str, Any] | None = None,
        *,
        wrappers: Sequence[str] = (),
        device: str | None = None,
        num_envs: int = 16,
        num_collectors: int = 2,
        restart: RestartPolicy | None = None,
        on_progress: Callable[[Mapping[str, float]], None] | None = None,
        placement: Placement | None = None,
    ) -> None:
        if num_collectors < 1 or num_envs % num_collectors:
            raise InvalidArgument(f"num_envs = {num_envs} cannot be shared equally by {num_collectors} collectors")
        self.check_placement(placement)
        _check_device(device or "cpu")
        self.settings = self._settings_class.of(rl_cfg or {})
        storable(env_cfg_overrides or {}, "env_cfg_overrides")  # raises now, not after hours of training
        self.env = Environment.inspect(env_name, env_cfg_overrides, wrappers)
        super().__init__(
            num_collectors=num_collectors,
            num_envs=num_envs,
            restart=restart or _RESTART,
            on_progress=on_progress,
            placement=placement,
        )
        self.env_name = env_name
        self.env_cfg_overrides = dict(env_cfg_overrides or {})
        self.rl_cfg = dict(rl_cfg or {})
        self.device = device or "cpu"
        self.iteration = 0
        """How many iterations were made, also before a `resume`."""
        self._started = False
        self._forgives_exceptions = restart is not None
        self.board = ProgressTracker(self.settings.return_window)

    @classmethod
    def check_placement(cls, placement: Placement | None) -> None:
        """`InvalidArgument` when the collectors of this algorithm cannot run there."""

    @abstractmethod
    def _start(self) -> None:
        """Starts the collectors."""

    @abstractmethod
    def _iterate(self) -> Mapping[str, float]:
        """One iteration: takes data, learns from it, publishes weights. Returns the losses."""

    @property
    def policy(self) -> Policy:
        """The policy as learnt so far. It changes with further training; `save` keeps it."""
        return Policy(self._algorithm, self.env, self.settings, self.learner.actor)

    @property
    @abstractmethod
    def queue_depth(self) -> int:
        """How many rollouts or chunks wait for the learner."""

    def learn(self, max_iterations: int, save_interval: int = 50, log_dir: str = "logs") -> None:
        """Trains for ``max_iterations``. Saves the policy every ``save_interval`` iterations, and after the last."""
        for _ in self.train(max_iterations, save_interval, log_dir):
            pass

    def train(
        self, max_iterations: int = sys.maxsize, save_interval: int = 50, log_dir: str | os.PathLike[str] = "logs"
    ) -> Iterator[Progress]:
        """As `learn`, but yields the progress after every iteration, and ends when you stop iterating.

        An exception of a collector is raised here, with its traceback.
        """
        if not self._started:  # otherwise the collectors of the last call still run
            self._start()
            self._started = True
        progress: Progress | None = None
        first = self.iteration + 1
        for iteration in self.iterations(max_iterations, save_interval, os.fspath(log_dir), first=first):
            if progress is not None:
                yield progress  # of the iteration before, which is logged now, and saved if it was due
            with _threads(self.settings.torch_threads):
                losses = self._iterate()
            self.iteration = iteration
            progress = self.board.progress(
                iteration,
                version=self.version,
                queue_depth=self.queue_depth,
                collectors=self.supervisor.alive,
                deaths=len(self.supervisor.deaths),
                restarts=self.supervisor.restarts,
                losses=losses,
            )
            self.log(**progress.numbers())
        if progress is not None:
            yield progress

    def _wait_for(self, source: Any) -> None:
        """Waits until a source has data, and counts the time."""
        began = time.monotonic()
        while not self.wait_for_data(source):
            pass  # the collectors live, but are slow
        self.board.waited(time.monotonic() - began)

    def _share_weights(self) -> None:
        """Makes the weights of the actor readable for the collectors."""
        self.weights = self.own(
            WeightSync.from_state_dict(self.learner.actor.state_dict(), max_readers=self.num_collectors + 64)
        )
        self.version = self.weights.version

    def _publish(self) -> None:
        """Publishes the weights of the actor to the collectors."""
        self.weights.write_weights(self.learner.actor.state_dict())
        self.version = self.weights.version

    def check(self) -> None:
        """Restarts what is due, and raises `CollectorError` when a collector is lost for good. Never waits."""
        super().check()
        if not self._forgives_exceptions:
            for death in self.supervisor.deaths:
                if death.kind is not None:
                    raise death

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the policy and the state of its training to a file that `Policy.load` reads, and `resume`."""
        self.policy.save(path, {"version": self.version, "training": self._state_dict()})

    def checkpoint(self, log_dir: str | os.PathLike[str]) -> None:
        """Saves all that `resume` needs to go on from here, in ``log_dir``: its ``policy.pt``."""
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        self.save(Path(log_dir) / checkpoints.POLICY)

    def resume(self, log_dir: str | os.PathLike[str]) -> None:
        """Goes on from the newest checkpoint in ``log_dir``: networks, optimisers, counts. Before the first `train`.

        That is the one of `checkpoint`, or what `train` has saved since. The versions of the weights begin anew.
        """
        if self._started:
            raise InvalidArgument("resume() comes before the first train() or learn()")
        path = checkpoints.newest(Path(log_dir))
        held = Policy.read(path)
        state = held["extra"].get("training")
        if state is None:
            raise InvalidArgument(f"{os.fspath(path)} holds a policy, but not the state of its training")
        if (held["algorithm"], held["env"]) != (self._algorithm, self.env.name):
            raise InvalidArgument(
                f"{os.fspath(path)} is of {held['algorithm']} on {held['env']!r}, "
                f"not of {self._algorithm} on {self.env.name!r}"
            )
        try:
            self._load_state_dict(state)
        except (RuntimeError, ValueError) as error:  # as torch raises them for other shapes
            raise InvalidArgument(
                f"the networks in {os.fspath(path)} do not fit: were the environment, its wrappers, hidden or channels "
                f"others? {str(error).splitlines()[-1].strip()}"
            ) from error
        self._publish()

    def _state_dict(self) -> dict[str, Any]:
        """What `_load_state_dict` needs, as a file of a policy can hold it."""
        return {"iteration": self.iteration, "board": self.board.state_dict(), "learner": self.learner.state_dict()}

    def _load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        self.iteration = state["iteration"]
        self.board.load_state_dict(state["board"])


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # the former: torch was built without CUDA
        raise InvalidArgument(f"device is {device!r}, which is not available: {str(error).splitlines()[0]}") from None


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """In the block, torch computes with this number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
