"""Dispatcher: gives each of many waiting coroutines the groups that it asked for, from one server of records.

One task reads for all of them, and only while somebody waits; what it reads goes through the `Stash` to the call that
waits longest for it. So no two calls can take each other's trajectories, and what nobody wants yet stays in the ring,
where the environments see how full it is. Nothing is polled: the task sleeps until the ring wakes it. Once a second,
while anybody waits, a timer looks for what cannot wake it: the dead, and the deadlines of incomplete groups.

It knows nothing of SkyRL. Use it from one event loop at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rollway import ConnectionClosedError, InvalidArgument, PeerDied, Record, RecordServer, segments
from rollway.hosting import not_let_in
from rollway.integrations.skyrl.ask import Ask
from rollway.integrations.skyrl.errors import StashFull, TrajectoryMissing, TrajectoryTimeout, TrajectoryUnusable
from rollway.integrations.skyrl.stash import Settled, Stash

_MOST = 256  # records per read
_PATROL_S = 1.0


@dataclass(eq=False)
class _Waiter:
    """One call of `get`."""

    ask: Ask
    answer: asyncio.Future[list[Settled]]


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
        self._reader: asyncio.Task[None] | None = None
        self._patrol: asyncio.TimerHandle | None = None
        self._alone_since: float | None = None
        self._failure: BaseException | None = None

    async def get(self, ask: Ask) -> list[Settled]:
        """Waits for the groups of an ask. A call that is cancelled takes nothing: they go to the next."""
        if (failure := self._failure) is not None:
            self._failure = None
            raise failure
        loop = asyncio.get_running_loop()
        waiter = _Waiter(ask, loop.create_future())
        self._waiters.append(waiter)
        self._serve()
        if waiter.answer.done():
            return waiter.answer.result()
        self._begin(loop)
        limit = None if self._timeout_s is None else loop.call_later(self._timeout_s, self._time_out, waiter)
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise
        finally:
            if limit is not None:
                limit.cancel()

    def put_back(self, groups: Sequence[Settled]) -> None:
        """Takes back groups that were got and not used, to where they were."""
        self._stash.put_back(groups)
        self._serve()
        self._read_for_fewer()

    def _serve(self) -> None:
        """Hands groups to whoever waits, the oldest call first."""
        oldest = 0 if self._max_staleness is None else self.version - self._max_staleness
        blocked: set[str] = set()  # a stream is served in order: nobody overtakes in his phase
        for waiter in list(self._waiters):
            if waiter.ask.phase in blocked or waiter.answer.done():  # done: cancelled, and about to withdraw
                continue
            try:
                groups = self._stash.take(waiter.ask, oldest)
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
        elif not waiter.answer.cancelled() and waiter.answer.exception() is None:
            self._stash.put_back(waiter.answer.result())
        self._serve()
        self._read_for_fewer()

    def _time_out(self, waiter: _Waiter) -> None:
        if not waiter.answer.done():
            text = f"waited {self._timeout_s} s for {waiter.ask}: {self._explain(waiter.ask)}"
            waiter.answer.set_exception(TrajectoryTimeout(text))
            self._waiters.remove(waiter)
            self._serve()
            self._read_for_fewer()

    def _fail(self, error: BaseException) -> None:
        """Hands a failure to those who wait, or else to the next caller."""
        self._failure = None if self._waiters else error
        for waiter in self._waiters:
            if not waiter.answer.done():
                waiter.answer.set_exception(error)
        self._waiters.clear()
        self._rest()

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes sure that somebody reads, and looks around."""
        if self._reader is None or self._reader.done() or self._reader.get_loop() is not loop:
            self._stop()
            self._start_reader(loop)
            self._alone_since = None
            self._patrol = loop.call_later(self._patrol_s(), self._look_around, loop)

    def _start_reader(self, loop: asyncio.AbstractEventLoop) -> None:
        self._reader = loop.create_task(self._read(), name="rollway-skyrl-reader")
        self._reader.add_done_callback(self._read_ended)

    def _rest(self) -> None:
        """Stops reading if nobody waits."""
        if not self._waiters:
            self._stop()

    def _read_for_fewer(self) -> None:
        """Somebody waits no more: the reader counts anew how much the others wait for."""
        self._rest()
        if self._reader is not None and not self._reader.done():
            self._reader.cancel()
            self._start_reader(self._reader.get_loop())

    def _stop(self) -> None:
        """Ends the reader, which takes nothing when it is cancelled, and the patrol."""
        if self._reader is not None and not self._reader.get_loop().is_closed():
            self._reader.cancel()
        if self._patrol is not None:
            self._patrol.cancel()
        self._reader = self._patrol = None

    async def _read(self) -> None:
        while self._waiters:
            asked = sum(len(waiter.ask.places) for waiter in self._waiters)
            room = self._max_stash + asked - len(self._stash)
            if room <= 0:
                raise self._full()
            wanted = asked - self._stash.whole if self._stash.in_order else room
            try:
                records = await self._server.read_many_async(max(1, min(_MOST, room, wanted)))
            except PeerDied:
                continue  # by the server's patience; ours is what the patrol goes by
            if not records:
                raise ConnectionClosedError("the records were closed while trajectories were waited for")
            self._alone_since = None
            self._keep(records)
            self._serve()

    def _read_ended(self, reader: asyncio.Task[None]) -> None:
        error = None if reader.cancelled() else reader.exception()
        if error is not None:
            self._fail(error)

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

    def _patrol_s(self) -> float:
        deadline = self._stash.next_deadline_s
        return _PATROL_S if deadline is None else min(deadline, _PATROL_S)

    def _look_around(self, loop: asyncio.AbstractEventLoop) -> None:
        """Groups whose deadline is over; environments that are dead."""
        self._stash.settle()
        self._serve()
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
        self._rest()
        if self._waiters:
            self._patrol = loop.call_later(self._patrol_s(), self._look_around, loop)

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
            f"{'; not used: ' + lost if lost else ''}.{self._server.crowding()}{not_let_in(self._server.refusals)}"
            f"{' Is the environment running, with the same shm_name or address?' if not others_came else ''}"
        )
