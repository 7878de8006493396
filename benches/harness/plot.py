"""Draw a run: throughput per workload for each number of producers, and the latency quantiles, as one PNG.

Bars are medians, whiskers are min and max of the repeats. Needs matplotlib; without it there is no picture.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import summary
from harness.summary import Record
from harness.tables import short

_OURS, _LIMIT, _PEER = ("#1f77b4", "#7fb3d9"), ("#555555", "#aaaaaa"), ("#d98c3f", "#efc797")


def available() -> bool:
    return find_spec("matplotlib") is not None


def write_png(record: Record, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    workloads = record["settings"]["workloads"] if record["throughput"] else []
    panels = len(workloads) + bool(record["latency"])
    columns = min(panels, 2)
    rows = -(-panels // 2)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(6.5 * columns, 4.8 * rows), squeeze=False, layout="constrained"
    )
    spaces = list(axes.flat)
    for space, workload in zip(spaces, workloads, strict=False):
        _draw_throughput(space, record, workload)
    if record["latency"]:
        _draw_latency(spaces[len(workloads)], record)
    for space in spaces[panels:]:
        space.set_visible(False)
    machine = record["machine"]
    figure.suptitle(f"{machine['cpu']}, {machine['cores']} cores, {machine['python']}", fontsize=9)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_throughput(axis: Any, record: Record, workload: str) -> None:
    producers = record["settings"]["producers"]
    figures = {
        label: [summary.throughput(record, label, workload, count) for count in producers]
        for label in _labels(record["throughput"])
    }
    # Not every contender carries every workload.
    labels = [label for label, lanes in figures.items() if any(lane.median or lane.troubles for lane in lanes)]
    for row, label in enumerate(labels):
        for lane, figure in enumerate(figures[label]):
            _bar(axis, row, lane, len(producers), label, figure, short)
    _finish(axis, labels, f"{workload}: items/s, {_listed(producers)} producers from top to bottom")


def _draw_latency(axis: Any, record: Record) -> None:
    labels = _labels(record["latency"])
    for row, label in enumerate(labels):
        for lane, percentile in enumerate((50, 99)):
            _bar(
                axis,
                row,
                lane,
                2,
                label,
                summary.latency_us(record, label, percentile),
                lambda us: f"{us:.0f}",
            )
    _finish(axis, labels, "one-way latency of a trajectory at 1,000/s: p50, p99 in µs")


def _bar(axis: Any, row: int, lane: int, lanes: int, label: str, figure: summary.Figure, text: Any) -> None:
    height = 0.8 / lanes
    y = row - 0.4 + height * (lane + 0.5)
    if figure.median is None:
        note = figure.troubles[0] if figure.troubles else ""
        axis.text(0.01, y, note, transform=axis.get_yaxis_transform(), va="center", fontsize=6)
        return
    spread = [[figure.median - figure.low], [figure.high - figure.median]]
    color = _colors(label)[min(lane, 1)]
    axis.barh(y, figure.median, height, color=color, xerr=spread, error_kw={"lw": 0.7, "ecolor": "#222222"})
    axis.annotate(
        text(figure.median),
        (figure.high, y),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=6,
    )


def _finish(axis: Any, labels: list[str], title: str) -> None:
    from matplotlib.ticker import NullFormatter

    axis.set_yticks(range(len(labels)), labels, fontsize=7)
    axis.invert_yaxis()
    axis.set_xscale("log")
    widths = [bar.get_width() for bar in axis.patches]
    if widths:
        axis.set_xlim(min(widths) / 3, max(widths) * 3)
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.tick_params(axis="x", labelsize=7)
    axis.set_title(title, fontsize=8, loc="left")
    axis.spines[["top", "right"]].set_visible(False)


def _colors(label: str) -> tuple[str, str]:
    if label.startswith("rollway"):
        return _OURS
    return _LIMIT if "(limit)" in label or "(floor)" in label else _PEER


def _labels(rows: list[Record]) -> list[str]:
    order = {row["contender"]: row["place"] for row in rows}
    return sorted(order, key=order.__getitem__)


def _listed(numbers: list[int]) -> str:
    return " and ".join(str(number) for number in numbers)
