"""`rollway peek`: prints what `rollway.inspect.peek` found: the schema, a summary of each leaf, the newest items."""

from __future__ import annotations

import json
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from rollway import inspect
from rollway.cli.console import console, count, plain, print_json
from rollway.inspect.interval import UNITS
from rollway.inspect.peek import jsonable

_BARS = " ▁▂▃▄▅▆▇█"
_MOST_CHARACTERS = 400
_FEW_VALUES = 6


def show(name: str, items: int, seconds: float, *, as_json: bool) -> None:
    """Prints the newest items of a segment. It waits up to ``seconds`` for one."""
    seen = inspect.peek(name, items, timeout=seconds)
    if as_json:
        print_json(jsonable(seen))
        return
    out = console()
    unit = UNITS.get(seen.kind, "items")
    out.print(Text.assemble((seen.name, "bold"), f"  {seen.kind}, the newest {unit}, {len(seen.items)} of them"))
    out.print(_leaves(seen))
    if not seen.items:
        out.print(f"No {unit} can be seen: none was committed, or the learner has released them all.")
    for item in seen.items:
        _show_item(out, seen.kind, item)


def _leaves(seen: inspect.Peek) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("leaf", overflow="fold")
    table.add_column("form", overflow="fold")
    for name in ("values", "min", "mean", "max", "NaN", "inf", "zeros"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("histogram", no_wrap=True)
    for leaf in seen.leaves:
        bad = "bold red"
        table.add_row(
            plain(leaf.name),
            plain(leaf.form),
            f"{leaf.values:,}",
            _number(leaf.minimum),
            _number(leaf.mean),
            _number(leaf.maximum),
            Text(f"{leaf.nans:,}", style=bad if leaf.nans else ""),
            Text(f"{leaf.infinities:,}", style=bad if leaf.infinities else ""),
            f"{leaf.zeros:,}",
            _bars(leaf.histogram),
        )
    return table


def _show_item(out: Any, kind: str, item: inspect.Item) -> None:
    head = {"ring": "batch", "records": "record", "replay": "row", "weights": "version"}[kind]
    parts = [f"{head} {item.number}"]
    if item.age_s is not None:
        parts.append(f"{item.age_s:.3f} s ago" if item.age_s < 10 else f"{item.age_s:,.0f} s ago")
    if kind in ("ring", "records"):
        parts += [f"producer {item.producer_id}", f"its number {item.sequence}", f"weights {item.version}"]
    if item.key is not None:
        parts.append(f"key {tuple(item.key)}")
    if item.tombstone:
        parts.append("tombstone")
    out.print(plain(", ".join(parts), "bold"))
    for name, array in item.leaves.items():
        values = ", ".join(str(value) for value in array.ravel()[:_FEW_VALUES])
        more = ", ..." if array.size > _FEW_VALUES else ""
        shape = f"[{','.join(map(str, array.shape))}]"
        out.print(plain(f"  {name}{shape}: {values}{more}"), soft_wrap=True)
    for line in _metadata(item.metadata):
        out.print(plain(f"  {line}"), soft_wrap=True)


def _metadata(metadata: Any) -> list[str]:
    """The metadata in lines; chat messages one by one."""
    if metadata is None:
        return []
    if isinstance(metadata, bytes):
        return [f"metadata: {count(len(metadata), 'byte')}: {_short(metadata.decode(errors='replace'))}"]
    if not isinstance(metadata, dict) or not isinstance(metadata.get("messages"), list):
        return [f"metadata: {_short(json.dumps(metadata, ensure_ascii=False))}"]
    rest = {name: value for name, value in metadata.items() if name != "messages"}
    lines = [f"metadata: {_short(json.dumps(rest, ensure_ascii=False))}"] if rest else []
    for message in metadata["messages"]:
        role, text = (message.get("role", "?"), message.get("content")) if isinstance(message, dict) else ("?", message)
        lines.append(f"{role}: {_short(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False))}")
    return lines


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ... ({count(len(text), 'character')})"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _bars(histogram: tuple[int, ...]) -> str:
    """The counts as bars; a count that is not 0 is always seen."""
    most = max(histogram, default=0)
    return "".join(_BARS[0 if not one else max(1, round(one / most * (len(_BARS) - 1)))] for one in histogram)
