"""Screen: shows a training run. A live table on a terminal; elsewhere a line every few seconds. Decides nothing."""

from __future__ import annotations

import math
import time

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollway.algorithms.progress import Progress
from rollway.cli.console import LiveScreen, count, plain

_LINE_EVERY_S = 2.0
_FRAME_EVERY_S = 0.1


class Screen(LiveScreen):
    """Shows one run.

    Args:
        out: Where to.
        heading: What is run, in one line.
        steps: Environment steps after which it ends.
        goal: The mean return at which it ends, if there is one.
        unit: What waits in the queue: "rollout" or "chunk".
    """

    def __init__(self, out: Console, heading: str, steps: int, goal: float | None, unit: str) -> None:
        super().__init__(out, plain(heading, "bold"), "collectors")
        self._steps, self._goal, self._unit = steps, goal, unit
        self._shown_s = -math.inf

    def died(self, how: str) -> None:
        """Prints how a collector died, in one line."""
        self._out.print(plain(how.splitlines()[0].split(". ")[0], "bold red"), soft_wrap=True)

    def progressed(self, now: Progress) -> None:
        """Shows where the run stands, unless it was shown a moment ago."""
        every = _LINE_EVERY_S if self._live is None else _FRAME_EVERY_S
        if time.monotonic() - self._shown_s < every:
            return
        self._shown_s = time.monotonic()
        if self._live is None:
            self._out.print(plain(line(now)), soft_wrap=True)
        else:
            self._live.update(self.table(now), refresh=True)

    def table(self, now: Progress) -> RenderableType:
        """The live table."""
        head = Table.grid(padding=(0, 2))
        head.add_row(
            ProgressBar(total=self._steps, completed=min(now.env_steps, self._steps), width=40),
            f"{now.env_steps:,} / {self._steps:,} steps",
            Text(_clock(now.elapsed_s), style="dim"),
        )
        body = Table.grid(padding=(0, 3))
        body.add_column(style="dim", no_wrap=True)
        body.add_column(justify="right", no_wrap=True)
        body.add_column(style="dim")
        goal = "" if self._goal is None else f", ends at {self._goal:g}"
        window = f"mean of the last {now.averaged} of {count(now.episodes, 'episode')}"
        body.add_row("return", Text(_number(now.mean_return), style="bold cyan"), window + goal)
        body.add_row("speed", f"{now.steps_per_s:,.0f}", "steps/s")
        body.add_row("staleness", f"{now.staleness:.1f}", f"versions behind the learner's {now.version:,}")
        body.add_row("queue", f"{now.queue_depth}", f"{self._unit}s wait for the learner")
        body.add_row("waiting", f"{now.learner_waiting:.0%}", "learner, for data")
        body.add_row("", f"{now.collectors_waiting:.0%}", "collectors, for room")
        deaths = f"{count(now.deaths, 'death')}, {count(now.restarts, 'restart')}"
        body.add_row("collectors", f"{now.collectors}", Text(deaths, style="bold red") if now.deaths else deaths)
        if now.losses:
            losses = "  ".join(f"{key.replace('_', ' ')} {_number(value)}" for key, value in now.losses.items())
            body.add_row("learning", "", losses)
        return Group(head, body)


def line(now: Progress) -> str:
    """The same in one line."""
    parts = [
        _clock(now.elapsed_s),
        f"{now.env_steps:>9,} steps",
        f"return {_number(now.mean_return):>8}",
        f"{now.steps_per_s:>7,.0f} steps/s",
        f"staleness {now.staleness:.1f}",
        f"queue {now.queue_depth}",
        f"waiting: learner {now.learner_waiting:.0%}, collectors {now.collectors_waiting:.0%}",
    ]
    if now.deaths:
        parts.append(f"{count(now.deaths, 'death')}, {count(now.restarts, 'restart')}")
    return "  ".join(parts)


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
