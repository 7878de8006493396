"""SkyRL's trainers for external generation: no weights are pushed; their version is published instead.

`ExternalGeneration` is a mixin before one of SkyRL's trainers, which stay unchanged otherwise. The version is the
trainer's ``global_step``, so it continues when training resumes from a checkpoint.
"""

from __future__ import annotations

from typing import Any

from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
from skyrl.train.fully_async_trainer_sim import FullyAsyncTrainerSim
from skyrl.train.trainer import RayPPOTrainer

from rollway import InvalidArgument
from rollway.integrations.skyrl.generator import AtroposSHMGenerator


class ExternalGeneration:
    """Mixin: a trainer whose generator is an `AtroposSHMGenerator`."""

    generator: AtroposSHMGenerator
    inference_engine_client: Any
    dispatch: Any
    global_step: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.generator, AtroposSHMGenerator):
            raise InvalidArgument(
                f"{type(self).__name__} needs an AtroposSHMGenerator, to tell the environments which weights are the "
                f"newest; its generator is a {type(self.generator).__name__}"
            )

    def init_weight_sync_state(self) -> None:
        """Called by ``train`` before the first step: replaces the call that pushes weights."""
        self.dispatch.save_weights_for_sampler = self.publish_weights

    async def publish_weights(self, model_id: str | None = None) -> None:
        """Publishes the version of the weights. It does not move the weights to the environments."""
        self.inference_engine_client.increment_weight_version()
        self.generator.publish(self.global_step)


class ExternalRayPPOTrainer(ExternalGeneration, RayPPOTrainer):
    """SkyRL's synchronous trainer."""


class ExternalFullyAsyncRayPPOTrainer(ExternalGeneration, FullyAsyncRayPPOTrainer):
    """SkyRL's fully asynchronous trainer: many ``generate`` calls at once."""


class ExternalFullyAsyncTrainerSim(ExternalGeneration, FullyAsyncTrainerSim):
    """SkyRL's trainer without a model (``fully_async.simulate_training=true``), to time the trajectories."""

    def init_weight_sync_state(self) -> None:
        """Keeps the simulated pause, and publishes after it."""
        FullyAsyncTrainerSim.init_weight_sync_state(self)
        pause = self.dispatch.save_weights_for_sampler

        async def pause_and_publish() -> None:
            await pause()
            self.generator.publish(self.global_step)

        self.dispatch.save_weights_for_sampler = pause_and_publish
