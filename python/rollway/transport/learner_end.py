"""LearnerEnd: how a learner lets go of its segment: it closes it, or leaves what was committed to the next learner.

`Server`, `RecordServer` and `TransitionBuffer` use it. Workers just close.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, get_args

from rollway.errors import InvalidArgument
from rollway.transport.policies import Keep


class LearnerEnd:
    """Closes or abandons a native handle, as ``keep`` says. It is called once, also at interpreter exit."""

    def __init__(self, close: Callable[[], None], abandon: Callable[[], None], keep: Keep) -> None:
        self._close, self._abandon, self._keep = close, abandon, keep
        self.failed = True
        """Whether the learner ends without its ``close()``, or by an exception."""

    def __call__(self) -> None:
        """Ends it."""
        keeps = self._keep == "always" or (self._keep == "on_error" and self.failed)
        (self._abandon if keeps else self._close)()


class EndsWithBlock:
    """The end of a ``with`` block closes the learner; an exception that leaves the block counts as a failure."""

    def _finish(self, *, failed: bool) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # A generator that is not read to its end is closed by GeneratorExit: nothing went wrong.
        self._finish(failed=kind is not None and not issubclass(kind, GeneratorExit))


def check_keep(keep: str) -> None:
    """Refuses what is no `Keep`."""
    if keep not in get_args(Keep):
        raise InvalidArgument(f"keep is {keep!r}; it must be 'on_error', 'always' or 'never'")
