"""rollway's ring: a `Server` in the consumer, a `ShmClient` in each producer, three ways of sending.

`send` is one sample per call, `send_many` is a run of one batch per call, `reserve` writes the worker's
arrays into the slot's views by `np.copyto` and commits. The consumer takes whole batches and releases each
after touching it.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contenders.base import Consumer, Contender, Producer, touch_batch
from harness.workloads import Item, Workload

_SHM = Path("/dev/shm")
Way = Literal["send", "send_many", "reserve"]


class Sender(Producer):
    """Sends one sample per call, through any client of rollway's."""

    def __init__(self, client: Any, workload: Workload, index: int) -> None:
        super().__init__(workload, index)
        self._client = client

    def burst(self) -> None:
        send = self._client.send
        for item in self.items:
            send(item)

    def send_one(self, item: Item) -> None:
        self._client.send(item)

    def close(self) -> None:
        self._client.close()


class ManySender(Sender):
    """Sends a run of one batch per call, through any client of rollway's."""

    def __init__(self, client: Any, workload: Workload, index: int) -> None:
        super().__init__(client, workload, index)
        starts = range(0, len(self.items), workload.batch)
        self._runs = [workload.stacked(self.items[at : at + workload.batch]) for at in starts]

    def burst(self) -> None:
        send_many = self._client.send_many
        for run in self._runs:
            send_many(run)


class _ReserveSender(Sender):
    def burst(self) -> None:
        reserve, copyto = self._client.reserve, np.copyto
        for item in self.items:
            slot = reserve()
            for name, array in item.items():
                copyto(slot[name], array)
            slot.commit()


class Learner(Consumer):
    """Takes whole batches from a `Server`, whatever its transport."""

    def __init__(self, transport: Any, workload: Workload) -> None:
        from rollway import Server

        self._server: Any = Server(
            workload.example(), workload.batch, transport=transport, num_buffers=workload.buffers
        )
        self._server.start()
        self._held: Any = None

    def receive(self) -> int:
        sample = self._server.sample()
        batch = sample.batch
        self.touched += touch_batch(batch)
        count = len(next(iter(batch.values())))
        sample.release()
        return count

    def receive_one(self) -> np.ndarray:
        if self._held is not None:
            self._held.release()
        self._held = self._server.sample()  # the caller reads the view, so it is released one call later
        tokens: np.ndarray = self._held.batch["tokens"][0]
        return tokens

    def wait_idle(self, seconds: float) -> None:
        """Wait in `sample` for data that does not come."""
        from rollway.errors import WaitTimeout

        try:
            self._server.sample(timeout=seconds)
        except WaitTimeout:
            return
        raise RuntimeError("a sample arrived though nobody sends")

    def close(self) -> None:
        self._held = None
        self._server.close()


class Rollway(Contender):
    key = "rollway"
    package = "rollway"
    module = "rollway"

    def __init__(self, way: Way = "send") -> None:
        self.way = way
        self.label = f"rollway {way}"

    def link(self, workload: Workload, producers: int) -> str:
        return f"bench-{os.getpid()}-{secrets.token_hex(4)}"

    def producer(self, link: str, workload: Workload, index: int) -> Producer:
        from rollway import ShmClient

        kinds = {"send": Sender, "send_many": ManySender, "reserve": _ReserveSender}
        return kinds[self.way](ShmClient(link, workload.example()), workload, index)

    def consumer(self, link: str, workload: Workload, producers: int) -> Learner:
        from rollway import ShmTransport

        return Learner(ShmTransport(link), workload)

    def discard(self, link: str) -> None:
        for left in _SHM.glob(f"rollway.{link}*"):  # only a killed cell leaves one
            left.unlink()
