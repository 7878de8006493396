"""Deprecation: old spellings of public arguments, which keep working for a while.

Private to Rollway. Names that moved are in the `__getattr__` of `rollway` itself.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def renamed_arguments(**renamed: str) -> Callable[[F], F]:
    """Lets a function take keyword arguments by their old names, with a `DeprecationWarning`: ``old="new"``.

    >>> @renamed_arguments(patience="timeout")
    ... def wait(timeout=None):
    ...     return timeout
    >>> wait(timeout=1), wait(2)
    (1, 2)
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for old in renamed.keys() & kwargs.keys():
                new = renamed[old]
                if new in kwargs:
                    raise TypeError(f"{function.__qualname__}() got both {new!r} and {old!r}, which is its old name")
                warnings.warn(f"the argument {old!r} is deprecated: use {new!r}", DeprecationWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate
