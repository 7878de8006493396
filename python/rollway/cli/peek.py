"""`rollway peek`: prints what `rollway.inspect.peek` found: the schema, a summary of each leaf, the newest items."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from rollway import inspect
from rollway.cli.console import console, plain, print_json
from rollway.inspect import summary
from rollway.inspect.interval import UNITS
from rollway.inspect.peek import jsonable


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
            summary.number(leaf.minimum),
            summary.number(leaf.mean),
            summary.number(leaf.maximum),
            Text(f"{leaf.nans:,}", style=bad if leaf.nans else ""),
            Text(f"{leaf.infinities:,}", style=bad if leaf.infinities else ""),
            f"{leaf.zeros:,}",
            summary.bars(leaf.histogram),
        )
    return table


def _show_item(out: Any, kind: str, item: inspect.Item) -> None:
    out.print(plain(summary.item_heading(kind, item), "bold"))
    for line in summary.item_lines(item):
        out.print(plain(f"  {line}"), soft_wrap=True)
