"""Transport: how samples of remote workers get into a learner's ring. `TcpTransport` is one; you may write another.

`Server.start` gives every transport an `Intake` and keeps the `Endpoint` that it returns until the server is closed.
`ShmTransport` is no `Transport`: it has the settings of the ring's own segment.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rollway._core import (
    Consumer,
    Plan,
    Producer,
    RecordConsumer,
    RecordPlan,
    RecordProducer,
    WeightMirror,
    Weights,
)
from rollway.errors import ForeignSchema, SchemaMismatch
from rollway.schema.pytree import Schema
from rollway.schema.record import RecordSchema


class Intake:
    """What a transport needs of a ring: its native consumer, its schema, and producers to write with.

    >>> import numpy as np, rollway
    >>> class Loopback:  # the smallest transport
    ...     def start(self, intake):
    ...         self.producer = intake.producer()
    ...         return self
    ...     address = "nowhere"
    ...     def stats(self):
    ...         return {}
    ...     def stop(self):
    ...         self.producer.close()
    >>> loopback = Loopback()
    >>> with rollway.Server({"x": np.zeros(1)}, batch_size=1, transport=loopback) as server:
    ...     _ = loopback.producer.send({"x": np.ones(1)})
    ...     server.sample().batch["x"].tolist()
    [[1.0]]
    """

    def __init__(self, consumer: Consumer, schema: Schema, plan: Plan) -> None:
        self.consumer = consumer
        self.schema = schema
        self._plan = plan

    def producer(self) -> Producer:
        """A handle with ``send``, ``send_many``, ``reserve`` and their ``try_`` forms. Close it in `Endpoint.stop`."""
        return Producer._beside(self.consumer, self._plan)


class RecordIntake:
    """As `Intake`, for the records of a `RecordServer`."""

    def __init__(self, consumer: RecordConsumer, schema: RecordSchema, plan: RecordPlan) -> None:
        self.consumer = consumer
        self.schema = schema
        self._plan = plan

    def producer(self) -> RecordProducer:
        """A handle to write with, on its own lane. Close it in `Endpoint.stop`."""
        return RecordProducer._beside(self.consumer, self._plan)


class WeightLeaves(Protocol):
    """The leaves of weights: a transport compares them with those of a worker. See `WeightTree`."""

    @property
    def text(self) -> bytes:
        """The leaves as text."""
        ...

    def explain(self, foreign: ForeignSchema) -> SchemaMismatch:
        """Says how the leaves of a worker differ from these."""
        ...


class WeightOutlet:
    """What a transport needs of weights, or of a copy of them, to give them to remote workers."""

    def __init__(self, weights: Weights | WeightMirror, tree: WeightLeaves) -> None:
        self.weights = weights
        self.tree = tree


class WeightSource(Protocol):
    """Weights that a transport can give to remote workers: a `WeightSync`, or `TcpWeights`."""

    def outlet(self) -> WeightOutlet:
        """What the transport needs of them."""
        ...


class Endpoint(Protocol):
    """A transport that was started."""

    @property
    def address(self) -> str:
        """Where workers find it."""
        ...

    def stats(self) -> dict[str, int]:
        """Plain numbers, each name with the transport's own prefix."""
        ...

    def stop(self) -> None:
        """Refuses new connections, and returns when no slot is held. Safe to call twice."""
        ...


@runtime_checkable
class Transport(Protocol):
    """An object that lets workers in when it is started."""

    def start(self, intake: Intake) -> Endpoint:
        """Begins to serve. Raises if the address or the settings are wrong."""
        ...


class RecordTransport(Protocol):
    """As `Transport`, for the records of a `RecordServer`."""

    def start(self, intake: RecordIntake) -> Endpoint:
        """Begins to serve. Raises if the address or the settings are wrong."""
        ...
