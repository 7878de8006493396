"""ForwarderBase: what `Forwarder` and `RecordForwarder` have in common. The segment and the connection are native."""

from __future__ import annotations

import logging
import weakref

from rollway import _core as native
from rollway.errors import RollwayError
from rollway.segment.closes_on_exit import FlushesOnExit
from rollway.transport.connection_state import ConnectionState

_log = logging.getLogger(__name__)


class ForwarderBase(FlushesOnExit, ConnectionState):
    """One connection from a node to a learner, and the segment of the node that it empties."""

    _core: native.Forwarder
    _content: str
    """What it sends: samples, or records."""

    def _start(self, core: native.Forwarder) -> None:
        self._core = core
        # Also at interpreter exit: what is in the segment stays there, and an empty one without workers goes.
        self._end = weakref.finalize(self, core.abandon)

    @property
    def name(self) -> str:
        """What the workers of this node attach to."""
        return self._core.name

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._core.closed

    @property
    def error(self) -> str | None:
        """Why it has ended, if it was not closed; ``None`` while it works. The segment is left to the next
        forwarder."""
        return self._core.error

    def wait(self, timeout: float | None = None) -> None:
        """Returns when the learner has everything that the workers have committed so far.

        Raises `WaitTimeout` after ``timeout`` seconds, and `ConnectionClosedError` when the forwarder has ended.
        """
        self._core.wait(timeout)

    def close(self, timeout: float | None = 10.0) -> None:
        """Sends what the workers have committed, waits at most ``timeout`` seconds until the learner has it, and ends.

        The segment goes, and workers that still send get a `ConnectionClosedError`. If the learner does not take
        everything in time, the segment stays as it is, for the workers and for the next forwarder of that name, and
        `ConnectionClosedError` says how much is in it. Safe to call twice. Ctrl-C ends the wait and leaves the
        segment.
        """
        try:
            self._core.close(timeout)
        except (RollwayError, ValueError, TypeError):  # the latter two: there is no such timeout
            raise
        except BaseException as interruption:
            self._core.abandon()
            _log.error(
                "%s ended the close of the forwarder of %r: %s %s stay in its segment",
                type(interruption).__name__,
                self.name,
                self._core.committed,
                self._content,
            )
            raise

    def abandon(self) -> None:
        """Ends at once, as a death of this process would: the segment stays, for workers and the next forwarder."""
        self._end()

    def discard(self) -> None:
        """Ends at once, and removes the segment with what the learner does not have. Workers get an error."""
        self._core.discard()

    def stats(self) -> dict[str, int]:
        """Plain numbers: what is in the segment, what was sent, and over how many connections."""
        return self._core.stats()

    def __repr__(self) -> str:
        state = "connected" if self.connected else "connecting"
        state = "closed" if self.closed else "ended" if self.over else state
        return f"<rollway.{type(self).__name__} {self.name!r} to {self.address}: {state}>"
