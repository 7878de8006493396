"""The commands: what can be typed, and with which options. Each hands over to the module that does and shows it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

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

train = typer.Typer(no_args_is_help=True, help="Train on a Gymnasium environment, and watch it: APPO or SAC.")
app.add_typer(train, name="train")

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
    from rollway.cli import doctor as doctor_command

    raise typer.Exit(doctor_command.show(as_json=json))


Env = Annotated[str, typer.Option(help="A Gymnasium environment.")]
Collectors = Annotated[int, typer.Option(min=1, max=256, help="Processes that step environments.")]
Envs = Annotated[int, typer.Option(min=1, help="Environments of each collector.")]
Steps = Annotated[int, typer.Option(min=1, help="End after so many environment steps.")]
Until = Annotated[
    float | None,
    typer.Option(help="End when the mean return is this; when left out, what the environment itself counts as solved."),
]
Seed = Annotated[int, typer.Option(help="Of the networks, the environments and the actions.")]
Device = Annotated[str, typer.Option(help="Where the learner computes.")]
LogDir = Annotated[
    Path | None, typer.Option(help="For the log, the policy and the learning curve; a new one in logs/ when left out.")
]
SaveInterval = Annotated[int, typer.Option(min=1, help="Save the policy every so many iterations.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="A setting of the algorithm, as name=value. Repeatable.")]


@train.command()
def appo(
    env: Env = "CartPole-v1",
    collectors: Collectors = 2,
    envs: Envs = 8,
    steps: Steps = 500_000,
    until_return: Until = None,
    seed: Seed = 0,
    device: Device = "cpu",
    log_dir: LogDir = None,
    save_interval: SaveInterval = 50,
    settings: Set = None,
) -> None:
    """Asynchronous PPO with V-trace: discrete or continuous actions."""
    _train("appo", env, collectors, envs, steps, until_return, seed, device, log_dir, save_interval, settings)


@train.command()
def sac(
    env: Env = "Pendulum-v1",
    collectors: Collectors = 2,
    envs: Envs = 2,
    steps: Steps = 12_000,
    until_return: Until = None,
    seed: Seed = 0,
    device: Device = "cpu",
    log_dir: LogDir = None,
    save_interval: SaveInterval = 50,
    settings: Set = None,
) -> None:
    """Soft actor-critic: continuous actions with bounds."""
    _train("sac", env, collectors, envs, steps, until_return, seed, device, log_dir, save_interval, settings)


def _train(
    algorithm: Literal["appo", "sac"],
    env: str,
    collectors: int,
    envs: int,
    steps: int,
    until_return: float | None,
    seed: int,
    device: str,
    log_dir: Path | None,
    save_interval: int,
    settings: list[str] | None,
) -> None:
    for package in ("torch", "gymnasium", "matplotlib"):  # before minutes of training, not after
        if find_spec(package) is None:
            raise rollway.errors.MissingExtra(
                f"rollway train needs {package}: pip install '.[train]' in the clone of Rollway", name=package
            )
    from rollway.cli.train import session

    given = {}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set takes name=value, not {setting!r}")
        given[name] = value
    given.setdefault("seed", str(seed))
    request = session.TrainRequest(
        algorithm, env, collectors, envs, steps, until_return, device, log_dir, save_interval, given
    )
    raise typer.Exit(session.train(request))
