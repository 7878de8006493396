"""TcpClient: a worker's end of a ring on another host. `send` and the connection are native; see `TcpSender`."""

from __future__ import annotations

import os
from typing import Any

from rollway._core import TcpSender
from rollway.deprecation import renamed_arguments
from rollway.ring.async_sends import AsyncSends
from rollway.schema.arrays import Casting
from rollway.schema.pytree import Schema, explained
from rollway.transport.policies import OnRestart
from rollway.transport.tcp_lifetime import TcpLifetime
from rollway.transport.tcp_options import TcpOptions
from rollway.waiting.notifier import LoopNotifier, WeakCall


class TcpClient(TcpLifetime, TcpSender, AsyncSends):
    """Moves samples from this process into a learner's ring over TCP.

    `send` copies a sample and returns. The sample is sent at once when the connection is idle; otherwise small ones are
    sent together. The learner acknowledges what is committed to its ring, and `wait` returns when everything is. A lost
    connection is made again, and what was not acknowledged is sent again: nothing is lost and nothing arrives twice.
    Calls block only when too much is unacknowledged, with the GIL released, and Ctrl-C ends them. Threads may share a
    client; a forked child has to make its own.

    Args:
        host: The learner's host.
        port: The learner's `Server.port`.
        data_sample: One sample, as given to the `Server`. A difference is an error that names the leaf.
        max_inflight_msgs: Messages without acknowledgement, at most. A message holds one sample, or as many small
            ones as fit into 256 KiB; it is kept in memory until it is acknowledged.
        token: The learner's token. A worker of the learner's own user, on loopback, may leave out an automatic one: it
            is read from a file of this user, anew with each connection.
        ca: The certificate of the authority that signed the learner's, or the learner's own if it is self-signed (a PEM
            file): turns TLS on.
        server_name: The name in the learner's certificate, when it is not ``host``.
        producer_id: The number that the learner sees on this worker's samples; the next free one when left out.
        casting: ``"same_kind"`` converts arrays of another dtype while they are sent, where all numbers fit. With
            ``"no"`` they are refused. Single numbers and lists of numbers always convert.
        on_restart: What happens to samples that were sent to a learner and not acknowledged, when the learner is
            restarted with a new ring or has forgotten this client: they may have arrived or not. ``"raise"``: the next
            call raises `ConnectionClosedError`, also when the learner closes. ``"drop"``: they are given up, and
            counted (``stats()["dropped"]``). ``"resend"``: they are sent to the new learner, and counted
            (``stats()["resent"]``). With the latter two the client waits for the new learner, at most
            ``reconnect_timeout_s``, and continues with it. What was not sent yet goes to it in any case. A new learner
            with another schema is a `SchemaMismatch`. A learner that resumes the ring of the one before knows what has
            arrived: nothing is lost, dropped or sent twice, whatever is chosen here.
        max_unacknowledged: Samples without acknowledgement, at most: also those that wait while there is no learner,
            and those that a restart can drop or double. Then `send` waits. Left out, only ``max_inflight_msgs`` counts.
        connect_timeout_s: How long to wait for the learner to appear.
        reconnect_timeout_s: How long to try again after a connection was lost, before the next call raises
            `ConnectionClosedError`.
        keepalive_s: A learner that is silent for three times as long counts as gone.

    >>> import numpy as np, rollway
    >>> example = {"obs": np.zeros(2, np.float32)}
    >>> with rollway.Server(example, batch_size=2, transport=rollway.TcpTransport()) as server:
    ...     with TcpClient("localhost", server.port, example) as client:
    ...         _ = client.send({"obs": np.ones(2, np.float32)})
    ...         _ = client.send({"obs": np.full(2, 2, np.float32)})
    ...     server.sample().batch["obs"].tolist()
    [[1.0, 1.0], [2.0, 2.0]]
    """

    _unit = "samples"

    @renamed_arguments(example="data_sample")
    def __new__(
        cls,
        host: str,
        port: int,
        data_sample: Any,
        max_inflight_msgs: int = 32,
        *,
        token: str | bytes | None = None,
        ca: str | os.PathLike[str] | None = None,
        server_name: str | None = None,
        producer_id: int | None = None,
        casting: Casting = "no",
        on_restart: OnRestart = "raise",
        max_unacknowledged: int | None = None,
        connect_timeout_s: float = 10.0,
        reconnect_timeout_s: float = 60.0,
        keepalive_s: float = 5.0,
    ) -> TcpClient:
        """Connects."""
        schema = Schema.of(data_sample, casting)
        options = TcpOptions(token, ca, server_name, connect_timeout_s, reconnect_timeout_s, keepalive_s)
        with explained(schema):
            self = super().__new__(
                cls,
                host,
                port,
                schema.plan(),
                options,
                max_inflight_msgs=max_inflight_msgs,
                max_unacknowledged=max_unacknowledged,
                producer_id=producer_id,
                on_restart=on_restart,
            )
        self._open(LoopNotifier(WeakCall(self, TcpSender._eventfd_waiter)))
        return self
