"""How a command is interrupted: by Ctrl-C, SIGTERM or SIGHUP, but never in the middle of making or ending something."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """What would interrupt us is noted, and delivered afterwards. Processes started meanwhile have Ctrl-C blocked."""
    noted: list[int] = []
    before = {number: signal.signal(number, lambda number, _: noted.append(number)) for number in _SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
        if noted:
            signal.raise_signal(noted[0])


@contextlib.contextmanager
def leaving_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit, so that they clean up as Ctrl-C does."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
