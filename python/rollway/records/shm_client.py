"""ShmRecordClient: a worker's end of records on the same machine. `send` and `reserve` are native: `RecordProducer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollway._core import RecordProducer
from rollway.records.async_sends import AsyncRecordSends
from rollway.schema.arrays import Casting
from rollway.schema.pytree import explained
from rollway.schema.record import RecordSchema
from rollway.segment.naming import check_named
from rollway.transport.policies import OnFull
from rollway.transport.shm_lifetime import ShmLifetime


class ShmRecordClient(ShmLifetime, RecordProducer, AsyncRecordSends):
    """Moves records from this process into its lane at the learner: one copy with `send`, none with `reserve`.

    When `send` returns, the record is committed: it reaches the learner even if this process is killed. `send_many`
    takes a list of records, with lists of keys and metadata, and is faster than single sends. Calls block only when the
    lane is full, with the GIL released, and Ctrl-C ends them. Threads may share a client; a forked child may use its
    parent's, and gets a lane of its own.

    Args:
        name: The name of the learner's `ShmTransport`.
        schema: As given to the `RecordServer`. A difference is an error that names the leaf.
        producer_id: The number that the learner sees on this worker's records; the next free one when left out.
        casting: ``"same_kind"`` converts arrays of another dtype while they are sent, where all numbers fit. With
            ``"no"`` they are refused. Single numbers and lists of numbers always convert.
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

    def __new__(
        cls,
        name: str,
        schema: RecordSchema | Mapping[str, Any],
        *,
        producer_id: int | None = None,
        casting: Casting = "no",
        on_full: OnFull | None = None,
        connect_timeout_s: float = 10.0,
        peer_timeout_s: float | None = 60.0,
    ) -> ShmRecordClient:
        """Attaches, and takes a lane."""
        schema = RecordSchema.of(schema, casting)
        check_named(name)
        with explained(schema):
            self = super().__new__(cls, name, schema.plan(), producer_id, on_full, connect_timeout_s, peer_timeout_s)
        self._open(RecordProducer, peer_timeout_s)
        return self

    def _no_room(self, timeout: float | None) -> str:
        return f"no room in records '{self.name}' within {timeout} s. Is the learner still reading and releasing?"
