"""CollectorActor: a collector on any node, as an actor of Ray, and what the learner's supervisor sees of it.

The target runs in the main thread of the actor's process. Ray decides where, and notices that it has died; the
runner's restart policy decides whether another actor is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rollway.errors import CollectorError, ConnectionClosedError
from rollway.integrations.ray.cluster import initialised, is_initialised, node_id
from rollway.integrations.ray.collector_call import unpickled
from rollway.integrations.ray.collector_line import CollectorLine, LearnerLines
from rollway.integrations.ray.plane import Route
from rollway.runner.collector import Collector, StopFlag
from rollway.runner.collector_error import Failure, format_collector_death
from rollway.runner.restart_policy import RestartCount
from rollway.runner.supervised_collector import Reports, SupervisedCollector

_MAX_REPORTS = 10_000  # of each, until the learner asks for them; then the oldest are dropped

if TYPE_CHECKING:
    from concurrent.futures import Future


@dataclass(frozen=True)
class CollectorStart:
    """What an actor is told."""

    index: int
    life: int
    address: tuple[str, int]
    key: bytes = field(repr=False)
    route: Route


class CollectorPlace(NamedTuple):
    """Where a collector runs: what it says first."""

    pid: int
    host: str
    node_id: str

    @classmethod
    def here(cls) -> CollectorPlace:
        """That of this process."""
        return cls(os.getpid(), initialised().util.get_node_ip_address(), node_id())


class CollectorActor:
    """The actor."""

    def run(self, start: CollectorStart, call: bytes) -> bytes | None:
        """Runs the target until it returns. What it raises is returned, as a `Failure`."""
        try:
            line = CollectorLine(start.address, start.key)
            with contextlib.closing(line), contextlib.ExitStack() as opened:
                line.send_bytes(json.dumps(CollectorPlace.here()).encode())
                collector = Collector(start.index, start.life, StopFlag(line), line)
                _call(collector, unpickled(call, start.route, opened))
                if line.was_cut:
                    raise ConnectionClosedError("this collector has lost the connection to its learner")
        except BaseException as error:  # noqa: BLE001 - the learner raises it
            if isinstance(error, SystemExit) and error.code in (None, 0):
                return None
            return Failure.of(error).encode()
        return None


def _call(collector: Collector, call: Any) -> None:
    target, args, kwargs = call
    collector.report_begin()
    try:
        target(collector, *args, **kwargs)
    except ConnectionClosedError:
        if not collector.stop.is_set():
            raise  # otherwise the learner has closed the rings to wake this collector


class PlacedCollector(SupervisedCollector):
    """One collector: its current actor, and what is known of the actors before it.

    Args:
        index: Its number.
        faults: Counts its deaths.
        lines: Where its actors connect to.
        make: Makes an actor.
        call: What it calls, pickled, as an object of Ray.
        route: How it reaches the learner's ring.
    """

    def __init__(
        self,
        index: int,
        faults: RestartCount,
        lines: LearnerLines,
        make: Callable[[], Any],
        call: Any,
        route: Route,
    ) -> None:
        super().__init__(index, faults)
        self._lines, self._make, self._call, self._route = lines, make, call, route
        self._actor: Any = None
        self._done: Future[bytes | None]
        self._news: _News
        self._key = b""
        self._is_killed = False
        self.started_at = 0.0
        """When its actor was made."""

    @property
    def is_running(self) -> bool:
        """Whether it has an actor, also one that Ray has not placed yet."""
        return self._actor is not None

    @property
    def place(self) -> CollectorPlace | None:
        """Where its actor runs; ``None`` until it says so."""
        return self._news.place

    @property
    def pid(self) -> int | None:
        """Its process, on whatever node; ``None`` until Ray has placed it."""
        return None if self.place is None else self.place.pid

    def start(self) -> None:
        """Makes an actor, which Ray places when it can."""
        self._began, self._is_killed = None, False
        self.started_at = time.monotonic()
        self._news = news = _News()
        self._key = self._lines.expect(news.add)
        start = CollectorStart(self.index, self.life, self._lines.address, self._key, self._route)
        self._actor = self._make()
        self._done = self._actor.run.remote(start, self._call).future()
        self._done.add_done_callback(lambda _: news.notify())

    def fds(self) -> list[int]:
        """One, which other threads make readable."""
        return [self._news.fd]

    def has_ended(self, fd: int) -> bool:
        """Whether Ray says that the call has ended, or it was killed here."""
        return self._is_killed or self._done.done()

    def read_reports(self, reports: Reports) -> None:
        """Takes its reports."""
        for message in self._news.take():
            self._take(message, reports)
        self._began = self._news.began

    def signal(self, number: signal.Signals) -> None:
        """Lets Ray kill the actor. After SIGKILL it counts as ended, even if Ray does not answer any more."""
        self._kill()
        if number == signal.SIGKILL:
            self._is_killed = True
            self._news.notify()

    def reap(self) -> CollectorError | None:
        """Ends the actor, and returns why it has ended; ``None`` when its target returned."""
        self._kill()
        self._lines.forget(self._key)
        self._news.close()
        self._count_work()
        self._actor = None
        if not self._done.done():
            return self._error("was killed, because it did not stop in time")
        if (lost := self._done.exception()) is not None:
            return self._lost(lost)
        if (data := self._done.result()) is None:
            return None
        failure = Failure.decode(data)
        error = self._error(format_collector_death(1, failure.traceback))
        error.kind, error.message, error.traceback_text = failure.kind, failure.message, failure.traceback
        return error

    def _lost(self, lost: BaseException) -> CollectorError:
        """The error for an actor that Ray has lost, or could not make."""
        ray = initialised()
        error = self._error(f"was lost. Ray says: {str(lost).strip()}")
        hopeless = isinstance(lost, ray.exceptions.RayActorError) and lost.actor_init_failed
        if hopeless or not isinstance(lost, ray.exceptions.RayActorError):
            error.kind, error.message = type(lost).__name__, str(lost)  # the next actor would not fare better
        return error

    def _error(self, what: str) -> CollectorError:
        at = self.place
        where = "not placed" if at is None else f"pid {at.pid} on {at.host}, node {at.node_id[:8]}"
        error = CollectorError(f"collector {self.index} ({where}) {what}")
        error.index, error.pid = self.index, self.pid or 0
        return error

    def _kill(self) -> None:
        if is_initialised():
            initialised().kill(self._actor, no_restart=True)


class _News:
    """What one actor says, and the end of its call, from other threads to that of the supervisor."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.place: CollectorPlace | None = None
        self.began: float | None = None
        self._reports: deque[bytes] = deque(maxlen=_MAX_REPORTS)
        self._changing = threading.Lock()

    def add(self, message: bytes) -> None:
        """Adds a message: the place, then the beginning of the target, then reports."""
        if self.place is None:
            self.place = CollectorPlace(*json.loads(message))
        elif not message:
            self.began = time.monotonic()
        else:
            self._reports.append(message)
        self.notify()

    def notify(self) -> None:
        """Makes the descriptor readable."""
        with self._changing:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def take(self) -> list[bytes]:
        """The reports so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        return [self._reports.popleft() for _ in range(len(self._reports))]

    def close(self) -> None:
        """Closes the descriptor."""
        with self._changing:
            os.close(self.fd)
            self.fd = -1
