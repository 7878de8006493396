"""The commands and their options. Each calls the module that does the work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

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

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Segments; all if none is given.")]
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


@app.command()
def top(
    names: Names = None,
    interval: Annotated[float, typer.Option(min=0.05, max=60, help="Seconds from look to look.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame, and end.")] = False,
    json: Json = False,
) -> None:
    """Watch segments live: rates, fill, who waits for whom. It only reads, also when the processes hang."""
    from rollway.cli import top as top_command

    raise typer.Exit(top_command.show(names or [], interval, once=once, as_json=json))


@app.command()
def why(
    names: Names = None,
    seconds: Annotated[float, typer.Option(min=0.01, max=600, help="How long to look.")] = 2.0,
    json: Json = False,
) -> None:
    """Say who is the bottleneck of a segment, and for how long, in three lines. It only reads."""
    from rollway.cli import why as why_command

    raise typer.Exit(why_command.show(names or [], seconds, as_json=json))


@app.command()
def peek(
    name: Annotated[str, typer.Argument(help="A segment with samples, records, rows or weights.")],
    count: Annotated[int, typer.Option("-n", min=1, max=10_000, help="How many.")] = 3,
    seconds: Annotated[float, typer.Option(min=0, max=600, help="How long to look for one, if there is none.")] = 1.0,
    json: Json = False,
) -> None:
    """Show the newest samples, records, rows or weights without consuming them: ranges, NaNs, histograms, metadata."""
    from rollway.cli import peek as peek_command

    peek_command.show(name, count, seconds, as_json=json)


@app.command()
def dashboard(
    names: Names = None,
    host: Annotated[str, typer.Option(help="Where to listen. Beyond loopback, a token guards it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8090,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token; beyond loopback one is made if none is given.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds from look to look.")] = 1.0,
) -> None:
    """Watch segments in a web browser: plots over the last hour, a page per segment. It only reads."""
    need_packages("rollway dashboard", "dashboard", "nicegui")
    from rollway.cli import dashboard as dashboard_command

    raise typer.Exit(dashboard_command.show(names or [], host, port, token_file, interval))


@app.command()
def metrics(
    names: Names = None,
    host: Annotated[str, typer.Option(help="Where to listen. Any address but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 9464,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ROLLWAY_METRICS_TOKEN",
            show_envvar=True,
            help="What requests must have, as a bearer token. Other users see the command line: prefer the variable.",
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Encrypt, with this certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The private key of the certificate (PEM).")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print them, and end.")] = False,
) -> None:
    """Serve the metrics of all segments for Prometheus, as OpenMetrics. It needs no code in the run, and only reads."""
    need_packages("rollway metrics", "metrics", "prometheus_client")
    from rollway.cli import metrics as metrics_command

    if once:
        metrics_command.show(names or [])
    else:
        metrics_command.serve(names or [], host, port, token, tls_cert, tls_key)


# Options of `rollway train` have no default here: what is not given is as in the run that is resumed.
Env = Annotated[str | None, typer.Option(help="A Gymnasium environment.")]
Wrapper = Annotated[
    list[str] | None,
    typer.Option(help="Wrap each environment, as gymnasium.wrappers:FlattenObservation; the first first. Repeatable."),
]
Collectors = Annotated[
    int | None, typer.Option(min=1, max=256, show_default="2", help="Processes that step environments.")
]
Envs = Annotated[int | None, typer.Option(min=1, help="Environments of each collector.")]
Steps = Annotated[int | None, typer.Option(min=1, help="End after this many environment steps.")]
Until = Annotated[
    float | None,
    typer.Option(help="End at this mean return; by default at the one that solves the environment."),
]
Seed = Annotated[int | None, typer.Option(show_default="0", help="Of the networks, the environments and the actions.")]
Device = Annotated[str | None, typer.Option(show_default="cpu", help="Where the learner computes.")]
LogDir = Annotated[
    Path | None, typer.Option(help="For the log, the policy and the learning curve; by default a new one in logs/.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --log-dir, from its newest checkpoint.")]
SaveInterval = Annotated[
    int | None, typer.Option(min=1, show_default="50", help="Save a checkpoint once in this many iterations.")
]
Wandb = Annotated[
    str | None, typer.Option(metavar="PROJECT", help="Also write the numbers to this project of Weights & Biases.")
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Collect on the nodes of this Ray cluster: auto, or host:port. Run this on one of them. Only appo.",
    ),
]
Set = Annotated[list[str] | None, typer.Option("--set", help="A setting of the algorithm, as name=value. Repeatable.")]


def _add_training(
    algorithm: Literal["appo", "sac"], summary: str, default_env: str, num_envs: int, length: int
) -> None:
    defaults = f"By default {default_env}, 2 collectors with {num_envs} environments each, {length:,} steps."

    @train.command(algorithm, help=f"{summary} {defaults}")
    def command(
        env: Env = None,
        wrapper: Wrapper = None,
        collectors: Collectors = None,
        envs: Envs = None,
        steps: Steps = None,
        until_return: Until = None,
        seed: Seed = None,
        device: Device = None,
        log_dir: LogDir = None,
        resume: Resume = False,
        save_interval: SaveInterval = None,
        wandb: Wandb = None,
        ray: Ray = None,
        settings: Set = None,
    ) -> None:
        need_packages("rollway train", "train", "torch", "gymnasium", "matplotlib")  # before minutes of training
        from rollway.cli.train import run_directory, session

        options: dict[str, Any] = {
            "env": env,
            "wrappers": tuple(wrapper) if wrapper else None,
            "collectors": collectors,
            "envs": envs,
            "steps": steps,
            "until_return": until_return,
            "device": device,
            "save_interval": save_interval,
            "wandb": wandb,
            "ray": ray,
        }
        given = {name: value for name, value in options.items() if value is not None}
        given["settings"] = ({} if seed is None else {"seed": str(seed)}) | _named(settings or [])
        _import_from_here()
        request = run_directory.TrainRequest(algorithm, default_env, 2, num_envs, length)
        raise typer.Exit(session.train(request, given, log_dir, resume))


_add_training("appo", "Asynchronous PPO with V-trace: discrete or continuous actions.", "CartPole-v1", 8, 500_000)
_add_training("sac", "Soft actor-critic: continuous actions with bounds.", "Pendulum-v1", 2, 12_000)


@app.command()
def play(
    run: Annotated[Path, typer.Argument(help="The log directory of a run, or the file of a policy.")],
    episodes: Annotated[int, typer.Option(min=1, help="How many to play.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of the first episode; each has its own.")] = 0,
    gif: Annotated[Path | None, typer.Option(help="Write the first episode to this file, as an animation.")] = None,
    max_steps: Annotated[int, typer.Option(min=1, help="End an episode after this many steps.")] = 10_000,
    json: Json = False,
) -> None:
    """Play episodes with a trained policy, greedily, and print their returns."""
    need_packages("rollway play", "train", "torch", "gymnasium", "PIL")
    from rollway.cli import play as play_command

    _import_from_here()
    raise typer.Exit(play_command.show(run, episodes, seed, gif, max_steps, as_json=json))


def _import_from_here() -> None:
    """Environments and wrappers may be modules of the current directory, as with `python -m`."""
    if not {"", str(Path.cwd())}.intersection(sys.path):
        sys.path.insert(0, str(Path.cwd()))


def _named(settings: list[str]) -> dict[str, str]:
    named = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set takes name=value, not {setting!r}")
        named[name] = value
    return named
