"""faster-fifo: one queue for all producers, `put_many` of 32 samples, `get_many` at the consumer.

These are the quickest of its calls, with the serializer that its constructor accepts set to pickle protocol 5
(its default builds a ForkingPickler and copies once more). The queue has room for as many samples as the ring
has slots.
"""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np

from contenders.base import Consumer, Contender, Producer, touch
from harness.workloads import Item, Workload

RUN = 32  # samples in one put_many
_PICKLE_BYTES = 512  # what pickle and small values add to a sample, rounded up
WAIT_S = 3600.0  # faster-fifo has no endless wait; the watchdog comes first


class _Producer(Producer):
    def __init__(self, queue: Any, workload: Workload, index: int) -> None:
        super().__init__(workload, index)
        self._queue = queue
        self._runs = [self.items[at : at + RUN] for at in range(0, len(self.items), RUN)]

    def burst(self) -> None:
        for run in self._runs:
            self._queue.put_many(run, timeout=WAIT_S)

    def send_one(self, item: Item) -> None:
        self._queue.put(item, timeout=WAIT_S)


class _Consumer(Consumer):
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def receive(self) -> int:
        items = self._queue.get_many(timeout=WAIT_S)
        touched = 0.0
        for item in items:
            touched += touch(item)
        self.touched += touched
        return len(items)

    def receive_one(self) -> np.ndarray:
        item: Item = self._queue.get(timeout=WAIT_S)
        return item["tokens"]


class FasterFifo(Contender):
    key = "faster-fifo"
    label = "faster-fifo"
    package = "faster-fifo"
    module = "faster_fifo"

    def link(self, workload: Workload, producers: int) -> Any:
        from faster_fifo import Queue

        size = workload.capacity * (workload.item_bytes + _PICKLE_BYTES)
        return Queue(max_size_bytes=size, dumps=partial(pickle.dumps, protocol=5), loads=pickle.loads)

    def producer(self, link: Any, workload: Workload, index: int) -> Producer:
        return _Producer(link, workload, index)

    def consumer(self, link: Any, workload: Workload, producers: int) -> Consumer:
        return _Consumer(link)
