"""Algorithms on Rollway: asynchronous PPO (`AppoRunner`) and soft actor-critic (`SacRunner`), short enough to read.

Each is a learner in this process and collectors in others: rollouts or transitions come up through shared memory, and
weights go down. They need the extra ``rollway[train]``.
"""

from __future__ import annotations

from importlib.util import find_spec

from rollway.errors import MissingExtra

__all__ = ["AppoRunner", "AppoSettings", "Environment", "Policy", "Progress", "SacRunner", "SacSettings"]

for _package in ("torch", "gymnasium"):
    if find_spec(_package) is None:
        raise MissingExtra(f"rollway.algorithms needs {_package}: pip install 'rollway[train]'", name=_package)

from rollway.algorithms.appo import AppoRunner  # noqa: E402 - after the check
from rollway.algorithms.environment import Environment  # noqa: E402
from rollway.algorithms.policy import Policy  # noqa: E402
from rollway.algorithms.progress import Progress  # noqa: E402
from rollway.algorithms.sac import SacRunner  # noqa: E402
from rollway.algorithms.settings import AppoSettings, SacSettings  # noqa: E402
