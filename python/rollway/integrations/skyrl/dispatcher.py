"""Dispatcher: gives each of many waiting coroutines the groups that it asked for, from one server of records.

It reads for all of them, and only while somebody waits; what it reads goes through the `Stash` to the call that waits
longest for it. So no two calls can take each other's trajectories, and what nobody wants yet stays in the ring, where
the environments see how full it is. Nothing is polled: the event loop calls it when the ring has something, and it
reads there and then: a task would be awake a turn of the loop later. Once a second, while anybody waits, a timer looks
for what cannot wake it: the dead, the deadlines of incomplete groups, and an environment that has no room to send.

It knows nothing of SkyRL. Use it from one event loop at a time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rollway import ConnectionClosedError, Group, InvalidArgument, PeerDied, Record, RecordServer, segments
from rollway.integrations.skyrl.ask import Ask
from rollway.integrations.skyrl.errors import StashFull, TrajectoryMissing, TrajectoryTimeout, TrajectoryUnusable
from rollway.integrations.skyrl.stash import Slot, Stash
from rollway.transport.server_base import describe_refusals

_MOST = 256  # records per read
_PATROL_S = 1.0


@dataclass(eq=False)
class _Waiter:
    """One call of `get`."""

    ask: Ask
    slots: list[Slot]
    answer: asyncio.Future[list[Group]]
    until_s: float
    """When its time is over, by the loop's clock."""


