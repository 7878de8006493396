"""Algorithms on Rollway: asynchronous PPO (`AppoRunner`) and soft actor-critic (`SacRunner`), short enough to read.

Each has a learner in this process and collectors in others. Rollouts or transitions go to the learner through shared
memory, and weights come back. They need the extra ``train``.

```text
runner.py            `AlgorithmRunner`: what both runners have in common
appo.py, sac.py      `AppoRunner`, `SacRunner`
appo_collector.py, sac_collector.py   what runs in a collector process; without torch
learner.py           `Learner`: what both learners have in common
appo_learner.py, sac_learner.py       the updates; without processes
vtrace.py            V-trace, for APPO
networks.py          the networks that learners train
acting.py            the forward pass of the actors in numpy, for collectors
policy.py            `Policy`: a trained actor, which acts and can be saved
checkpoints.py       the files of a run, from which another can go on
environment.py       a Gymnasium environment as the algorithms use it
settings.py          `AppoSettings`, `SacSettings`
progress.py          the numbers of a run
```
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollway.errors import need_packages

if TYPE_CHECKING:
    from rollway.algorithms.appo import AppoRunner
    from rollway.algorithms.environment import Environment
    from rollway.algorithms.policy import Policy
    from rollway.algorithms.progress import Progress
    from rollway.algorithms.sac import SacRunner
    from rollway.algorithms.settings import AppoSettings, SacSettings

__all__ = ["AppoRunner", "AppoSettings", "Environment", "Policy", "Progress", "SacRunner", "SacSettings"]

_HOME = {
    "AppoRunner": "appo",
    "AppoSettings": "settings",
    "Environment": "environment",
    "Policy": "policy",
    "Progress": "progress",
    "SacRunner": "sac",
    "SacSettings": "settings",
}


def __getattr__(name: str) -> Any:
    """Imports on use, because a collector imports this package and needs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need_packages("rollway.algorithms", "train", "torch", "gymnasium")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
