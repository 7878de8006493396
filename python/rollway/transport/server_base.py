"""ServerBase: what `Server` and `RecordServer` have in common: transports, a life cycle, numbers."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from rollway._core import HistSnapshot, Producer, RecordProducer
from rollway.errors import ConnectionClosedError, InvalidArgument
from rollway.transport.base import Endpoint, RecordTransport, Transport
from rollway.transport.learner_end import EndsWithBlock, LearnerEnd
from rollway.transport.policies import Keep, OnFull
from rollway.transport.shm import ShmTransport
from rollway.waiting.notifier import LoopNotifier

if TYPE_CHECKING:
    from rollway._core import ConsumerHandle


class ServerBase(EndsWithBlock):
    """A native consumer and the transports that feed it; starts and closes them."""

    _on_full: OnFull
    _producer: Producer | RecordProducer | None = None  # of this process itself, once it has submitted something

    def __init__(self, consumer: ConsumerHandle, transports: list[Any], intake: object, keep: Keep) -> None:
        self._native = consumer
        self._resumed = consumer.resumed
        self._producers = (0, 0)  # alive and died, as last counted
        self._transports = transports
        self._intake = intake
        self._endpoints: list[Endpoint] = []
        self._starting = threading.Lock()
        self._notifier = LoopNotifier(consumer._eventfd_waiter)
        self._leave = LearnerEnd(consumer.close, consumer.abandon, keep)
        self._closers: list[Callable[[], None]] = [self._notifier.close, self._leave]
        self._close_once = weakref.finalize(self, close_all, self._closers)  # also at interpreter exit

    def start(self) -> None:
        """Starts the transports, so that remote workers can connect. Safe to call twice.

        Raises the error of a transport that cannot start. Workers in shared memory can attach as soon as the server
        exists.
        """
        with self._starting:
            if self.closed:
                raise ConnectionClosedError("this server is closed")
            while self._transports:
                self._start_one(self._transports[0])
                del self._transports[0]

    def add_transport(self, transport: Transport | RecordTransport) -> Endpoint:
        """Starts one more way in, beside those that the server was made with, and returns it.

        It ends with its ``stop()``, or with the server.
        """
        with self._starting:
            if self.closed:
                raise ConnectionClosedError("this server is closed")
            return self._start_one(transport)

    def _start_one(self, transport: Any) -> Endpoint:
        endpoint: Endpoint = transport.start(self._intake)
        self._closers.insert(0, endpoint.stop)
        self._endpoints.append(endpoint)
        if not self._close_once.alive:  # another thread closes, perhaps before it could see this closer
            endpoint.stop()
            raise ConnectionClosedError("this server is closed")
        return endpoint

    @property
    def name(self) -> str | None:
        """The name that workers attach to; ``None`` without a `ShmTransport`."""
        return self._native.name

    @property
    def port(self) -> int | None:
        """The TCP port that remote workers connect to; ``None`` before `start`, or without a `TcpTransport`."""
        ports = (getattr(endpoint, "port", None) for endpoint in self._endpoints)
        return next((port for port in ports if port is not None), None)

    @property
    def token(self) -> str | bytes | None:
        """What workers must know to use `port`: the token of the `TcpTransport`, given or automatic.

        Workers of this user on this machine find an automatic one by themselves; give it as ``token=`` to workers in
        another container, or behind a tunnel. ``None`` before `start`, or without a `TcpTransport`.
        """
        tokens = (getattr(endpoint, "token", None) for endpoint in self._endpoints)
        return next((token for token in tokens if token is not None), None)

    @property
    def endpoints(self) -> list[Endpoint]:
        """The transports that were started."""
        return list(self._endpoints)

    @property
    def refusals(self) -> list[str]:
        """The last worker that each transport refused, and why, with its address."""
        refusals = (getattr(endpoint, "last_refusal", None) for endpoint in self._endpoints)
        return [refusal for refusal in refusals if refusal]

    @property
    def closed(self) -> bool:
        """Whether the segment was shut down, or this server closed."""
        return self._native.closed

    @property
    def on_full(self) -> OnFull:
        """What producers do when there is no room."""
        return self._on_full

    @property
    def resumed(self) -> bool:
        """Whether the segment existed before, and this server continues with its content."""
        return self._resumed

    def stats(self) -> dict[str, int]:
        """Plain numbers about the content, the workers (how many live, how many died without closing), and the
        transports, each name with its prefix (``tcp_``). After `close`, the last ones.
        """
        self._count_producers()
        alive, died = self._producers
        stats = {**self._native.stats(), "producers_alive": alive, "producers_died": died}
        for endpoint in self._endpoints:
            for name, value in endpoint.stats().items():
                stats[name] = stats.get(name, 0) + value
        return stats

    def histograms(self) -> dict[str, HistSnapshot]:
        """How long things take: ``queue_dwell`` (from commit until taken), ``wait`` (of the learner, for data), and
        in a ring ``memcpy`` (of a sample into its slot).
        """
        return self._native.histograms()

    def close(self) -> None:
        """Shuts down and removes the name, with what was not taken yet. Workers get `ConnectionClosedError`.

        Views that you kept stay readable. While other learners are attached, nothing is shut down or removed. The
        ``keep`` of `ShmTransport` says when the segment stays.
        """
        self._finish(failed=False)

    def _finish(self, *, failed: bool) -> None:
        if self._producer is not None:
            self._producer.close()
        self._count_producers()
        self._leave.failed = failed
        self._close_once()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._finish(failed=True)
            raise
        return self

    def _count_producers(self) -> None:
        with contextlib.suppress(ConnectionClosedError):  # then the last count stays
            alive, died = self._native.producers()
            self._producers = alive, len(died)


def split_transports(transport: Any) -> tuple[ShmTransport | None, list[Any]]:
    """Splits the argument ``transport`` into the `ShmTransport`, if any, and all others."""
    if isinstance(transport, str):
        give = f"for a name give ShmTransport({transport!r}), for TCP TcpTransport()"
        raise InvalidArgument(f"transport is the text {transport!r}; {give}")
    given = list(transport) if isinstance(transport, Sequence) else [transport] if transport is not None else []
    for one in given:
        if isinstance(one, type) or not isinstance(one, ShmTransport | Transport):
            raise InvalidArgument(f"transport must be ShmTransport, TcpTransport or have start(intake), not {one!r}")
    named = [one for one in given if isinstance(one, ShmTransport)]
    if len(named) > 1:
        raise InvalidArgument(f"a server has one segment: give one ShmTransport, not {len(named)}")
    return (named[0] if named else None), [one for one in given if not isinstance(one, ShmTransport)]


def describe_refusals(refusals: Sequence[str]) -> str:
    """`ServerBase.refusals` as a sentence for the message of a timeout; empty when no worker was refused."""
    return "".join(f" Last refused worker: {refusal.rstrip('.')}." for refusal in refusals)


def describe_waits(consumer: ConsumerHandle) -> str:
    """What the attached workers are doing, as the end of a sentence; empty when there are none."""
    try:
        described = consumer.describe_producers()
    except ConnectionClosedError:  # another thread has closed it meanwhile
        return ""
    return f" ({described})" if described else ""


def close_all(closers: list[Callable[[], None]]) -> None:
    """Runs every closer, also after one that fails, and raises the first failure."""
    failure: BaseException | None = None
    for close in list(closers):
        try:
            close()
        except BaseException as error:  # noqa: BLE001  raised when all have run
            if failure is None:
                failure = error
            else:
                failure.add_note(f"and after it: {error!r}")
    if failure is not None:
        raise failure
