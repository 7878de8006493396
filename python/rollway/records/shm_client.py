"""ShmRecordClient: a worker's end of records on the same machine. `send` and `reserve` are native: `RecordProducer`."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rollway._core import RecordProducer
from rollway.errors import ForeignSchema
from rollway.records.async_sends import AsyncRecordSends
from rollway.schema.record import RecordSchema
from rollway.transport.policies import OnFull
from rollway.waiting.notifier import LoopNotifier, WeakCall
from rollway.waiting.peer_watch import LearnerWatch


class ShmRecordClient(RecordProducer, AsyncRecordSends):
    """Moves records from this process into its lane at the learner: one copy with `send`, none with `reserve`.

    What `send` returned from is committed: it reaches the learner even if this process is killed the next moment.
    `send_many` takes a list of records, with lists of keys and metadata, and costs less than as many `send`. Calls
    block only when the lane is full, with the GIL released, and Ctrl-C ends them. Threads may share a client; a forked
    child may go on using its parent's, and gets a lane of its own.

    Args:
        name: The name of the learner's `ShmTransport`.
        schema: As given to the `RecordServer`. A difference is an error that names the leaf.
        producer_id: The number that the learner sees on this worker's records; the next free one when left out.
        on_full: What to do when there is no room; as the server says when left out.
        connect_timeout_s: How long to wait for the learner to appear.
        peer_timeout_s: How long a blocked call waits for a new learner when the learner has died, before it raises
            `PeerDied`. ``None``: for ever.

    >>> import numpy as np, rollway
    >>> schema = {"tokens": "int32[*]"}
    >>> with rollway.RecordServer(schema, rollway.ShmTransport()) as server:
    ...     with ShmRecordClient(server.name, schema) as client:
    ...         _ = client.send({"tokens": [1, 2, 3]})
    ...         with client.reserve({"tokens": 4096}) as slot:
    ...             slot["tokens"][:2] = 4, 5
    ...             slot.commit({"tokens": 2})
    ...         _ = client.send_many([{"tokens": [6]}, {"tokens": []}], metadata=["first", None], version=3)
    ...     [record["tokens"].tolist() for record in server.read_many(4)]
    [[1, 2, 3], [4, 5], [6], []]
    """

    _notifier: LoopNotifier
    _learner_watch: LearnerWatch | None

    def __new__(
        cls,
        name: str,
        schema: RecordSchema | Mapping[str, Any],
        *,
        producer_id: int | None = None,
        on_full: OnFull | None = None,
        connect_timeout_s: float = 10.0,
        peer_timeout_s: float | None = 60.0,
    ) -> ShmRecordClient:
        """Attaches, and takes a lane."""
        schema = RecordSchema.of(schema)
        try:
            self = super().__new__(cls, name, schema.plan(), producer_id, on_full, connect_timeout_s, peer_timeout_s)
        except ForeignSchema as foreign:
            raise schema.explain(foreign) from None
        self._notifier = LoopNotifier(WeakCall(self, RecordProducer.eventfd_waiter))
        self._learner_watch = LearnerWatch(
            WeakCall(self, RecordProducer.learners), WeakCall(self, RecordProducer.is_orphaned), peer_timeout_s
        )
        return self

    def wait(self, timeout: float | None = None) -> None:
        """Returns at once, because in shared memory `send` returns only after the commit."""

    def close(self) -> None:
        """Leaves, and gives its lane back. What was sent stays to be read. Safe to call twice."""
        self._notifier.close()
        super().close()

    def __enter__(self) -> ShmRecordClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rollway.ShmRecordClient {self.name} {'closed' if self.closed else 'open'}>"

    def _no_room(self, timeout: float | None) -> str:
        return f"no room in records '{self.name}' within {timeout} s. Is the learner still reading and releasing?"
