"""Deprecation: old places of public names and old spellings of arguments, which keep working for a while.

Private to Rollway.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def moved_names(module: str, moved: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a module whose names moved: gives them, with a `DeprecationWarning` that says where.

    ``moved``: for each module the names that it has now, separated by spaces. Hide the `__getattr__` from type
    checkers, which take it for a promise that every name exists.
    """
    places = {name: place for place, names in moved.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        place = places.get(name)
        if place is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is deprecated: use {place}.{name}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(place), name)

    return __getattr__


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
