"""What caller and workers say to one another: the kinds of tasks, the flags of answers, and faults."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from gymnasium import Env, Space
from gymnasium.vector import AutoresetMode

from rollway._core import EnvWorker
from rollway.errors import EnvRaised
from rollway.vector_env.layout import Blueprint, Target

# Tasks, by the core's words: 8 bits.
STEP = EnvWorker.STEP
"""Step; answer for all of the worker's environments at once."""
SEND = EnvWorker.SEND
"""Step; answer for each environment as soon as it is done."""
RESET = 3
"""Reset. The seed, the options, and whether the environment has to be made again, come by the pipe."""
RESTORE = 4
"""Begin anew after a fault. The seed, and whether the environment has to be made again, come by the pipe."""

# Flags of an answer, by the core's words: 8 bits.
LETTER = 1
"""There is a letter in shared memory."""
PARCEL = 2
"""A letter that was too long for it: on the pipe."""
FAULT = 4
"""It went wrong: a `Fault` is on the pipe."""
RESTORED = 8
"""The environment was begun anew instead; its last episode ended with a fault."""


@dataclass(frozen=True)
class Orders:
    """What a worker is told when it is started."""

    worker: int
    caller: int
    """Its process id."""
    envs: range
    mode: AutoresetMode
    blueprint: Blueprint | None
    """``None``: tell the spaces first; the blueprint comes by the pipe."""
    name: str | None
    """The segment; comes with the blueprint."""
    targets: tuple[Target, ...] = ()
    """Other places to write to, known before this worker was."""


@dataclass(frozen=True)
class Introduction:
    """What a worker tells about its environments, so that the blueprint can be drawn."""

    observation_spaces: list[Space[Any]]
    action_spaces: list[Space[Any]]
    metadata: dict[str, Any]
    render_mode: str | None

    @classmethod
    def of(cls, envs: Sequence[Env[Any, Any]]) -> Introduction:
        """Of these environments."""
        observations, actions = [env.observation_space for env in envs], [env.action_space for env in envs]
        return cls(observations, actions, dict(envs[0].metadata), envs[0].render_mode)


class CallersMistake(RuntimeError):
    """In a worker: what the caller asked for cannot be done. To begin the environment anew would mend nothing."""


@dataclass(frozen=True)
class Fault:
    """An exception in an environment, told in words that survive the way."""

    summary: str
    """``ValueError: what it said``."""
    traceback: str
    pickled: bytes | None
    """The exception itself, if it can travel."""
    is_callers: bool = False
    """Whether the caller has to know, whatever its policy is."""

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """Told by the worker."""
        is_callers = isinstance(error, CallersMistake)
        summary = str(error) if is_callers else "".join(traceback.format_exception_only(error)).strip()
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)
        except Exception:  # noqa: BLE001 - whatever an exception of the user's does when it is pickled
            pickled = None
        return cls(summary, "".join(traceback.format_exception(error)), pickled, is_callers)

    def cause(self) -> BaseException | None:
        """The exception itself, for ``raise … from``, if this process knows its class."""
        cause: Any = None
        if self.pickled is not None:
            with contextlib.suppress(Exception):
                cause = pickle.loads(self.pickled)
        return cause if isinstance(cause, BaseException) else None


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
