"""TcpTransport: workers on other hosts send to a learner over TCP, and get its weights. The work is native."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rollway._core import TcpServer
from rollway.deprecation import renamed_arguments
from rollway.errors import ForeignSchema, InvalidArgument
from rollway.transport.base import Intake, RecordIntake, WeightOutlet, WeightSource
from rollway.transport.tcp_options import token_bytes

_ALWAYS_READ = 64 << 10  # bytes of a foreign schema, which take a few milliseconds to read whatever they are


@dataclass(frozen=True)
class Tls:
    """The certificate of a learner and its private key, as PEM files."""

    cert: str | os.PathLike[str]
    key: str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class _Options:
    token: str | bytes | None = field(default=None, repr=False)
    tls: Tls | None = None
    max_connections: int = 1024
    threads: int | None = None
    frame_timeout_s: float = 5.0
    keepalive_s: float = 5.0
    session_ttl_s: float = 600.0
    staging_bytes: int = 256 << 20
    weights: WeightSource | None = field(default=None, repr=False)


@dataclass(frozen=True)
class TcpTransport(_Options):
    """A port on which remote workers connect: `TcpClient` to a `Server`, `TcpRecordClient` to a `RecordServer`.

    Their bytes go from the socket straight into the ring, or into a lane that all records of this transport share.

    Args:
        port: 0 takes a free one; `Server.port` says which.
        host: The address to listen on. Any address but loopback needs a token.
        token: A secret that every worker must know. It is never sent; take at least 16 random bytes. Left out, it is
            automatic: the learner keeps one in a file that only its own user can read, workers of the same user on this
            machine find it there, and others are refused. `Server.token` gives it.
        tls: Encrypt, with this certificate. Costs one more copy.
        max_connections: How many at once.
        threads: How many threads read from sockets, at most. Left out: half as many as this process may use cores, at
            least one and at most eight. A connection stays on one thread, and a thread is started when all others have
            a connection.
        frame_timeout_s: A worker that sends neither 64 KiB of a message nor its rest in this time is disconnected; it
            connects again by itself. Other workers do not wait for it meanwhile.
        keepalive_s: A peer that is silent for three times as long counts as gone.
        session_ttl_s: How long a worker without a connection is remembered, so that it can continue where it was.
        staging_bytes: Memory for messages that take longer than 200 ms to arrive, of all workers together, so that the
            ring or lane is free for others until they are whole. It is at least as large as the largest message. When
            it is full, the slowest worker is disconnected; it connects again, and sends its message again.
        weights: Give these to workers that ask for them (`TcpWeights`), on the same port and with the same token.

    >>> TcpTransport(50051, token="secret")
    TcpTransport(tls=None, max_connections=1024, threads=None, frame_timeout_s=5.0, keepalive_s=5.0, \
session_ttl_s=600.0, staging_bytes=268435456, port=50051, host='127.0.0.1')
    """

    port: int = 0
    host: str = "127.0.0.1"

    def start(self, intake: Intake | RecordIntake | WeightOutlet) -> TcpEndpoint:
        """Binds and listens. `Server.start`, `RecordServer.start` and `WeightSync.serve` call it."""
        outlet = None if self.weights is None else self.weights.outlet()
        if isinstance(intake, WeightOutlet):
            if outlet is not None:
                raise InvalidArgument("serve() offers these weights: leave out the transport's own weights=")
            outlet = intake
        native = TcpServer(
            None if isinstance(intake, WeightOutlet) else intake.consumer,
            self.host,
            self.port,
            weights=None if outlet is None else outlet.weights,
            token=token_bytes(self.token),
            tls=None if self.tls is None else (os.fspath(self.tls.cert), os.fspath(self.tls.key)),
            threads=self.threads,
            max_connections=self.max_connections,
            frame_timeout_s=self.frame_timeout_s,
            keepalive_s=self.keepalive_s,
            session_ttl_s=self.session_ttl_s,
            staging_bytes=self.staging_bytes,
        )
        return TcpEndpoint(native, intake, outlet)


# The generated one: a dataclass has no other place for the old names of its fields.
TcpTransport.__init__ = renamed_arguments(io_threads="threads")(TcpTransport.__init__)  # type: ignore[method-assign]


class TcpEndpoint:
    """A `TcpTransport` that was started."""

    def __init__(
        self, native: TcpServer, intake: Intake | RecordIntake | WeightOutlet, outlet: WeightOutlet | None
    ) -> None:
        self._native = native
        self._schema = None if isinstance(intake, WeightOutlet) else intake.schema
        self._tree = None if outlet is None else outlet.tree

    @property
    def address(self) -> str:
        """``host:port``, as bound."""
        return self._native.address

    @property
    def port(self) -> int:
        """The port, as bound."""
        return self._native.port

    @property
    def token(self) -> str | bytes:
        """The token, given or automatic, for workers that cannot find it, as in another container.

        Bytes when it is not text. It is a secret: keep it out of logs and command lines.
        """
        token = self._native.token
        try:
            return token.decode()
        except UnicodeDecodeError:
            return token

    @property
    def last_refusal(self) -> str | None:
        """The last worker that was refused, why, and how long ago."""
        refused = self._native.last_refusal()
        if refused is None:
            return None
        peer, why, seconds, foreign = refused
        if foreign is not None:
            why = self._how_they_differ(*foreign, f"at worker {peer}") or why
        return f"{peer}: {why.rstrip('.')} ({seconds:.0f} s ago)"

    def _how_they_differ(self, theirs: bytes, is_of_weights: bool, place: str) -> str | None:
        """How a worker's schema differs from ours. A much longer one is not read: it may come from a stranger."""
        ours = self._tree if is_of_weights else self._schema
        if ours is None:
            return None
        if len(theirs) > max(_ALWAYS_READ, 2 * len(ours.text)):
            return f"its schema has {len(theirs):,} bytes, and the one here {len(ours.text):,}: make both sides alike"
        return str(ours.explain(ForeignSchema(place, theirs)))

    def stats(self) -> dict[str, int]:
        """Counts of connections, frames, samples, bytes, and sent versions; of refused and cut workers, by reason."""
        return {f"tcp_{name}": value for name, value in self._native.stats().items()}

    def stop(self) -> None:
        """Tells the workers, disconnects them, and frees their slots. Safe to call twice."""
        self._native.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
