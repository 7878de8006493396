"""Registry: what is known of a run, under its name: its learners, who of them lives, and the numbers of its workers.

`publish` starts one per run, as an actor of Ray that takes no CPU. It knows by a lease (lease.py) which learners live.
When it is lost, the learners start another one.

```text
             register                lease                     withdraw
  (nothing) ──────────▶ expected ──────────▶ present ────────────────────────▶ over
                            │ no lease          │ lease ends: the learner died
                            ▼                   ▼            register
                        (nothing)             lost ──────────────────────────▶ expected
```

It ends itself when the last learner withdrew and all nodes have left, or ``reconnect_timeout_s`` after the last one
died. It is plain asyncio, and imports ray only to end itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from rollway._core import WIRE_PROTOCOL, __version__
from rollway.integrations.ray.cluster import end_this_actor
from rollway.integrations.ray.learner_entry import LearnerEntry
from rollway.integrations.ray.lease import KEY_BYTES, PRESENT, WITHDRAWN, ask_when_silent
from rollway.integrations.ray.weight_tree import FetchTree
from rollway.transport.policies import IfExists

_LEASE_WAIT_S = 10.0  # for the connection of a learner that has registered
_MIRROR_WAIT_S = 30.0  # for the copy of a node that has asked from whom to fetch
_OVER_LINGER_S = 1.0  # after the last learner has withdrawn, and all links of nodes have left
_LEAVE_WAIT_S = 60.0  # for links that have not: Ray may be restarting their actors
_GENERATION_NUMBERS = 1 << 20  # numbers of workers for each registry of a run

State = Literal["expected", "present", "lost", "over"]


class Status(NamedTuple):
    """How a rank is doing, and from which node a node fetches its weights, as `Registry.watch` compares it."""

    state: State | None
    """``None``: this registry has never heard of it."""
    identity: str | None
    weights_node: str | None = None


class LinkId(NamedTuple):
    """A node's segment, as the registry knows it."""

    segment: str
    run_id: str
    was_connected: bool
    """To a learner of the run, perhaps by an earlier process of its node. The run goes on for it if another registry
    takes the place of a lost one, also with another learner."""


class Refused(NamedTuple):
    """What is no use to wait for."""

    why: str


class Registered(NamedTuple):
    """What a learner or a node gets that was let in."""

    host: str
    port: int
    key: bytes
    generation: int
    run_id: str
    resumes_after_s: float | None = None
    """How long ago the learner ended whose run goes on; ``None`` if the run is new."""


