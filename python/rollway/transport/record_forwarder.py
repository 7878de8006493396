"""RecordForwarder: sends on the records that the workers of a node write into its lanes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rollway import _core
from rollway.schema.pytree import explained
from rollway.schema.record import RecordSchema
from rollway.transport.forwarder_base import ForwarderBase
from rollway.transport.policies import OnFull, OnRestart, default_max_records
from rollway.transport.tcp_options import TcpOptions

_MAX_PEERS = 1024  # at least as many as there may be lanes


class RecordForwarder(ForwarderBase):
    """Moves the records of all workers of a node to a learner on another host, over one connection.

    Make one per node. It makes lanes on the node, under ``name``; the workers of the node write into them with
    `ShmRecordClient`, as if they were the learner's. Native threads send what they commit to the learner's
    `TcpTransport`, from where it lies. The learner sees each record as if the worker were its own: its ``producer_id``,
    its number, key, metadata and version, in the worker's order. A record leaves at once when nothing is under way;
    otherwise records are sent together.

    A record stays in its lane until the learner has acknowledged it. A lost connection is made again. A forwarder that
    dies, or that ends because its learner is away for longer than ``reconnect_timeout_s``, leaves the lanes as they
    are: make another one with the same arguments, and it continues. Nothing is lost and nothing arrives twice.
    Meanwhile the workers write until their lanes are full, and then wait (`ShmRecordClient.peer_timeout_s`).

    Threads may share it; a forked child has to make its own.

    Args:
        name: What the workers of this node attach to. A second living forwarder of that name is a `SegmentInUse`.
        schema: As given to the `RecordServer` and to the workers.
        host: The learner's host.
        port: The learner's `RecordServer.port`.
        token: The learner's token, as for `TcpRecordClient`.
        ca: The certificate of the authority that signed the learner's (a PEM file): turns TLS on.
        server_name: The name in the learner's certificate, when it is not ``host``.
        lane_bytes: Room for each worker's records, which is taken as they need it. A record that is larger than the
            ``lane_bytes`` of the learner ends the forwarder, so give both the same.
        lanes: How many workers may be attached at once.
        max_records: How many records a lane can hold; as for `RecordServer`.
        on_full: What a worker does when its lane is full; ``"drop_oldest"`` drops nothing that may have been sent.
        on_restart: What happens to records that were sent and not acknowledged when the learner is restarted with new
            records or has forgotten this forwarder; as for `TcpRecordClient`. With ``"raise"`` the forwarder ends, and
            `error` says why. A learner that resumes its records gets each one once, whatever is chosen here.
        connect_timeout_s: How long to wait for the learner to appear.
        reconnect_timeout_s: How long to try again after a connection was lost, before the forwarder ends.
        keepalive_s: A learner that is silent for three times as long counts as gone.

    >>> import rollway
    >>> from rollway.transport import RecordForwarder
    >>> schema = {"tokens": "int32[*]"}
    >>> with rollway.RecordServer(schema, rollway.TcpTransport()) as server:
    ...     with RecordForwarder("records-of-the-example", schema, "localhost", server.port) as forwarder:
    ...         with rollway.ShmRecordClient(forwarder.name, schema) as worker:
    ...             _ = worker.send({"tokens": [1, 2, 3]}, metadata={"stop": "length"})
    ...     record = server.read()
    ...     record["tokens"].tolist(), record.metadata
    ([1, 2, 3], {'stop': 'length'})
    """

    _content = "records"

    def __init__(
        self,
        name: str,
        schema: RecordSchema | Mapping[str, Any],
        host: str,
        port: int,
        *,
        token: str | bytes | None = None,
        ca: str | os.PathLike[str] | None = None,
        server_name: str | None = None,
        lane_bytes: int = 64 << 20,
        lanes: int = 64,
        max_records: int | None = None,
        on_full: OnFull = "block",
        on_restart: OnRestart = "drop",
        connect_timeout_s: float = 10.0,
        reconnect_timeout_s: float = 60.0,
        keepalive_s: float = 5.0,
    ) -> None:
        schema = RecordSchema.of(schema)
        options = TcpOptions(token, ca, server_name, connect_timeout_s, reconnect_timeout_s, keepalive_s)
        with explained(schema):
            core = _core.Forwarder.of_records(
                name,
                schema.plan(),
                host,
                port,
                options,
                lanes=lanes,
                lane_bytes=lane_bytes,
                max_records=max_records or default_max_records(lane_bytes),
                max_peers=_MAX_PEERS,
                on_full=on_full,
                on_restart=on_restart,
            )
        self._start(core)
