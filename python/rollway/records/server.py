"""RecordServer: the learner's end of records. Native code waits, reads and recovers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Unpack

from rollway._core import Record, RecordConsumer, RecordProducer
from rollway.device import Framework, device_batches
from rollway.errors import ConnectionClosedError, InvalidArgument, WaitTimeout
from rollway.records.device_source import BatchOptions, Layout, RecordGatherer, RecordSource
from rollway.records.key import RecordKey
from rollway.schema.pytree import explained
from rollway.schema.record import RecordSchema
from rollway.transport.base import RecordIntake, RecordTransport
from rollway.transport.earlier_run import warn_of_earlier_run
from rollway.transport.policies import REPLACE, OnFull, default_max_records
from rollway.transport.server_base import ServerBase, describe_refusals, describe_waits, split_transports
from rollway.transport.shm import ShmTransport
from rollway.waiting.peer_watch import PeerWatch, StallCheck, producers_died


class RecordServer(ServerBase):
    """Collects records from workers into lanes, one per worker, and hands them out one by one, without a copy.

    A record is a set of named arrays, some of which have a length of their own (`RecordSchema`), with a key and free
    metadata. Memory is taken as the data needs it, up to ``lane_bytes`` per worker. Records of one worker come in the
    order in which it committed them; workers take turns. A record that you hold uses its own bytes, and delays no
    other. Calls block with the GIL released, and Ctrl-C ends them. Threads may share a server; several learners may
    attach to one name, and each record goes to one of them.

    Args:
        schema: ``{"tokens": "int32[*]", "score": "float32[]"}``, or other forms of a leaf: see `RecordSchema`.
        transport: `ShmTransport` for workers on this machine, `TcpTransport` for others, or both. Without any, only
            `submit` feeds it.
        lane_bytes: Room for each worker's records; none may be larger.
        lanes: How many workers may be attached at once. One that closes or dies makes room for the next.
        max_records: How many records a lane can hold, rounded up to a power of two; by default one for each 16 KiB, at
            least 64. Each takes 64 bytes. Raise it for many short records.
        on_full: What a worker does when its lane is full: ``"block"``, drop its own ``"drop_oldest"`` record or the
            ``"drop_newest"``, or ``"error"``. Drops are counted in `stats`.
        preallocate: Allocate the memory of all lanes now, not as the data needs it.
        peer_timeout_s: How long `read` waits when every worker is gone and at least one of them died, before it raises
            `PeerDied`. ``None``: for ever.

    >>> import numpy as np
    >>> with RecordServer({"tokens": "int32[*]", "score": "float32[]"}) as server:
    ...     _ = server.submit({"tokens": np.arange(3, dtype=np.int32), "score": 1.0}, metadata={"stop": "length"})
    ...     record = server.read()
    ...     record["tokens"].tolist(), float(record["score"]), record.metadata
    ([0, 1, 2], 1.0, {'stop': 'length'})
    """

    def __init__(
        self,
        schema: RecordSchema | Mapping[str, Any],
        transport: ShmTransport | RecordTransport | Sequence[ShmTransport | RecordTransport] | None = None,
        *,
        lane_bytes: int = 64 << 20,
        lanes: int = 64,
        max_records: int | None = None,
        on_full: OnFull = "block",
        preallocate: bool = False,
        peer_timeout_s: float | None = 60.0,
    ) -> None:
        self.schema = RecordSchema.of(schema)
        self._plan = self.schema.plan()
        for what, value in {"lanes": lanes, "lane_bytes": lane_bytes, "max_records": max_records}.items():
            if value is not None and value < 1:
                raise InvalidArgument(f"{what} = {value} is out of range: at least 1")
        self._producer: RecordProducer | None = None
        self._on_full = on_full
        self._peer_timeout_s = peer_timeout_s
        self._max_records = max_records or default_max_records(lane_bytes)  # for each lane
        self._lane_sizes = {"lanes": lanes, "lane_bytes": lane_bytes, "max_records": self._max_records}
        shm, transports = split_transports(transport)
        options = shm or ShmTransport("in-process")
        with explained(self.schema, REPLACE):
            self._consumer = RecordConsumer(
                self._plan,
                shm.name if shm else None,
                **self._lane_sizes,
                auto_named=options.auto_named,
                if_exists=options.if_exists or "resume",
                max_peers=options.max_peers,
                on_full=on_full,
                preallocate=preallocate,
                peer_timeout_s=peer_timeout_s,
            )
        intake = RecordIntake(self._consumer, self.schema, self._plan)
        super().__init__(self._consumer, transports, intake, options.keep)
        if shm is not None and shm.if_exists is None:
            warn_of_earlier_run(shm.name, "records", self._consumer.found())

    @property
    def lane_sizes(self) -> dict[str, int]:
        """``lanes``, ``lane_bytes`` and ``max_records``, as given or chosen: for a `RecordForwarder` of this server."""
        return dict(self._lane_sizes)

    def read(self, timeout: float | None = None) -> Record | None:
        """Waits for a record. ``None`` once the records are shut down and all read.

        Args:
            timeout: Seconds to wait; ``None`` for ever. `WaitTimeout` says which workers are attached.
        """
        try:
            record = self._consumer.take(timeout)
        except ConnectionClosedError:
            return None
        except WaitTimeout:
            record = None
        if record is None:
            self._none_in_time(timeout)
        return record

    def try_read(self) -> Record | None:
        """A record, or ``None`` when there is none yet; never waits.

        Raises `ConnectionClosedError` when none will come: the records are shut down, and every one was read.
        """
        return self._consumer.take(0.0)

    def read_many(self, most: int, timeout: float | None = None) -> list[Record]:
        """Waits for a record, then takes up to ``most`` that are there. Empty once the records are shut down."""
        if most < 1:
            raise _too_few_asked_for(most)
        try:
            records = self._consumer.take_many(most, timeout)
        except ConnectionClosedError:
            return []
        except WaitTimeout:
            records = []
        if not records:
            self._none_in_time(timeout)
        return records

    def try_read_many(self, most: int) -> list[Record]:
        """Takes up to ``most`` records that are there; empty when there is none yet. Never waits.

        Raises `ConnectionClosedError` when nothing will come: the records are shut down, and every one was read.
        """
        if most < 1:
            raise _too_few_asked_for(most)
        return self._consumer.take_many(most, 0.0)

    async def read_async(self, timeout: float | None = None) -> Record | None:
        """As `read`, for asyncio. A cancelled wait takes nothing."""
        records = await self.read_many_async(1, timeout)
        return records[0] if records else None

    async def read_many_async(self, most: int, timeout: float | None = None) -> list[Record]:
        """As `read_many`, for asyncio. A cancelled wait takes nothing."""
        peer_watch = PeerWatch(self._notifier, timeout, self._stall_checks)
        try:
            while not (records := self.try_read_many(most)):
                if not await peer_watch.notified():
                    self._none_in_time(timeout)
                    return []
        except ConnectionClosedError:  # also from a check, when another thread has closed the server meanwhile
            return []
        return records

    def call_when_readable(self, call: Callable[[], None]) -> bool:
        """Makes the running event loop call ``call`` once, when a read may succeed or the records are shut down.

        Use this instead of `read_async` to save one event-loop iteration. False when the server is closed: then no call
        is made. An exception of the call goes to the loop's exception handler.
        """
        from asyncio import get_running_loop

        return self._notifier.call_once(get_running_loop(), call)

    def __iter__(self) -> Iterator[Record]:
        """Yields records until the records are shut down."""
        while (record := self.read()) is not None:
            yield record
            del record

    def device_iter(
        self,
        device: Any = "cuda",
        *,
        batch_size: int,
        layout: Layout = "padded",
        depth: int = 3,
        framework: Framework = "torch",
        **options: Unpack[BatchOptions],
    ) -> Iterator[Any]:
        """Yields batches of records on ``device``, until the records are shut down. You may keep them.

        Each is gathered in page-locked memory by native code, and crosses to a GPU in one asynchronous copy while you
        compute on the last one: see `Server.device_iter` for ``device``, ``depth`` and ``framework``. Tombstones are
        left out. The last batch may be smaller. Records that the iterator has taken ahead go with it: go on with the
        same one.

        Args:
            device: As for `Server.device_iter`.
            batch_size: Records in a batch.
            layout: ``"padded"`` gives a `PaddedBatch`, ``"packed"`` a `PackedBatch`.
            depth: As for `Server.device_iter`.
            framework: As for `Server.device_iter`.
            **options: As for `pad` or `pack`: ``leaves``, ``by``; if padded also ``length``, ``side``, ``fill``.

        >>> with RecordServer({"tokens": "int32[*]"}) as server:
        ...     for n in (1, 3):
        ...         _ = server.submit({"tokens": list(range(n))})
        ...     batch = next(server.device_iter("cpu", batch_size=2))
        >>> batch.fields["tokens"].tolist(), batch.lengths.tolist()
        ([[0, 0, 0], [0, 1, 2]], [1, 3])
        """
        source = RecordSource(self, batch_size, RecordGatherer(layout, options))
        return device_batches(source, device, depth, framework)

    def submit(
        self,
        data: Any,
        *,
        key: RecordKey | None = None,
        metadata: Any = None,
        version: int = 0,
        timeout: float | None = None,
    ) -> bool:
        """Copies one record into a lane of this process. False when the policy dropped it."""
        producer = self._producer or self._submitter()
        return producer.send(data, key=key, metadata=metadata, version=version, timeout=timeout)

    def submit_many(
        self,
        data: Sequence[Any],
        *,
        keys: Sequence[RecordKey | None] | None = None,
        metadata: Sequence[Any] | None = None,
        version: int | Sequence[int] = 0,
        timeout: float | None = None,
    ) -> int:
        """Copies several records into a lane of this process, in their order. Returns how many were committed.

        As `ShmRecordClient.send_many`.
        """
        producer = self._producer or self._submitter()
        return producer.send_many(data, keys=keys, metadata=metadata, version=version, timeout=timeout)

    def publish(self, version: int) -> None:
        """Tells the workers which weights are the newest: they see it as ``client.published_version``.

        A version is a number from 0 to 2**32 - 1.
        """
        self._consumer.publish(version)

    @property
    def published_version(self) -> int:
        """The version that was published last, by this learner or the one before it; 0 before the first."""
        return self._consumer.published_version

    def crowding(self) -> str:
        """Deprecated: the old name of `lane_pressure`."""
        warnings.warn("RecordServer.crowding is deprecated: use lane_pressure", DeprecationWarning, stacklevel=2)
        return self.lane_pressure()

    def lane_pressure(self) -> str:
        """A sentence for the message of a timeout: held records may fill the lane of a worker. Empty if they do not."""
        stats = self._consumer.stats()
        lane_bytes, held, held_bytes = stats["lane_bytes"], stats["taken_records"], stats["taken_bytes"]
        if stats["ready_records"] or (2 * held_bytes < lane_bytes and 2 * held < self._max_records):
            return ""
        return (
            f" A lane has room for {lane_bytes:,} bytes and {self._max_records:,} records; held are {held_bytes:,} and "
            f"{held:,}. If they come from one worker, it has no room: release some, or make its lane larger "
            "(lane_bytes, and with it the records)."
        )

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<rollway.RecordServer {self.name or '(in process)'} {', '.join(self.schema)} {state}>"

    def _submitter(self) -> RecordProducer:
        """The producer of this process, one for all threads: a second lane would change the order of their records."""
        with self._starting:
            if self._producer is None:
                self._producer = RecordProducer._beside(self._consumer, self._plan)
                self._closers.insert(0, self._producer.close)
            return self._producer

    def _stall_checks(self) -> list[StallCheck]:
        """Reasons why no record may ever come. With transports, remote workers may always come back."""
        return [] if self._endpoints else [producers_died(self._consumer.producers, self._peer_timeout_s, "record")]

    def _none_in_time(self, timeout: float | None) -> None:
        """Raises that no record came. Does nothing when another thread has closed the server meanwhile."""
        try:
            alive, died = self._consumer.producers()
        except ConnectionClosedError:
            return
        stats = self._consumer.stats()
        raise WaitTimeout(
            f"no record within {timeout} s: {stats['reserved_records']} are being written, "
            f"{stats['taken_records']} are held by learners; {alive} producers attached, {len(died)} died"
            f"{describe_waits(self._consumer)}.{self.lane_pressure()}{describe_refusals(self.refusals)}"
        )


def _too_few_asked_for(most: int) -> InvalidArgument:
    return InvalidArgument(f"most = {most} is out of range: at least 1")
