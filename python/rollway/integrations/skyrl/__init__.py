"""SkyRL as the learner of environments that generate by themselves: their trajectories come through Rollway records.

```text
environment process(es)                                      SkyRL process
Atropos environment ──records: shared memory or TCP──▶ AtroposSHMGenerator.generate() ──▶ RayPPOTrainer.train()
        ▲──────────────── version of the weights ◀──────────── publish, in place of a weight push ◀──────┘
```

No fork of SkyRL: `entrypoint` is given to its ``trainer.override_entrypoint``. The names below are imported on first
use, because importing skyrl takes seconds and the launcher does not need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollway.integrations.skyrl import typed_dict

typed_dict.install()

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
