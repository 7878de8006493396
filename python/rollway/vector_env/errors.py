"""Errors of vector environments that are also Gymnasium's, so that programs written for `AsyncVectorEnv` catch them.

Each is one of `rollway.errors`, too, which does not import Gymnasium. `env_raised` makes the `EnvRaised` that is also
an exception of the environment's own type. Only `rollway.vector_env` uses it.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Sequence

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, CustomSpaceError, NoAsyncCallError

from rollway.errors import ConnectionClosedError, EnvRaised, InvalidArgument, WaitTimeout


class CallPending(InvalidArgument, AlreadyPendingCallError):
    """A step or a reset is under way. ``name`` says which."""

    def __init__(self, message: str, name: str = "step") -> None:
        Exception.__init__(self, message)
        self.name = name


class NoCallPending(InvalidArgument, NoAsyncCallError):
    """There is nothing to wait for. ``name`` says what was awaited."""

    def __init__(self, message: str, name: str = "step") -> None:
        Exception.__init__(self, message)
        self.name = name


class VectorEnvClosed(ConnectionClosedError, ClosedEnvironmentError):
    """The vector environment is closed."""


class SpacesDiffer(InvalidArgument, RuntimeError):
    """The environments do not have one space in common."""


class CustomSpace(InvalidArgument, CustomSpaceError):
    """A space that is none of Gymnasium's, where one of these is needed."""


class ResultsTimeout(WaitTimeout, multiprocessing.TimeoutError):
    """The results are not there in time."""


_KEPT_PLAIN = (StopIteration, StopAsyncIteration)
"""Would end a loop without a word, where they are raised in an iterator."""


def env_raised(message: str, envs: Sequence[int], raised: BaseException | type[BaseException] | None) -> EnvRaised:
    """An `EnvRaised` that ``except`` also catches by the type of what the environment raised, where that can be.

    >>> error = env_raised("environment 1 raised: KeyError: 'door'", [1], KeyError("door"))
    >>> isinstance(error, KeyError), isinstance(error, EnvRaised), str(error)
    (True, True, "environment 1 raised: KeyError: 'door'")
    """
    kind = raised if isinstance(raised, type) else type(raised)
    if not issubclass(kind, Exception) or issubclass(EnvRaised, kind) or issubclass(kind, _KEPT_PLAIN):
        return EnvRaised(message, envs)
    try:
        error: EnvRaised = _also(kind)(message, envs)  # type: ignore[arg-type] # a class can be hashed
        if isinstance(raised, OSError):
            error.errno, error.strerror, error.filename = raised.errno, raised.strerror, raised.filename  # type: ignore[attr-defined]
        vars(error).update({**getattr(raised, "__dict__", {}), **vars(error)})
    except Exception:  # noqa: BLE001 - a user's class may refuse in any way to be inherited from
        return EnvRaised(message, envs)
    return error


@functools.lru_cache(maxsize=64)
def _also(kind: type[Exception]) -> type[EnvRaised]:
    """`EnvRaised` as a subclass of this one. It looks like `EnvRaised`, whatever the other one has changed."""

    def reduce(error: EnvRaised) -> tuple[object, ...]:
        return env_raised, (str(error), error.env_ids, kind)

    plain = {"__str__": Exception.__str__, "__repr__": Exception.__repr__, "__init__": EnvRaised.__init__}
    place = {"__module__": EnvRaised.__module__, "__qualname__": EnvRaised.__qualname__, "__doc__": EnvRaised.__doc__}
    return type(EnvRaised.__name__, (EnvRaised, kind), {**plain, **place, "__reduce__": reduce})
