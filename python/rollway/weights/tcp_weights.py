"""TcpWeights: a worker's copy of the weights of a learner on another host. Receiving is native; see `WeightMirror`."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any, Literal

from rollway._core import WeightMirror
from rollway.errors import InvalidArgument
from rollway.schema.pytree import explained
from rollway.transport.base import WeightOutlet
from rollway.transport.connection_state import ConnectionState
from rollway.transport.server_base import close_all
from rollway.transport.tcp import TcpEndpoint, TcpTransport
from rollway.transport.tcp_options import TcpOptions, token_bytes
from rollway.weights.reading import WeightReading
from rollway.weights.tree import WeightTree
from rollway.weights.weight_sync import WeightSync, check_threads


class TcpWeights(WeightReading, ConnectionState):
    """Moves a learner's weights to this host over TCP, version by version, and keeps the latest one here.

    A native thread fetches each new version into shared memory of this host, and publishes it when it is whole. Reading
    is as with `WeightSync` and never waits for the network. Only leaves that changed are sent, and a version that is
    replaced before it is sent is skipped. With a ``name``, all workers of this host read one copy:
    ``WeightSync.attach(name)``.

    A lost connection is made again; meanwhile readers keep the last whole version, ``connected`` is ``False``, and
    ``last_error`` says why. After ``reconnect_timeout_s`` without success, or when the learner closes its weights
    (``on_close``), `wait_for_version` raises `ConnectionClosedError`; the last version stays readable.

    Versions have the learner's numbers. A restarted learner that continues its weights continues the numbers. One that
    begins anew begins with 1: then `version` becomes smaller, a `wait_for_version` for an old number ends with the new
    learner's first version, and ``since`` with an old number copies everything. Readers that attached by name get
    `ConnectionClosedError`, and have to attach again.

    Other hosts can fetch from this copy in place of the learner (`serve`), so that the learner sends each version to a
    few hosts and not to all. When the server that this copy fetches from is gone, `redirect` names another one.

    Threads may share it. A forked child has to make its own, or attach by name.

    Args:
        host: The learner's host, or that of a copy.
        port: The learner's `Server.port` (of a `TcpTransport` with ``weights=``), or that of `WeightSync.serve`, or of
            `serve` of a copy.
        token: The learner's token. A worker of the learner's own user, on loopback, may leave out an automatic one: it
            is read from a file of this user, anew with each connection.
        ca: The certificate of the authority that signed the learner's, or the learner's own if it is self-signed (a PEM
            file): turns TLS on.
        server_name: The name in the learner's certificate, when it is not ``host``.
        like: A state dict, or any tree, into which the weights will be read. A leaf that differs is an error, before
            any memory is reserved.
        name: What others on this host attach to. Left out, only this process reads the copy.
        max_bytes: How much memory the first three copies of the weights may take together. `NotEnoughMemory` when the
            learner announces more. Left out, it is half of the memory that is available.
        max_buffers: How many copies of the weights there may be at most. Three exist from the start; more are made only
            while slow readers keep those.
        max_readers: How many handles may be attached by name at once.
        threads: How many threads copy large weights. Left out: as many as this process may use, at most four.
        on_close: What to do when the learner closes its weights, as it does when it ends with an exception: ``"raise"``
            from `wait_for_version`, or ``"wait"`` for the next learner on this address, or for a `redirect`, at most
            ``reconnect_timeout_s``. A learner that is killed is waited for in any case.
        connect_timeout_s: How long to wait for the learner to appear.
        reconnect_timeout_s: How long to try again after a connection was lost.
        keepalive_s: A learner that is silent for three times as long counts as gone.

    >>> import numpy as np, rollway
    >>> weights = {"w": np.ones((2, 2), np.float32), "b": np.zeros(2, np.float32)}
    >>> sync = rollway.SharedWeightSync.from_state_dict(weights)
    >>> with sync, rollway.Server({"x": np.zeros(1)}, 1, rollway.TcpTransport(weights=sync)) as server:
    ...     with TcpWeights("localhost", server.port) as worker:
    ...         sync.update_weights({"b": np.full(2, 7, np.float32)})
    ...         _ = worker.wait_for_version(2)
    ...         mine = {"w": np.empty((2, 2), np.float32), "b": np.empty(2, np.float32)}
    ...         worker.read_weights_into(mine), mine["b"].tolist()
    (2, [7.0, 7.0])
    """

    _core: WeightMirror

    def __init__(
        self,
        host: str,
        port: int,
        *,
        token: str | bytes | None = None,
        ca: str | os.PathLike[str] | None = None,
        server_name: str | None = None,
        like: Any = None,
        name: str | None = None,
        max_bytes: int | None = None,
        max_buffers: int = 8,
        max_readers: int = 64,
        threads: int | None = None,
        on_close: Literal["raise", "wait"] = "raise",
        connect_timeout_s: float = 10.0,
        reconnect_timeout_s: float = 60.0,
        keepalive_s: float = 5.0,
    ) -> None:
        check_threads(threads)
        if not 1 <= max_readers <= 1021:
            raise InvalidArgument(f"max_readers = {max_readers} is out of range: 1 to 1021")
        options = TcpOptions(token, ca, server_name, connect_timeout_s, reconnect_timeout_s, keepalive_s)
        self._closed = False
        mine = None if like is None else WeightTree.of(like)
        with contextlib.nullcontext() if mine is None else explained(mine):
            self._core = WeightMirror(
                host,
                port,
                name=name,
                wanted=None if mine is None else mine.text,
                max_bytes=max_bytes,
                max_buffers=max_buffers,
                max_peers=min(max_readers + 4, 1024),  # the receiver, this handle, its successor, and a server
                threads=threads,
                on_close=on_close,
                options=options,
            )
        # Also at interpreter exit, before the thread would be cut off in the middle.
        self._closers: list[Callable[[], None]] = [self._core.close]
        self._end = weakref.finalize(self, close_all, self._closers)
        self._tree = WeightTree.from_text(self._core.schema)

    @property
    def name(self) -> str | None:
        """What others on this host attach to; ``None`` when only this process reads the copy."""
        return self._core.name

    @property
    def closed(self) -> bool:
        """Whether this handle is closed."""
        return self._closed

    @property
    def _place(self) -> str:
        return f"at the learner on {self.address}"

    def wait_for_version(self, version: int, timeout: float | None = None) -> int:
        """Sleeps until that version or a later one is on this host, and returns its number.

        Raises `WaitTimeout` after ``timeout`` seconds, and `ConnectionClosedError` when no more will come. If versions
        began anew since this handle last returned a number, the first version of the new learner ends the wait.
        """
        return self._core.wait_for_version(version, timeout)

    def serve(self, transport: TcpTransport) -> TcpEndpoint:
        """Gives this copy to other hosts, which fetch it with `TcpWeights` as they would from the learner.

        They get the learner's version numbers, whole versions, and only leaves that changed. A version goes on as soon
        as it is here. When the learner begins anew, they follow. When it closes its weights, they get the last version
        and then the end. Until the endpoint is stopped, or this handle closed; then they connect again, and can be
        redirected.

        ``TcpTransport(port, weights=copy)`` gives it out beside a server of samples or records, on one port.

        >>> import numpy as np, rollway
        >>> with WeightSync.from_state_dict({"w": np.ones(2)}) as sync, sync.serve(TcpTransport()) as learner:
        ...     with TcpWeights("localhost", learner.port) as node, node.serve(TcpTransport()) as endpoint:
        ...         with TcpWeights("localhost", endpoint.port) as other_node:
        ...             other_node.wait_for_version(1), other_node.read_weights()
        (1, {'w': array([1., 1.])})
        """
        endpoint = transport.start(self.outlet())
        self._closers.insert(0, endpoint.stop)
        return endpoint

    def outlet(self) -> WeightOutlet:
        """What a transport needs to give this copy to others."""
        return WeightOutlet(self._core, self._tree)

    def redirect(self, host: str, port: int, token: str | bytes | None = None) -> None:
        """Fetches from another server of the same weights from now on: the learner, or a copy of it. Returns at once.

        The local copy stays, with its name, its readers and those that fetch from it. Only what changed since its
        version is fetched. A copy that lags behind is waited for; one of an earlier learner is not read. Left out, the
        token is the one used so far. Raises `ConnectionClosedError` when nothing more will come to this handle.
        """
        self._core.redirect(host, port, token_bytes(token))

    def stats(self) -> dict[str, int]:
        """Plain numbers: ``connects`` and ``failed_connects``; ``versions`` that came whole, ``voids`` that the learner
        overwrote while they were sent, ``bytes`` of both; ``lineages``: how often versions began anew.
        """
        return self._core.stats()

    def close(self) -> None:
        """Disconnects and closes the copy; the last process to close removes its name. Safe to call twice.

        A wait of another thread ends with `ConnectionClosedError`. If this process dies without closing, a named copy
        stays for the next `TcpWeights` of that name.
        """
        self._closed = True
        self._end()

    def __reduce__(self) -> tuple[Any, ...]:
        """Into another process of this host: attaches there to the copy, by its name."""
        if self.name is None:
            raise TypeError("TcpWeights without a name belong to this process: give them a name, or connect there")
        return WeightSync.attach, (self.name,)

    def __repr__(self) -> str:
        state = "connected" if self.connected else "lost" if self._core.over else "connecting"
        state = "closed" if self.closed else f"{state}, version {self.version}"
        return f"<rollway.{type(self).__name__} {self.address}: {len(self._tree.leaves)} leaves, {state}>"
