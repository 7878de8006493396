"""The demo's learner, and its two sources of batches: RingSource (Rollway) and QueueSource (multiprocessing.Queue).

A source has `take`, which waits a moment for a batch of stacked samples and gives it to a function. The learner is a
thread that takes and checks batches. The main thread watches the workers, because `get` of a queue whose writer was
killed may never return.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rollway.cli.demo.trajectory import Array, Item, Tally, example
from rollway.errors import WaitTimeout
from rollway.ring.server import Server
from rollway.transport.shm import ShmTransport

_TICK_S = 0.1


class RingSource:
    """Batches as views into a ring."""

    def __init__(self, batch_size: int, num_buffers: int) -> None:
        self._server = Server(example(), batch_size, ShmTransport(), num_buffers)
        self.ring = self._server.name
        """The ring that workers send through."""

    def take(self, use: Callable[[Item, int], None]) -> bool:
        """Calls ``use(batch, arrived_ns)`` with a batch, or with part of one after a moment. False when none came."""
        try:
            sample = self._server.sample(timeout=_TICK_S, at_least=1)
        except WaitTimeout:
            return False
        if sample is None:
            return False
        arrived_ns = time.monotonic_ns()
        with sample:
            use(sample.batch, arrived_ns)
        return True

    def waiting(self) -> int:
        """Samples committed to the ring and not yet taken."""
        return 0 if self._server.closed else self._server.stats()["ready_samples"]

    def close(self) -> None:
        """Removes the ring."""
        self._server.close()


class QueueSource:
    """Batches stacked from the items of a queue, as a learner has to."""

    ring = None

    def __init__(self, link: Any, batch_size: int) -> None:
        self._queue, self._batch_size = link, batch_size

    def take(self, use: Callable[[Item, int], None]) -> bool:
        """As for a ring."""
        items: list[Item] = []
        try:
            while len(items) < self._batch_size:
                items.append(self._queue.get(timeout=_TICK_S))
        except queue.Empty:
            if not items:
                return False
        arrived_ns = time.monotonic_ns()
        use({leaf: np.stack([item[leaf] for item in items]) for leaf in items[0]}, arrived_ns)
        return True

    def waiting(self) -> int:
        """Items put and not yet gotten."""
        return int(self._queue.qsize())

    def close(self) -> None:
        """Does nothing: the queue belongs to `WorkerProcesses`."""


BatchSource = RingSource | QueueSource


class Learner(threading.Thread):
    """Takes batches and checks every one, until it has all that was sent.

    Args:
        source: Where they come from.
        tally: Checks them.
        note: Called for every batch, as ``note(arrived_ns, keys)``.
    """

    def __init__(self, source: BatchSource, tally: Tally, note: Callable[[int, Array], None]) -> None:
        super().__init__(name="learner", daemon=True)
        self.error: Exception | None = None
        self._source, self._tally, self._note = source, tally, note
        self._expected: int | None = None
        self._idle_s: float | None = None
        self._stopped = False

    def run(self) -> None:
        """Takes batches until all that was sent has come, or until no more comes."""
        try:
            idle_since = time.monotonic()
            while not (self._stopped or (self._expected is not None and self._tally.received >= self._expected)):
                if self._source.take(lambda batch, arrived_ns: self._note(arrived_ns, self._tally.check(batch))):
                    idle_since = time.monotonic()
                elif self._idle_s is not None and time.monotonic() - idle_since > self._idle_s:
                    return
        except Exception as error:  # noqa: BLE001  handed to the main thread, which raises it
            self.error = error

    def expect(self, samples: int | None, idle_s: float) -> None:
        """Ends when this many samples have come, or when none has come for ``idle_s`` seconds."""
        self._expected, self._idle_s = samples, idle_s

    def stop(self) -> None:
        """Ends after the current batch."""
        self._stopped = True
