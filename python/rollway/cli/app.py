"""The commands and their options. Each calls the module that does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import rollway
from rollway.cli.console import console, plain
from rollway.errors import need_packages

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
    """Runs the command of the arguments, and returns its exit status."""
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
    """List the segments in shared memory: which process made them, and which are attached."""
    from rollway.cli import listing

    listing.show(as_json=json)


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove the segments to which no process is attached. A live one is never touched."""
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
Steps = Annotated[int, typer.Option(min=1, help="End after this many environment steps.")]
Until = Annotated[
    float | None,
    typer.Option(help="End at this mean return; by default at the one that solves the environment."),
]
Seed = Annotated[int, typer.Option(help="Of the networks, the environments and the actions.")]
Device = Annotated[str, typer.Option(help="Where the learner computes.")]
LogDir = Annotated[
    Path | None, typer.Option(help="For the log, the policy and the learning curve; by default a new one in logs/.")
]
SaveInterval = Annotated[int, typer.Option(min=1, help="Save the policy once in this many iterations.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="A setting of the algorithm, as name=value. Repeatable.")]


def _add_training(
    algorithm: Literal["appo", "sac"], summary: str, default_env: str, num_envs: int, length: int
) -> None:
    @train.command(algorithm, help=summary)
    def command(
        env: Env = default_env,
        collectors: Collectors = 2,
        envs: Envs = num_envs,
        steps: Steps = length,
        until_return: Until = None,
        seed: Seed = 0,
        device: Device = "cpu",
        log_dir: LogDir = None,
        save_interval: SaveInterval = 50,
        settings: Set = None,
    ) -> None:
        need_packages("rollway train", "train", "torch", "gymnasium", "matplotlib")  # before minutes of training
        from rollway.cli.train import session

        given = {"seed": str(seed)} | _named(settings or [])
        request = session.TrainRequest(
            algorithm, env, collectors, envs, steps, until_return, device, log_dir, save_interval, given
        )
        raise typer.Exit(session.train(request))


_add_training("appo", "Asynchronous PPO with V-trace: discrete or continuous actions.", "CartPole-v1", 8, 500_000)
_add_training("sac", "Soft actor-critic: continuous actions with bounds.", "Pendulum-v1", 2, 12_000)


def _named(settings: list[str]) -> dict[str, str]:
    named = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set takes name=value, not {setting!r}")
        named[name] = value
    return named
