"""TrainingLog: numbers of a run, one line of JSON per iteration, and TensorBoard where it is installed.

`Runner` writes one per call of `learn`; `read` gives the numbers back to plots and tests, and `cut` prepares it for a
run that goes on from a checkpoint. It prints nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollway.errors import SystemCallFailed
from rollway.segment.closes_on_exit import ClosesOnExit

FILE_NAME = "progress.jsonl"


class TrainingLog(ClosesOnExit):
    """Appends to ``progress.jsonl`` in ``log_dir``, which it makes. Each line is whole once `write` has returned.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as log_dir:
    ...     with TrainingLog(log_dir) as log:
    ...         log.write(1, {"loss": 0.5})
    ...     [(row["iteration"], row["loss"]) for row in read(log_dir)]
    [(1, 0.5)]
    """

    def __init__(self, log_dir: str | Path) -> None:
        self.log_dir = Path(log_dir)
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._file = (self.log_dir / FILE_NAME).open("a", buffering=1, encoding="utf-8")
        self._full = False
        self._board = _tensorboard(self.log_dir)

    def write(self, iteration: int, numbers: Mapping[str, float]) -> None:
        """Writes the numbers of one iteration."""
        row = {"iteration": iteration, "time": time.time(), **{name: float(value) for name, value in numbers.items()}}
        try:
            self._file.write(json.dumps(row) + "\n")
        except OSError as error:
            self._full = True
            raise SystemCallFailed(
                f"cannot write to {self.log_dir / FILE_NAME}: {error.strerror}. Free some space, or choose another log "
                "directory"
            ) from error
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, float(value), iteration)

    def close(self) -> None:
        """Closes the files. Safe to call twice."""
        # What could not be written before cannot be written now; `write` has raised it.
        with contextlib.suppress(OSError) if self._full else contextlib.nullcontext():
            self._file.close()
        board, self._board = self._board, None
        if board is not None:
            board.close()


def read(log_dir: str | Path) -> list[dict[str, float]]:
    """The lines of a log, oldest first. A last line that was cut short by a death is left out."""
    text = (Path(log_dir) / FILE_NAME).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def cut(log_dir: str | Path, last: int) -> None:
    """Removes the lines after iteration ``last``: those of iterations that will be made again."""
    path = Path(log_dir) / FILE_NAME
    if not path.exists():
        return
    kept = [json.dumps(row) + "\n" for row in read(log_dir) if row["iteration"] <= last]
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text("".join(kept), encoding="utf-8")
    unfinished.replace(path)


def _tensorboard(log_dir: Path) -> Any:
    """A writer, or ``None`` when tensorboard is not installed. It needs no torch, whose writer is slow to import."""
    try:
        from tensorboard.summary import Writer
    except ImportError:
        return None
    return Writer(str(log_dir))
