"""WandbLog: the numbers of a run in Weights & Biases, where that is installed, for ``--wandb``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Self

from rollway.cli import signals
from rollway.cli.train.run_directory import RunDirectory
from rollway.errors import MissingExtra


class WandbLog:
    """One run of Weights & Biases. A run that goes on writes to the same one.

    Args:
        directory: The directory of the run: its name is the name there, and offline files go into it.
        config: The settings of the algorithm.
    """

    def __init__(self, directory: RunDirectory, config: Mapping[str, Any]) -> None:
        self._directory, self._config = directory, config
        self.run: Any = None

    @staticmethod
    def check() -> None:
        """`MissingExtra` when the package is not installed."""
        if find_spec("wandb") is None:
            raise MissingExtra("--wandb needs wandb: pip install wandb", name="wandb")

    def __enter__(self) -> Self:
        import wandb

        request = self._directory.request
        with signals.deferred():
            self.run = wandb.init(
                project=request.wandb,
                id=request.wandb_id,
                name=self._directory.path.name,
                dir=str(self._directory.path),
                config={**vars(request), **self._config},
                resume="allow",
                settings=wandb.Settings(console="off"),
            )
            self.run.define_metric("*", step_metric="env_steps")
        return self

    def log(self, numbers: Mapping[str, float]) -> None:
        """Writes the numbers of one iteration."""
        with signals.deferred():  # the package waits for ever for what an exception has interrupted
            self.run.log(dict(numbers))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with signals.deferred():
            self.run.finish(exit_code=int(kind is not None))
