"""connect: finds a learner by the name of its run, and gives this worker its clients and weights."""

from __future__ import annotations

import os
from typing import Any, Literal

from rollway._core import WIRE_PROTOCOL, __version__
from rollway.errors import ConnectionClosedError, InvalidArgument, LearnerUnreachable, ProtocolMismatch, WaitTimeout
from rollway.integrations.ray import cluster
from rollway.integrations.ray.cluster import ActorGone, Looks
from rollway.integrations.ray.learner_entry import Kind, LearnerEntry
from rollway.integrations.ray.node_forwarder import NodeForwarder, node_actor_name
from rollway.integrations.ray.node_link import Run
from rollway.integrations.ray.publication import registry_name
from rollway.integrations.ray.registry import Refused
from rollway.integrations.ray.run_weights import RunWeights
from rollway.records import ShmRecordClient
from rollway.ring import ShmClient
from rollway.schema.arrays import Casting
from rollway.transport.policies import OnFull

Route = Literal["auto", "forwarder"]
_FORCED = "ROLLWAY_RAY_FORWARD"


def connect(name: str, timeout_s: float = 60.0, *, route: Route = "auto") -> Plane:
    """Finds the run of that name in the Ray namespace of this process, and waits for it.

    For any actor, task or driver of the cluster. It makes no connection yet; `Plane.client` and `Plane.weights` do.

    Args:
        name: As given to `publish`.
        timeout_s: How long to wait for the learner, here and in the methods of the plane.
        route: ``"auto"``: workers on the learner's node write into its ring, others through the forwarder of their
            node. ``"forwarder"``: all do; as with the environment variable ``ROLLWAY_RAY_FORWARD=1``.

    `LearnerUnreachable` says why there is no learner. `ProtocolMismatch`: it runs another version of Rollway.
    """
    cluster.check_asked(name, timeout_s=timeout_s)
    return Plane(name, timeout_s, is_forced(route))


def is_forced(route: Route) -> bool:
    """Whether workers on the learner's node go through a forwarder, too."""
    if route not in ("auto", "forwarder"):
        raise InvalidArgument(f"route is {route!r}; it must be 'auto' or 'forwarder'")
    return route == "forwarder" or os.environ.get(_FORCED, "0") not in ("", "0")


