"""ShmLifetime: how a client in shared memory watches its learner and is closed; the same for samples and records."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from rollway.waiting.notifier import LoopNotifier, WeakCall
from rollway.waiting.peer_watch import LearnerWatch

if TYPE_CHECKING:
    from rollway._core import ShmSends
else:
    ShmSends = object


class ShmLifetime(ShmSends):
    """Stands in front of `Producer` or `RecordProducer` in the bases of a client."""

    _notifier: LoopNotifier  # notifies when there may be room
    _learner_watch: LearnerWatch | None

    def _open(self, native: type[ShmSends], peer_timeout_s: float | None) -> None:
        self._notifier = LoopNotifier(WeakCall(self, native._eventfd_waiter))
        learners, is_orphaned = WeakCall(self, native.learners), WeakCall(self, native.is_orphaned)
        self._learner_watch = LearnerWatch(learners, is_orphaned, peer_timeout_s)

    def wait(self, timeout: float | None = None) -> None:
        """Returns at once, because in shared memory `send` returns only after the commit."""

    def close(self) -> None:
        """Leaves. What was sent stays to be read. Safe to call twice."""
        self._notifier.close()
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rollway.{type(self).__name__} {self.name} {'closed' if self.closed else 'open'}>"
