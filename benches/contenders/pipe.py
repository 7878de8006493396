"""multiprocessing.Pipe: one pipe per producer, `send` of a dict of arrays; the consumer waits on all pipes.

The pipes belong to the parent until the processes have them; a producer's bytes queue in the kernel (64 KB).
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection, wait

import numpy as np

from contenders.base import Consumer, Contender, Producer, touch
from harness.workloads import Item, Workload

Link = list[tuple[Connection, Connection]]  # per producer: the reading end, the writing end


class _Producer(Producer):
    def __init__(self, link: Link, workload: Workload, index: int) -> None:
        super().__init__(workload, index)
        self._pipe = link[index][1]

    def burst(self) -> None:
        send = self._pipe.send
        for item in self.items:
            send(item)

    def send_one(self, item: Item) -> None:
        self._pipe.send(item)


class _Consumer(Consumer):
    def __init__(self, link: Link, workload: Workload) -> None:
        self._pipes = [reader for reader, _ in link]
        self._gulp = workload.batch

    def receive(self) -> int:
        if len(self._pipes) == 1:
            return self._receive_from(self._pipes[0])
        count = 0
        for pipe in wait(self._pipes):
            assert isinstance(pipe, Connection)
            count += self._receive_from(pipe)
        return count

    def _receive_from(self, pipe: Connection) -> int:
        """A gulp from one pipe: its producer is in the middle of a burst, so the rest of it is coming."""
        receive = pipe.recv
        touched = 0.0
        for _ in range(self._gulp):
            touched += touch(receive())
        self.touched += touched
        return self._gulp

    def receive_one(self) -> np.ndarray:
        item: Item = self._pipes[0].recv()
        return item["tokens"]


class Pipe(Contender):
    key = "pipe"
    label = "multiprocessing.Pipe"

    def link(self, workload: Workload, producers: int) -> Link:
        return [multiprocessing.get_context("spawn").Pipe(duplex=False) for _ in range(producers)]

    def producer(self, link: Link, workload: Workload, index: int) -> Producer:
        return _Producer(link, workload, index)

    def consumer(self, link: Link, workload: Workload, producers: int) -> Consumer:
        return _Consumer(link, workload)

    def discard(self, link: Link) -> None:
        for ends in link:
            for end in ends:
                end.close()
