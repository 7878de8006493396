"""ShmClient: a worker's end of a ring on the same machine. `send` and `reserve` are native; see `Producer`."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rollway._core import Producer, Slot
from rollway.errors import ForeignSchema
from rollway.ring.async_sends import AsyncSends
from rollway.schema.pytree import Schema
from rollway.transport.policies import OnFull
from rollway.waiting.notifier import LoopNotifier, WeakCall
from rollway.waiting.peer_watch import LearnerWatch, deadline_of


class ShmClient(Producer, AsyncSends):
    """Moves samples from this process into a learner's ring: one copy with `send`, none with `reserve`.

    A sample is committed when `send` returns: it reaches the learner even if this process is killed the next moment.
    Calls block only when the ring is full, with the GIL released, and Ctrl-C ends them. Threads may share a client; a
    forked child may go on using its parent's.

    Args:
        name: The name of the learner's `ShmTransport`.
        example: One sample, as given to the `Server`. A difference is an error that names the leaf.
        producer_id: The number that the learner sees on this worker's samples; the next free one when left out.
        on_full: What to do when there is no room; as the server says when left out.
        connect_timeout_s: How long to wait for the learner to appear.
        peer_timeout_s: How long a blocked call waits for a new learner when the learner has died, before it raises
            `PeerDied`. ``None``: for ever.

    >>> import numpy as np, rollway
    >>> example = {"obs": np.zeros(2, np.float32)}
    >>> with rollway.Server(example, batch_size=2, transport=rollway.ShmTransport()) as server:
    ...     with ShmClient(server.name, example) as client:
    ...         _ = client.send({"obs": np.ones(2, np.float32)})
    ...         with client.reserve() as slot:
    ...             slot["obs"][:] = 2
    ...     server.sample().batch["obs"].tolist()
    [[1.0, 1.0], [2.0, 2.0]]
    """

    _notifier: LoopNotifier
    _learner_watch: LearnerWatch | None

    def __new__(
        cls,
        name: str,
        example: Any,
        *,
        producer_id: int | None = None,
        on_full: OnFull | None = None,
        connect_timeout_s: float = 10.0,
        peer_timeout_s: float | None = 60.0,
    ) -> ShmClient:
        """Attaches to the ring."""
        schema = Schema.of(example)
        try:
            self = super().__new__(cls, name, schema.plan(), producer_id, on_full, connect_timeout_s, peer_timeout_s)
        except ForeignSchema as foreign:
            raise schema.explain(foreign) from None
        self._notifier = LoopNotifier(WeakCall(self, Producer.eventfd_waiter))
        self._learner_watch = LearnerWatch(
            WeakCall(self, Producer.learners), WeakCall(self, Producer.is_orphaned), peer_timeout_s
        )
        return self

    def wait(self, timeout: float | None = None) -> None:
        """Returns at once, because in shared memory `send` returns only after the commit."""

    async def reserve_async(self, timeout: float | None = None) -> Slot:
        """As `reserve`, for asyncio."""
        deadline = deadline_of(timeout)
        while (slot := self.try_reserve()) is None:
            if not self.blocks:
                return self.reserve()
            await self._wait_for_room(deadline, timeout)
        return slot

    def close(self) -> None:
        """Leaves the ring. What was sent stays in it. Safe to call twice."""
        self._notifier.close()
        super().close()

    def __enter__(self) -> ShmClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rollway.ShmClient {self.name} {'closed' if self.closed else 'open'}>"

    def _no_room(self, timeout: float | None) -> str:
        return f"no room in ring '{self.name}' within {timeout} s"
