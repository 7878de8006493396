"""NodeLink: keeps one segment of this node connected to the learner of a run, also to the next one after a restart.

A thread of the node's actor. It watches the registry, and does nothing per sample or version.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from rollway._core import Inspection, discard_forwarded
from rollway.errors import (
    ConnectionClosedError,
    LearnerUnreachable,
    RollwayError,
    SegmentInUse,
    SegmentNotFound,
    WaitTimeout,
)
from rollway.integrations.ray import cluster
from rollway.integrations.ray.cluster import ActorGone, Looks
from rollway.integrations.ray.learner_entry import LearnerEntry
from rollway.integrations.ray.lease import Lease
from rollway.integrations.ray.publication import registry_name
from rollway.integrations.ray.registry import LinkId, Registered, Status
from rollway.machine import segments
from rollway.transport import Forwarder, RecordForwarder, TcpEndpoint, TcpTransport
from rollway.weights import TcpWeights, WeightSync

_log = logging.getLogger(__name__)
_REGISTRY_WAIT_S = 30.0  # for a registry that knows the rank: its learners may be restarting it
ANSWER_WAIT_S = 10.0
_MARGIN_S = 15.0  # for the way of an answer: no user waits for it
_MAX_READERS = 1000


class Run(NamedTuple):
    """A run, as its nodes know it."""

    name: str
    id: str
    space: str
    """The namespace of its actors."""
    reconnect_timeout_s: float = 60.0
    """For how long the next learner is waited for."""


class NodeLink(threading.Thread):
    """What rings and weights have in common: who the learner is, and whether it is still there."""

    watch_s = 10.0
    """How often the link looks after its own connection, while nothing changes at the learner."""

    def __init__(self, run: Run, segment: str, ended: Callable[[NodeLink], None]) -> None:
        super().__init__(name=f"rollway-link-{segment}", daemon=True)
        self.segment = segment
        self._was_found = any(found.name == segment for found in segments())
        self.opened: Future[str | RollwayError] = Future()
        """The name of the segment, once workers can attach to it; or why there is none."""
        self._run = run
        self._ended = ended

    def run(self) -> None:
        """Until the run is over, or no learner came back in time."""
        try:
            self._keep()
        except RollwayError as error:
            self._say(error)
        except Exception as error:
            self._say(ConnectionClosedError(f"the forwarder of this node failed: {type(error).__name__}: {error}"))
            raise
        finally:
            self._say(ConnectionClosedError(f"run {self._run.name!r} is over"))
            try:
                self.close()
                with contextlib.suppress(WaitTimeout):
                    ask_registry(self._run, "leave", self.segment, timeout=ANSWER_WAIT_S)
            finally:
                self._ended(self)

    def _say(self, result: str | RollwayError) -> None:
        if not self.opened.done():
            self.opened.set_result(result)

    def _keep(self) -> None:
        wait_s = self._run.reconnect_timeout_s if self._was_found else 0.0
        entry = self._learner(max(wait_s, _REGISTRY_WAIT_S))
        while entry is not None:
            try:
                self.connect(entry)
            except LearnerUnreachable:
                if not (self.opened.done() or self._was_found):
                    raise
                entry = self._learner(entry.reconnect_timeout_s)  # it died meanwhile, or will be reached later
                continue
            except SegmentInUse:
                self._was_found = False  # it belongs to another forwarder
                raise
            self._say(self.segment)
            entry = self._next_learner(entry)

    def _next_learner(self, entry: LearnerEntry) -> LearnerEntry | None:
        """The learner that comes after this one; ``None`` when the run is over."""
        present = Status("present", entry.identity, entry.weights_node)
        while True:
            status = self._ask("watch", entry.rank, present, timeout=self.watch_s, **self.watched())
            if status == present:
                if self.is_done():
                    return None
                if self.is_over():
                    return entry
                continue
            if status is not None and status.state == "over":
                return None
            found = self._learner(entry.reconnect_timeout_s)
            if found is None:
                return None
            if not found.takes_the_same(entry):  # after the loss of a registry, which would have refused that learner
                _log.warning("%r of run %r goes: %s", self.segment, self._run.name, found.difference(entry))
                return None
            if found != entry or self.is_over():
                return found

    def _learner(self, timeout: float) -> LearnerEntry | None:
        """The learner to connect to, with its secret; ``None`` when there is none in time, or the run is over.

        For the first connection the time counts while no registry knows the rank: it says itself when that is over.
        """
        looks = Looks(timeout)
        while looks.again():
            found = self._ask(*self.source(), timeout=looks.left)
            if isinstance(found, LearnerEntry):
                return found
            if found is not None and found.state == "over":
                return None
            if found is not None and found.state is not None and not self.opened.done():
                looks = Looks(timeout)
        return None

    def _ask(self, call: str, *arguments: Any, timeout: float, **more: Any) -> Any:
        """As `ask_registry`. A registry that is stopped is asked again: Ray says when it is gone."""
        while True:
            with contextlib.suppress(WaitTimeout):
                return ask_registry(self._run, call, *arguments, timeout=timeout, **more)

    @property
    def link_id(self) -> LinkId:
        """What the registry knows it by."""
        return LinkId(self.segment, self._run.id, self._was_found or self.opened.done())

    def source(self) -> tuple[Any, ...]:
        """The call of the registry that says from whom to fetch, or to whom to send."""
        raise NotImplementedError

    def watched(self) -> dict[str, Any]:
        """What else the registry is to watch."""
        return {}

    def connect(self, entry: LearnerEntry) -> None:
        """Connects the segment to this learner, in place of the last one."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Whether the connection was given up."""
        raise NotImplementedError

    def is_done(self) -> bool:
        """Whether the segment is needed no more, although the run goes on."""
        return False

    def close(self) -> None:
        """Ends the connection, and removes the segment."""
        raise NotImplementedError


