"""Curve: the learning curve of a run, and the waiting times, as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

from rollway.algorithms.progress import Progress

_LEARNER, _COLLECTORS, _RETURN, _DEATH = "#c2410c", "#0f766e", "#1d4ed8", "#b91c1c"


def draw(path: Path, history: Sequence[Progress], title: str, goal: float | None) -> None:
    """Writes a PNG. Above: the mean return, the goal, the deaths of collectors. Below: the shares of waiting time."""
    seen = [moment for moment in history if moment.episodes]
    figure = Figure(figsize=(8, 6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.3))

    above.plot([m.env_steps for m in seen], [m.mean_return for m in seen], color=_RETURN, lw=1.8, label="mean return")
    if goal is not None:
        above.axhline(goal, color="grey", lw=1, ls="--", label=f"goal {goal:g}")
    deaths = [after.env_steps for before, after in pairwise(history) if after.deaths > before.deaths]
    for number, death in enumerate(deaths):
        above.axvline(death, color=_DEATH, lw=0.8, alpha=0.5, label=None if number else "a collector died")
    above.set_ylabel("mean return of the last episodes")
    above.set_title(title)
    above.legend(loc="best", frameon=False)

    steps = [m.env_steps for m in history]
    below.plot(steps, [m.learner_waiting for m in history], color=_LEARNER, lw=1.2, label="learner waits for data")
    below.plot(
        steps, [m.collectors_waiting for m in history], color=_COLLECTORS, lw=1.2, label="collectors wait for room"
    )
    below.set_ylim(0, 1)
    below.yaxis.set_major_formatter(PercentFormatter(1.0))
    below.set_ylabel("share of time")
    below.set_xlabel("environment steps")
    below.xaxis.set_major_formatter(EngFormatter(sep=""))
    below.legend(loc="upper center", ncols=2, frameon=False, fontsize=8)
    for axes in (above, below):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
