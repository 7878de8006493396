"""Forwarder: sends on what the workers of a node write into its ring."""

from __future__ import annotations

import os
from typing import Any

from rollway import _core
from rollway.schema.pytree import Schema, explained
from rollway.transport.forwarder_base import ForwarderBase
from rollway.transport.policies import OnFull, OnRestart
from rollway.transport.tcp_options import TcpOptions

_BATCH_BYTES = 256 * 1024  # of a batch of the node's ring, about
_RING_BYTES = 16 * 1024 * 1024  # of all of them, about
_MOST_ROWS = 1024  # a batch of small samples that is closed early is looked through, slot by slot


class Forwarder(ForwarderBase):
    """Moves the samples of all workers of a node to a learner on another host, over one connection.

    Make one per node. It makes a ring of the node, under ``name``; the workers of the node write into it with
    `ShmClient`, as if it were the learner's. Native threads send what they commit to the learner's `TcpTransport`, from
    where it lies in the ring. The learner sees the samples of each worker under its own ``producer_id``, with its
    numbers, and in its order, except that a batch in which a writer is slow is overtaken by later ones after 4 ms:
    ``info.sequences`` shows it. A sample leaves at once when nothing is under way; otherwise samples are sent together.

    A sample stays in the ring until the learner has acknowledged it. A lost connection is made again. A forwarder that
    dies, or that ends because its learner is away for longer than ``reconnect_timeout_s``, leaves the ring as it is:
    make another one with the same arguments, and it continues. Nothing is lost and nothing arrives twice. Meanwhile the
    workers write until the ring is full, and then wait (`ShmClient.peer_timeout_s`).

    Threads may share it; a forked child has to make its own.

    Args:
        name: What the workers of this node attach to. A second living forwarder of that name is a `SegmentInUse`.
        example: One sample, as given to the `Server` and to the workers.
        host: The learner's host.
        port: The learner's `Server.port`.
        token: The learner's token, as for `TcpClient`.
        ca: The certificate of the authority that signed the learner's (a PEM file): turns TLS on.
        server_name: The name in the learner's certificate, when it is not ``host``.
        rows: Samples of a batch of the node's ring. Left out: as many as have about 256 KiB, at most 1024.
        num_buffers: Batches that the ring has room for. Left out: about 16 MiB, 4 to 64 of them.
        on_full: What workers do when the ring is full; ``"drop_oldest"`` drops nothing that may have been sent.
        on_restart: What happens to samples that were sent and not acknowledged when the learner is restarted with a new
            ring or has forgotten this forwarder; as for `TcpClient`. With ``"raise"`` the forwarder ends, and `error`
            says why. A learner that resumes its ring gets each sample once, whatever is chosen here.
        max_peers: How many workers may be attached at once; at most 1023.
        connect_timeout_s: How long to wait for the learner to appear.
        reconnect_timeout_s: How long to try again after a connection was lost, before the forwarder ends.
        keepalive_s: A learner that is silent for three times as long counts as gone.

    >>> import numpy as np, rollway
    >>> from rollway.transport import Forwarder
    >>> example = {"obs": np.zeros(2, np.float32)}
    >>> with rollway.Server(example, batch_size=2, transport=rollway.TcpTransport()) as server:
    ...     with Forwarder("node-of-the-example", example, "localhost", server.port) as forwarder:
    ...         with rollway.ShmClient(forwarder.name, example) as worker:
    ...             _ = worker.send({"obs": np.ones(2, np.float32)})
    ...             _ = worker.send({"obs": np.full(2, 2, np.float32)})
    ...     server.sample().batch["obs"].tolist()
    [[1.0, 1.0], [2.0, 2.0]]
    """

    _content = "samples"

    def __init__(
        self,
        name: str,
        example: Any,
        host: str,
        port: int,
        *,
        token: str | bytes | None = None,
        ca: str | os.PathLike[str] | None = None,
        server_name: str | None = None,
        rows: int | None = None,
        num_buffers: int | None = None,
        on_full: OnFull = "block",
        on_restart: OnRestart = "drop",
        max_peers: int = 1023,
        connect_timeout_s: float = 10.0,
        reconnect_timeout_s: float = 60.0,
        keepalive_s: float = 5.0,
    ) -> None:
        schema = Schema.of(example)
        options = TcpOptions(token, ca, server_name, connect_timeout_s, reconnect_timeout_s, keepalive_s)
        sample_bytes = max(1, sum(leaf.row_bytes for leaf in schema.leaves))
        if rows is None:
            rows = min(max(1, _BATCH_BYTES // sample_bytes), _MOST_ROWS)
        if num_buffers is None:
            num_buffers = min(max(4, _RING_BYTES // max(1, rows * sample_bytes)), 64)
        with explained(schema):
            core = _core.Forwarder(
                name,
                schema.plan(),
                host,
                port,
                options,
                rows=rows,
                num_buffers=num_buffers,
                max_peers=max_peers + 1,  # the forwarder itself
                on_full=on_full,
                on_restart=on_restart,
            )
        self._start(core)
