"""id-echo over TCP on loopback, batches of 32 whatever the workload, defaults elsewhere.

Its `sample` has no timeout and may wait for ever though samples were sent (known): the cell's watchdog
answers that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from contenders.base import Consumer, Contender, Producer, free_port, touch_batch
from harness.workloads import Item, Workload

_BATCH = 32


class _Producer(Producer):
    def __init__(self, port: int, workload: Workload, index: int) -> None:
        from echo import TcpClient

        super().__init__(workload, index)
        example: Any = workload.example()
        self._client: Any = TcpClient("127.0.0.1", port, example)

    def burst(self) -> None:
        send = self._client.send
        for item in self.items:
            send(item)

    def send_one(self, item: Item) -> None:
        self._client.send(item)

    def close(self) -> None:
        self._client.close()


class _Consumer(Consumer):
    def __init__(self, port: int, workload: Workload) -> None:
        from echo import Server, TcpTransport

        self._batch = min(workload.batch, _BATCH)
        self._server: Any = Server(
            workload.example(), self._batch, transport=TcpTransport(port=port), num_buffers=workload.buffers
        )
        self._server.start()

    def receive(self) -> int:
        self.touched += touch_batch(self._server.sample().batch)
        return self._batch

    def receive_one(self) -> np.ndarray:
        tokens: np.ndarray = self._server.sample().batch["tokens"][0]
        return tokens

    def close(self) -> None:
        self._server.close()


class Echo(Contender):
    key = "echo"
    label = "id-echo TCP"
    package = "id-echo"
    module = "echo"

    def link(self, workload: Workload, producers: int) -> int:
        return free_port()

    def producer(self, link: int, workload: Workload, index: int) -> Producer:
        return _Producer(link, workload, index)

    def consumer(self, link: int, workload: Workload, producers: int) -> Consumer:
        return _Consumer(link, workload)
