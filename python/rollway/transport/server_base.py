"""Hosting: what a learner's end has to do for its workers, whatever they send: transports, a life cycle, numbers.

`Server` and `RecordServer` stand on it. It knows where the memory lies and who feeds it, and nothing of samples and
records.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from rollway._core import EventfdWaiter, HistSnapshot
from rollway.errors import ConnectionClosedError, InvalidArgument
from rollway.transport.base import Endpoint, Transport
from rollway.transport.shm import ShmTransport
from rollway.waiting.notifier import AsyncBell


class _Consumer(Protocol):
    """The native handle."""

    @property
    def name(self) -> str | None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def resumed(self) -> bool: ...
    def eventfd_waiter(self) -> EventfdWaiter: ...
    def producers(self) -> tuple[int, list[int]]: ...
    def stats(self) -> dict[str, int]: ...
    def histograms(self) -> dict[str, HistSnapshot]: ...
    def close(self) -> None: ...


class Hosting:
    """A consumer, the transports that feed it, and their end."""

    def __init__(self, consumer: _Consumer, transports: list[Any], intake: object) -> None:
        self._host = consumer
        self._resumed = consumer.resumed
        self._producers = (0, 0)  # alive and died, when last seen
        self._transports = transports
        self._intake = intake
        self._endpoints: list[Endpoint] = []
        self._starting = threading.Lock()
        self._bell = AsyncBell(consumer.eventfd_waiter)
        self._endings: list[Callable[[], None]] = [self._bell.close, consumer.close]
        # Also at interpreter exit, so that a learner that forgets to close leaves no segment behind.
        self._end = weakref.finalize(self, run_all, self._endings)

    def start(self) -> None:
        """Lets remote workers in: starts the transports, or raises what keeps one from starting. Safe to call twice.

        Workers in shared memory can attach from the moment the server exists.
        """
        with self._starting:
            if self.closed:
                raise ConnectionClosedError("this server is closed")
            while self._transports:
                endpoint = self._transports[0].start(self._intake)
                self._endings.insert(0, endpoint.stop)
                self._endpoints.append(endpoint)
                del self._transports[0]
                if not self._end.alive:  # another thread closes: it may have been too early to see this ending
                    endpoint.stop()
                    raise ConnectionClosedError("this server is closed")

    @property
    def name(self) -> str | None:
        """What workers attach to; ``None`` without a `ShmTransport`."""
        return self._host.name

    @property
    def port(self) -> int | None:
        """The TCP port that remote workers connect to; ``None`` before `start`, or without a `TcpTransport`."""
        ports = (getattr(endpoint, "port", None) for endpoint in self._endpoints)
        return next((port for port in ports if port is not None), None)

    @property
    def token(self) -> str | bytes | None:
        """What workers must know to use `port`: the token of the `TcpTransport`, or the one that it made for itself.

        Workers of this user on this machine find it by themselves; give it to those in another container, or behind a
        tunnel, as ``token=``. ``None`` before `start`, or without a `TcpTransport`.
        """
        tokens = (getattr(endpoint, "token", None) for endpoint in self._endpoints)
        return next((token for token in tokens if token is not None), None)

    @property
    def endpoints(self) -> list[Endpoint]:
        """The transports at work."""
        return list(self._endpoints)

    @property
    def refusals(self) -> list[str]:
        """Who was not let in last, and why: one for each transport that refused somebody, with the address."""
        refusals = (getattr(endpoint, "last_refusal", None) for endpoint in self._endpoints)
        return [refusal for refusal in refusals if refusal]

    @property
    def closed(self) -> bool:
        """Whether it was shut down, or this server closed."""
        return self._host.closed

    @property
    def resumed(self) -> bool:
        """Whether it was there already, with what had been committed to it."""
        return self._resumed

    def stats(self) -> dict[str, int]:
        """Plain numbers about what is there, about the workers (how many live, how many died without closing), and
        about the transports, each name with its prefix (``tcp_``). After `close`, the last ones.
        """
        self._count_producers()
        alive, died = self._producers
        stats = {**self._host.stats(), "producers_alive": alive, "producers_died": died}
        for endpoint in self._endpoints:
            for name, value in endpoint.stats().items():
                stats[name] = stats.get(name, 0) + value
        return stats

    def histograms(self) -> dict[str, HistSnapshot]:
        """How long things take: ``queue_dwell`` (between commit and being taken), ``wait`` (the learner for data), and
        in a ring ``memcpy`` (copying a sample into its slot).
        """
        return self._host.histograms()

    def close(self) -> None:
        """Shuts down and removes the name. Workers get `ConnectionClosedError`.

        Views that you kept stay readable. If other learners are attached, only this one leaves.
        """
        self._count_producers()
        self._end()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _count_producers(self) -> None:
        with contextlib.suppress(ConnectionClosedError):  # then what was counted last is all there is to know
            alive, died = self._host.producers()
            self._producers = alive, len(died)


def sort_out(transport: Any) -> tuple[ShmTransport | None, list[Any]]:
    """Where the memory lies, and who else feeds it: one transport, several, or none."""
    if isinstance(transport, str):
        give = f"for a name give ShmTransport({transport!r}), for TCP TcpTransport()"
        raise InvalidArgument(f"transport is the text {transport!r}; {give}")
    given = list(transport) if isinstance(transport, Sequence) else [transport] if transport is not None else []
    for one in given:
        if isinstance(one, type) or not isinstance(one, ShmTransport | Transport):
            raise InvalidArgument(f"transport must be ShmTransport, TcpTransport or have start(intake), not {one!r}")
    named = [one for one in given if isinstance(one, ShmTransport)]
    if len(named) > 1:
        raise InvalidArgument(f"a ring lies in one place: give one ShmTransport, not {len(named)}")
    return (named[0] if named else None), [one for one in given if not isinstance(one, ShmTransport)]


def not_let_in(refusals: Sequence[str]) -> str:
    """`Hosting.refusals` as the end of a message to somebody who waited in vain; empty when nobody was refused."""
    return "".join(f" Not let in, last: {refusal.rstrip('.')}." for refusal in refusals)


def run_all(endings: list[Callable[[], None]]) -> None:
    """Runs every ending, also after one that fails, and raises what failed first."""
    failure: BaseException | None = None
    for end in list(endings):
        try:
            end()
        except BaseException as error:  # noqa: BLE001  raised when all have run
            if failure is None:
                failure = error
            else:
                failure.add_note(f"and after it: {error!r}")
    if failure is not None:
        raise failure
