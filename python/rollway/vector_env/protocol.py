"""What caller and workers tell each other: the kinds of tasks, the flags of answers, settings, spaces and faults.

It also words the errors about environments. It neither sends nor waits.
"""

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
from rollway.vector_env.layout import RolloutTarget, SharedLayout

# Tasks: 8 bits in the core's words.
STEP = EnvWorker.STEP
"""Step; answer for all of the worker's environments at once."""
SEND = EnvWorker.SEND
"""Step; answer for each environment as soon as it is done."""
RESET = 3
"""Reset. The seed, the options, and whether the environment has to be made again, come by the pipe."""
RESTORE = 4
"""Restart after a fault. The seed, and whether the environment has to be made again, come by the pipe."""

# Flags of an answer: 8 bits in the core's words.
INLINE = 1
"""The message of the environment is in shared memory."""
OVERFLOW = 2
"""The message was too long for shared memory, and is on the pipe."""
FAULT = 4
"""The task failed: a `Fault` is on the pipe."""
RESTORED = 8
"""The environment was restarted instead; its last episode ended with a fault."""


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker process gets when it starts."""

    worker: int
    caller: int
    """The caller's process id."""
    envs: range
    mode: AutoresetMode
    shared_layout: SharedLayout | None
    """``None``: the worker reports its spaces first, and gets the layout by the pipe."""
    name: str | None
    """The name of the segment; comes with the layout."""
    targets: tuple[RolloutTarget, ...] = ()
    """Slots of rings that the workers before it knew."""


@dataclass(frozen=True)
class EnvDescriptions:
    """What a worker reports about its environments, from which the layout is made."""

    observation_spaces: list[Space[Any]]
    action_spaces: list[Space[Any]]
    metadata: dict[str, Any]
    render_mode: str | None

    @classmethod
    def of(cls, envs: Sequence[Env[Any, Any]]) -> EnvDescriptions:
        """The description of these environments."""
        observations, actions = [env.observation_space for env in envs], [env.action_space for env in envs]
        return cls(observations, actions, dict(envs[0].metadata), envs[0].render_mode)


class CallerError(RuntimeError):
    """Raised in a worker for a request that cannot be done. A restart of the environment would not help."""


@dataclass(frozen=True)
class Fault:
    """An exception in an environment, in a form that can always be pickled."""

    summary: str
    """``ValueError: its text``."""
    traceback: str
    pickled: bytes | None
    """The exception itself, if it can be pickled."""
    is_caller_error: bool = False
    """Whether it is raised to the caller under any policy."""

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """The fault that a worker reports for an exception."""
        is_caller_error = isinstance(error, CallerError)
        summary = str(error) if is_caller_error else "".join(traceback.format_exception_only(error)).strip()
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)
        except Exception:  # noqa: BLE001 - a user's exception may raise anything when it is pickled
            pickled = None
        return cls(summary, "".join(traceback.format_exception(error)), pickled, is_caller_error)

    def cause(self) -> BaseException | None:
        """The exception itself, for ``raise … from``, if this process knows its class."""
        cause: Any = None
        if self.pickled is not None:
            with contextlib.suppress(Exception):
                cause = pickle.loads(self.pickled)
        return cause if isinstance(cause, BaseException) else None


RESTART_ADVICE = "Use restart=RestartPolicy.up_to(3) to have its environments begun anew while the others go on"


def describe_envs(envs: Sequence[int]) -> str:
    """Environments in words, for messages.

    >>> describe_envs([3]), describe_envs([0, 1, 2]), describe_envs([0, 2])
    ('environment 3', 'environments 0 to 2', 'environments 0, 2')
    """
    if len(envs) == 1:
        return f"environment {envs[0]}"
    if list(envs) == list(range(envs[0], envs[-1] + 1)):
        return f"environments {envs[0]} to {envs[-1]}"
    return f"environments {', '.join(map(str, envs))}"


def raise_fault(envs: list[int], fault: Fault, what: str) -> NoReturn:
    """Raises the fault of environments in the caller's process."""
    if fault.is_caller_error:
        raise EnvRaised(f"{describe_envs(envs)} was left as it was: {fault.summary}", envs)
    told = f"{describe_envs(envs)} {what}: {fault.summary}\n\nIn the worker:\n{fault.traceback}"
    raise EnvRaised(told, envs) from fault.cause()