@dataclass
class _Rank:
    entry: LearnerEntry
    key: bytes
    state: State = "expected"
    since: float = 0.0  # of this state, monotonic
    workers: int = 0

    @property
    def status(self) -> Status:
        return Status(self.state, self.entry.identity)

    @property
    def time_left_s(self) -> float:
        """Of a learner that died: for how long it is waited for."""
        return max(self.since + self.entry.reconnect_timeout_s - time.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        """Whether it has withdrawn, or died so long ago that it is not waited for."""
        return self.state == "over" or (self.state == "lost" and self.time_left_s == 0.0)


@dataclass
class _Mirror:
    """A node that gives its copy of the weights to others."""

    host: str
    port: int
    token: str = field(repr=False)
    key: bytes = field(repr=False)
    present: bool = False


class Registry:
    """The actor. All calls return values; the caller raises, so that errors have no traceback of another process."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._server: asyncio.Server | None = None
        self._run_ids: list[str] = []  # the run's, and those by which nodes know it that it went on with
        self._ended_ids: set[str] = set()
        self._refuses_earlier = False  # the learner began anew: nodes that knew a run by another id go
        self._ranks: dict[int, _Rank] = {}
        self._world_size = 0
        self._workers: dict[str | None, int] = {}  # the rank of each that did not choose one
        self._fetches: FetchTree[str] | None = None
        self._mirrors: dict[str, _Mirror] = {}  # by node
        self._links: set[str] = set()  # segments of nodes; they leave when they know that the run is over
        self._generation = 0
        self._next_number = 0
        self._changed = asyncio.Event()
        self._ending: asyncio.TimerHandle | None = None

    async def speaks(self) -> tuple[str, int]:
        """Rollway's version here, and its wire protocol. Every version has this call."""
        return __version__, WIRE_PROTOCOL

    async def register(
        self, entry: LearnerEntry, generation: int, if_exists: IfExists | None = "resume"
    ) -> Registered | str | LearnerEntry:
        """Expects the lease of a learner, or says why not. ``generation``: above that of a registry that was lost.

        A `LearnerEntry` is the learner that this one cannot take the place of, because its data have another form.
        """
        if self._world_size and self._any("present", "expected") and entry.world_size != self._world_size:
            return f"its learners have world_size={self._world_size}, this one has {entry.world_size}"
        known = self._ranks.get(entry.rank)
        if known is not None and known.state in ("present", "expected") and known.entry.identity != entry.identity:
            return f"its rank {entry.rank} is {known.entry.place}, since {time.monotonic() - known.since:.0f} s"
        lost = [one for one in self._ranks.values() if one.state == "lost" and not one.is_over]
        since = None if not lost else time.monotonic() - max(one.since for one in lost)
        if since is not None and if_exists == "error":
            return f"its learner ended {since:.0f} s ago, and its workers wait for the next one"
        begins_anew = if_exists == "replace" and not self._any("present", "expected")
        if known is not None and known in lost and not begins_anew and not entry.takes_the_same(known.entry):
            return known.entry.without_secret()
        if self._server is None:
            self._server = await asyncio.start_server(self._hold, self._host, 0)
        if generation > self._generation:
            self._generation, self._next_number = generation, generation * _GENERATION_NUMBERS
        is_over = bool(self._ranks) and all(rank.is_over for rank in self._ranks.values())
        if begins_anew or is_over or not self._run_ids:
            self._begin_run(entry.run_id or secrets.token_hex(8))
            self._refuses_earlier = begins_anew
            known = since = None
        elif entry.run_id:
            self._go_on_with(entry.run_id)
        entry = replace(entry, run_id=self._run_ids[0])
        self._world_size = entry.world_size
        rank = _Rank(entry, secrets.token_bytes(KEY_BYTES), workers=0 if known is None else known.workers)
        rank.since = time.monotonic()
        self._ranks[entry.rank] = rank
        self._notify()
        asyncio.get_running_loop().call_later(_LEASE_WAIT_S, self._forget_expected, rank)
        return self._registered(rank.key)._replace(resumes_after_s=since)

    def _registered(self, key: bytes) -> Registered:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return Registered(self._host, port, key, self._generation, self._run_ids[0])

    def _begin_run(self, run_id: str) -> None:
        """A learner came that continues no other: what nodes have of the runs before is not for it."""
        self._ended_ids.update(self._run_ids)
        self._ended_ids.discard(run_id)
        self._run_ids = [run_id]
        self._ranks.clear()
        self._workers.clear()

    def _go_on_with(self, run_id: str) -> None:
        """The run was known by this id to a registry that was lost."""
        if run_id not in self._run_ids and run_id not in self._ended_ids:
            self._run_ids.append(run_id)
            self._notify()

    async def learner(self, rank: int | None, timeout: float) -> LearnerEntry | str | Refused:
        """A learner that is present, without its secret; ``rank=None``: any. Or why there is none in time."""
        if self._lacks(rank):
            return Refused(self._why_none(rank))
        found = await self._when(lambda: self._find(rank), timeout)
        return self._why_none(rank) if found is None else found.entry.without_secret()

    async def join(
        self, worker: str | None, rank: int | None, key: str | None, timeout: float
    ) -> tuple[LearnerEntry, int] | str | Refused:
        """The learner of a worker, without its secret, and the worker's number.

        ``worker``: what Ray calls it, also after a restart. It keeps its rank, so that restarts do not crowd one.
        """
        if self._lacks(rank):
            return Refused(self._why_none(rank))
        if key is not None and await self._when(lambda: self._world_size or None, timeout):
            rank = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) % self._world_size
        found = await self._when(lambda: self._rank_for(worker) if rank is None else self._find(rank), timeout)
        if found is None and rank is None:
            found = self._least_busy()
        if found is None:
            return self._why_none(rank)
        if rank is None and self._workers.get(worker) != found.entry.rank:
            found.workers += 1
            if worker is not None:
                self._workers[worker] = found.entry.rank
        self._next_number += 1
        return found.entry.without_secret(), self._next_number - 1

    async def way_in(self, rank: int, timeout: float) -> LearnerEntry | str:
        """A learner with its secret, for a process that connects to it."""
        found = await self._when(lambda: self._find(rank), timeout)
        return self._why_none(rank) if found is None else found.entry

    async def forward_to(self, link: LinkId, rank: int, timeout: float) -> LearnerEntry | Status:
        """A learner with its secret, for a node's segment. Or its status: after the timeout, or when it is over."""
        found = await self._for_link(link, lambda: self._find(rank), [rank], timeout)
        return found.entry if isinstance(found, _Rank) else found or self._link_status(link, rank)

    async def _for_link(self, link: LinkId, look: Any, ranks: list[int], timeout: float) -> Any:
        """What ``look`` returns, or that these ranks are over; ``None`` after the timeout."""
        self._links.add(link.segment)
        if link.was_connected and self._refuses_earlier and not self._is_of_run(link):
            self._ended_ids.add(link.run_id)
        elif link.was_connected:
            self._go_on_with(link.run_id)
        return await self._when(lambda: (self._is_of_run(link) and look()) or self._end_of(link, ranks), timeout)

    def _is_of_run(self, link: LinkId) -> bool:
        return link.run_id in self._run_ids

    def _link_status(self, link: LinkId, rank: int) -> Status:
        return self._status(rank) if self._is_of_run(link) else Status(None, None)

    async def weights(self, timeout: float) -> LearnerEntry | str:
        """The first rank that has weights, without its secret."""
        found = await self._when(self._find_weights, timeout)
        if found is None:
            return "none of its learners has published weights: publish(…, weights=…) gives them to workers"
        return found.entry.without_secret()

    async def weights_from(self, link: LinkId, node: str, timeout: float) -> LearnerEntry | Status:
        """The first rank that has weights, with the address and secret of the place from which the node fetches them.

        That is the learner itself, or another node. The node is expected to `offer` its copy. A `Status` is as of
        `forward_to`, for all ranks.
        """
        found = await self._for_link(link, lambda: self._weights_source(node), list(self._ranks), timeout)
        return found or self._link_status(link, min(self._ranks, default=0))

    async def offer(self, node: str, host: str, port: int, token: str) -> Registered | str:
        """Expects the lease of a node that gives its copy of the weights to others."""
        if self._server is None:
            return "this registry has no learner yet"
        mirror = _Mirror(host, port, token, secrets.token_bytes(KEY_BYTES))
        self._mirrors[node] = mirror
        return self._registered(mirror.key)

    async def watch(self, rank: int, seen: Status, timeout: float, node: str | None = None) -> Status:
        """The status of a rank, as soon as it is another than ``seen``; with that of a node's source of weights."""
        await self._when(lambda: self._status(rank, node) != seen or None, timeout)
        return self._status(rank, node)

    def _status(self, rank: int, node: str | None = None) -> Status:
        known, tree = self._ranks.get(rank), self._fetches
        source = tree.parent(node) if tree is not None and node is not None and node in tree else None
        return Status(None, None) if known is None else known.status._replace(weights_node=source)

    def _end_of(self, link: LinkId, ranks: list[int]) -> Status | None:
        """That the run is over, if it was another one, or none of these ranks will come back."""
        if link.run_id in self._ended_ids:
            return Status("over", None)
        if not self._is_of_run(link):
            return None
        known = [self._ranks[rank] for rank in ranks if rank in self._ranks]
        return Status("over", known[0].entry.identity) if known and all(one.is_over for one in known) else None

    async def leave(self, segment: str, timeout: float) -> None:
        """Called for a node's segment that is gone. After the run this registry waits for those that are left."""
        self._links.discard(segment)
        self._notify()

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keeps the lease of a learner until it ends."""
        with contextlib.closing(writer):
            try:
                key = await asyncio.wait_for(reader.readexactly(KEY_BYTES), _LEASE_WAIT_S)
            except (asyncio.IncompleteReadError, TimeoutError, ConnectionError):
                return
            ask_when_silent(writer.get_extra_info("socket"))
            node = next((node for node, one in self._mirrors.items() if secrets.compare_digest(one.key, key)), None)
            if node is not None:
                return await self._hold_mirror(node, reader, writer)
            rank = next((rank for rank in self._ranks.values() if secrets.compare_digest(rank.key, key)), None)
            if rank is None or rank.state != "expected":
                return
            self._set(rank, "present")
            said = b""
            with contextlib.suppress(ConnectionError, OSError):
                writer.write(PRESENT)
                said = await reader.read(1)
            self._set(rank, "over" if said == WITHDRAWN else "lost")

    async def _hold_mirror(self, node: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keeps the lease of a node that gives its copy of the weights to others."""
        mirror = self._mirrors[node]
        mirror.present = True
        self._notify()
        with contextlib.suppress(ConnectionError, OSError):
            writer.write(PRESENT)
            await reader.read(1)
        if self._mirrors.get(node) is mirror:  # and not that of its successor
            del self._mirrors[node]
            self._leave(node)

    def _weights_source(self, node: str) -> LearnerEntry | None:
        """From whom a node fetches, if that is there. A new node gets its place."""
        found = self._find_weights()
        if found is None:
            return None
        if self._fetches is None:
            self._fetches = FetchTree(found.entry.weights_fan_out)
        if node not in self._fetches:
            self._fetches.join(node)
            asyncio.get_running_loop().call_later(_MIRROR_WAIT_S, self._forget_without_mirror, node)
        source = self._fetches.parent(node)
        if source is None:
            return found.entry
        mirror = self._mirrors.get(source)
        if mirror is None or not mirror.present:
            return None
        return replace(found.entry, weights_node=source, host=mirror.host, port=mirror.port, token=mirror.token)

    def _forget_without_mirror(self, node: str) -> None:
        if node not in self._mirrors:
            self._leave(node)

    def _leave(self, node: str) -> None:
        """Gives the nodes that fetched from this one another place."""
        if self._fetches is not None:
            self._fetches.leave(node)
            self._notify()

    def _set(self, rank: _Rank, state: State) -> None:
        rank.state, rank.since = state, time.monotonic()
        self._notify()

    def _forget_expected(self, rank: _Rank) -> None:
        if rank.state == "expected" and self._ranks.get(rank.entry.rank) is rank:
            del self._ranks[rank.entry.rank]
            self._notify()

    def _notify(self) -> None:
        """Wakes what waits for a change, and ends this actor after a while if there is no learner."""
        self._changed.set()
        self._changed = asyncio.Event()
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if not self._any("present", "expected"):
            lost = [rank.time_left_s for rank in self._ranks.values() if rank.state == "lost"]
            linger_s = max(lost, default=_LEAVE_WAIT_S if self._links else _OVER_LINGER_S)
            self._ending = asyncio.get_running_loop().call_later(linger_s, end_this_actor)

    async def _when(self, look: Any, timeout: float) -> Any:
        """What ``look`` returns as soon as that is not ``None``; ``None`` when the time is over."""
        deadline = time.monotonic() + timeout
        while (found := look()) is None:
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), max(deadline - time.monotonic(), 0.0))
            except TimeoutError:
                return look()
        return found

    def _any(self, *states: State) -> bool:
        return any(rank.state in states for rank in self._ranks.values())

    def _find(self, rank: int | None) -> _Rank | None:
        """That rank, if it is present; ``None``: any that is."""
        return self._least_busy() if rank is None else self._present().get(rank)

    def _rank_for(self, worker: str | None) -> _Rank | None:
        """The rank that a worker had; for a new one, the rank with the fewest workers, once all of them were seen."""
        kept = self._present().get(self._workers.get(worker, -1))
        complete = self._world_size and len(self._ranks) == self._world_size and not self._any("expected")
        return kept or (self._least_busy() if complete else None)

    def _least_busy(self) -> _Rank | None:
        return min(self._present().values(), key=lambda one: (one.workers, one.entry.rank), default=None)

    def _present(self) -> dict[int, _Rank]:
        return {number: rank for number, rank in self._ranks.items() if rank.state == "present"}

    def _find_weights(self) -> _Rank | None:
        having = [rank for rank in self._present().values() if rank.entry.weights is not None]
        return min(having, key=lambda one: one.entry.rank, default=None)

    def _lacks(self, rank: int | None) -> bool:
        """Whether there is no such rank."""
        return rank is not None and self._world_size > 0 and not 0 <= rank < self._world_size

    def _why_none(self, rank: int | None) -> str:
        asked = [one for one in self._ranks.values() if rank in (None, one.entry.rank)]
        if self._lacks(rank):
            return f"it has no rank {rank}: its ranks are 0 to {self._world_size - 1}"
        what = "its learner" if rank is None else f"its rank {rank}"
        if not asked:
            return f"{what} has not been published"
        last = max(asked, key=lambda one: one.since)
        done = "has withdrawn" if last.state == "over" else "died" if last.state == "lost" else "is starting"
        return f"{what} ({last.entry.place}) {done} {time.monotonic() - last.since:.0f} s ago"
