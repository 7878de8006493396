"""The least that it takes to wake a coroutine of another process, for latency: eight bytes through a pipe to its loop.

No record, no group, no SkyRL: the time of the send goes in, and the loop's callback ends a coroutine's wait. Then
arrays of as many tokens, masks and logprobs become lists, as at the end of `generate()`, so that it is woken just as
cold, and as often.
"""

from __future__ import annotations

import asyncio
import os
from multiprocessing.connection import Connection
from time import monotonic_ns

import numpy as np

from contenders.base import Consumer, Contender, Producer
from contenders.pipe import Link, Pipe
from harness.trajectories import Trajectories
from harness.workloads import Item

_STAMP_BYTES = 8


class _Producer(Producer):
    def __init__(self, pipe: Connection) -> None:
        self.items = [{"tokens": np.zeros(2, np.int32)}]
        self.burst_items = 1
        self._pipe = pipe.fileno()

    def send_one(self, item: Item) -> None:
        os.write(self._pipe, item["tokens"].data)


class _Consumer(Consumer):
    def __init__(self, pipe: Connection, workload: Trajectories) -> None:
        self._pipe = pipe.fileno()
        (source,) = workload.samples(0, 1)
        self._arrays = [leaf for leaf in source.values() if leaf.ndim]

    def receive_stamps(self, count: int) -> list[int]:
        return asyncio.run(self._stamps(count))

    async def _stamps(self, count: int) -> list[int]:
        loop = asyncio.get_running_loop()
        waits = []
        waiter: asyncio.Future[int] = loop.create_future()
        loop.add_reader(
            self._pipe, lambda: waiter.set_result(int.from_bytes(os.read(self._pipe, _STAMP_BYTES), "little"))
        )
        for _ in range(count):
            sent_ns = await waiter
            waits.append(monotonic_ns() - sent_ns)
            waiter = loop.create_future()
            for array in self._arrays:
                array.tolist()
        return waits


class LoopWakeup(Contender):
    key = "loop"
    label = "a stamp to a coroutine (limit)"
    rate_hz = 200
    least_s = 1.0

    def link(self, workload: Trajectories, producers: int) -> Link:
        return Pipe().link(workload, producers)

    def producer(self, link: Link, workload: Trajectories, index: int) -> Producer:
        return _Producer(link[index][1])

    def consumer(self, link: Link, workload: Trajectories, producers: int) -> Consumer:
        return _Consumer(link[0][0], workload)

    def discard(self, link: Link) -> None:
        Pipe().discard(link)
