"""Session: one run of `rollway train`. Builds the runner, runs it, decides when to end, saves the policy."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from rollway.algorithms import AppoRunner, Progress, SacRunner
from rollway.algorithms.runner import AlgorithmRunner
from rollway.cli import signals
from rollway.cli.console import console, count, plain
from rollway.cli.train import curve
from rollway.cli.train.screen import Screen
from rollway.errors import CollectorError, InvalidArgument, SystemCallFailed, UnusableEnvironment

_WRONG_USAGE, _INTERRUPTED, _NOT_REACHED, _FAILED = 2, 130, 1, 1
_MAX_HISTORY = 4_000
_EVALUATED_EPISODES = 50


@dataclass(frozen=True)
class TrainRequest:
    """What the command line asks for."""

    algorithm: Literal["appo", "sac"]
    env: str
    collectors: int
    envs: int
    """Of each collector."""
    steps: int
    until_return: float | None
    device: str
    log_dir: Path | None
    save_interval: int
    settings: Mapping[str, str] = field(default_factory=dict)


def train(request: TrainRequest) -> int:
    """Runs it, shows it, and returns the exit status."""
    out = console()
    logging.getLogger("rollway.collectors").addHandler(logging.NullHandler())  # deaths are shown on the screen
    try:
        with _runner(request) as runner:
            return _Session(request, runner, out).run()
    except (UnusableEnvironment, InvalidArgument) as error:
        _print_error(str(error))
        return _WRONG_USAGE
    except CollectorError as error:
        if error.kind == UnusableEnvironment.__name__:
            _print_error(str(error.message))
            return _WRONG_USAGE
        _print_error(f"on {request.env!r}, {error}")
        return _FAILED
    except SystemCallFailed as error:
        _print_error(str(error))
        return _FAILED


def _print_error(text: str) -> None:
    for line in f"rollway train: {text}".splitlines():
        console(stderr=True).print(plain(line, "red"), soft_wrap=True)


def _runner(request: TrainRequest) -> AlgorithmRunner:
    kind = AppoRunner if request.algorithm == "appo" else SacRunner
    return kind(
        request.env,
        rl_cfg=dict(request.settings),
        device=request.device,
        num_envs=request.envs * request.collectors,
        num_collectors=request.collectors,
    )


class _Session:
    """A run under way."""

    def __init__(self, request: TrainRequest, runner: AlgorithmRunner, out: Console) -> None:
        self.request, self.runner, self.out = request, runner, out
        self.goal = runner.env.reward_threshold if request.until_return is None else request.until_return
        self.log_dir = request.log_dir or _fresh_directory(request)
        self.policy_path = self.log_dir / "policy.pt"
        self.title = f"{request.algorithm.upper()} on {request.env}"
        self.history: list[Progress] = []
        self._deaths_shown = 0

    def run(self) -> int:
        """Trains until the steps are done, the return is reached, or a signal comes; then saves, and reports."""
        heading = (
            f"{self.title}: {count(self.request.collectors, 'collector')} x {count(self.request.envs, 'environment')}, "
            f"{self.request.steps:,} steps" + ("" if self.goal is None else f" or a mean return of {self.goal:g}")
        )
        unit = "rollout" if self.request.algorithm == "appo" else "chunk"
        ended = ""
        with signals.exit_on_signals():
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
        with signals.deferred():
            self._save()
        self._conclude(ended, self.runner.policy.evaluate(_EVALUATED_EPISODES))
        return _NOT_REACHED if self.request.until_return is not None and not self._reached() else 0

    def _train(self, screen: Screen) -> str:
        for progress in self.runner.train(save_interval=self.request.save_interval, log_dir=self.log_dir):
            self._note(progress)
            if len(self.history) == 1:
                screen.started(sorted(self.runner.supervisor.pids().values()))
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
        """Ends the collectors and saves the policy, before anything else."""
        self.runner.close()
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self.runner.save(self.policy_path)

    def _conclude(self, ended: str, evaluated: float | None) -> None:
        rows = Table.grid(padding=(0, 3))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column()
        rows.add_row("ended", plain(ended))
        if self.history:
            last = self.history[-1]
            rows.add_row("return", f"{last.mean_return:.1f}, mean of the last {count(last.averaged, 'episode')}")
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
        self.out.print(rows)


def _fresh_directory(request: TrainRequest) -> Path:
    name = re.sub(r"[^\w.-]+", "_", request.env)
    return Path("logs") / f"{request.algorithm}-{name}-{time.strftime('%Y%m%d-%H%M%S')}"
