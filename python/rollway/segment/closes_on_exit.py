"""ClosesOnExit: the end of a ``with`` block closes the handle. The classes that hold segments and files inherit it."""

from __future__ import annotations

from typing import Protocol, Self

from rollway.errors import RollwayError


class _Closes(Protocol):
    def close(self) -> None: ...


class ClosesOnExit:
    """Makes a class with `close` a context manager."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self: _Closes, *exception: object) -> None:
        self.close()


class FlushesOnExit(ClosesOnExit):
    """As `ClosesOnExit`, where `close` still sends something: its error does not hide the one that ended the block."""

    __slots__ = ()

    def __exit__(self: _Closes, *exception: object) -> None:
        first = exception[1]
        try:
            self.close()
        except RollwayError as failure:
            if not isinstance(first, BaseException):
                raise
            first.add_note(f"and while closing: {failure}")
