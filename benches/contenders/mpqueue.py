"""multiprocessing.Queue: one queue for all producers, `put` of a dict of arrays, `get` of the same.

The queue holds as many samples as the ring has slots, so a fast producer cannot run ahead without bound.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np

from contenders.base import Consumer, Contender, Producer, touch
from harness.workloads import Item, Workload


class _Producer(Producer):
    def __init__(self, queue: Any, workload: Workload, index: int) -> None:
        super().__init__(workload, index)
        self._queue = queue

    def burst(self) -> None:
        put = self._queue.put
        for item in self.items:
            put(item)

    def send_one(self, item: Item) -> None:
        self._queue.put(item)

    def close(self) -> None:
        self._queue.close()
        self._queue.join_thread()


class _Consumer(Consumer):
    def __init__(self, queue: Any, workload: Workload) -> None:
        self._queue = queue
        self._gulp = workload.batch

    def receive(self) -> int:
        get = self._queue.get
        touched = 0.0
        for _ in range(self._gulp):  # a burst is a whole number of gulps, so none of these waits for ever
            touched += touch(get())
        self.touched += touched
        return self._gulp

    def receive_one(self) -> np.ndarray:
        item: Item = self._queue.get()
        return item["tokens"]


class MpQueue(Contender):
    key = "queue"
    label = "multiprocessing.Queue"

    def link(self, workload: Workload, producers: int) -> Any:
        return multiprocessing.get_context("spawn").Queue(maxsize=workload.capacity)

    def producer(self, link: Any, workload: Workload, index: int) -> Producer:
        return _Producer(link, workload, index)

    def consumer(self, link: Any, workload: Workload, producers: int) -> Consumer:
        return _Consumer(link, workload)

    def discard(self, link: Any) -> None:
        link.close()
