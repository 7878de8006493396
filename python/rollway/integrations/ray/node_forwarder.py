"""NodeForwarder: what a node has of a run: rings or lanes for what its workers send, and a copy of the weights.

One actor of Ray per run and node, which takes no CPU. The first worker of a node starts it, and it ends with the run.
It passes on nothing itself: that is native. Ray restarts it when it is killed; then it goes on with the segments that
its predecessor has left.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import threading
from concurrent.futures import Future

from rollway.errors import ConnectionClosedError, RollwayError
from rollway.integrations.ray.cluster import end_this_actor
from rollway.integrations.ray.node_link import NodeLink, RingLink, WeightsLink
from rollway.machine import segments

_LINGER_S = 1.0


class NodeForwarder:
    """The actor. Its calls return errors as values; the caller raises them."""

    def __init__(self, run: str, space: str, prefix: str) -> None:
        self._run, self._space, self._prefix = run, space, prefix
        self._links: dict[str, NodeLink] = {}
        self._changing = threading.Lock()
        for name in [found.name for found in segments()]:
            if name == f"{prefix}-weights":
                self._link(WeightsLink, name)
            elif ring := re.fullmatch(rf"{re.escape(prefix)}-(\d+)", name):
                self._link(RingLink, name, int(ring[1]))

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
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(opening)), timeout)
        except TimeoutError:
            return ConnectionClosedError("the forwarder of this node has no connection to the learner yet")

    def _link(self, kind: type[NodeLink], segment: str, *arguments: object) -> NodeLink:
        """The link of that segment, started if there is none."""
        with self._changing:
            if segment not in self._links:
                self._links[segment] = kind(self._run, self._space, segment, self._forget, *arguments)
                self._links[segment].start()
            return self._links[segment]

    def _forget(self, link: NodeLink) -> None:
        """Called by a link that has ended. The actor ends after the last one, once that has told its callers why."""
        with self._changing:
            del self._links[link.segment]
        ending = threading.Timer(_LINGER_S, self._end_if_idle)
        ending.daemon = True
        ending.start()

    def _end_if_idle(self) -> None:
        with self._changing:
            if not self._links:
                end_this_actor()


def node_actor_name(run: str, node: str) -> str:
    """What the actor of a node is called."""
    return f"rollway:{run}:{node}"


def node_segment_prefix(run: str, identity: str, node: str) -> str:
    """How the names of a node's segments begin: others for every run and node, though they may share a machine.

    >>> node_segment_prefix("my run", "a1", "n1")
    'ray-my-run-4f7d1e3ffe24'
    """
    readable = re.sub(r"[^A-Za-z0-9_]+", "-", run)[:40]
    return f"ray-{readable}-{hashlib.sha256(f'{run}/{identity}/{node}'.encode()).hexdigest()[:12]}"
