"""ShmClient: a worker's end of a ring on the same machine. `send` and `reserve` are native; see `Producer`."""

from __future__ import annotations

from typing import Any

from rollway._core import Producer, Slot
from rollway.ring.async_sends import AsyncSends
from rollway.schema.arrays import Casting
from rollway.schema.pytree import Schema, explained
from rollway.segment.naming import check_named
from rollway.transport.policies import OnFull
from rollway.transport.shm_lifetime import ShmLifetime
from rollway.waiting.peer_watch import deadline_of


class ShmClient(ShmLifetime, Producer, AsyncSends):
    """Moves samples from this process into a learner's ring: one copy with `send`, none with `reserve`.

    A sample is committed when `send` returns: it reaches the learner even if this process is killed the next moment.
    Calls block only when the ring is full, with the GIL released, and Ctrl-C ends them. Threads may share a client; a
    forked child may use its parent's.

    Args:
        name: The name of the learner's `ShmTransport`.
        example: One sample, as given to the `Server`. A difference is an error that names the leaf.
        producer_id: The number that the learner sees on this worker's samples; the next free one when left out.
        casting: ``"same_kind"`` converts arrays of another dtype while they are sent, where all numbers fit. With
            ``"no"`` they are refused. Single numbers and lists of numbers always convert.
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

    def __new__(
        cls,
        name: str,
        example: Any,
        *,
        producer_id: int | None = None,
        casting: Casting = "no",
        on_full: OnFull | None = None,
        connect_timeout_s: float = 10.0,
        peer_timeout_s: float | None = 60.0,
    ) -> ShmClient:
        """Attaches to the ring."""
        schema = Schema.of(example, casting)
        check_named(name)
        with explained(schema):
            self = super().__new__(cls, name, schema.plan(), producer_id, on_full, connect_timeout_s, peer_timeout_s)
        self._open(Producer, peer_timeout_s)
        return self

    async def reserve_async(self, timeout: float | None = None) -> Slot:
        """As `reserve`, for asyncio."""
        deadline = deadline_of(timeout)
        while (slot := self.try_reserve()) is None:
            if not self.blocks:
                return self.reserve()
            await self._wait_for_room(deadline, timeout)
        return slot

    def _no_room(self, timeout: float | None) -> str:
        return f"no room in ring '{self.name}' within {timeout} s"
