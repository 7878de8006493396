"""LearnerEntry: what a learner puts under the name of its run: where it is, what it takes, and the secret to get in."""

from __future__ import annotations

import os
import pickle
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rollway._core import WIRE_PROTOCOL, Inspection, __version__
from rollway.errors import InvalidArgument, RollwayError, SchemaMismatch
from rollway.integrations.ray.cluster import pickled
from rollway.records import RecordServer
from rollway.replay import TransitionBuffer
from rollway.ring import RolloutRing, Server
from rollway.schema.arrays import describe
from rollway.schema.leaves import Leaf
from rollway.schema.pytree import Schema
from rollway.transport import TcpEndpoint
from rollway.transport.policies import OnFull
from rollway.weights import WeightSync

Kind = Literal["samples", "records"]
Published = Server | RecordServer | RolloutRing


@dataclass(frozen=True)
class SegmentIdentity:
    """A segment of the learner's machine. Another machine may have one of the same name."""

    name: str
    created_unix_ns: int

    @classmethod
    def of(cls, name: str) -> SegmentIdentity:
        """That of a segment of this machine."""
        return cls(name, Inspection(name).created_unix_ns)

    def is_here(self) -> bool:
        """Whether this process can open it."""
        try:
            return SegmentIdentity.of(self.name) == self
        except RollwayError:
            return False


@dataclass(frozen=True, kw_only=True)
class LearnerEntry:
    """One rank of a run."""

    identity: str
    """Random; another one for every learner."""
    run_id: str = ""
    """Random; another one for every run of that name. The registry chooses it, and learners that come back keep it."""
    rank: int
    world_size: int
    kind: Kind
    host: str
    port: int
    token: str | None = field(repr=False)
    node_id: str
    pid: int
    version: str
    """Rollway's."""
    protocol: int
    """That of the connection."""
    leaves: list[tuple[str, tuple[Any, ...], Any]]
    """Name, dimensions and dtype of each leaf. A process without the user's classes can read them."""
    structure: bytes = field(repr=False)
    """The example, pickled: `leaves` in the user's classes."""
    on_full: OnFull
    node_ring: tuple[int, int] | None = None
    """Rows of a batch and number of batches of the nodes' rings; ``None``: as `Forwarder` chooses."""
    node_lanes: dict[str, int] | None = None
    """The sizes of the nodes' lanes, as `RecordForwarder` takes them: those of the learner."""
    ring: SegmentIdentity | None
    weights: SegmentIdentity | None
    reconnect_timeout_s: float
    weights_fan_out: int
    """How many nodes fetch the weights from the learner, and from each other node, at most."""
    weights_node: str | None = None
    """The node whose copy of the weights is at ``host`` and ``port``; ``None``: the learner itself is there."""

    @classmethod
    def of(
        cls,
        server: Published,
        way_in: TcpEndpoint,
        weights: WeightSync | None,
        *,
        host: str,
        node_id: str,
        rank: int,
        world_size: int,
        reconnect_timeout_s: float,
        weights_fan_out: int,
    ) -> LearnerEntry:
        """That of a server of this process."""
        schema, name = server.schema, server.name
        if isinstance(server, RolloutRing):
            name = server._name  # `RolloutRingBuffer` has a dict under ``name``
        forms = [_form(leaf) for leaf in schema.leaves]
        example = schema.unflatten(forms) if isinstance(schema, Schema) else dict(zip(schema, forms, strict=True))
        return cls(
            identity=secrets.token_hex(8),
            rank=rank,
            world_size=world_size,
            kind="records" if isinstance(server, RecordServer) else "samples",
            host=host,
            port=way_in.port,
            token=str(way_in.token),
            node_id=node_id,
            pid=os.getpid(),
            version=__version__,
            protocol=WIRE_PROTOCOL,
            leaves=[(leaf.name, leaf.dims, leaf.dtype) for leaf in schema.leaves],
            structure=pickled(example),
            on_full=server.on_full,
            node_ring=(1, server.num_slots) if isinstance(server, RolloutRing) else None,
            node_lanes=server.lane_sizes if isinstance(server, RecordServer) else None,
            ring=None if name is None else SegmentIdentity.of(name),
            weights=None if weights is None else SegmentIdentity.of(weights.name),
            reconnect_timeout_s=reconnect_timeout_s,
            weights_fan_out=weights_fan_out,
        )

    def without_secret(self) -> LearnerEntry:
        """For processes that do not connect to the learner themselves."""
        return replace(self, token=None)

    def example(self) -> Any:
        """What a client of this learner takes as its example or schema."""
        try:
            return pickle.loads(self.structure)
        except Exception as error:  # the classes of the user may raise anything
            raise SchemaMismatch(
                f"the learner's example cannot be unpickled here ({type(error).__name__}: {error}). Install the module "
                "of its classes on this node, or give the client an example: plane.client(example=…)"
            ) from error

    def plain_example(self) -> OrderedDict[str, Any]:
        """The same leaves without the user's classes."""
        return OrderedDict((name, (dims, dtype)) for name, dims, dtype in self.leaves)

    def takes_the_same(self, other: LearnerEntry) -> bool:
        """Whether what workers sent to the other learner is for this one, too."""
        return (self.kind, self.leaves) == (other.kind, other.leaves)

    def difference(self, other: LearnerEntry) -> str:
        """In what the data of a learner before it differ."""
        before = f"at the learner before it ({other.place})"
        if self.kind != other.kind:
            return f"it takes {self.kind}, but {other.kind} were taken {before}"
        ours, theirs = ({name: describe(dtype, dims) for name, dims, dtype in one.leaves} for one in (self, other))
        for name in [*ours, *theirs]:
            here, there = ours.get(name, "missing"), theirs.get(name, "missing")
            if here != there:
                return f"leaf '{name}' is {here} here but {there} {before}"
        return f"the leaves are in another order {before}"

    @property
    def place(self) -> str:
        """Who this is, for messages."""
        return f"pid {self.pid} on {self.host}"


def check_server(server: object) -> Published:
    """Refuses what workers on other nodes cannot send to."""
    if isinstance(server, Server | RecordServer | RolloutRing):
        return server
    if isinstance(server, TransitionBuffer):
        raise InvalidArgument(
            "a replay buffer takes transitions from its own machine only. Publish a Server, and add the transitions of "
            "its batches to the buffer in the learner: buffer.add(**sample.batch)"
        )
    raise InvalidArgument(f"publish() takes a Server, a RecordServer or a RolloutRing, not {type(server).__name__}")


def _form(leaf: Leaf) -> tuple[tuple[Any, ...], Any]:
    return leaf.dims, leaf.dtype
