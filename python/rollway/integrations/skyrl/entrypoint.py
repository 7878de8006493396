"""The entrypoint of external generation, for SkyRL's ``trainer.override_entrypoint``.

```text
python -m skyrl.train.entrypoints.main_base trainer.override_entrypoint=rollway.integrations.skyrl.entrypoint \\
    generator.inference_engine.backend=none generator.external.shm_name=run1 …
```

or ``python -m rollway.integrations.skyrl …``, which does the same, and is the only way on Python 3.11. The training
loop runs in a Ray task, as SkyRL's own does; a simulated one needs no Ray and runs in this process. SIGTERM and Ctrl-C
close the records first: environments end, and no segment is left.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

import ray
from skyrl.train.entrypoints.main_base import BasePPOExp, skyrl_entrypoint
from skyrl.train.utils.utils import initialize_ray

from rollway.integrations.skyrl.config import prepare
from rollway.integrations.skyrl.generator import AtroposSHMGenerator
from rollway.integrations.skyrl.inference_client import NoOpInferenceClient
from rollway.integrations.skyrl.trainers import (
    ExternalFullyAsyncRayPPOTrainer,
    ExternalFullyAsyncTrainerSim,
    ExternalRayPPOTrainer,
)

_LEAVING_S = 5.0  # how long the training loop may take to end


class ExternalExp(BasePPOExp):
    """SkyRL's experiment, with records in place of the inference engine."""

    generator: AtroposSHMGenerator | None = None

    def get_inference_client(self) -> NoOpInferenceClient:
        """No engine is started."""
        return NoOpInferenceClient(self.cfg.trainer.policy.model.path)

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> AtroposSHMGenerator:
        """Makes the records, to which environments can attach from then on."""
        self.generator = AtroposSHMGenerator.from_config(cfg.generator)
        return self.generator

    def get_trainer(self, cfg: Any, *args: Any, **kwargs: Any) -> Any:
        """The trainer that the configuration asks for, in its external form."""
        return trainer_class(cfg)(cfg, *args, **kwargs)

    def _setup_trainer(self) -> Any:
        if not self.cfg.trainer.fully_async.simulate_training:
            return super()._setup_trainer()
        # SkyRL imports its workers here even when it builds none; they need CUDA libraries.
        client = self.get_inference_client()
        self.trainer = self.get_trainer(
            cfg=self.cfg,
            tracker=self.get_tracker(),
            tokenizer=self.tokenizer,
            train_dataset=self.train_dataset,
            eval_dataset=self.eval_dataset,
            inference_engine_client=client,
            generator=self.get_generator(self.cfg, self.tokenizer, client),
            colocate_pg=self.colocate_pg,
        )
        self.trainer.trajectory_logger = self.get_trajectory_logger()
        return self.trainer

    def run(self) -> None:
        """Trains; then closes the records, which tells the environments to stop."""
        try:
            super().run()
        finally:
            if self.generator is not None:
                self.generator.close()


def trainer_class(cfg: Any) -> type[Any]:
    """The trainer for a configuration."""
    if cfg.trainer.fully_async.simulate_training:
        return ExternalFullyAsyncTrainerSim
    return ExternalFullyAsyncRayPPOTrainer if cfg.trainer.fully_async.enabled else ExternalRayPPOTrainer


@ray.remote(num_cpus=1)
def external_entrypoint(cfg: Any) -> None:
    """The training loop, in a task of its own."""
    ExternalExp(cfg).run()


def main() -> None:
    """Reads the command line and trains."""
    cfg: Any = prepare(sys.argv[1:])
    if cfg.generator.external.enabled and cfg.trainer.fully_async.simulate_training:
        _end_by_sigterm()
        ExternalExp(cfg).run()
        return
    initialize_ray(cfg)
    if not cfg.generator.external.enabled:
        ray.get(skyrl_entrypoint.remote(cfg))
        return
    _end_by_sigterm()  # after Ray, which sets a handler of its own
    training = external_entrypoint.remote(cfg)
    try:
        ray.get(training)
    except (KeyboardInterrupt, SystemExit):
        ray.cancel(
            training
        )  # raises KeyboardInterrupt there; without it, Ray kills the task before it closes the records
        ray.wait([training], timeout=_LEAVING_S)
        raise


def _end_by_sigterm() -> None:
    """Makes SIGTERM raise SystemExit, so that ``finally`` blocks run."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
