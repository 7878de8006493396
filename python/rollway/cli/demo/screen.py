"""Screen: shows the demo. Live on a terminal; elsewhere a few plain lines. `show` is what the command calls."""

from __future__ import annotations

from collections import deque

from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollway.cli import signals
from rollway.cli.console import LiveScreen, console, count, plain, print_json, size
from rollway.cli.demo.stages import BATCH_SIZE, QUEUE, ROLLWAY, SENDS_PER_S, Demo, Outcome, Progress, Stage, Watcher
from rollway.cli.demo.trajectory import SAMPLE_BYTES
from rollway.cli.demo.worker_processes import Death

_INTERRUPTED = 130
_COLUMNS_OF_WORKERS = 4


def show(seconds: float, workers: int, *, as_json: bool) -> int:
    """Runs the demo and shows it. Returns the exit status."""
    out = console(stderr=as_json)
    screen = Watcher() if as_json else Screen(out, workers)
    demo = Demo(seconds, workers, screen)
    with signals.exit_on_signals():
        try:
            with screen:
                demo.run()
        except KeyboardInterrupt:
            seen = demo.verdict.verified + demo.verified_now
            out.print(
                f"Stopped by Ctrl-C after {count(seen, 'sample')}. "
                "The workers have ended; nothing is left in shared memory."
            )
            return _INTERRUPTED
    if as_json:
        print_json(demo.as_json())
    else:
        _conclude(out, demo)
    return 0 if demo.succeeded else 1


class Screen(LiveScreen, Watcher):
    """Shows a running demo: the stage in progress below, what is over above it."""

    def __init__(self, out: Console, workers: int) -> None:
        samples = f": LLM trajectories of {size(SAMPLE_BYTES)}, in batches of {BATCH_SIZE}"
        heading = Text.assemble((f"{count(workers, 'worker')} -> 1 learner", "bold"), samples)
        super().__init__(out, heading, "workers")
        self._recent: deque[tuple[float, int]] = deque(maxlen=11)

    def began(self, stage: Stage) -> None:
        """Announces a stage on a console that is no terminal."""
        self._recent.clear()
        if self._live is None:
            self._out.print(f"measuring: {_title(stage)}, {stage.seconds:.1f} s")

    def progressed(self, progress: Progress) -> None:
        """Draws the stage in progress."""
        if self._live is not None:
            self._recent.append((progress.elapsed_s, progress.received))
            self._live.update(_draw(progress, self._rate(), self._out.width), refresh=True)

    def died(self, death: Death) -> None:
        """Says which worker died, and how."""
        self._out.print(plain(f"{death}", "bold red"))

    def ended(self, outcome: Outcome) -> None:
        """Prints one line for a stage that is over."""
        if self._live is not None:
            self._live.update(Text(""), refresh=True)
        self._out.print(Text.assemble(("done: ", "green"), (_title(outcome.stage), "bold"), ": ", _figures(outcome)))

    def _rate(self) -> float:
        (from_s, from_count), (to_s, to_count) = self._recent[0], self._recent[-1]
        return (to_count - from_count) / (to_s - from_s) if to_s > from_s else 0.0


def _draw(progress: Progress, rate: float, width: int) -> RenderableType:
    stage = progress.stage
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(_title(stage), style="bold"),
        ProgressBar(total=stage.seconds, completed=min(progress.elapsed_s, stage.seconds), width=30),
        f"{min(progress.elapsed_s, stage.seconds):.1f} / {stage.seconds:.1f} s",
    )
    numbers = Table.grid(padding=(0, 3))
    for _ in range(5):
        numbers.add_column(justify="right", no_wrap=True)
    numbers.add_row(
        "",
        Text(f"{rate:,.0f} samples/s", style="bold cyan"),
        Text(f"{rate * SAMPLE_BYTES / 1e9:.2f} GB/s", style="cyan"),
        f"{progress.batches:,} batches",
        f"{progress.waiting:,} waiting",
    )
    workers = Table.grid(padding=(0, 3))
    cells = [f"worker {i}: {n:>9,}" for i, n in enumerate(progress.per_worker)]
    columns = max(1, min(_COLUMNS_OF_WORKERS, width // (len(cells[-1]) + 3)))
    for first in range(0, len(cells), columns):
        workers.add_row("", *cells[first : first + columns], style="dim")
    return Group(head, numbers, workers)


def _title(stage: Stage) -> str:
    return f"{stage.path} {stage.quantity}"


def _figures(outcome: Outcome) -> str:
    samples = count(outcome.verdict.verified, "sample")
    if outcome.samples_per_s is not None:
        return f"{samples}, {outcome.samples_per_s:,.0f}/s, {outcome.gb_per_s:.2f} GB/s"
    return f"{samples} at {SENDS_PER_S:,}/s, p50 {_us(outcome.p50_us)}, p99 {_us(outcome.p99_us)}"


def _conclude(out: Console, demo: Demo) -> None:
    if demo.outcomes:
        out.print(_table(demo))
        out.print(Text(f"{demo.verdict}", style="bold green" if demo.verdict.flawless else "bold red"))
        out.print(
            "(the learner compared every element of every sample, through either path, with what its worker wrote)",
            style="dim",
        )
    for death in demo.deaths:
        out.print(plain(f"A worker died: {death}.", "bold red"))
        arrived = demo.arrived_of_the_dead.get(death.worker)
        if arrived and demo.verdict.flawless:
            out.print(f"  What it had committed, {count(arrived, 'sample')}, arrived without a gap.")
    if demo.deaths:
        out.print(_sequel(demo))


def _sequel(demo: Demo) -> str:
    """Says what the death of a worker means for the rest."""
    others = demo.workers - len(demo.deaths)
    if demo.arrived_of_the_dead and others:
        return f"  The other {others} went on. The demo ends here, after the stage in which it happened."
    if demo.outcomes and not demo.arrived_of_the_dead:
        return f"  {QUEUE} cannot be trusted after that: a lock or half a message may be left behind. The demo ends."
    return "  The demo ends here."


def _table(demo: Demo) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", overflow="fold")
    for heading in ("samples/s", "GB/s", "latency p50", "latency p99"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = [list(demo.figures(path).values()) for path in (ROLLWAY, QUEUE)]
    for path, (rate, gigabytes, p50, p99) in zip((ROLLWAY, QUEUE), rows, strict=True):
        texts = [_number(rate, ",.0f"), _number(gigabytes, ".2f"), _us(p50), _us(p99)]
        table.add_row(path, *texts, style="bold" if path == ROLLWAY else "")
    (rate_a, bytes_a, p50_a, p99_a), (rate_b, bytes_b, p50_b, p99_b) = rows
    ratios = [_ratio(rate_a, rate_b), _ratio(bytes_a, bytes_b), _ratio(p50_b, p50_a), _ratio(p99_b, p99_a)]
    if any(ratios):
        table.add_section()
        table.add_row("Rollway's advantage", *ratios, style="cyan")
    return table


def _ratio(better: float | None, worse: float | None) -> str:
    return f"{better / worse:.1f}x" if better and worse else ""


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} µs"
