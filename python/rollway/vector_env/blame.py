"""Whom an error about environments names, and in which words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from rollway.errors import EnvRaised
from rollway.vector_env.protocol import Fault

ADVICE = "Use restart=FaultPolicy() to have its environments begun anew while the others go on"


def named(envs: Sequence[int]) -> str:
    """Environments, for people.

    >>> named([3]), named([0, 1, 2]), named([0, 2])
    ('environment 3', 'environments 0 to 2', 'environments 0, 2')
    """
    if len(envs) == 1:
        return f"environment {envs[0]}"
    if list(envs) == list(range(envs[0], envs[-1] + 1)):
        return f"environments {envs[0]} to {envs[-1]}"
    return f"environments {', '.join(map(str, envs))}"


def raise_fault(envs: list[int], fault: Fault, what: str) -> NoReturn:
    """Raises what environments have raised in their worker."""
    if fault.is_callers:
        raise EnvRaised(f"{named(envs)} was left as it was: {fault.summary}", envs)
    told = f"{named(envs)} {what}: {fault.summary}\n\nIn the worker:\n{fault.traceback}"
    raise EnvRaised(told, envs) from fault.cause()
