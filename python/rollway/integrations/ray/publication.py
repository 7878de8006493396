"""publish: puts a learner under a name in the Ray namespace, with a way in for workers of all nodes."""

from __future__ import annotations

import logging
import secrets
import threading
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from rollway.errors import ClusterUnavailable, InvalidArgument, RollwayError, RunNameTaken, SchemaMismatch, WaitTimeout
from rollway.integrations.ray import cluster
from rollway.integrations.ray.cluster import ActorGone, Looks
from rollway.integrations.ray.learner_entry import LearnerEntry, Published, check_server
from rollway.integrations.ray.lease import Lease
from rollway.integrations.ray.registry import Registered, Registry
from rollway.ring import RolloutRing
from rollway.transport import TcpEndpoint, TcpTransport
from rollway.transport.learner_end import EndsWithBlock
from rollway.transport.policies import IfExists
from rollway.weights import WeightSync

_log = logging.getLogger(__name__)
_WITHDRAW_WAIT_S = 5.0


def publish(
    name: str,
    server: Published | None = None,
    weights: WeightSync | None = None,
    *,
    servers: Sequence[Published] | None = None,
    rank: int = 0,
    world_size: int | None = None,
    host: str | None = None,
    port: int = 0,
    timeout_s: float = 60.0,
    reconnect_timeout_s: float = 60.0,
    weights_fan_out: int = 4,
    if_exists: IfExists | None = None,
) -> Publication:
    """Puts a learner under a name in the Ray namespace of this process: workers of any node `connect` to it.

    It opens a port on the address of this node, with a random token. An actor without CPUs keeps the name, the address,
    the token and the schema.

    Args:
        name: Of the run. One living learner has it, or one per rank.
        server: Where the workers' samples, records or rollouts go. A server needs a `ShmTransport` for the workers of
            this node to write into it directly.
        weights: Give these to the workers.
        servers: In place of ``server``: one for each rank of a learner with several ranks in this process. The first
            one's port also gives the weights.
        rank: The rank of this process, where each of ``world_size`` processes publishes its own server.
        world_size: How many ranks there are.
        host: The address to listen on, and to which workers connect. Left out, it is the node's, as Ray knows it.
        port: The port to listen on; 0 takes a free one. Several ``servers`` take free ones.
        timeout_s: How long to wait for the actor to start.
        reconnect_timeout_s: When this process dies, how long the nodes keep what their workers have sent, and wait for
            a learner that publishes under the same name and rank.
        weights_fan_out: How many nodes fetch the weights from the learner. The others fetch from these, and so on.
        if_exists: When an earlier learner of that name died, or was ended by an exception or Ctrl-C, less than its
            ``reconnect_timeout_s`` ago: ``"resume"`` goes on with its workers, and gets what they have sent meanwhile.
            ``"replace"`` begins anew: what the nodes have goes, and its workers get `ConnectionClosedError`.
            ``"error"``: `RunNameTaken`. Left out, it resumes with a warning.

    `RunNameTaken` says which process has the name. `ClusterUnavailable`: Ray is not initialised, or does not answer.
    """
    cluster.initialised()
    given = _given_servers(server, servers)
    if servers is not None and (rank != 0 or world_size is not None or port != 0):
        raise InvalidArgument("rank, world_size and port are for one server: leave them out with servers=[…]")
    total = len(given) if world_size is None else world_size
    if not 0 <= rank < total:
        raise InvalidArgument(f"rank = {rank} is out of range: 0 to world_size - 1. Here world_size is {total}")
    if weights_fan_out < 1:
        raise InvalidArgument(f"weights_fan_out = {weights_fan_out} is out of range: at least 1")
    cluster.check_asked(name, timeout_s=timeout_s, reconnect_timeout_s=reconnect_timeout_s)
    if weights is not None and not isinstance(weights, WeightSync):
        raise InvalidArgument(
            f"weights is a {type(weights).__name__}: give publish() the handle that you write the weights with, "
            "as made by SharedWeightSync.from_state_dict(…)"
        )
    if if_exists not in (None, *get_args(IfExists)):
        raise InvalidArgument(
            f"if_exists is {if_exists!r}; it must be one of {', '.join(map(repr, get_args(IfExists)))}"
        )
    publication = Publication(name, timeout_s, if_exists)
    try:
        for offset, one in enumerate(given):
            publication._add(
                one,
                weights if offset == 0 else None,
                (host or cluster.node_address(), port),
                rank=rank + offset,
                world_size=total,
                reconnect_timeout_s=reconnect_timeout_s,
                weights_fan_out=weights_fan_out,
            )
    except BaseException:
        publication.close()
        raise
    return publication


class Publication(EndsWithBlock):
    """What `publish` returns. The end of its ``with`` block withdraws the name and closes the port.

    The ``close()`` of its server does so, too. After an exception the name stays for ``reconnect_timeout_s``, as after
    a crash: a learner that publishes again goes on with the workers that wait.
    """

    def __init__(self, name: str, timeout_s: float, if_exists: IfExists | None) -> None:
        self.name = name
        """That of the run."""
        self._timeout_s, self._if_exists = timeout_s, if_exists
        self._ranks: list[_PublishedRank] = []

    @property
    def ranks(self) -> list[int]:
        """The ranks that this process has published."""
        return [rank.entry.rank for rank in self._ranks]

    def _add(self, server: Published, weights: WeightSync | None, address: tuple[str, int], **numbers: Any) -> None:
        host, port = address
        transport = TcpTransport(port, host, token=secrets.token_urlsafe(32), weights=weights)
        way_in = _WayIn(transport, server)
        server.add_transport(way_in)
        try:
            entry = LearnerEntry.of(server, way_in.endpoint, weights, host=host, node_id=cluster.node_id(), **numbers)
            way_in.rank = _PublishedRank(self.name, entry, way_in.endpoint, self._timeout_s, self._if_exists)
            self._ranks.append(way_in.rank)
        except BaseException:
            way_in.stop()
            raise

    def close(self) -> None:
        """Withdraws the name, and closes the port. Workers get `ConnectionClosedError`. Safe to call twice."""
        self._finish(failed=False)

    def _finish(self, *, failed: bool) -> None:
        for rank in self._ranks:
            rank.end(withdraws=not failed)

    def __repr__(self) -> str:
        states = {("closed" if rank.ended else "published") for rank in self._ranks} or {"closed"}
        return f"<rollway.integrations.ray.Publication {self.name!r} ranks={self.ranks} {'/'.join(sorted(states))}>"


