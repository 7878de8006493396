"""RunDirectory: where a run of `rollway train` keeps its files, and what it was asked for.

``run.json`` holds the request, so that ``--resume`` needs no option twice. A directory with a run in it is refused
without ``--resume``.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from rollway.algorithms import checkpoints
from rollway.errors import InvalidArgument, SystemCallFailed

FILE_NAME = "run.json"


@dataclass(frozen=True)
class TrainRequest:
    """What the command line asks for."""

    algorithm: Literal["appo", "sac"]
    env: str
    collectors: int
    envs: int
    """Of each collector."""
    steps: int
    until_return: float | None = None
    device: str = "cpu"
    save_interval: int = 50
    wrappers: tuple[str, ...] = ()
    wandb: str | None = None
    wandb_id: str | None = None
    settings: Mapping[str, str] | None = None
    ray: str | None = None
    """The address of a cluster of Ray whose nodes collect."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """The request of an earlier run."""
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            known = {field.name for field in fields(cls)}
            return cls(
                **{key: value for key, value in held.items() if key in known} | {"wrappers": (*held["wrappers"],)}
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InvalidArgument(f"cannot read {path}, which says what the run was asked for: {error}") from error


@dataclass(frozen=True)
class RunDirectory:
    """The directory of one run, and its request."""

    path: Path
    request: TrainRequest
    is_resumed: bool

    @classmethod
    def choose(cls, defaults: TrainRequest, given: Mapping[str, Any], log_dir: Path | None, resume: bool) -> Self:
        """The directory for a request: the defaults, or those of the run that is resumed, with what was given.

        `InvalidArgument` when there is a run already, or none to resume. Writes nothing.
        """
        if not resume:
            request = _changed(defaults, given)
            if log_dir is not None and (checkpoints.holds_run(log_dir) or (log_dir / FILE_NAME).exists()):
                raise InvalidArgument(
                    f"{log_dir} holds a run. Add --resume to go on with it, or choose another --log-dir"
                )
            return cls(log_dir or _fresh(request), request, False)
        if log_dir is None:
            raise InvalidArgument("--resume needs --log-dir: the directory of the run to go on with")
        if not (log_dir / FILE_NAME).exists():
            raise InvalidArgument(
                f"{log_dir} holds no run of `rollway train` to go on with. Start one without --resume"
            )
        before = TrainRequest.read(log_dir / FILE_NAME)
        for option, old, new in (
            ("the algorithm", before.algorithm, defaults.algorithm),
            ("--env", before.env, given.get("env")),
            ("--wrapper", before.wrappers, given.get("wrappers")),
        ):
            if new is not None and new != old:
                raise InvalidArgument(f"the run in {log_dir} has {option} {_shown(old)}, not {_shown(new)}")
        try:
            checkpoints.newest(log_dir)
        except InvalidArgument as error:
            raise InvalidArgument(f"{error}. Start the run anew, in another --log-dir") from error
        return cls(log_dir, _changed(before, given), True)

    def write(self) -> None:
        """Makes the directory, and writes the request."""
        path = self.path / FILE_NAME
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(asdict(self.request), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise SystemCallFailed(f"cannot write {path}: {error.strerror}. Choose another --log-dir") from error


def _changed(request: TrainRequest, given: Mapping[str, Any]) -> TrainRequest:
    settings = {**(request.settings or {}), **given.get("settings", {})}
    return replace(request, **{**given, "settings": settings})


def _fresh(request: TrainRequest) -> Path:
    """A directory that is not there yet. Runs may be started in the same second."""
    name = re.sub(r"[^\w.-]+", "_", request.env)
    stem = Path("logs") / f"{request.algorithm}-{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = stem, 1
    while path.exists():
        number += 1
        path = stem.with_name(f"{stem.name}-{number}")
    return path


def _shown(value: str | tuple[str, ...]) -> str:
    return repr(value) if isinstance(value, str) else " ".join(value) or "none"
