"""What a client's asyncio sends share: what they need of the client, and the count of what a call has sent."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rollway.errors import RollwayError
from rollway.waiting.notifier import LoopNotifier
from rollway.waiting.peer_watch import LearnerWatch


class WaitsForRoom(Protocol):
    """A client, as far as waiting for room is concerned."""

    _notifier: LoopNotifier
    _learner_watch: LearnerWatch | None

    @property
    def blocks(self) -> bool:
        """Whether `send` waits when there is no room."""

    def _no_room(self, timeout: float | None) -> str: ...


class SentCount:
    """Counts what a call has sent. An error that ends the call, or its cancellation, tells the count as ``sent``."""

    def __init__(self) -> None:
        self.sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        from asyncio import CancelledError

        if isinstance(error, RollwayError):
            error.sent += self.sent
        elif isinstance(error, CancelledError):
            error.sent = self.sent  # type: ignore[attr-defined]
