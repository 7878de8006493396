"""AlgorithmRunner: what the runners of APPO and SAC have in common: their making, the loop, the count, saving.

`AppoRunner` and `SacRunner` say what one iteration is and what a collector does. Processes, their deaths and restarts
are the business of `AsyncRunner`.
"""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from rollway.algorithms.environment import Environment
from rollway.algorithms.policy import Policy, storable
from rollway.algorithms.progress import Progress, ProgressTracker
from rollway.algorithms.settings import Settings
from rollway.errors import InvalidArgument
from rollway.runner.restart_policy import RestartPolicy
from rollway.runner.runner import AsyncRunner
from rollway.weights.weight_sync import SharedWeightSync

_AGAIN_AND_AGAIN = RestartPolicy.always(backoff_s=0.2, backoff_cap_s=5.0)


class AlgorithmRunner(AsyncRunner):
    """A learner in this process, collectors in others. Use it as a context manager, or call `close`.

    Args:
        env_name: A Gymnasium environment, such as ``"CartPole-v1"``.
        env_cfg_overrides: Keyword arguments for `gymnasium.make`.
        rl_cfg: Settings by name.
        device: Where the learner computes. Small networks are fastest on the CPU, which is the default.
        num_envs: Environments of all collectors together.
        num_collectors: Processes that collect, with equal shares of the environments.
        restart: What to do when a collector dies. When left out, one that was killed is started again, however often,
            and one that raised an exception is an error: it would raise it again.
        on_progress: Called with plain numbers after every iteration.
    """

    settings: Settings
    version: int = 0
    """The number of the weights that were published last."""
    weights: SharedWeightSync

    def __init__(
        self,
        env_name: str,
        env_cfg_overrides: Mapping[str, Any] | None = None,
        rl_cfg: Mapping[str, Any] | None = None,
        *,
        device: str | None = None,
        num_envs: int = 16,
        num_collectors: int = 2,
        restart: RestartPolicy | None = None,
        on_progress: Callable[[Mapping[str, float]], None] | None = None,
    ) -> None:
        if num_collectors < 1 or num_envs % num_collectors:
            raise InvalidArgument(f"num_envs = {num_envs} cannot be shared equally by {num_collectors} collectors")
        _check_device(device or "cpu")
        self.settings = self._settings(rl_cfg or {})
        storable(env_cfg_overrides or {}, "env_cfg_overrides")  # before hours of training, not after
        self.env = Environment.inspect(env_name, env_cfg_overrides)
        super().__init__(
            env_name,
            dict(env_cfg_overrides or {}),
            dict(rl_cfg or {}),
            device=device or "cpu",
            collector_device="cpu",  # they act in numpy
            sim_backend="gymnasium",
            num_envs=num_envs,
            num_collectors=num_collectors,
            restart=restart or _AGAIN_AND_AGAIN,
            on_progress=on_progress,
        )
        self._started = False
        self._forgives_exceptions = restart is not None
        self.board = ProgressTracker(self.settings.return_window)

    @abstractmethod
    def _settings(self, given: Mapping[str, Any]) -> Settings:
        """Reads ``rl_cfg``."""

    @abstractmethod
    def _start(self) -> None:
        """Starts the collectors."""

    @abstractmethod
    def _iterate(self) -> Mapping[str, float]:
        """One iteration: takes data, learns from it, publishes weights. Gives the losses."""

    @property
    @abstractmethod
    def policy(self) -> Policy:
        """What was learnt so far. It goes on learning; `save` keeps it."""

    @property
    @abstractmethod
    def queue_depth(self) -> int:
        """What waits for the learner."""

    def learn(self, max_iterations: int, save_interval: int = 50, log_dir: str = "logs") -> None:
        """Trains for so many iterations. Every ``save_interval`` of them, and after the last, the policy is saved."""
        for _ in self.train(max_iterations, save_interval, log_dir):
            pass

    def train(
        self, max_iterations: int = sys.maxsize, save_interval: int = 50, log_dir: str | os.PathLike[str] = "logs"
    ) -> Iterator[Progress]:
        """As `learn`, but says after every iteration how it goes, and ends when you stop iterating.

        What a collector raised is raised here, with its traceback.
        """
        if not self._started:  # Else its collectors go on, as they have since it trained first.
            self._start()
            self._started = True
        progress: Progress | None = None
        for iteration in self.iterations(max_iterations, save_interval, os.fspath(log_dir)):
            if progress is not None:
                yield progress  # of the iteration before: by now it is in the log, and saved if it was due
            with _threads(self.settings.torch_threads):
                losses = self._iterate()
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

    def _publish(self) -> None:
        """Makes the newest weights of the actor known to the collectors."""
        self.weights.write_weights(self.policy.actor.state_dict())
        self.version = self.weights.version

    def check(self) -> None:
        """Restarts what is due, and raises `CollectorError` when a collector is lost for good. Never waits."""
        super().check()
        if not self._forgives_exceptions:
            for death in self.supervisor.deaths:
                if death.kind is not None:
                    raise death

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the policy to a file that `Policy.load` reads."""
        self.policy.save(path, {"version": self.version})


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # Torch says by the first that it was built without CUDA.
        raise InvalidArgument(f"device is {device!r}, which cannot be had: {str(error).splitlines()[0]}") from None


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Torch computes with so many threads, in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
