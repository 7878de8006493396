"""Protocol between caller and workers: kinds of tasks, flags of answers, settings, spaces and faults."""

from __future__ import annotations

import contextlib
import io
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from gymnasium import Env, Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from rollway._core import EnvWorker
from rollway.errors import EnvRaised, InvalidArgument
from rollway.vector_env.errors import SpacesDiffer, env_raised
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
    """The settings of a worker process."""

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
    """The spaces of a worker's environments."""

    observation_spaces: list[Space[Any]]
    action_spaces: list[Space[Any]]
    metadata: dict[str, Any]
    render_mode: str | None

    @classmethod
    def of(cls, envs: Sequence[Env[Any, Any]]) -> EnvDescriptions:
        """The description of these environments."""
        observations, actions = [env.observation_space for env in envs], [env.action_space for env in envs]
        return cls(observations, actions, dict(envs[0].metadata), envs[0].render_mode)


ObservationMode = str | tuple[Space[Any], Space[Any]]
"""``"same"``, ``"different"``, or the batched space and the single one."""


@dataclass(frozen=True)
class CommonSpaces:
    """The spaces of a vector environment, made from those of its environments, which have to match."""

    single_observation_space: Space[Any]
    single_action_space: Space[Any]
    observation_space: Space[Any]
    action_space: Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None

    @classmethod
    def of(cls, descriptions: Sequence[EnvDescriptions], mode: ObservationMode) -> CommonSpaces:
        """Compares the descriptions of all workers. Raises `SpacesDiffer` when they differ."""
        observations = [space for description in descriptions for space in description.observation_spaces]
        actions = [space for description in descriptions for space in description.action_spaces]
        is_pair = isinstance(mode, tuple) and len(mode) == 2 and all(isinstance(space, Space) for space in mode)
        if not is_pair and mode not in ("same", "different"):
            raise InvalidArgument(f"observation_mode is {mode!r}; it must be 'same', 'different' or a pair of spaces")
        single = mode[1] if isinstance(mode, tuple) else observations[0]
        for env, (observation, action) in enumerate(zip(observations, actions, strict=True)):
            if mode == "same" and observation != single:
                raise SpacesDiffer(
                    f"environment {env} has the observation space {observation}, environment 0 has {single}. If that "
                    "is intended, use observation_mode='different'"
                )
            if mode != "same" and not is_space_dtype_shape_equiv(observation, single):
                raise SpacesDiffer(
                    f"the observations of environment {env}, {observation}, do not have the shape and dtype of {single}"
                )
            if action != actions[0]:
                raise SpacesDiffer(f"environment {env} has the action space {action}, environment 0 has {actions[0]}")
        if isinstance(mode, tuple):
            batched: Space[Any] = mode[0]
        elif mode == "same":
            batched = batch_space(single, len(observations))
        else:
            batched = batch_differing_spaces(observations)
        first = descriptions[0]
        action_space = batch_space(actions[0], len(actions))
        return cls(single, actions[0], batched, action_space, first.metadata, first.render_mode)


class CallerError(RuntimeError):
    """Raised in a worker for a request that cannot be done. A restart of the environment would not help."""


@dataclass(frozen=True)
class Fault:
    """An exception in an environment, in a form that can always be pickled."""

    summary: str
    """``ValueError: its text``."""
    traceback: str
    pickled: bytes | None
    """The exception itself, as it is or in parts, or its class, if it can be pickled."""
    is_caller_error: bool = False
    """Whether it is raised to the caller under any policy."""

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """The fault that a worker reports for an exception."""
        is_caller_error = isinstance(error, CallerError)
        summary = str(error) if is_caller_error else "".join(traceback.format_exception_only(error)).strip()
        parts = ExceptionParts(type(error), error.args, dict(vars(error)))
        pickled = _pickled(error) or _pickled(parts) or _pickled(type(error))
        return cls(summary, "".join(traceback.format_exception(error)), pickled, is_caller_error)

    def raised(self) -> BaseException | type[BaseException] | None:
        """The exception itself, or its class, if this process knows it."""
        raised: Any = None
        if self.pickled is not None:
            with contextlib.suppress(Exception):
                raised = _unpickled(self.pickled)
        if isinstance(raised, ExceptionParts):
            with contextlib.suppress(Exception):
                return raised.exception()
            raised = raised.kind
        return raised if isinstance(raised, BaseException | type) else None

    def cause(self) -> BaseException | None:
        """The exception itself, for ``raise … from``."""
        raised = self.raised()
        return raised if isinstance(raised, BaseException) else None


class ExceptionParts(NamedTuple):
    """An exception whose class cannot be called with its ``args``, as one with several arguments of its own."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    attributes: dict[str, Any]

    def exception(self) -> BaseException:
        """The exception, made without its class's ``__init__``."""
        error = self.kind.__new__(self.kind, *self.args)
        error.args = self.args
        vars(error).update(self.attributes)
        return error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A spawned worker has the main script under another name."""
        return super().find_class("__main__" if module == "__mp_main__" else module, name)


def _unpickled(pickled: bytes) -> Any:
    return _Unpickler(io.BytesIO(pickled)).load()


def _pickled(error: BaseException | type[BaseException] | ExceptionParts) -> bytes | None:
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # noqa: BLE001 - a user's exception may raise anything when it is pickled
        return None
    return pickled


RESTART_ADVICE = "Use restart=RestartPolicy.up_to(3) to restart its environments while the others continue"


def describe_envs(envs: Sequence[int]) -> str:
    """The numbers of environments in words.

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
    text = f"{describe_envs(envs)} {what}: {fault.summary}\n\nIn the worker:\n{fault.traceback}"
    raised = fault.raised()
    raise env_raised(text, envs, raised) from (raised if isinstance(raised, BaseException) else None)