class _PublishedRank:
    """One learner under the name; registers it again when the registry is lost."""

    def __init__(
        self, run: str, entry: LearnerEntry, way_in: TcpEndpoint, timeout_s: float, if_exists: IfExists | None
    ) -> None:
        self.entry = entry
        self.ended = False
        self._run, self._space = run, cluster.namespace()
        self._way_in = way_in
        self._timeout_s = timeout_s
        self._generation = 0
        self._changing = threading.Lock()
        self._lease = self._register(if_exists)
        self._keeper = threading.Thread(target=self._keep, name=f"rollway-publish-{run}", daemon=True)
        self._keeper.start()

    def end(self, *, withdraws: bool) -> None:
        """Withdraws, or leaves the name as a death would; closes the port."""
        with self._changing:
            if self.ended:
                return
            self.ended = True
        if withdraws:
            self._lease.withdraw(_WITHDRAW_WAIT_S)
        else:
            self._lease.give_up()
        self._way_in.stop()

    def _keep(self) -> None:
        """Waits for the end of the registry, and makes another one: in a thread."""
        while True:
            self._lease.wait()
            with self._changing:
                if self.ended:
                    return
                try:
                    self._generation += 1
                    self._lease = self._register("resume")
                except (RollwayError, OSError) as error:
                    _log.error("run %r can no longer be found: its registry was lost, and %s", self._run, error)
                    return

    def _register(self, if_exists: IfExists | None) -> Lease:
        """Finds or starts the registry, and takes the lease."""
        looks = Looks(self._timeout_s)
        why = "no answer"
        while looks.again():
            arguments = (self.entry.host,)
            registry = cluster.start_actor(
                Registry, registry_name(self._run), self._space, self.entry.node_id, arguments, max_restarts=0
            )
            try:
                answer = cluster.answer(registry.register.remote(self.entry, self._generation, if_exists), looks.left)
                if isinstance(answer, Registered):
                    if answer.resumes_after_s is not None and if_exists is None:
                        _warn_of_resuming(self._run, answer.resumes_after_s)
                    self._generation = answer.generation
                    self.entry = replace(self.entry, run_id=answer.run_id)
                    return Lease(answer.host, answer.port, answer.key, max(looks.left, 1.0))
            except (ActorGone, OSError, WaitTimeout) as gone:  # it was about to end: the next one is new
                why = str(gone)
                continue
            if isinstance(answer, LearnerEntry):
                raise SchemaMismatch(
                    f"run {self._run!r} cannot go on with this server: {self.entry.difference(answer)}. Workers of "
                    'that learner wait. Publish a server like it, or begin anew: if_exists="replace"'
                )
            raise RunNameTaken(
                f"the name {self._run!r} is taken in the Ray namespace {self._space.partition(':')[2]!r}: {answer}. "
                "Choose another name, or end that learner"
            )
        raise ClusterUnavailable(
            f"the registry of run {self._run!r}, an actor of Ray, gave no answer within {self._timeout_s} s ({why}). "
            "Has the cluster room for a process on this node, and is none of its processes stopped?"
        )


class _WayIn:
    """The port of a published learner. A server that is closed stops it, which also ends the publication."""

    endpoint: TcpEndpoint
    rank: _PublishedRank | None = None

    def __init__(self, transport: TcpTransport, server: Published) -> None:
        self._transport = transport
        self._server = weakref.ref(server)

    def start(self, intake: Any) -> Any:
        self.endpoint = self._transport.start(intake)
        return self

    def stop(self) -> None:
        if self.rank is not None:
            self.rank.end(withdraws=_was_closed(self._server()))
        self.endpoint.stop()

    def __getattr__(self, name: str) -> Any:
        if name == "endpoint":  # not started
            raise AttributeError(name)
        return getattr(self.endpoint, name)


def _was_closed(server: Published | None) -> bool:
    """Whether a server that ends was closed, and not dropped, or left by an exception."""
    if isinstance(server, RolloutRing):
        return server._closed
    return server is not None and not server._leave.failed


def _warn_of_resuming(run: str, after_s: float) -> None:
    warnings.warn(
        f"run {run!r} had a learner that ended {after_s:.0f} seconds ago: this one goes on with its workers, and gets "
        'what they have sent meanwhile. To do so without this warning, give if_exists="resume"; to begin anew, '
        'if_exists="replace"',
        stacklevel=6,
    )


def registry_name(run: str) -> str:
    """What the actor is called that keeps a run."""
    return f"rollway:{run}"


def _given_servers(server: Any, servers: Any) -> list[Published]:
    if (server is None) == (servers is None):
        raise InvalidArgument("give publish() one server, or servers=[…] with one per rank")
    given = [server] if servers is None else list(servers)
    if not given:
        raise InvalidArgument("servers is empty: give one server per rank")
    if len({id(one) for one in given}) < len(given):
        raise InvalidArgument("servers has a server twice: each rank needs one of its own")
    return [check_server(one) for one in given]
