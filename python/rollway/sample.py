"""Sample and SampleInfo: a batch of experience, and where it came from. Made by `Server`, read by the training loop."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from rollway._core import Batch, Consumer, HistSnapshot

# A slot record of the core: its word, then the stamp.
_RECORD = np.dtype(
    [("word", "u8"), ("sequence", "u8"), ("committed_ns", "u8"), ("producer_id", "u4"), ("version", "u4")]
)


class SampleInfo:
    """Who made the samples of a batch, and how the ring is doing.

    The four arrays have one entry per sample and belong to you. The numbers below them are read off the ring when you
    ask for them, not when the batch was taken.
    """

    __slots__ = ("_consumer", "_records", "batch_number", "size")

    def __init__(self, consumer: Consumer, batch_number: int, records: bytes) -> None:
        self._consumer = consumer
        self._records = records
        self.batch_number = batch_number
        """Counted from 1 over the life of the ring."""
        self.size = len(records) // _RECORD.itemsize
        """Samples in the batch; fewer than ``batch_size`` only when it was closed early."""

    def __repr__(self) -> str:
        return f"SampleInfo(batch_number={self.batch_number}, size={self.size})"

    def _stamp(self, field: str) -> np.ndarray[Any, Any]:
        return np.frombuffer(self._records, _RECORD)[field]

    @property
    def producer_ids(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """Which producer made each sample."""
        return self._stamp("producer_id")

    @property
    def sequences(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """The number of each sample, counted from 0 by its producer."""
        return self._stamp("sequence")

    @property
    def versions(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The version of the weights that made each sample; 0 when its producer did not say."""
        return self._stamp("version")

    @property
    def committed_ns(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """When each sample was committed, by ``time.monotonic_ns()``."""
        return self._stamp("committed_ns")

    @property
    def store_size(self) -> int:
        """Committed samples that wait in the ring."""
        return self._count("ready_samples")

    @property
    def active_connections(self) -> int:
        """Producers attached and alive."""
        return self._consumer.producers()[0]

    @property
    def queue_depth_sum(self) -> int:
        """Full batches that wait. There are no other queues in shared memory."""
        return self._count("ready_batches")

    @property
    def queue_depth_max(self) -> int:
        """As `queue_depth_sum`: there is one queue."""
        return self._count("ready_batches")

    @property
    def push_blocked_count(self) -> int:
        """How often a producer had to wait for room."""
        return self._count("blocked")

    @property
    def samples_inserted_total(self) -> int:
        """Samples committed since the ring was made, and not dropped: what was taken and what waits."""
        stats = self._consumer.stats()
        return int(stats["samples_taken"] + stats["ready_samples"])

    @property
    def notify_count(self) -> int:
        """How often a sleeping learner was woken."""
        return self._count("wakeups")

    @property
    def cas_success_total(self) -> int:
        """Slots claimed: inserted samples, and those given back."""
        return self.samples_inserted_total + self._count("aborted")

    @property
    def cas_failure_total(self) -> int:
        """Claims that another producer won first."""
        return self._count("claim_retries")

    @property
    def reservation_retries_total(self) -> int:
        """As `cas_failure_total`: a lost claim is tried again on the next slot."""
        return self._count("claim_retries")

    @property
    def memcpy(self) -> HistSnapshot:
        """How long copying a sample into its slot took, in all producers (one send in 64 is timed)."""
        return self._consumer.histogram("memcpy")

    @property
    def queue_dwell(self) -> HistSnapshot:
        """How long the first sample of a batch waited from its commit until the batch was taken."""
        return self._consumer.histogram("queue_dwell")

    @property
    def wait(self) -> HistSnapshot:
        """How long the learner waited for a batch, when it had to."""
        return self._consumer.histogram("wait")

    def _count(self, name: str) -> int:
        return int(self._consumer.stats()[name])


class _Fields(NamedTuple):
    batch: Any
    info: SampleInfo


class Sample(_Fields):
    """A batch and its info: ``batch, info = sample``.

    The arrays are views into shared memory. Their room goes back to the producers when you call `release`, or when the
    sample and every array of it are garbage, whichever comes first; until then nobody writes to it. After `release` a
    view that you kept stays readable, but its contents will change.
    """

    _batch: Batch | None

    def __new__(cls, batch: Any, info: SampleInfo, _batch: Batch | None = None) -> Sample:
        """Pairs a batch with its info."""
        self = super().__new__(cls, batch, info)
        self._batch = _batch
        return self

    def release(self) -> None:
        """Gives the room back to the producers now. Does nothing the second time."""
        if self._batch is not None:
            self._batch.release()

    def __enter__(self) -> Sample:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()
