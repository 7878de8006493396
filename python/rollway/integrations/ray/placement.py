"""RayPlacement: the collectors of a `Runner` as actors of Ray, on any node of the cluster."""

from __future__ import annotations

import atexit
import logging
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollway.errors import CollectorError, InvalidArgument
from rollway.integrations.ray import cluster
from rollway.integrations.ray.collector_actor import CollectorActor, PlacedCollector
from rollway.integrations.ray.collector_call import PublishedResources
from rollway.integrations.ray.collector_line import LearnerLines
from rollway.integrations.ray.plane import Route, is_forced
from rollway.runner import runner
from rollway.runner.restart_policy import RestartCount, RestartPolicy
from rollway.runner.supervisor import CollectorSupervisor

_log = logging.getLogger("rollway.collectors")


@dataclass(frozen=True, kw_only=True)
class RayPlacement:
    """Where Ray places the collectors of a runner, and what each of them takes: ``Runner(placement=RayPlacement())``.

    Each collector is an actor, which runs the same function as a process would. Its arguments may have a `RolloutRing`
    and a `WeightSync`: on the learner's node it uses these, on another one the node's ring and copy of the weights,
    which a forwarder keeps connected. What it raises, what it reports and the order to stop go over a connection of its
    own. The runner's restart policy decides what follows a death, also that of a node.

    Args:
        num_cpus: Of each collector, as Ray counts them.
        num_gpus: Of each collector.
        resources: More that each collector takes, by the names that nodes have for them.
        spread: Over all nodes, as evenly as Ray can; it does not spread what takes nothing. Otherwise it fills one node
            after the other.
        runtime_env: As Ray takes it: packages, files and environment variables for the collectors.
        route: As of `connect`; ``"forwarder"`` also on the learner's node.
        start_timeout_s: How long to wait for Ray to place the first collector, before that is a `CollectorError`.
            Others may wait longer, for nodes that are added later.

    Initialise Ray before. `ClusterUnavailable` says that it is not.
    """

    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    spread: bool = True
    runtime_env: Mapping[str, Any] | None = None
    route: Route = "auto"
    start_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        for what in ("num_cpus", "num_gpus", "start_timeout_s"):
            if not getattr(self, what) >= 0:
                raise InvalidArgument(f"{what} = {getattr(self, what)} is out of range: at least 0")
        is_forced(self.route)  # raises if there is no such route

    def supervisor(
        self, policy: RestartPolicy | None, *, stop_timeout_s: float, kill_timeout_s: float
    ) -> CollectorSupervisor:
        """What starts, watches and ends the collectors. A `Runner` calls it."""
        return ActorSupervisor(self, policy, stop_timeout_s=stop_timeout_s, kill_timeout_s=kill_timeout_s)

    def make_actor(self) -> Any:
        """One actor, that Ray places when it can."""
        options = {
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "resources": dict(self.resources),
            "runtime_env": None if self.runtime_env is None else dict(self.runtime_env),
            "scheduling_strategy": "SPREAD" if self.spread else "DEFAULT",
            "max_restarts": 0,
        }
        return cluster.initialised().remote(CollectorActor).options(**options).remote()

    def needs(self) -> dict[str, float]:
        """What each collector takes, by the names that Ray has for it."""
        taken = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {what: number for what, number in taken.items() if number}


class ActorSupervisor(CollectorSupervisor):
    """Any number of actors of Ray under one restart policy. `RayPlacement.supervisor` makes it."""

    def __init__(
        self, placement: RayPlacement, policy: RestartPolicy | None, *, stop_timeout_s: float, kill_timeout_s: float
    ) -> None:
        ray = cluster.initialised()
        self._lines = LearnerLines(ray.util.get_node_ip_address())
        super().__init__(policy, stop_timeout_s=stop_timeout_s, kill_timeout_s=kill_timeout_s, stop_flag=self._lines)
        self._placement = placement
        self._published = PublishedResources()
        self._late = 0
        # Once more, because ray was imported after that module: runners end before Ray does.
        atexit.register(runner.close_all)

    def _maker(
        self, target: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[int], PlacedCollector]:
        call = cluster.initialised().put(self._published.pickled((target, args, kwargs)))
        make = self._placement.make_actor
        route: Route = "forwarder" if is_forced(self._placement.route) else "auto"
        return lambda index: PlacedCollector(index, RestartCount(self._policy), self._lines, make, call, route)

    def check(self) -> None:
        """As of `CollectorSupervisor`. `CollectorError` also when Ray has placed no collector in time."""
        super().check()
        long_ago = time.monotonic() - self._placement.start_timeout_s
        late = sum(child.started_at < long_ago for child in self._unplaced())
        if late and not self.alive:
            self._final_error = CollectorError(self._why_late(f"none of {len(self._alive())} collectors"))
            raise self._final_error
        if late > self._late:
            _log.warning("%s", self._why_late(f"{self.alive} of {len(self._alive())} collectors"))
        self._late = late

    @property
    def alive(self) -> int:
        """Collectors that Ray has placed, and that live."""
        return len(self._alive()) - len(self._unplaced())

    @property
    def pending(self) -> int:
        """Collectors that will be restarted, or that Ray has not placed yet."""
        return super().pending + len(self._unplaced())

    def nodes(self) -> dict[int, str]:
        """The node of each living collector that Ray has placed, by its identifier."""
        return {child.index: child.place.node_id for child in self._actors() if child.place is not None}

    def tell_to_stop(self) -> None:
        """Tells them to stop, and lets those return that wait for room."""
        super().tell_to_stop()
        if not self.is_ours:
            return
        self._published.close()
        is_up = cluster.is_initialised()
        for child in self._unplaced() if is_up else self._actors():
            child.signal(signal.SIGTERM if is_up else signal.SIGKILL)

    def _actors(self) -> list[PlacedCollector]:
        return [child for child in self._alive() if isinstance(child, PlacedCollector)]

    def _unplaced(self) -> list[PlacedCollector]:
        return [child for child in self._actors() if child.place is None]

    def _why_late(self, how_many: str) -> str:
        ray = cluster.initialised()
        free, total, needs = ray.available_resources(), ray.cluster_resources(), self._placement.needs()
        takes = ", ".join(f"{number:g} {what}" for what, number in needs.items()) or "nothing"
        scarce = [what for what, number in needs.items() if free.get(what, 0.0) < number] or list(needs)
        has = ", ".join(f"{free.get(what, 0.0):g} of the cluster's {total.get(what, 0.0):g} {what}" for what in scarce)
        return (
            f"Ray has placed {how_many} within {self._placement.start_timeout_s:g} s: each takes {takes}, and "
            f"{has or 'enough'} is free. Start fewer collectors, add nodes, or let each take less: RayPlacement(…)"
        )
