"""TcpRecordClient: a worker's end of records on another host. `send` and the connection are native."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rollway._core import TcpRecordSender
from rollway.records.async_sends import AsyncRecordSends
from rollway.schema.arrays import Casting
from rollway.schema.pytree import explained
from rollway.schema.record import RecordSchema
from rollway.transport.policies import OnRestart
from rollway.transport.tcp_lifetime import TcpLifetime
from rollway.transport.tcp_options import TcpOptions
from rollway.waiting.notifier import LoopNotifier, WeakCall


class TcpRecordClient(TcpLifetime, TcpRecordSender, AsyncRecordSends):
    """Moves records from this process to a learner's `RecordServer` over TCP.

    `send` copies a record, `send_many` a list of them, and returns. A record is sent at once when the line is idle;
    otherwise small ones are sent together. The learner acknowledges what is committed, and `wait` returns when that is
    everything. After a lost connection the client reconnects and sends again what was not acknowledged: nothing is lost
    and nothing arrives twice. Calls block only when ``max_inflight_msgs`` are on their way, with the GIL released, and
    Ctrl-C ends them. Threads may share a client; a forked child has to make its own.

    `send` raises for a record that is larger than the learner's ``lane_bytes``. `reserve` returns memory of this
    process, which is sent when it is committed. ``published_version`` is as of the learner's last message.
    ``learner_news()`` returns that version, and how many records of all workers the learner has not taken yet. It does
    not wait: it returns the learner's last answer, and asks for the next one.

    Args:
        host: The learner's host.
        port: The learner's `RecordServer.port`.
        schema: As given to the `RecordServer`. A difference is an error that names the leaf.
        max_inflight_msgs: Messages without acknowledgement, at most. A message holds one record, or as many small
            ones as fit into 256 KiB; all of them are kept in memory until they are acknowledged.
        token: The learner's token. A worker of the same user, on loopback, may leave out a token that the learner
            generated: each connection reads it from a file that only this user can read.
        ca: The certificate of the authority that signed the learner's, or the learner's own if it is self-signed (a PEM
            file). Turns TLS on.
        server_name: The name in the learner's certificate, when it is not ``host``.
        producer_id: The number that the learner sees on this worker's records; the next free one when left out.
        casting: ``"same_kind"`` converts arrays of another dtype while they are sent, where all numbers fit. With
            ``"no"`` they are refused. Single numbers and lists of numbers always convert.
        on_restart: What happens to records that were sent to a learner and not acknowledged, when the learner is
            restarted with new records or has forgotten this client: they may have arrived or not. ``"raise"``: the next
            call raises `ConnectionClosedError`, also when the learner closes. ``"drop"``: they are given up, and
            counted (``stats()["dropped"]``). ``"resend"``: they are sent to the new learner, and counted
            (``stats()["resent"]``). With the latter two the client waits for the new learner, at most
            ``reconnect_timeout_s``, and continues with it. What was not sent yet goes to it in any case. A new learner
            with another schema is a `SchemaMismatch`. A learner that resumes the records of the one before knows what
            has arrived: nothing is lost, dropped or sent twice, whatever is chosen here.
        max_unacknowledged: Records without acknowledgement, at most: also those that wait while there is no learner,
            and those that a restart can drop or double. Then `send` waits. Left out, only ``max_inflight_msgs`` counts.
        connect_timeout_s: How long to wait for the learner to appear.
        reconnect_timeout_s: How long to try again after a connection was lost, before the next call raises
            `ConnectionClosedError`.
        keepalive_s: A learner that is silent for three times as long counts as gone.

    >>> import rollway
    >>> schema = {"tokens": "int32[*]", "score": "float32[]"}
    >>> with rollway.RecordServer(schema, rollway.TcpTransport()) as server:
    ...     with TcpRecordClient("localhost", server.port, schema) as client:
    ...         _ = client.send({"tokens": [1, 2, 3], "score": 0.5}, metadata={"stop": "length"})
    ...     record = server.read()
    ...     record["tokens"].tolist(), float(record["score"]), record.metadata
    ([1, 2, 3], 0.5, {'stop': 'length'})
    """

    _unit = "records"

    def __new__(
        cls,
        host: str,
        port: int,
        schema: RecordSchema | Mapping[str, Any],
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
    ) -> TcpRecordClient:
        """Connects."""
        schema = RecordSchema.of(schema, casting)
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
        self._open(LoopNotifier(WeakCall(self, TcpRecordSender._eventfd_waiter)))
        return self
