"""Plots: which lines each kind of segment has, and the options that ECharts draws them with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rollway.dashboard.history import SERIES, Series
from rollway.inspect.interval import UNITS

POINTS = 240
"""A plot has at most about so many points."""
_FEW_POINTS = 60

_GREY, _FAINT = "#858b96", "rgba(128, 134, 145, 0.22)"  # to be seen on white and on black
_BLUE, _GREEN, _RED, _AMBER = "#3b82f6", "#10a37f", "#ef4444", "#f59e0b"


@dataclass(frozen=True)
class Plot:
    """One plot: a title, and its lines."""

    title: str
    lines: tuple[tuple[str, str, str], ...]
    """The name in `SERIES`, what people read, the colour."""
    is_share: bool = False
    """Whether it goes from 0 to 100%."""


def plots_of(kind: str) -> list[Plot]:
    """The plots of a kind of segment.

    >>> [plot.title for plot in plots_of("weights")]
    ['versions per second', 'share of time', 'weights: versions behind']
    """
    if kind not in UNITS:
        return []
    taken = "sampled" if kind == "replay" else "taken"
    rates = [("committed", "published" if kind == "weights" else "committed", _BLUE)]
    if kind in ("ring", "records", "replay"):
        rates.append(("taken", taken, _GREEN))
    if kind in ("ring", "records"):
        rates.append(("dropped", "dropped", _RED))
    plots = [Plot(f"{UNITS[kind]} per second", tuple(rates))]
    if kind != "weights":
        full = {"vector env": "requests not answered", "replay": "rows that are whole"}.get(kind, "room in use")
        plots.append(Plot("fill", (("fill", full, _AMBER),), is_share=True))
    plots.append(Plot("share of time", _WAITS.get(kind, _FLOW), is_share=True))
    if kind in ("ring", "records", "weights"):
        behind = "slowest reader" if kind == "weights" else "slowest producer, behind the fastest"
        plots.append(Plot("weights: versions behind", (("lag", behind, _RED),)))
    return plots


_FLOW = (
    ("givers_wait", "producers wait for room", _AMBER),
    ("takers_wait", "learner waits for data", _BLUE),
    ("takers_hold", "learner holds data", _GREEN),
)
_WAITS = {
    "replay": (("takers_wait", "learner waits for data", _BLUE),),
    "weights": (("takers_wait", "readers wait for a version", _BLUE),),
    "vector env": (
        ("givers_wait", "workers wait for requests", _AMBER),
        ("takers_wait", "caller waits for answers", _BLUE),
    ),
}


def options(plot: Plot, series: Series, now: float, seconds: float) -> dict[str, Any]:
    """What ECharts draws for the last ``seconds``."""
    times, values = series.last(seconds, now, POINTS)
    begin = max(now - seconds, float(times[0])) if len(times) else now - seconds
    axis_label = {"color": _GREY, "fontSize": 11}
    scale: dict[str, Any] = {"minInterval": 1} if plot.lines[0][0] == "lag" else {}
    if plot.is_share:
        scale = {"max": 100, "interval": 25, "label": {"formatter": "{value}%"}}
    lines = []
    for name, label, colour in plot.lines:
        column = values[:, SERIES.index(name)] * (100 if plot.is_share else 1)
        points = [[round(at * 1000), _plain(value)] for at, value in zip(times.tolist(), column.tolist(), strict=True)]
        lines.append(_line(label, colour, points))
    return {
        "animation": False,
        "grid": {"left": 4, "right": 14, "top": 10, "bottom": 4, "containLabel": True},
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": {
            "type": "time",
            "min": round(begin * 1000),
            "max": round(now * 1000),
            "axisLabel": {**axis_label, "hideOverlap": True},
            "axisLine": {"lineStyle": {"color": _FAINT}},
            "splitNumber": 4,
        },
        "yAxis": {
            "type": "value",
            "min": 0,
            "axisLabel": {**axis_label, **scale.pop("label", {})},
            "splitLine": {"lineStyle": {"color": _FAINT}},
            "splitNumber": 3,
            **scale,
        },
        "series": lines,
    }


def has_points(drawn: dict[str, Any]) -> bool:
    """Whether there is anything to see in a plot with these options."""
    return any(value is not None for line in drawn["series"] for _, value in line["data"])


def small_options(series: Series, now: float, seconds: float) -> dict[str, Any]:
    """The rate of commits, without axes, for the overview."""
    times, values = series.last(seconds, now, _FEW_POINTS)
    column = values[:, SERIES.index("committed")].tolist()
    points = [[round(at * 1000), _plain(value)] for at, value in zip(times.tolist(), column, strict=True)]
    begin = max(now - seconds, float(times[0])) if len(times) else now - seconds
    return {
        "animation": False,
        "grid": {"left": 0, "right": 0, "top": 2, "bottom": 1},
        "xAxis": {"type": "time", "show": False, "min": round(begin * 1000), "max": round(now * 1000)},
        "yAxis": {"type": "value", "show": False, "min": 0},
        "series": [{**_line("committed", _BLUE, points), "silent": True}],
    }


def _line(label: str, colour: str, points: list[list[float | None]]) -> dict[str, Any]:
    return {
        "type": "line",
        "name": label,
        "data": points,
        "showSymbol": len(points) == 1,
        "lineStyle": {"width": 1.6},
        "areaStyle": {"opacity": 0.08},
        "itemStyle": {"color": colour},
    }


def _plain(value: float) -> float | None:
    """In four digits; ``None`` makes a gap."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
