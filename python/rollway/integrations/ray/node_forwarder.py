"""NodeForwarder: what a node has of a run: rings or lanes for what its workers send, and a copy of the weights.

One actor of Ray per run and node, which takes no CPU. The first worker of a node starts it, and it ends with the run.
It passes on nothing itself: that is native. Ray restarts it when it is killed; then it goes on with the segments that
its predecessor has left. It also takes over the rings of nodes of its machine that died.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import threading
import time
from concurrent.futures import Future
from typing import NamedTuple

from rollway import _core
from rollway.errors import ConnectionClosedError, RollwayError
from rollway.integrations.ray import cluster
from rollway.integrations.ray.node_link import (
    ANSWER_WAIT_S,
    AdoptedRingLink,
    NodeLink,
    RingLink,
    Run,
    WeightsLink,
    ask_registry,
    has_living,
)
from rollway.machine import segments

_LINGER_S = 1.0
_IDLE_S = 10.0  # after its start, for the first link: the worker that wanted one may have died
_LOOK_S = 5.0  # between two looks for what dead nodes have left


class NodeForwarder:
    """The actor. Its calls return errors as values; the caller raises them."""

    def __init__(self, run: Run, node: str) -> None:
        self._run, self._prefix = run, node_segment_prefix(run, node)
        self._links: dict[str, NodeLink] = {}
        self._changing = threading.Lock()
        for found in node_segments(run):
            if found.prefix == self._prefix:
                kind, rank = (WeightsLink, ()) if found.rank is None else (RingLink, (found.rank,))
                self._link(kind, found.name, *rank)
        threading.Thread(target=self._keep_adopting, name="rollway-adopt", daemon=True).start()
        self._end_later(_IDLE_S)

    def _keep_adopting(self) -> None:
        while True:
            self._adopt()
            time.sleep(_LOOK_S)

    def _adopt(self) -> None:
        """Takes over the rings of nodes of this machine that died, and removes their copies of the weights."""
        left = node_segments(self._run)  # before the nodes: one that is new has none of these
        living = cluster.living_nodes()
        if living is None:
            return
        kept = {node_segment_prefix(self._run, node) for node in living}
        for found in left:
            if found.prefix in kept:
                continue
            with contextlib.suppress(RollwayError):
                if found.rank is None:
                    _core.collect(found.name)
                    ask_registry(self._run, "leave", found.name, timeout=ANSWER_WAIT_S)
                elif not has_living(found.name, "forwarder"):
                    self._link(AdoptedRingLink, found.name, found.rank)

    async def open_ring(self, rank: int, timeout: float) -> str | RollwayError:
        """The name of this node's ring, or of its lanes, for that rank, once it is connected."""
        return await self._opened(self._link(RingLink, f"{self._prefix}-{rank}", rank).opened, timeout)

    async def open_weights(self, timeout: float) -> str | RollwayError:
        """The name of this node's copy of the weights, once it is there."""
        return await self._opened(self._link(WeightsLink, f"{self._prefix}-weights").opened, timeout)

    async def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    async def _opened(self, opening: Future[str | RollwayError], timeout: float) -> str | RollwayError:
        if opening.done():
            return opening.result()
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(opening)), timeout)
        except TimeoutError:
            return ConnectionClosedError("the forwarder of this node has no connection to the learner yet")

    def _link(self, kind: type[NodeLink], segment: str, *arguments: object) -> NodeLink:
        """The link of that segment, started if there is none."""
        with self._changing:
            if segment not in self._links:
                self._links[segment] = kind(self._run, segment, self._forget, *arguments)
                self._links[segment].start()
            return self._links[segment]

    def _forget(self, link: NodeLink) -> None:
        """Called by a link that has ended. The actor ends after the last one, once that has told its callers why."""
        with self._changing:
            del self._links[link.segment]
        self._end_later(_LINGER_S)

    def _end_later(self, seconds: float) -> None:
        ending = threading.Timer(seconds, self._end_if_idle)
        ending.daemon = True
        ending.start()

    def _end_if_idle(self) -> None:
        self._adopt()  # what was left meanwhile goes with the run
        with self._changing:
            if not self._links:
                cluster.end_this_actor()


class NodeSegment(NamedTuple):
    """A segment of this machine that belongs to a run."""

    name: str
    prefix: str
    """Of its node."""
    rank: int | None
    """Of a ring; ``None`` for a copy of the weights."""


def node_segments(run: Run) -> list[NodeSegment]:
    """What the nodes of a run have on this machine."""
    form = re.compile(rf"({re.escape(run_segment_prefix(run))}-[0-9a-f]+)-(\d+|weights)")
    matches = [form.fullmatch(found.name) for found in segments()]
    return [NodeSegment(one[0], one[1], None if one[2] == "weights" else int(one[2])) for one in matches if one]


def node_actor_name(run: Run, node: str) -> str:
    """What the actor of a node is called."""
    return f"rollway:{run.name}:{run.id}:{node}"


def run_segment_prefix(run: Run) -> str:
    """How the names of all segments begin that nodes have of a run; another one for every run of that name."""
    readable = re.sub(r"[^A-Za-z0-9_]+", "-", run.name)[:40]
    return f"ray-{readable}-{_digest(run.name, run.id)}"


def node_segment_prefix(run: Run, node: str) -> str:
    """How the names of a node's segments begin. Several nodes may share a machine.

    >>> node_segment_prefix(Run("my run", "a1", ""), "n1")
    'ray-my-run-4e5a738336c7-676b8bb84ce7'
    """
    return f"{run_segment_prefix(run)}-{_digest(node)}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:12]
