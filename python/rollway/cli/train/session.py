"""Session: one run of `rollway train`. Builds the runner, runs it, decides when to end, saves."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rollway.algorithms import AppoRunner, Progress, SacRunner, checkpoints
from rollway.algorithms.runner import AlgorithmRunner
from rollway.cli import signals
from rollway.cli.console import console, count, plain
from rollway.cli.train import curve
from rollway.cli.train.run_directory import RunDirectory, TrainRequest
from rollway.cli.train.screen import Screen
from rollway.cli.train.wandb_log import WandbLog
from rollway.errors import ClusterUnavailable, CollectorError, InvalidArgument, SystemCallFailed, UnusableEnvironment
from rollway.integrations.ray import RayPlacement, cluster
from rollway.runner import training_log

_WRONG_USAGE, _INTERRUPTED, _NOT_REACHED, _FAILED = 2, 130, 1, 1
_MAX_HISTORY = 4_000
_EVALUATED_EPISODES = 50


def train(defaults: TrainRequest, given: Mapping[str, Any], log_dir: Path | None, resume: bool) -> int:
    """Runs it, shows it, and returns the exit status. What is not given is as in the resumed run, or the default."""
    out = console()
    logging.getLogger("rollway.collectors").addHandler(logging.NullHandler())  # deaths are shown on the screen
    request = defaults
    try:
        directory = RunDirectory.choose(defaults, given, log_dir, resume)
        request = directory.request
        if request.wandb is not None:
            WandbLog.check()
            request = dataclasses.replace(request, wandb_id=request.wandb_id or secrets.token_hex(4))
            directory = dataclasses.replace(directory, request=request)
        with _runner(directory) as runner:
            return _Session(directory, runner, out).run()
    except (UnusableEnvironment, InvalidArgument) as error:
        _print_error(str(error))
        return _WRONG_USAGE
    except CollectorError as error:
        if error.kind == UnusableEnvironment.__name__:
            _print_error(str(error.message))
            return _WRONG_USAGE
        _print_error(f"on {request.env!r}, {error}")
        return _FAILED
    except (SystemCallFailed, ClusterUnavailable) as error:
        _print_error(str(error))
        return _FAILED


def _print_error(text: str) -> None:
    for line in f"rollway train: {text}".splitlines():
        console(stderr=True).print(plain(line, "red"), soft_wrap=True)


@contextlib.contextmanager
def _runner(directory: RunDirectory) -> Iterator[AlgorithmRunner]:
    request = directory.request
    kind = AppoRunner if request.algorithm == "appo" else SacRunner
    placement = None if request.ray is None else RayPlacement()
    kind.check_placement(placement)
    with (
        contextlib.nullcontext() if request.ray is None else cluster.joined(request.ray),
        kind(
            request.env,
            rl_cfg=dict(request.settings or {}),
            wrappers=request.wrappers,
            device=request.device,
            num_envs=request.envs * request.collectors,
            num_collectors=request.collectors,
            placement=placement,
        ) as runner,
    ):
        if directory.is_resumed:
            runner.resume(directory.path)
        yield runner


class _Session:
    """A run under way."""

    def __init__(self, directory: RunDirectory, runner: AlgorithmRunner, out: Console) -> None:
        self.directory, self.runner, self.out = directory, runner, out
        self.request = request = directory.request
        self.goal = runner.env.reward_threshold if request.until_return is None else request.until_return
        self.log_dir = directory.path
        self.policy_path = self.log_dir / checkpoints.POLICY
        self.title = f"{request.algorithm.upper()} on {request.env}"
        self.history: list[Progress] = []
        self._loggers: list[WandbLog] = []
        self._deaths_shown = 0

    def run(self) -> int:
        """Trains until the steps are done, the return is reached, or a signal comes; then saves, and reports."""
        self._begin()
        heading = (
            f"{self.title}: {count(self.request.collectors, 'collector')} x {count(self.request.envs, 'environment')}, "
            f"{self.request.steps:,} steps" + ("" if self.goal is None else f" or a mean return of {self.goal:g}")
        )
        if self.directory.is_resumed:
            heading += f"; goes on after {self.runner.board.env_steps:,} steps"
        unit = "rollout" if self.request.algorithm == "appo" else "chunk"
        with signals.exit_on_signals(), self._wandb():
            try:
                with Screen(self.out, heading, self.request.steps, self.goal, unit) as screen:
                    ended = self._train(screen)
            except (KeyboardInterrupt, SystemExit) as interrupted:
                ended = "Ctrl-C" if isinstance(interrupted, KeyboardInterrupt) else "a signal"
                status = _INTERRUPTED if isinstance(interrupted, KeyboardInterrupt) else int(interrupted.code or 0)
                with signals.deferred():
                    self._save()
                    self._conclude(f"stopped by {ended}", evaluated=None)
                return status
            except CollectorError:
                if self.history:
                    with signals.deferred():
                        self._save()
                        self._conclude("a collector failed, see below", evaluated=None)
                raise
            with signals.deferred():
                self._save()
        self._conclude(ended, self.runner.policy.evaluate(_EVALUATED_EPISODES))
        return _NOT_REACHED if self.request.until_return is not None and not self._reached() else 0

    def _begin(self) -> None:
        """Writes what the run is asked for. A run that goes on has the history of its log, up to the checkpoint."""
        if self.directory.is_resumed:
            made = self.runner.board.env_steps
            if made >= self.request.steps:
                raise InvalidArgument(f"the run in {self.log_dir} has made {made:,} steps: give it more with --steps")
            training_log.cut(self.log_dir, self.runner.iteration)
            for row in training_log.read(self.log_dir):
                self._note(Progress.of(row))
        self.directory.write()

    def _wandb(self) -> contextlib.AbstractContextManager[object]:
        if self.request.wandb is None:
            return contextlib.nullcontext()
        self._loggers.append(log := WandbLog(self.directory, asdict(self.runner.settings)))
        return log

    def _train(self, screen: Screen) -> str:
        has_started = False
        for progress in self.runner.train(save_interval=self.request.save_interval, log_dir=self.log_dir):
            self._note(progress)
            for log in self._loggers:
                log.log(progress.numbers())
            if not has_started:
                screen.started(sorted(self.runner.supervisor.pids().values()))
                has_started = True
            for death in self.runner.supervisor.deaths[self._deaths_shown :]:
                screen.died(str(death))
            self._deaths_shown = len(self.runner.supervisor.deaths)
            screen.progressed(progress)
            if self._reached():
                return f"the mean return reached {self.goal:g}"
            if progress.env_steps >= self.request.steps:
                return "the steps are done"
        raise AssertionError("train() does not end by itself")

    def _note(self, progress: Progress) -> None:
        self.history.append(progress)
        if len(self.history) > _MAX_HISTORY:
            del self.history[1:-1:2]  # the picture has no room for more

    def _reached(self) -> bool:
        last = self.history[-1]
        return self.goal is not None and last.window_full and last.mean_return >= self.goal

    def _save(self) -> None:
        """Saves all that a run needs to go on, and ends the collectors, before anything else."""
        try:
            self.runner.checkpoint(self.log_dir)
        finally:
            self.runner.close()

    def _conclude(self, ended: str, evaluated: float | None) -> None:
        rows = Table.grid(padding=(0, 3))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column()
        rows.add_row("ended", plain(ended))
        if self.history:
            last = self.history[-1]
            mean = f"{last.mean_return:.1f}, mean of the last {count(last.averaged, 'episode')}"
            rows.add_row("return", mean if last.averaged else "no episode has ended")
        if evaluated is not None:
            rows.add_row("evaluated", f"{evaluated:.1f}, mean of {_EVALUATED_EPISODES} other episodes, played greedily")
        if self.history:
            rate = last.env_steps / last.elapsed_s if last.elapsed_s else 0
            rows.add_row("steps", f"{last.env_steps:,} in {last.elapsed_s:.0f} s, {rate:,.0f}/s")
            rows.add_row("collectors", f"{count(last.deaths, 'death')}, {count(last.restarts, 'restart')}")
        rows.add_row("policy", plain(str(self.policy_path)))
        if self.history:
            picture = self.log_dir / "learning_curve.png"
            try:
                curve.draw(picture, self.history, self.title, self.goal)
            except OSError as error:  # the run is over and saved: only the picture is missing
                rows.add_row("curve", plain(f"cannot write {picture}: {error.strerror}", "red"))
            else:
                rows.add_row("curve", plain(str(picture)))
        rows.add_row("play it", plain(f"rollway play {shlex.quote(str(self.log_dir))}"))
        self.out.print(rows)
