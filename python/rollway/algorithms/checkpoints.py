"""Checkpoints: the files of a run in its log directory, and which of them is the newest.

```text
policy.pt      the policy and the state of its training, saved when the run ended
iteration_N    the same, saved on the way
replay.npz     the transitions of SAC, saved when the run ended
```

The runners and `rollway train` write them; `rollway play` reads them.
"""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path

import numpy as np

from rollway.algorithms.policy import Policy
from rollway.errors import InvalidArgument, SystemCallFailed
from rollway.replay.buffer import TransitionBuffer
from rollway.runner import training_log

POLICY = "policy.pt"
REPLAY = "replay.npz"

_ROWS = 10_000  # that are added at once


def holds_run(log_dir: Path) -> bool:
    """Whether there are files of a run in a directory."""
    return bool(_saved_on_the_way(log_dir)) or any(
        (log_dir / name).exists() for name in (POLICY, REPLAY, training_log.FILE_NAME)
    )


def newest(log_dir: Path) -> Path:
    """The newest file with a policy in a log directory."""
    found = _saved_on_the_way(log_dir)
    if (log_dir / POLICY).exists():
        training = Policy.read(log_dir / POLICY)["extra"].get("training", {})
        found[training.get("iteration", math.inf)] = log_dir / POLICY
    if not found:
        raise InvalidArgument(f"there is no checkpoint in {log_dir}: neither {POLICY} nor an iteration_N")
    return found[max(found)]


def save_replay(log_dir: Path, replay: TransitionBuffer) -> None:
    """Writes the transitions of a replay buffer, atomically."""
    path = log_dir / REPLAY
    unfinished = path.with_name(f".{os.getpid()}.{REPLAY}")
    try:
        np.savez(unfinished, **replay.contents())  # type: ignore[arg-type] # the stubs of numpy take no other keywords
        unfinished.replace(path)
    except OSError as error:
        raise SystemCallFailed(
            f"cannot write the replay buffer to {path}: {error.strerror}. The policy is saved. Free some space"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def load_replay(log_dir: Path, replay: TransitionBuffer) -> None:
    """Adds what `save_replay` wrote, if there is such a file."""
    path = log_dir / REPLAY
    if not path.exists():
        return
    try:
        with np.load(path) as file:
            fields = {name: file[name] for name in file.files}
    except (ValueError, zipfile.BadZipFile) as error:
        raise InvalidArgument(f"{path} holds no transitions: {error}. Remove it to fill the buffer again") from error
    for first in range(0, len(fields["rewards"]), _ROWS):
        replay.add(**{name: field[first : first + _ROWS] for name, field in fields.items()})


def _saved_on_the_way(log_dir: Path) -> dict[float, Path]:
    """The files of `Runner.iterations`, by their number."""
    found = {path.name.removeprefix("iteration_"): path for path in log_dir.glob("iteration_*")}
    return {int(number): path for number, path in found.items() if number.isdecimal()}
