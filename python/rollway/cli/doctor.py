"""`rollway doctor`: shows the findings of `rollway.machine`."""

from __future__ import annotations

import dataclasses

from rich.table import Table

from rollway import machine
from rollway.cli.console import console, count, plain, print_json

_MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "problem": ("PROBLEM", "bold red")}


def show(*, as_json: bool) -> int:
    """Prints every finding. Returns 1 when one of them is a problem."""
    findings = machine.examine()
    problems = sum(finding.status == "problem" for finding in findings)
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
        return 1 if problems else 0
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mark, style = _MARKS[finding.status]
        table.add_row(plain(mark, style), plain(finding.name, "bold"), plain(finding.found))
        if finding.advice:
            table.add_row("", "", plain(f"-> {finding.advice}", "" if finding.status == "ok" else style))
    out = console()
    out.print(table)
    warnings = sum(finding.status == "warn" for finding in findings)
    out.print()
    if problems:
        out.print(f"{count(problems, 'problem')}, {count(warnings, 'warning')}.", style="bold red")
    elif warnings:
        out.print(f"Rollway works here. {count(warnings, 'warning')}.", style="yellow")
    else:
        out.print("Rollway works here.", style="green")
    return 1 if problems else 0