class Dispatcher:
    """Hands groups from a server to whoever asks.

    Args:
        server: Where the records come from.
        stash: Where they wait.
        timeout_s: How long a call waits before `TrajectoryTimeout`; ``None``: for ever.
        max_staleness: How many versions behind `version` a group may be; ``None``: any.
        max_stash: How many records to hold that nobody waits for, before `StashFull`.
        peer_timeout_s: How long to wait for a new environment when all are gone and one died, before `PeerDied`.
    """

    def __init__(
        self,
        server: RecordServer,
        stash: Stash,
        *,
        timeout_s: float | None,
        max_staleness: int | None,
        max_stash: int,
        peer_timeout_s: float | None,
    ) -> None:
        self.version = 0
        """The version of the newest weights."""
        self._server = server
        self._stash = stash
        self._timeout_s = timeout_s
        self._max_staleness = max_staleness
        self._max_stash = max_stash
        self._peer_timeout_s = peer_timeout_s
        self._waiters: list[_Waiter] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # in which somebody waits
        self._heard = partial(self._read, heard=True)
        self._told = False  # whether the loop will call it
        self._most: int | None = None  # how much to read then: counted before, for then there is no time to lose
        self._patrol: asyncio.TimerHandle | None = None
        self._alone_since: float | None = None
        self._came = False  # whether anything did since the last look around
        self._failure: BaseException | None = None

    async def get(self, ask: Ask) -> list[Group]:
        """Waits for the groups of an ask. A call that is cancelled takes nothing: they go to the next."""
        if (failure := self._failure) is not None:
            self._failure = None
            raise failure
        loop = asyncio.get_running_loop()
        until_s = math.inf if self._timeout_s is None else loop.time() + self._timeout_s
        waiter = _Waiter(ask, self._stash.slots(ask), loop.create_future(), until_s)
        self._waiters.append(waiter)
        try:
            self._serve()
            if not waiter.answer.done():
                self._begin(loop)
            if waiter.answer.done():
                return waiter.answer.result()
            return await waiter.answer
        except (asyncio.CancelledError, KeyboardInterrupt):
            self._withdraw(waiter)
            raise

    def put_back(self, groups: Sequence[Group]) -> None:
        """Takes back groups that were got and not used, to where they were."""
        self._stash.put_back(groups)
        self._serve_others()

    def _serve_others(self) -> None:
        """Somebody wants less than he did: it goes to others, and how much to read is counted anew."""
        self._most = None
        self._serve()

    def _serve(self) -> None:
        """Hands groups to whoever waits, the oldest call first."""
        oldest = 0 if self._max_staleness is None else self.version - self._max_staleness
        blocked: set[str] = set()  # a stream is served in order: nobody overtakes in his phase
        for waiter in list(self._waiters):
            if waiter.ask.phase in blocked or waiter.answer.done():  # done: cancelled, and about to withdraw
                continue
            try:
                groups = self._stash.take(waiter.slots, oldest)
            except (TrajectoryMissing, TrajectoryUnusable) as error:
                self._waiters.remove(waiter)
                waiter.answer.set_exception(error)
                continue
            if groups is not None:
                self._waiters.remove(waiter)
                waiter.answer.set_result(groups)
            elif self._stash.in_order:
                blocked.add(waiter.ask.phase)

    def _withdraw(self, waiter: _Waiter) -> None:
        """Takes back what a call was given, or stops it from waiting."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        elif waiter.answer.done() and not waiter.answer.cancelled() and waiter.answer.exception() is None:
            self._stash.put_back(waiter.answer.result())
        self._serve_others()

    def _time_out(self, waiter: _Waiter) -> None:
        if not waiter.answer.done():
            text = f"waited {self._timeout_s} s for {waiter.ask}: {self._explain(waiter.ask)}"
            waiter.answer.set_exception(TrajectoryTimeout(text))
            self._waiters.remove(waiter)
            self._serve_others()

    def _fail(self, error: BaseException) -> None:
        """Hands a failure to those who wait, or else to the next caller."""
        self._failure = None if self._waiters else error
        for waiter in self._waiters:
            if not waiter.answer.done():
                waiter.answer.set_exception(error)
        self._waiters.clear()

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Somebody waits in this loop: reads what there is for him, and sees to it that he hears of the rest."""
        if self._loop is not loop:
            self._loop, self._told, self._patrol = loop, False, None
        if self._patrol is None:
            self._alone_since = None  # nobody waited, and nobody counted
        self._look_around_soon(loop)
        self._read()

    def _read(self, heard: bool = False) -> None:
        """Reads what there is, as long as somebody waits for it; then has the loop call when there is more.

        ``heard``: the loop calls it, for there is something to read, or an end.
        """
        most = None
        if heard:
            self._told, most = False, self._most
        try:
            while self._waiters:
                records = self._server.try_read_many(most or self._count_most())
                most = None
                if records:
                    self._alone_since, self._came = None, True
                    self._keep(records)
                    self._serve()
                elif self._server.closed:
                    raise ConnectionClosedError("the records were closed while trajectories were waited for")
                elif self._told or self._server.call_when_readable(self._heard):
                    self._told = True
                    self._most = self._count_most()
                    return
        except Exception as error:  # noqa: BLE001  whatever it is, those who wait are told
            self._fail(error)

    def _count_most(self) -> int:
        """How many records to take: what is asked for comes first, and so much may be here that nobody asked for."""
        asked = sum([len(waiter.ask.places) for waiter in self._waiters])
        room = self._max_stash + asked - len(self._stash)
        if room <= 0:
            raise self._full()
        wanted = asked - self._stash.whole if self._stash.in_order else room
        return max(1, min(_MOST, room, wanted))

    def _keep(self, records: list[Record]) -> None:
        """Stashes all that can be, and then raises what is wrong with the first that cannot."""
        wrong: list[TrajectoryUnusable | InvalidArgument] = []
        for record in records:
            try:
                self._stash.add(record)
            except (TrajectoryUnusable, InvalidArgument) as error:  # the latter: it cannot even be read
                wrong.append(error)
                record.release()
        if wrong:
            raise wrong[0]

    # ── what cannot wake us ───────────────────────────────────────────────────────────────────────────────────────

    def _look_around_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the timer. One that nobody needs any more runs out: to cancel it would take time, in every call."""
        pause_s = _PATROL_S if (deadline := self._stash.next_deadline_s) is None else min(deadline, _PATROL_S)
        when_s = min([loop.time() + pause_s, *(waiter.until_s for waiter in self._waiters)])
        if self._patrol is None or when_s < self._patrol.when():
            if self._patrol is not None:
                self._patrol.cancel()
            self._patrol = loop.call_at(when_s, self._look_around, loop)

    def _look_around(self, loop: asyncio.AbstractEventLoop) -> None:
        """Looks once, and sets the timer for the next time."""
        self._patrol = None
        try:
            if self._waiters:
                self._look(loop)
        except Exception as error:  # noqa: BLE001  whatever it is, those who wait are told
            self._fail(error)
        if self._waiters:
            self._look_around_soon(loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Calls whose time is over; groups whose deadline is; environments that are dead, or have no room."""
        self._stash.settle()
        self._serve()
        self._make_room()
        for waiter in [waiter for waiter in self._waiters if waiter.until_s <= loop.time()]:
            self._time_out(waiter)
        if self._everybody_is_gone():
            now = time.monotonic()
            self._alone_since = self._alone_since or now
            if self._peer_timeout_s is not None and now - self._alone_since >= self._peer_timeout_s:
                self._fail(
                    PeerDied(
                        f"every environment is gone, at least one died, and none came back within "
                        f"{self._peer_timeout_s} s: {self._explain(self._waiters[0].ask)}"
                    )
                )
        else:
            self._alone_since = None

    def _make_room(self) -> None:
        """Copies what is here if nothing comes: it may be all that fits into a lane, and more is asked for."""
        if not self._came and self._server.lane_pressure():
            self._stash.detach()
        self._came = False

    def _everybody_is_gone(self) -> bool:
        stats = self._server.stats()
        return bool(self._waiters) and not stats["producers_alive"] and bool(stats["producers_died"])

    # ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _full(self) -> StashFull:
        return StashFull(
            f"{len(self._stash)} trajectories are here and none fills the place that is waited for: "
            f"{self._stash.describe(self._waiters[0].ask)}. Use match=stream, make the environment produce what the "
            f"dataset asks for, or allow more with max_stash (now {self._max_stash})"
        )

    def _explain(self, ask: Ask) -> str:
        stats = self._server.stats()
        name = self._server.name
        pids = sorted({pid for one in segments() if one.name == name for pid in one.pids})
        where = f"segment '{name}' (processes attached, this one too: {pids})" if name else f"port {self._server.port}"
        others_came = bool(self._stash.phases) and ask.phase not in self._stash.phases  # then somebody runs
        lost = ", ".join(f"{count} {why.replace('_', ' ')}" for why, count in self._stash.counts().items() if count)
        return (
            f"{self._stash.describe(ask)}. At {where}: {stats['producers_alive']} environment workers live, "
            f"{stats['producers_died']} died; {stats['ready_records']} records in the ring, {len(self._stash)} stashed"
            f"{'; not used: ' + lost if lost else ''}."
            f"{self._server.lane_pressure()}{describe_refusals(self._server.refusals)}"
            f"{' Is the environment running, with the same shm_name or address?' if not others_came else ''}"
        )
