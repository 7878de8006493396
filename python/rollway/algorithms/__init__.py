"""Algorithms on Rollway: asynchronous PPO (`AppoRunner`) and soft actor-critic (`SacRunner`), short enough to read.

Each is a learner in this process and collectors in others: rollouts or transitions come up through shared memory, and
weights go down. They need the extra ``train``.

```text
runner.py            `AlgorithmRunner`: what both runners have in common
appo.py, sac.py      `AppoRunner`, `SacRunner`
appo_collector.py, sac_collector.py   what runs in a collector process; without torch
appo_learner.py, sac_learner.py       the updates; without processes
vtrace.py            V-trace, for APPO
networks.py          the networks that learners train
acting.py            the forward pass of the actors in numpy, for collectors
policy.py            `Policy`: a trained actor, as a file and as something that acts
environment.py       what the algorithms must know of an environment
settings.py          `AppoSettings`, `SacSettings`
progress.py          the numbers of a run
```
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rollway.errors import MissingExtra

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
    """Imports on use: a collector's process imports this package, and does without torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for package in ("torch", "gymnasium"):
        if find_spec(package) is None:
            raise MissingExtra(
                f"rollway.algorithms needs {package}: pip install '.[train]' in the clone of Rollway", name=package
            )
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
