"""ClosesOnExit: the end of a ``with`` block closes the handle. The classes that hold segments and files inherit it."""

from __future__ import annotations

from typing import Protocol, Self


class _Closes(Protocol):
    def close(self) -> None: ...


class ClosesOnExit:
    """Makes a class with `close` a context manager."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self: _Closes, *exception: object) -> None:
        self.close()
