"""faster-fifo with trajectories: dicts of arrays, instance id and metadata, in the calls of `contenders.fasterfifo`.

The queue has room for as many trajectories as one lane.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from contenders.fasterfifo import RUN, WAIT_S, FasterFifo
from contenders.records import RecordConsumer, RecordProducer, document
from harness.trajectories import Trajectories
from harness.workloads import Item


class _Producer(RecordProducer):
    def __init__(self, queue: Any, workload: Trajectories, index: int) -> None:
        super().__init__(workload, index)
        self._queue = queue
        documents = [document(item, note) for item, note in zip(self.items, self.notes, strict=True)]
        self._runs = [documents[at : at + RUN] for at in range(0, len(documents), RUN)]

    def burst(self) -> None:
        self.renumber()
        for run in self._runs:
            self._queue.put_many(run, timeout=WAIT_S)

    def send_one(self, item: Item) -> None:
        self._queue.put(item, timeout=WAIT_S)


class _Consumer(RecordConsumer):
    def __init__(self, queue: Any, workload: Trajectories) -> None:
        super().__init__(workload)
        self._queue = queue

    def receive(self) -> int:
        documents = self._queue.get_many(timeout=WAIT_S)
        for each in documents:
            self.see_document(each)
        return len(documents)

    def receive_one(self) -> np.ndarray:
        item: Item = self._queue.get(timeout=WAIT_S)
        return item["tokens"]


class FasterFifoRecords(FasterFifo):
    def suits(self, workload: Trajectories) -> bool:
        return "masks" in workload.example()

    def producer(self, link: Any, workload: Trajectories, index: int) -> RecordProducer:
        return _Producer(link, workload, index)

    def consumer(self, link: Any, workload: Trajectories, producers: int) -> RecordConsumer:
        return _Consumer(link, workload)
