"""Summary: what a look or a peek shows, in short texts for people, for `rollway top`, `peek` and the dashboard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rollway.inspect.interval import UNITS, Interval
from rollway.inspect.look import Look, Participant
from rollway.inspect.peek import Item

COLUMNS = (
    *("role", "pid", "state", "now", "commits/s", "last"),
    *("data", "room", "hold", "copy", "work"),
    *("holds", "writes", "weights"),
)
"""Of the table of participants; `docs/observe.md` says what each is."""
ORDERS = ("role", "rate", "waiting")
"""What the table can be sorted by."""

_ACTIVITIES = {"wait_data": "data", "wait_room": "room", "hold": "hold", "work": "work"}
_ITEMS = {"ring": "batch", "records": "record", "replay": "row", "weights": "version"}
_BARS = " ▁▂▃▄▅▆▇█"
_MOST_CHARACTERS = 400
_FEW_VALUES = 6


def state_of(look: Look) -> str:
    """``closed``, ``live``, or ``stale``: no process is attached."""
    return "closed" if look.closed else "live" if look.givers or look.takers else "stale"


def facts(interval: Interval) -> list[str]:
    """Kind, size, contents, rates, drops, dwell, remote workers and deaths of a segment."""
    look = interval.after
    parts = [look.kind, size(look.used_bytes), *_contents(look)]
    if look.kind in UNITS:
        parts.append(f"in {rate(interval.committed_rate)} {UNITS[look.kind]}/s")
    if interval.taken_rate is not None:
        parts.append(f"out {rate(interval.taken_rate)}/s")
    if look.kind in ("ring", "records"):
        dropped = look.numbers["dropped_oldest"] + look.numbers["dropped_newest"]
        parts.append(f"dropped {dropped:,}" + (f" (+{rate(interval.dropped_rate)}/s)" if interval.dropped_rate else ""))
    dwell = look.histograms.get("queue_dwell")
    if dwell is not None and dwell.count:
        parts.append(f"dwell {duration(dwell.p50_ns)} (p99 {duration(dwell.p99_ns)})")
    network = [one for one in look.givers if one.role == "network"]
    if network:
        lost = sum(one.remote_lost for one in network)
        connected = sum(one.remote_connected for one in network)
        parts.append(f"remote workers: {connected}" + (f", {lost} lost" if lost else ""))
    if look.dead:
        parts.append(f"{len(look.dead)} died")
    return parts


def _contents(look: Look) -> list[str]:
    numbers = look.numbers
    if look.kind == "ring":
        held, ready, all_of = numbers["held_batches"], numbers["ready_batches"], numbers["num_buffers"]
        return [f"batches: {ready} ready, {held} held, {numbers['free_buffers']} free of {all_of}"]
    if look.kind == "records":
        return [
            f"{numbers['ready_records']:,} ready ({size(numbers['ready_bytes'])}), {numbers['taken_records']:,} held"
        ]
    if look.kind == "replay":
        return [f"{numbers['rows']:,} of {numbers['capacity']:,} rows"]
    if look.kind == "weights":
        ago = numbers.get("published_ago_ns")
        return [f"version {numbers['version']}" + (f", {duration(ago)} ago" if ago is not None else "")]
    if look.kind == "vector env":
        return [f"{numbers['envs']:,} environments, {numbers['unanswered']:,} unanswered"]
    return []


def participants(interval: Interval, order: str = "role") -> list[Participant]:
    """The participants, sorted by one of `ORDERS`."""

    def key(one: Participant) -> tuple[Any, ...]:
        shares = interval.shares(one)
        waiting = -(shares.wait_data + shares.wait_room)
        first: Any = {"role": one.gives, "rate": -interval.rate_of(one), "waiting": waiting}[order]
        return first, one.role, one.seat

    return sorted(interval.after.participants, key=key)


def row(interval: Interval, one: Participant) -> dict[str, str]:
    """What a participant does, one text for each of `COLUMNS`."""
    is_dead, shares = one.state == "dead", interval.shares(one)
    parts = (shares.wait_data, shares.wait_room, shares.hold, shares.copy, shares.work - shares.copy)
    held = f"{one.holding:,}" + (f" ({duration(one.oldest_held_ns)})" if one.oldest_held_ns is not None else "")
    lag = interval.after.numbers.get("version", 0) - one.version
    behind = f" (-{lag})" if one.role == "reader" and lag > 0 else ""
    cells = (
        one.role,
        str(one.pid),
        str(one.process) if one.is_stopped else one.state,
        "" if is_dead else f"{_ACTIVITIES[one.activity]} {duration(one.activity_ns)}",
        rate(interval.rate_of(one)) if one.gives else "",
        duration(one.last_commit_ns) if one.last_commit_ns is not None else "",
        *("" if is_dead else f"{part:.0%}" for part in parts),
        held if one.holding else "",
        f"{one.writing:,}" if one.writing else "",
        f"{one.version}{behind}" if one.version or behind else "",
    )
    return dict(zip(COLUMNS, cells, strict=True))


def item_heading(kind: str, item: Item) -> str:
    """Number, age and origin of an item of a peek."""
    parts = [f"{_ITEMS[kind]} {item.number}"]
    if item.age_s is not None:
        parts.append(f"{item.age_s:.3f} s ago" if item.age_s < 10 else f"{item.age_s:,.0f} s ago")
    if kind in ("ring", "records"):
        parts += [f"producer {item.producer_id}", f"its number {item.sequence}", f"weights {item.version}"]
    if item.key is not None:
        parts.append(f"key {tuple(item.key)}")
    if item.tombstone:
        parts.append("tombstone")
    return ", ".join(parts)


def item_lines(item: Item) -> list[str]:
    """The first values of each leaf of an item, and its metadata; chat messages one by one."""
    lines = []
    for name, array in item.leaves.items():
        values = ", ".join(str(value) for value in array.ravel()[:_FEW_VALUES])
        more = ", ..." if array.size > _FEW_VALUES else ""
        lines.append(f"{name}[{','.join(map(str, array.shape))}]: {values}{more}")
    return lines + _metadata(item.metadata)


def _metadata(metadata: Any) -> list[str]:
    if metadata is None:
        return []
    if isinstance(metadata, bytes):
        bytes_of = f"{len(metadata):,} byte{'' if len(metadata) == 1 else 's'}"
        return [f"metadata: {bytes_of}: {_short(metadata.decode(errors='replace'))}"]
    if not isinstance(metadata, dict) or not isinstance(metadata.get("messages"), list):
        return [f"metadata: {_short(json.dumps(metadata, ensure_ascii=False))}"]
    rest = {name: value for name, value in metadata.items() if name != "messages"}
    lines = [f"metadata: {_short(json.dumps(rest, ensure_ascii=False))}"] if rest else []
    for message in metadata["messages"]:
        role, text = (message.get("role", "?"), message.get("content")) if isinstance(message, dict) else ("?", message)
        lines.append(f"{role}: {_short(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False))}")
    return lines


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ... ({len(text):,} characters)"


def bars(histogram: Sequence[int]) -> str:
    """Counts as bars; a count that is not 0 is always seen.

    >>> bars([0, 1, 500, 1000])
    ' ▁▄█'
    """
    most = max(histogram, default=0)
    return "".join(_BARS[0 if not one else max(1, round(one / most * (len(_BARS) - 1)))] for one in histogram)


def number(value: float | None) -> str:
    """A value of a leaf, in four digits; empty if there is none."""
    return "" if value is None else f"{value:.4g}"


def rate(value: float) -> str:
    """Something per second.

    >>> rate(0), rate(0.52), rate(12_345.6)
    ('0', '0.5', '12,346')
    """
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def duration(ns: int) -> str:
    """Nanoseconds for people.

    >>> duration(1_500), duration(2_300_000), duration(4_200_000_000), duration(600_000_000_000)
    ('2 us', '2.3 ms', '4.2 s', '10 min')
    """
    if ns < 1_000_000:
        return f"{ns / 1e3:.0f} us"
    if ns < 1_000_000_000:
        return f"{ns / 1e6:.1f} ms"
    if ns < 300_000_000_000:
        return f"{ns / 1e9:.1f} s"
    return f"{ns / 60e9:.0f} min" if ns < 7_200_000_000_000 else f"{ns / 3600e9:.0f} h"


def size(count: int) -> str:
    """Bytes for people, in powers of 1000.

    >>> size(512), size(24_580), size(64 << 20)
    ('512 B', '24.6 KB', '67.1 MB')
    """
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 999.95:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
