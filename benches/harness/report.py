"""Write a run down: raw samples as JSON, tables as Markdown, the same tables on the terminal.

Takes what `summary` computes; measures nothing and draws nothing (see `plot`).
"""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness import machine, summary
from harness.benchmark import Benchmark
from harness.summary import Ratio, Record
from harness.tables import DASH, TableText, figure_text, labels, markdown, short


def write_json(record: Record, path: Path) -> None:
    """One line per cell, so that a diff of two runs can be read."""
    head = {key: value for key, value in record.items() if not isinstance(value, list)}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key in (key for key, value in record.items() if isinstance(value, list)):
        rows = ",\n".join(json.dumps(row) for row in record[key])
        lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def write_markdown(benchmark: Benchmark, record: Record, path: Path) -> None:
    """A page for people. A benchmark with extras has a second page, `<stem>_costs.md`, so that neither is too long."""
    tables = _tables(benchmark, record)
    picture = [f"![throughput and latency]({record['plot']})"] if record["plot"] else []
    if not benchmark.extras:
        _write_page(benchmark, benchmark.title, record, picture, tables, path)
        return
    costs = path.with_name(f"{path.stem}_costs.md")
    first = [table for table in tables if table[0].startswith(("Throughput", "One-way latency", "Ratios"))]
    picture.append(f"CPU time, losses, memory and batches of the same run: [{costs.name}]({costs.name}).")
    _write_page(benchmark, benchmark.title, record, picture, first, path)
    rest = [table for table in tables if table not in first]
    _write_page(benchmark, f"{benchmark.title}: CPU, losses, memory and batches", record, [], rest, costs)


def _write_page(
    benchmark: Benchmark, title: str, record: Record, parts: list[str], tables: list[TableText], path: Path
) -> None:
    parts = [f"# {title}", _origin(record), *parts]
    for heading, header, rows in tables:
        parts.append(f"## {heading}")
        parts.append(markdown(header, rows))
    parts.append(f"Method and definitions: `benches/README.md`. Raw samples: `{benchmark.stem}.json`.")
    path.write_text("\n\n".join(parts) + "\n")


def show(benchmark: Benchmark, record: Record, console: Console) -> None:
    for title, header, rows in _tables(benchmark, record):
        table = Table(title=title, title_justify="left")
        for i, name in enumerate(header):
            table.add_column(name, justify="right" if i else "left", no_wrap=not i)
        for row in rows:
            table.add_row(*row)
        console.print(table)


def show_runs(title: str, names: list[str], rows: list[Record], console: Console) -> None:
    """Runs of one kind side by side, a line for each number."""
    table = Table(title=title, title_justify="left")
    for column in ("", *names):
        table.add_column(column, justify="right" if column else "left")
    for field in rows[0]:
        shown = [f"{row[field]:,.2f}" if isinstance(row[field], float) else f"{row[field]:,}" for row in rows]
        table.add_row(field.replace("_", " "), *shown)
    console.print(table)


def write_runs(rows: list[Record], path: Path) -> None:
    """The same as JSON, and where the numbers come from."""
    record = {
        "command": machine.command(),
        "commit": machine.commit(),
        "machine": machine.describe(("rollway",)),
        "runs": rows,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def _tables(benchmark: Benchmark, record: Record) -> list[TableText]:
    found = []
    if record["throughput"]:
        found.append(_throughput_table(record))
        found.append(_cpu_table(record))
        if any("lost" in row["values"] for row in record["throughput"]):
            found.append(_fate_table(record))
    if record["latency"]:
        found.append(_latency_table(record))
    found.extend(extra.tabulate(record) for extra in benchmark.extras if record[extra.table])
    # Workloads that were left out have no ratio. A bar stays, to show that it was not measured.
    shown = [ratio for ratio in benchmark.ratios(record) if ratio.value is not None or "(bar:" in ratio.name]
    found.append(("Ratios", ["what", "value"], [[ratio.name, _ratio_text(ratio)] for ratio in shown]))
    return found


def _throughput_table(record: Record) -> TableText:
    cells = _columns(record)
    rows = []
    for label in labels(record["throughput"]):
        figures = [summary.throughput(record, label, workload, producers) for workload, producers in cells]
        rows.append([label, *(figure_text(figure, short) for figure in figures)])
    return "Throughput, items/s: median (min–max)", ["", *(f"{w} × {p}" for w, p in cells)], rows


def _cpu_table(record: Record) -> TableText:
    """Microseconds of CPU per item at the consumer and at a producer."""
    cells = _columns(record)
    rows = []
    for label in labels(record["throughput"]):
        row = [label]
        for workload, producers in cells:
            items = summary.throughput(record, label, workload, producers, "items").median
            cpu_s = summary.throughput(record, label, workload, producers, "consumer_cpu_s").median
            sender_ns = summary.producer_cpu_ns(record, label, workload, producers).median
            if not items or cpu_s is None or sender_ns is None:
                row.append(DASH)
            else:
                row.append(f"{1e6 * cpu_s / items:.2f} / {sender_ns / 1e3:.2f}")
        rows.append(row)
    return "CPU per item, µs: consumer / producer", ["", *(f"{w} × {p}" for w, p in cells)], rows


def _fate_table(record: Record) -> TableText:
    """Per cent of what was sent; only of contenders whose records are numbered."""
    cells = _columns(record)
    rows = []
    for label in labels(record["throughput"]):
        fates = [summary.losses(record, label, workload, producers) for workload, producers in cells]
        rows.append([label, *(_fate_text(fate) for fate in fates)])
    return "Lost / repeated / torn, % of what was sent, all repeats", ["", *(f"{w} × {p}" for w, p in cells)], rows


def _fate_text(fate: dict[str, int] | None) -> str:
    if fate is None:
        return DASH
    if not any(fate[what] for what in ("lost", "repeated", "torn")):
        return "0"
    return " / ".join(f"{100 * fate[what] / fate['sent']:.2g}" for what in ("lost", "repeated", "torn"))


def _latency_table(record: Record) -> TableText:
    rows = []
    for label in labels(record["latency"]):
        figures = [summary.latency_us(record, label, percentile) for percentile in (50, 99)]
        rows.append([label, *(figure_text(figure, lambda us: f"{us:.0f}") for figure in figures)])
    return "One-way latency of a trajectory at 1,000/s, µs: median (min–max)", ["", "p50", "p99"], rows


def _columns(record: Record) -> list[tuple[str, int]]:
    settings = record["settings"]
    return [(workload, producers) for workload in settings["workloads"] for producers in settings["producers"]]


def _ratio_text(ratio: Ratio) -> str:
    if ratio.value is None:
        return DASH
    if ratio.unit == "ns":
        return f"{ratio.value:.0f} ns"
    return f"{ratio.value:.2f} {ratio.unit}"


def _origin(record: Record) -> str:
    host, commit, settings = record["machine"], record["commit"], record["settings"]
    commit_id = (commit["id"] or "unknown")[:12]
    packages = ", ".join(f"{name} {version}" for name, version in host["packages"].items())
    changed = " with local changes" if commit["dirty"] else ""
    load = f"{host['load_average_before'][0]:.1f}, after it {host['load_average_after'][0]:.1f}"
    return (
        f"`{record['command']}` at commit `{commit_id}`{changed}, {record['began']}.\n\n"
        f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB, {host['kernel']}, "
        f"{host['python']}; load average before the run {load}. {packages}.\n\n"
        f"{settings['seconds']:g} s per cell, repeats: {settings['repeats']}, interleaved across contenders. "
        "Read the ratios within this page: all rows come from one run."
    )
