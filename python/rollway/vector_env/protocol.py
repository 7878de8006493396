"""What caller and workers say to one another: the kinds of tasks, the flags of answers, and faults."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from rollway._core import EnvWorker

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
