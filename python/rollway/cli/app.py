"""The commands: what can be typed, and with which options. Each hands over to the module that does and shows it."""

from __future__ import annotations

from typing import Annotated

import typer

import rollway
from rollway.cli.console import console, plain

app = typer.Typer(
    name="rollway",
    help="Rollway, the data plane for reinforcement learning: see it work, look at its segments, check this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


def run() -> int:
    """Runs the command that the arguments name, and gives its exit status."""
    try:
        status = app(standalone_mode=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except (rollway.RollwayError, OSError) as error:
        console(stderr=True).print("error:", plain(str(error)), style="red")
        return 1
    return int(status or 0)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"rollway {rollway.__version__}")
        raise typer.Exit


@app.callback()
def _rollway(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    seconds: Annotated[
        float, typer.Option(min=0.2, max=600, help="How long each of the two throughput runs takes.")
    ] = 6.0,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 4,
    json: Json = False,
) -> None:
    """Stream LLM trajectories from worker processes to a learner, verify every one, and compare with a Queue."""
    from rollway.cli.demo import screen

    raise typer.Exit(screen.show(seconds, workers, as_json=json))


@app.command()
def ls(json: Json = False) -> None:
    """List the segments in shared memory: who made them, and who lives in them."""
    from rollway.cli import listing

    listing.show(as_json=json)


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove the segments in which nobody lives. A live one is never touched."""
    from rollway.cli import listing

    listing.collect(dry_run=dry_run)


@app.command()
def doctor(json: Json = False) -> None:
    """Check this machine: shared memory, limits, CPUs, kernel, and a round trip through a ring."""
    from rollway.cli import checkup

    raise typer.Exit(checkup.show(as_json=json))
