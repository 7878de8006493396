"""Dispatcher: gives each waiting coroutine the groups that it requested, from one server of records.

It reads only while a call waits. Records go through the `Stash` to the call that has waited longest. So calls cannot
take each other's trajectories, and other records stay in the ring, where environments see how full it is. The event
loop calls it when there are records, one loop iteration earlier than a task would run. While a call waits, a timer
checks once a second for dead environments, late groups, and environments that have no room to send.

Use it from one event loop at a time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rollway import ConnectionClosedError, InvalidArgument, PeerDied, RecordServer, segments
from rollway.integrations.skyrl.config import ExternalConfig
from rollway.integrations.skyrl.errors import StashFull, TrajectoryMissing, TrajectoryTimeout, TrajectoryUnusable
from rollway.integrations.skyrl.request import GroupRequest
from rollway.integrations.skyrl.stash import Slot, Stash
from rollway.records import Group, Record
from rollway.transport.server_base import describe_refusals

_MAX_READ = 256  # records per read
_CHECK_S = 1.0


@dataclass(eq=False)
class _Waiter:
    """One call of `get`."""

    request: GroupRequest
    slots: list[Slot]
    answer: asyncio.Future[list[Group]]
    until_s: float
    """Its deadline, by the loop's clock."""


class Dispatcher:
    """Hands groups from a server, through a stash, to the calls that request them. `ExternalConfig` has the limits."""

    def __init__(self, server: RecordServer, stash: Stash, limits: ExternalConfig) -> None:
        self.version = 0
        """The version of the newest weights."""
        self._server, self._stash = server, stash
        self._timeout_s, self._peer_timeout_s = limits.timeout_s, limits.peer_timeout_s
        self._max_staleness, self._max_stash = limits.max_staleness, limits.max_stash
        self._waiters: list[_Waiter] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # in which calls wait
        self._on_readable = partial(self._read, is_callback=True)
        self._callback_pending = False  # whether the loop will call it
        self._next_count: int | None = None  # how much to read then; counted early, to keep the callback short
        self._check_timer: asyncio.TimerHandle | None = None
        self._alone_since: float | None = None
        self._received = False  # whether anything came since the last check
        self._failure: BaseException | None = None

    async def get(self, request: GroupRequest) -> list[Group]:
        """Waits for the groups of a request. A cancelled call takes nothing: its groups go to the next call."""
        if (failure := self._failure) is not None:
            self._failure = None
            raise failure
        loop = asyncio.get_running_loop()
        until_s = math.inf if self._timeout_s is None else loop.time() + self._timeout_s
        waiter = _Waiter(request, self._stash.slots(request), loop.create_future(), until_s)
        self._waiters.append(waiter)
        try:
            self._serve()
            if not waiter.answer.done():
                self._start_waiting(loop)
            if waiter.answer.done():
                return waiter.answer.result()
            return await waiter.answer
        except (asyncio.CancelledError, KeyboardInterrupt):
            self._cancel(waiter)
            raise

    def put_back(self, groups: Sequence[Group]) -> None:
        """Puts unused groups back where they were."""
        self._stash.put_back(groups)
        self._serve_remaining()

    def _serve_remaining(self) -> None:
        """Demand dropped: serves the remaining waiters, and counts again how many records to read."""
        self._next_count = None
        self._serve()

    def _serve(self) -> None:
        """Hands groups to the waiting calls, the oldest call first."""
        oldest = 0 if self._max_staleness is None else self.version - self._max_staleness
        blocked: set[str] = set()  # a stream is served in order within its phase
        for waiter in list(self._waiters):
            if waiter.request.phase in blocked or waiter.answer.done():  # done: cancelled, and about to call `_cancel`
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
                blocked.add(waiter.request.phase)

    def _cancel(self, waiter: _Waiter) -> None:
        """Takes back what a call was given, or removes it from the waiters."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        elif waiter.answer.done() and not waiter.answer.cancelled() and waiter.answer.exception() is None:
            self._stash.put_back(waiter.answer.result())
        self._serve_remaining()

    def _time_out(self, waiter: _Waiter) -> None:
        if not waiter.answer.done():
            text = f"waited {self._timeout_s} s for {waiter.request}: {self._explain(waiter.request)}"
            waiter.answer.set_exception(TrajectoryTimeout(text))
            self._waiters.remove(waiter)
            self._serve_remaining()

    def _fail(self, error: BaseException) -> None:
        """Raises a failure in all waiting calls, or else in the next one."""
        self._failure = None if self._waiters else error
        for waiter in self._waiters:
            if not waiter.answer.done():
                waiter.answer.set_exception(error)
        self._waiters.clear()

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serves a call that waits in this loop: reads what there is, and makes the loop call back for the rest."""
        if self._loop is not loop:
            self._loop, self._callback_pending, self._check_timer = loop, False, None
        if self._check_timer is None:
            self._alone_since = None  # no call waited, so no check ran
        self._schedule_check(loop)
        self._read()

    def _read(self, is_callback: bool = False) -> None:
        """Reads while calls wait and there are records; then makes the loop call back when there are more.

        ``is_callback``: the loop calls it, because there is something to read or the server is closed.
        """
        most = None
        if is_callback:
            self._callback_pending, most = False, self._next_count
        try:
            while self._waiters:
                records = self._server.try_read_many(most or self._count_to_read())
                most = None
                if records:
                    self._alone_since, self._received = None, True
                    self._keep(records)
                    self._serve()
                elif self._callback_pending or self._server.call_when_readable(self._on_readable):
                    self._callback_pending = True
                    self._next_count = self._count_to_read()
                    return
        except ConnectionClosedError:
            self._fail(ConnectionClosedError("the records were closed while trajectories were waited for"))
        except Exception as error:  # noqa: BLE001  whatever it is, the waiting calls raise it
            self._fail(error)

    def _count_to_read(self) -> int:
        """How many records to read: what is requested, and at most ``max_stash`` more."""
        asked = sum([len(waiter.request.rows) for waiter in self._waiters])
        room = self._max_stash + asked - len(self._stash)
        if room <= 0:
            raise self._full()
        wanted = asked - self._stash.whole if self._stash.in_order else room
        return max(1, min(_MAX_READ, room, wanted))

    def _keep(self, records: list[Record]) -> None:
        """Stashes all usable records, and then raises the error of the first unusable one."""
        wrong: list[TrajectoryUnusable | InvalidArgument] = []
        for record in records:
            try:
                self._stash.add(record)
            except (TrajectoryUnusable, InvalidArgument) as error:  # the latter: it cannot even be read
                wrong.append(error)
                record.release()
        if wrong:
            raise wrong[0]

    # ── periodic checks ───────────────────────────────────────────────────────────────────────────────────────────

    def _schedule_check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the timer. An unneeded timer is left to run out, because to cancel it would take time in every call."""
        pause_s = _CHECK_S if (deadline := self._stash.next_deadline_s) is None else min(deadline, _CHECK_S)
        when_s = min([loop.time() + pause_s, *(waiter.until_s for waiter in self._waiters)])
        if self._check_timer is None or when_s < self._check_timer.when():
            if self._check_timer is not None:
                self._check_timer.cancel()
            self._check_timer = loop.call_at(when_s, self._run_check, loop)

    def _run_check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes the checks, and sets the timer again."""
        self._check_timer = None
        try:
            if self._waiters:
                self._check(loop)
        except Exception as error:  # noqa: BLE001  whatever it is, the waiting calls raise it
            self._fail(error)
        if self._waiters:
            self._schedule_check(loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Checks for late calls, late groups, dead environments, and environments without room."""
        self._stash.settle()
        self._serve()
        self._make_room()
        for waiter in [waiter for waiter in self._waiters if waiter.until_s <= loop.time()]:
            self._time_out(waiter)
        if self._all_producers_gone():
            now = time.monotonic()
            self._alone_since = self._alone_since or now
            if self._peer_timeout_s is not None and now - self._alone_since >= self._peer_timeout_s:
                gone = (
                    f"every environment is gone, at least one died, and none came back within {self._peer_timeout_s} s"
                )
                self._fail(PeerDied(f"{gone}: {self._explain(self._waiters[0].request)}"))
        else:
            self._alone_since = None

    def _make_room(self) -> None:
        """Copies the stash when nothing comes, because the held records may fill a lane while more is requested."""
        if not self._received and self._server.lane_pressure():
            self._stash.detach()
        self._received = False

    def _all_producers_gone(self) -> bool:
        stats = self._server.stats()
        return bool(self._waiters) and not stats["producers_alive"] and bool(stats["producers_died"])

    # ── texts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _full(self) -> StashFull:
        return StashFull(
            f"{len(self._stash)} trajectories are stashed, and none of them is requested: "
            f"{self._stash.describe(self._waiters[0].request)}. Use match=stream, make the environment produce what "
            f"the dataset asks for, or allow more with max_stash (now {self._max_stash})"
        )

    def _explain(self, request: GroupRequest) -> str:
        stats = self._server.stats()
        name = self._server.name
        pids = sorted({pid for one in segments() if one.name == name for pid in one.pids})
        where = f"segment '{name}' (processes attached, this one too: {pids})" if name else f"port {self._server.port}"
        others_came = bool(self._stash.phases) and request.phase not in self._stash.phases  # an environment runs
        lost = ", ".join(f"{count} {why.replace('_', ' ')}" for why, count in self._stash.counts().items() if count)
        return (
            f"{self._stash.describe(request)}. At {where}: {stats['producers_alive']} environment workers live, "
            f"{stats['producers_died']} died; {stats['ready_records']} records in the ring, {len(self._stash)} stashed"
            f"{'; not used: ' + lost if lost else ''}."
            f"{self._server.lane_pressure()}{describe_refusals(self._server.refusals)}"
            f"{' Is the environment running, with the same shm_name or address?' if not others_came else ''}"
        )
