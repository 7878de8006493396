"""Tables: participants, times, counters and peeks as HTML. Every text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from rollway.inspect import Interval, Peek, summary

_SHARES = {
    "data": ("waits for data", "#3b82f6"),
    "room": ("waits for room", "#f59e0b"),
    "hold": ("holds", "#10a37f"),
    "copy": ("copies", "#a78bfa"),
    "work": ("other work", "#8b93a1"),
}
"""The parts of a participant's time: in words, and their colours."""


def table(columns: Sequence[str], rows: Sequence[Sequence[str | Markup]], css: str = "") -> str:
    """A table. In a phone's width each row is a block, in which the cells have the names of their columns.

    >>> '<td data-label="name">&lt;b&gt;</td>' in table(["name"], [["<b>"]])
    True
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = ""
    for row in rows:
        cells = zip(columns, row, strict=True)
        body += f"<tr>{''.join(_cell(name, text) for name, text in cells)}</tr>"
    return f'<table class="data {css}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def _cell(name: str, text: str | Markup) -> str:
    return f'<td data-label="{escape(name)}">{text if isinstance(text, Markup) else escape(text)}</td>'


def participants(interval: Interval, order: str) -> str:
    """Who takes part, what they do, and where their time goes."""
    columns = ["role", "pid", "state", "now", "commits/s", "last", "time", *summary.COLUMNS[-3:]]
    rows = []
    for one in summary.participants(interval, order):
        cells = summary.row(interval, one)
        state = cells["state"]
        css = "good" if state == "alive" else "idle" if state == "leaving" else "bad"
        marked = {**cells, "state": Markup(f'<span class="chip {css}">{escape(state)}</span>'), "time": _time(cells)}
        rows.append([marked[name] for name in columns])
    return table(columns, rows, "participants") if rows else "<p>No process is attached.</p>"


def _time(cells: Mapping[str, str]) -> Markup:
    """The shares of time as one bar, and the larger ones in words."""
    shares = {name: int(cells[name].removesuffix("%") or 0) for name in _SHARES}
    if not any(shares.values()):
        return Markup("")
    styles = {name: f"width:{share}%;background:{_SHARES[name][1]}" for name, share in shares.items() if share}
    parts = "".join(f'<i style="{style}"></i>' for style in styles.values())
    words = ", ".join(f"{name} {share}%" for name, share in shares.items() if share)
    return Markup(f'<span class="shares" title="{words}">{parts}</span><small>{words}</small>')


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Words, each beside its colour."""
    return (
        '<p class="legend">'
        + "".join(f'<span><i style="background:{colour}"></i>{escape(label)}</span>' for label, colour in entries)
        + "</p>"
    )


SHARES_LEGEND = legend(_SHARES.values())
"""For the bars of `participants`."""


def times(interval: Interval) -> str:
    """The histograms of durations; empty if nothing was timed."""
    rows = []
    for name, found in interval.after.histograms.items():
        if found.count:
            quantiles = (found.mean_ns, found.p50_ns, found.p90_ns, found.p99_ns, found.max_ns)
            rows.append([name, f"{found.count:,}", *(summary.duration(round(ns)) for ns in quantiles)])
    return table(["time", "count", "mean", "p50", "p90", "p99", "max"], rows) if rows else ""


def counters(interval: Interval) -> str:
    """All numbers of the segment."""
    return table(["number", "now"], [[name, f"{value:,}"] for name, value in interval.after.numbers.items()], "narrow")


def peeked(seen: Peek) -> str:
    """A summary of each leaf, and the newest items."""
    rows: list[list[str | Markup]] = []
    for leaf in seen.leaves:
        odd = [Markup(f'<b class="bad">{n:,}</b>') if n else "0" for n in (leaf.nans, leaf.infinities)]
        values = [summary.number(value) for value in (leaf.minimum, leaf.mean, leaf.maximum)]
        bars = Markup(f'<span class="bars">{escape(summary.bars(leaf.histogram))}</span>')
        rows.append([leaf.name, leaf.form, f"{leaf.values:,}", *values, *odd, f"{leaf.zeros:,}", bars])
    columns = ["leaf", "form", "values", "min", "mean", "max", "NaN", "inf", "zeros", "histogram"]
    parts = [table(columns, rows)]
    if not seen.items:
        parts.append("<p>Nothing can be seen: nothing was committed, or the learner has released it all.</p>")
    for item in seen.items:
        lines = "\n".join(summary.item_lines(item))
        parts.append(f"<h4>{escape(summary.item_heading(seen.kind, item))}</h4><pre>{escape(lines)}</pre>")
    return "".join(parts)