class RingLink(NodeLink):
    """The node's ring for the samples that go to one rank, or its lanes for the records."""

    _forwarder: Forwarder | RecordForwarder | None = None

    def __init__(self, run: Run, segment: str, ended: Callable[[NodeLink], None], rank: int) -> None:
        super().__init__(run, segment, ended)
        self._rank = rank

    def source(self) -> tuple[Any, ...]:
        """The rank."""
        return "forward_to", self.link_id, self._rank

    def connect(self, entry: LearnerEntry) -> None:
        """Sends to this learner what is in the segment, and what will be."""
        if self._forwarder is not None:
            self._forwarder.abandon()
        rows, num_buffers = entry.node_ring or (None, None)
        sizes = {"rows": rows, "num_buffers": num_buffers} if entry.node_lanes is None else entry.node_lanes
        made: type[Any] = Forwarder if entry.kind == "samples" else RecordForwarder
        self._forwarder = made(
            self.segment,
            entry.plain_example(),
            entry.host,
            entry.port,
            token=entry.token,
            on_full=entry.on_full,
            reconnect_timeout_s=float("inf"),  # the registry says when the learner is gone
            **sizes,
        )

    def is_over(self) -> bool:
        """Whether the connection was given up."""
        return self._forwarder is None or self._forwarder.over

    def close(self) -> None:
        """Ends the connection. The segment goes, with what the learner did not take; workers get an error."""
        if self._forwarder is not None:
            self._forwarder.discard()
            self._forwarder = None
        elif self._was_found:
            with contextlib.suppress(SegmentNotFound, SegmentInUse):
                discard_forwarded(self.segment)


class AdoptedRingLink(RingLink):
    """The ring of a node that died, on a machine that lives on. It goes when the learner has all that is in it."""

    watch_s = 1.0

    def is_done(self) -> bool:
        """Whether no worker of that node lives any more, and the learner has all."""
        if self._forwarder is None or has_living(self.segment, "producer"):
            return False
        try:
            self._forwarder.close(ANSWER_WAIT_S)
        except ConnectionClosedError:  # the learner does not take it now
            return False
        return True


class WeightsLink(NodeLink):
    """The node's copy of the weights, which it also gives to other nodes."""

    _weights: TcpWeights | None = None
    _way_out: TcpEndpoint | None = None
    _lease: Lease | None = None

    def source(self) -> tuple[Any, ...]:
        """The learner, or another node."""
        return "weights_from", self.link_id, cluster.node_id()

    def watched(self) -> dict[str, Any]:
        """From whom this node fetches. Offers the copy again, if the registry is another one."""
        if self._lease is None or self._lease.lost:
            self._lease = self._offer()
        return {"node": cluster.node_id()}

    def _offer(self) -> Lease | None:
        """Lets other nodes fetch from this one; ``None`` when there is no registry now."""
        if self._weights is None:
            return None
        host = cluster.node_address()
        if self._way_out is None:
            self._way_out = self._weights.serve(TcpTransport(0, host, token=secrets.token_urlsafe(32)))
        registry = cluster.find_actor(registry_name(self._run.name), self._run.space)
        if registry is None:
            return None
        offer = registry.offer.remote(cluster.node_id(), host, self._way_out.port, str(self._way_out.token))
        try:
            said = cluster.answer(offer, ANSWER_WAIT_S)
            return Lease(said.host, said.port, said.key, ANSWER_WAIT_S) if isinstance(said, Registered) else None
        except (ActorGone, WaitTimeout, OSError):
            return None

    def connect(self, entry: LearnerEntry) -> None:
        """Fetches from this learner. The copy and its readers stay."""
        if self._weights is not None and not self._weights.over:
            return self._weights.redirect(entry.host, entry.port, entry.token)
        self._disconnect()
        self._weights = TcpWeights(
            entry.host,
            entry.port,
            token=entry.token,
            name=self.segment,
            max_readers=_MAX_READERS,
            on_close="wait",
            reconnect_timeout_s=float("inf"),  # the registry says when the learner is gone
        )

    def is_over(self) -> bool:
        """Whether the connection was given up."""
        return self._weights is None or self._weights.over

    def close(self) -> None:
        """Ends the connection. The last reader removes the copy. A copy that was found and never connected goes now."""
        if self._was_found and self._weights is None:
            with contextlib.suppress(SegmentNotFound):
                WeightSync.attach(self.segment, connect_timeout_s=0).cleanup()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._lease is not None:
            self._lease.give_up()
        if self._weights is not None:
            self._weights.close()
        self._weights = self._way_out = self._lease = None


def ask_registry(run: Run, call: str, *arguments: Any, timeout: float, **more: Any) -> Any:
    """The answer of the run's registry; ``None`` when it is gone, `WaitTimeout` when it does not answer."""
    registry = cluster.find_actor(registry_name(run.name), run.space)
    if registry is None:
        return None
    try:
        return cluster.answer(getattr(registry, call).remote(*arguments, timeout, **more), timeout, _MARGIN_S)
    except ActorGone:
        return None


def has_living(segment: str, role: str) -> bool:
    """Whether a participant of a segment in that role lives, as `rollway.inspect` calls it."""
    try:
        found = Inspection(segment).look()["participants"]
    except SegmentNotFound:
        return False
    return any(one["role"] == role and one["state"] != "dead" for one in found)
