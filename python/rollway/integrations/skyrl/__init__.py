"""SkyRL as the learner of environments that generate by themselves: their trajectories come through Rollway records.

```text
environment process(es)                                      SkyRL process
Atropos environment ──records: shared memory or TCP──▶ AtroposSHMGenerator.generate() ──▶ RayPPOTrainer.train()
        ▲──────────────── version of the weights ◀──────────── publish, in place of a weight push ◀──────┘
```

SkyRL is not changed: its ``trainer.override_entrypoint`` names `entrypoint`. The public names are imported on first
use, because the import of skyrl takes seconds and the launcher does not need it.

```text
entrypoint.py         builds everything below from SkyRL's configuration
config.py             ``generator.external.*``
generator.py          `AtroposSHMGenerator`: SkyRL's generator
request.py            which trajectories one call of ``generate`` wants
dispatcher.py         gives each waiting call the groups that it asked for
stash.py              whole groups that no call has used yet
trajectory.py         one Atropos record in SkyRL's terms
trainers.py           SkyRL's trainers, which publish a version and push no weights
inference_client.py   `NoOpInferenceClient`: takes the place of an inference engine
errors.py             what goes wrong between an environment and SkyRL
launch.py             starts the trainer and the environments, and stops them
```
"""

from __future__ import annotations

import sys
import typing
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 12):  # SkyRL's pydantic models need the `TypedDict` of Python 3.12
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict

if TYPE_CHECKING:
    from rollway.integrations.skyrl.config import ExternalConfig, ExternalTrainConfig
    from rollway.integrations.skyrl.generator import AtroposSHMGenerator
    from rollway.integrations.skyrl.inference_client import NoOpInferenceClient
    from rollway.integrations.skyrl.launch import launch
    from rollway.integrations.skyrl.trainers import (
        ExternalFullyAsyncRayPPOTrainer,
        ExternalFullyAsyncTrainerSim,
        ExternalRayPPOTrainer,
    )

_HOME = {
    "AtroposSHMGenerator": "generator",
    "ExternalConfig": "config",
    "ExternalFullyAsyncRayPPOTrainer": "trainers",
    "ExternalFullyAsyncTrainerSim": "trainers",
    "ExternalRayPPOTrainer": "trainers",
    "ExternalTrainConfig": "config",
    "NoOpInferenceClient": "inference_client",
    "launch": "launch",
}

__all__ = [
    "AtroposSHMGenerator",
    "ExternalConfig",
    "ExternalFullyAsyncRayPPOTrainer",
    "ExternalFullyAsyncTrainerSim",
    "ExternalRayPPOTrainer",
    "ExternalTrainConfig",
    "NoOpInferenceClient",
    "launch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
