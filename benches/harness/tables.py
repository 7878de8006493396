"""Tables as text: labels, figures and Markdown. Measurements make their tables with it; `report` writes them down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from harness.summary import Figure, Record

TableText = tuple[str, list[str], list[list[str]]]  # title, header, rows

DASH = "–"


def labels(rows: list[Record]) -> list[str]:
    """Row labels in the order of the run's list of contenders."""
    order = {row["contender"]: row["place"] for row in rows}
    return sorted(order, key=order.__getitem__)


def figure_text(figure: Figure, text: Callable[[float], str]) -> str:
    """Median and spread, then what went wrong and in how many repeats if not in all."""
    parts = []
    if figure.median is not None:
        spread = f" ({text(figure.low)}–{text(figure.high)})" if len(figure.values) > 1 else ""
        parts.append(text(figure.median) + spread)
    for status, count in Counter(figure.troubles).items():
        parts.append(f"{count}× {status}" if figure.values else status)
    return ", ".join(parts) or DASH


def short(value: float) -> str:
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            scaled = value / limit
            return f"{scaled:.0f}{unit}" if scaled >= 100 else f"{scaled:.1f}{unit}"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
