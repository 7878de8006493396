"""Pages: the overview of all segments, and the page of one. They show what the history has, and read nothing else.

Only a peek, which a person asks for, reads a segment.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from nicegui import ui

from rollway.dashboard import plots, tables
from rollway.dashboard.history import HOUR_S, History, Watched, fill
from rollway.errors import RollwayError
from rollway.inspect import peek, summary
from rollway.inspect.interval import UNITS

_STYLE = Path(__file__).with_name("style.css")
_RANGES = {"5 min": 300.0, "15 min": 900.0, "1 h": HOUR_S}
_PEEK_S = 1.0
_CHIPS = {"live": "good", "stale": "idle", "closed": "bad", "ended": "idle", "unreadable": "bad", "awaited": "idle"}


def add(history: History) -> None:
    """Makes the pages known to NiceGUI."""
    ui.add_css(_STYLE.read_text(), shared=True)

    @ui.page("/")
    def overview() -> None:
        _Overview(history)

    @ui.page("/segment/{name}", title="Rollway: segment")
    def segment(name: str) -> None:
        _SegmentPage(history, name)


def _header(history: History, update: Callable[[], None]) -> None:
    """The top line, and the timer that calls ``update`` unless the page is paused."""
    timer = ui.timer(history.interval_s, update)

    def pause() -> None:
        timer.active = not timer.active
        button.set_text("Pause" if timer.active else "Continue")

    with ui.element("header"):
        ui.link("Rollway", "/").classes("brand")
        ui.label(f"on {socket.gethostname()}").classes("muted")
        button = ui.button("Pause", on_click=pause).props("flat dense no-caps").classes("right")


def _headline(one: Watched) -> tuple[str, str]:
    """The most important sentence about a segment, and how bad it is."""
    if one.ended_at is not None:
        if one.state == "awaited":
            return "There is no segment of this name yet.", "idle"
        ago = summary.duration(round(max(time.time() - one.ended_at, 0) * 1e9))
        return f"It has ended: the segment went {ago} ago.", "idle"
    if one.problem is not None:
        return one.problem, "bad"
    if one.verdict is None:
        return "", "idle"
    idle = one.verdict.culprit == "no process"
    return one.verdict.lines[0], "good" if one.verdict.culprit == "nobody" else "idle" if idle else "warn"


class _Overview:
    """All segments, a card each."""

    def __init__(self, history: History) -> None:
        self._history = history
        _header(history, self._update)
        with ui.element("div").classes("page"):
            self._summary = ui.label().classes("muted")
            self._container = ui.element("div").classes("cards")
        self._cards: dict[str, _Card] = {}
        self._update()

    def _update(self) -> None:
        segments = self._history.segments
        if [one.name for one in segments] != list(self._cards):
            self._container.clear()
            with self._container:
                self._cards = {one.name: _Card(one.name) for one in segments}
        for one in segments:
            self._cards[one.name].update(one)
        self._summary.set_text(self._history.problem or _summary(segments))


def _summary(segments: list[Watched]) -> str:
    looks = [one.interval.after for one in segments if one.ended_at is None and one.interval is not None]
    pids = {each.pid for look in looks for each in look.participants if each.state != "dead"}
    if not segments:
        return "No segments. They appear here as soon as a run makes one."
    ended = sum(one.ended_at is not None for one in segments)
    parts = [_count(len(segments) - ended, "segment"), _count(len(pids), "process", "processes")]
    parts.append(f"{summary.size(sum(look.used_bytes for look in looks))} of shared memory")
    return ", ".join(parts) + (f"; {ended} ended" if ended else "")


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


class _Card:
    """A segment on the overview."""

    def __init__(self, name: str) -> None:
        with ui.link(target=f"/segment/{quote(name)}").classes("card") as self._card:
            with ui.element("div").classes("line"):
                ui.label(name).classes("name")
                self._state = ui.label().classes("chip")
                self._kind = ui.label().classes("muted right")
            self._headline = ui.label().classes("headline")
            with ui.element("div").classes("line numbers"):
                self._in, self._out, self._full = ui.label(), ui.label(), ui.label()
            self._plot = ui.echart({"series": []}).classes("small")

    def update(self, one: Watched) -> None:
        """Shows what was seen last."""
        text, css = _headline(one)
        _show_state(self._state, one)
        self._card.classes(replace=f"card {css}")
        self._headline.set_text(text)
        interval = one.interval
        self._plot.set_visibility(interval is not None and interval.after.kind in UNITS)
        if interval is None:
            return
        look = interval.after
        self._kind.set_text(f"{look.kind}, {summary.size(look.used_bytes)}")
        for label, words in zip((self._in, self._out, self._full), _numbers(one), strict=True):
            label.set_text(words)
            label.set_visibility(bool(words))
        _draw(self._plot, plots.small_options(one.series, time.time(), HOUR_S))


def _numbers(one: Watched) -> tuple[str, str, str]:
    """What comes in, what goes out, and the fill."""
    interval = one.interval
    if interval is None or one.state in ("ended", "unreadable"):
        return "", "", ""
    look, taken = interval.after, interval.taken_rate
    given = f"{summary.rate(interval.committed_rate)} {UNITS[look.kind]}/s" if look.kind in UNITS else ""
    share = fill(look)
    out = f"out {summary.rate(taken)}/s" if taken is not None else ""
    return given, out, f"{share:.0%} full" if share == share else ""


def _show_state(label: ui.label, one: Watched) -> None:
    label.set_text(one.state)
    label.classes(replace=f"chip {_CHIPS[one.state]}")


def _draw(chart: ui.echart, options: dict[str, object]) -> None:
    chart.options.clear()
    chart.options.update(options)
    chart.update()


class _SegmentPage:
    """One segment: the verdict, plots, participants, times, counters, and a peek on demand."""

    def __init__(self, history: History, name: str) -> None:
        self._history, self._name = history, name
        self._charts: list[tuple[plots.Plot, ui.element, ui.echart]] = []
        self._kind: str | None = None
        _header(history, self._update)
        with ui.element("div").classes("page"):
            with ui.element("div").classes("line"):
                ui.label(name).classes("name title")
                self._state = ui.label().classes("chip")
            self._facts = ui.label().classes("muted")
            with ui.element("section") as self._verdict:
                self._lines = [ui.label().classes("headline"), ui.label(), ui.label()]
            self._span = ui.toggle(list(_RANGES), value="1 h", on_change=self._update).props("dense no-caps flat")
            self._plots = ui.element("div").classes("plots")
            with ui.element("div").classes("line"):
                ui.label("Participants").classes("heading")
                with ui.element("div").classes("line right"):
                    ui.label("sort by").classes("muted")
                    self._order = ui.toggle(list(summary.ORDERS), value="role", on_change=self._update)
                    self._order.props("dense no-caps flat")
            self._participants = ui.html(sanitize=False)
            ui.html(tables.SHARES_LEGEND, sanitize=False)
            self._times = ui.html(sanitize=False)
            with ui.element("div").classes("line"):
                ui.label("Newest data").classes("heading")
                self._button = ui.button("Peek", on_click=self._peek).props("dense no-caps outline")
            self._peeked = ui.html(sanitize=False).classes("peeked")
            with ui.expansion("All numbers").classes("numbers-of"):
                self._counters = ui.html(sanitize=False)
        self._update()

    def _update(self) -> None:
        one = self._history.get(self._name)
        if one is None:
            self._state.set_text("unknown")
            self._lines[0].set_text(f"No segment '{self._name}' was seen in the last hour.")
            return
        text, css = _headline(one)
        _show_state(self._state, one)
        self._verdict.classes(replace=f"verdict {css}")
        evidence = one.verdict.lines[1:] if one.verdict is not None else ("", "")
        for label, line in zip(self._lines, (text, *evidence), strict=True):
            label.set_text(line)
        interval = one.interval
        self._button.set_enabled(one.state in ("live", "stale", "closed"))
        if interval is None:
            return
        if interval.after.kind != self._kind:
            self._kind = interval.after.kind
            self._build_plots(self._kind)
        now, seconds = time.time(), _RANGES[str(self._span.value)]
        for plot, section, chart in self._charts:
            drawn = plots.options(plot, one.series, now, seconds)
            section.set_visibility(plots.has_points(drawn))
            _draw(chart, drawn)
        self._facts.set_text(", ".join(summary.facts(interval)))
        self._participants.set_content(tables.participants(interval, str(self._order.value)))
        self._times.set_content(tables.times(interval))
        self._counters.set_content(tables.counters(interval))

    def _build_plots(self, kind: str) -> None:
        self._plots.clear()
        self._charts = []
        with self._plots:
            for plot in plots.plots_of(kind):
                with ui.element("section") as section:
                    ui.label(plot.title).classes("muted")
                    ui.html(tables.legend((label, colour) for _, label, colour in plot.lines), sanitize=False)
                    self._charts.append((plot, section, ui.echart({"series": []}).classes("plot")))

    async def _peek(self) -> None:
        self._button.disable()
        try:
            seen = await asyncio.to_thread(peek, self._name, timeout=_PEEK_S)
            self._peeked.set_content(tables.peeked(seen))
        except RollwayError as error:
            self._peeked.set_content(tables.table(["problem"], [[str(error)]]))
        finally:
            self._button.enable()