class Plane:
    """A run, as its workers see it. Made by `connect`."""

    def __init__(self, name: str, timeout_s: float, forced: bool) -> None:
        self.name = name
        """That of the run."""
        self._timeout_s = timeout_s
        self._forced = forced
        self._space = cluster.namespace()
        self._entry: LearnerEntry = self._ask("learner", None)

    @property
    def kind(self) -> Kind:
        """What the learner takes: ``"samples"`` or ``"records"``."""
        return self._entry.kind

    @property
    def world_size(self) -> int:
        """How many ranks the learner has."""
        return self._entry.world_size

    @property
    def example(self) -> Any:
        """What the learner takes, in the form of an example or a schema."""
        return self._entry.example()

    def client(
        self,
        *,
        rank: int | None = None,
        key: str | None = None,
        example: Any = None,
        casting: Casting = "no",
        on_full: OnFull | None = None,
    ) -> ShmClient | ShmRecordClient:
        """A client that sends to the learner. Its number (``producer_id``) is its own in the run.

        Args:
            rank: Send to this rank. Left out, workers are spread evenly over the ranks; an actor that Ray restarts
                stays on its rank.
            key: In place of ``rank``: all workers with the same key, a group for instance, send to the same rank.
            example: A sample or a schema in classes of this process. Left out, it is the learner's.
            casting: As of `ShmClient`.
            on_full: What to do when there is no room; as the server says when left out.
        """
        if rank is not None and key is not None:
            raise InvalidArgument("give rank or key, not both: a key chooses the rank")
        if rank is not None and not isinstance(rank, int):
            raise InvalidArgument(f"rank is a {type(rank).__name__}: it must be an int")
        if key is not None and not isinstance(key, str):
            raise InvalidArgument(f"key is a {type(key).__name__}: it must be a str")
        worker = cluster.initialised().get_runtime_context().get_actor_id()
        entry, number = self._ask("join", worker, rank, key)
        given = entry.example() if example is None else example
        options: dict[str, Any] = {
            "producer_id": number,
            "casting": casting,
            "connect_timeout_s": self._timeout_s,
        }
        made = ShmClient if entry.kind == "samples" else ShmRecordClient
        is_here = entry.ring is not None and self._is_here(entry, entry.ring)
        segment = entry.ring.name if is_here else self._ask_node(entry, "open_ring", entry.rank)
        return made(segment, given, on_full=on_full, **options)

    def weights(self) -> RunWeights:
        """The learner's weights, through a copy on this node that one connection keeps current.

        Read them as any `WeightSync`. They follow a learner that is restarted.
        """
        return RunWeights(self, self._timeout_s)

    def ring_name(self, rank: int = 0) -> str:
        """The segment of this machine into which its workers write for that rank."""
        entry = self._ask("learner", rank)
        if entry.ring is not None and self._is_here(entry, entry.ring):
            return str(entry.ring.name)
        return self._ask_node(entry, "open_ring", rank)

    def weights_name(self, timeout_s: float | None = None) -> str:
        """The segment of this machine from which its workers read the weights."""
        entry = self._ask("weights", timeout_s=timeout_s)
        if entry.weights is not None and self._is_here(entry, entry.weights):
            return str(entry.weights.name)
        return self._ask_node(entry, "open_weights", timeout_s=timeout_s)

    def _is_here(self, entry: LearnerEntry, segment: Any) -> bool:
        """Whether this process opens the learner's segment itself."""
        return not self._forced and entry.node_id == cluster.node_id() and segment.is_here()

    def _ask(self, call: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """The answer of the run's registry, which is looked for and asked until the time is over."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        looks = Looks(timeout_s)
        why = f"nothing is published under that name in {cluster.described(self._space)}"
        while looks.again():
            registry = cluster.find_actor(registry_name(self.name), self._space)
            if registry is None:
                continue
            try:
                self._check_versions(*cluster.answer(registry.speaks.remote(), looks.left))
                said = cluster.answer(getattr(registry, call).remote(*arguments, looks.left), looks.left)
            except ActorGone:
                why = "its learner is gone"
                continue
            except WaitTimeout:
                why = "its registry, an actor of Ray, does not answer"
                continue
            if isinstance(said, Refused):
                raise InvalidArgument(f"run {self.name!r} was found, but {said.why}")
            if not isinstance(said, str):
                return said
            why = said
        raise LearnerUnreachable(
            f"run {self.name!r} gave no answer within {timeout_s} s: {why}. Is the learner running, and does it "
            "publish under this name?"
        )

    def _ask_node(self, entry: LearnerEntry, call: str, *arguments: Any, timeout_s: float | None = None) -> str:
        """The answer of the forwarder of this node, which is started if there is none."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        looks, node = Looks(timeout_s), cluster.node_id()
        run = Run(self.name, entry.run_id, self._space, entry.reconnect_timeout_s)
        why = "Ray did not start it"
        while looks.again():
            actor = cluster.start_actor(
                NodeForwarder,
                node_actor_name(run, node),
                self._space,
                node,
                (run, node),
                max_restarts=-1,
            )
            try:
                said = cluster.answer(getattr(actor, call).remote(*arguments, looks.left), looks.left)
            except (ActorGone, WaitTimeout) as gone:
                why = str(gone)
                continue
            if isinstance(said, str):
                return said
            if not isinstance(said, LearnerUnreachable | ConnectionClosedError):
                raise said
            why = str(said)
        raise LearnerUnreachable(
            f"the forwarder of this node gives no way to run {self.name!r} within {timeout_s} s: {why}"
        )

    def _check_versions(self, version: str, protocol: int) -> None:
        if protocol != WIRE_PROTOCOL:
            raise ProtocolMismatch(
                f"the learner of run {self.name!r} runs Rollway {version} with wire protocol {protocol}, this process "
                f"Rollway {__version__} with {WIRE_PROTOCOL}: install the same version on all nodes"
            )

    def __repr__(self) -> str:
        return f"<rollway.integrations.ray.Plane {self.name!r} {self.kind} ranks={self.world_size}>"
