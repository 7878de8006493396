"""TransferQueue with its simple storage: a controller and two storage units as Ray actors, clients over ZeroMQ.

A producer puts 64 trajectories per call as dense tensors; the consumer asks for 64 that are ready, fetches and clears
them. The controller is set to answer at once when there are too few (`polling_mode`), and is
asked again after a millisecond: left at its default it sleeps for seconds, and then gives up. It has no backpressure
that waits, so a producer waits here until the consumer is less than a lane behind.
"""

from __future__ import annotations

import ctypes
import os
import time
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

import numpy as np

from contenders import ray_cluster
from contenders.base import Contender
from contenders.records import RecordConsumer, RecordProducer
from harness.trajectories import Trajectories
from harness.workloads import Item

_PARTITION, _TASK = "bench", "train"
_AGAIN_S = 0.001


class _Link(NamedTuple):
    address: str
    received: Any  #: by the consumer, of all producers
    producers: int


class _Producer(RecordProducer):
    def __init__(self, link: _Link, workload: Trajectories, index: int) -> None:
        import torch
        from tensordict import NonTensorStack, TensorDict

        super().__init__(workload, index)
        self._client = _join(link.address)
        self._received, self._sent = link.received, 0
        self._ahead = max(len(self.items), workload.capacity) * link.producers
        self._producers = link.producers
        stacked = {name: np.stack([item[name] for item in self.items]) for name in self.items[0] if name != "score"}
        scores = self.items[0]["score"].base.reshape(-1, 1)  # numbered in place
        notes = [{"instance_id": note.instance_id, "metadata": note.metadata} for note in self.notes]
        self._batch = TensorDict(
            {
                **{name: torch.from_numpy(array) for name, array in stacked.items()},
                "score": torch.from_numpy(scores),
                "note": NonTensorStack(*notes),
            },
            batch_size=[len(self.items)],
        )

    def burst(self) -> None:
        while self._sent * self._producers - self._received[0] >= self._ahead:
            time.sleep(_AGAIN_S)
        self.renumber()
        self._client.put(self._batch, partition_id=_PARTITION)
        self._sent += len(self.items)

    def send_one(self, item: Item) -> None:
        import torch

        one = self._batch[:1].clone()
        one["tokens"] = torch.from_numpy(item["tokens"]).reshape(1, -1)
        self._client.put(one, partition_id=_PARTITION)


class _Consumer(RecordConsumer):
    def __init__(self, link: _Link, workload: Trajectories) -> None:
        super().__init__(workload)
        self._received = link.received
        self._client = _join(link.address)
        self._wanted = workload.distinct
        self._fields = [leaf.name for leaf in workload.leaves] + ["note"]

    def receive(self) -> int:
        columns = self._fetch(self._wanted)
        arrays = [columns[name].unbind() for name in self._fields[:-1]]
        for *row, note in zip(*arrays, columns["note"], strict=True):
            got = {name: tensor.numpy() for name, tensor in zip(self._fields, row, strict=False)}
            self.see(got, lambda note=note: (note["instance_id"], note["metadata"]))
        self._received[0] += self._wanted
        return self._wanted

    def receive_one(self) -> np.ndarray:
        tokens: np.ndarray = self._fetch(1)["tokens"].unbind()[0].numpy()
        return tokens

    def _fetch(self, wanted: int) -> Any:
        while True:
            meta = self._client.get_meta(
                data_fields=self._fields, batch_size=wanted, partition_id=_PARTITION, task_name=_TASK
            )
            if meta.size:
                break
            time.sleep(_AGAIN_S)
        columns = self._client.get_data(meta)
        self._client.clear_samples(meta)
        return columns

    def close(self) -> None:
        import transfer_queue

        transfer_queue.close()


class TransferQueue(Contender):
    key = "transferqueue"
    label = "TransferQueue, simple storage"
    package = "TransferQueue"
    module = "transfer_queue"
    slow = True
    start_s = 240.0
    least_s = 1.0
    stall_s = 20.0
    rate_hz = 50
    shared_service = ray_cluster.SHARED_SERVICE

    def suits(self, workload: Trajectories) -> bool:
        return "masks" in workload.example()

    def link(self, workload: Trajectories, producers: int) -> _Link:
        return _Link(ray_cluster.start(), RawArray(ctypes.c_int64, 1), producers)

    def producer(self, link: _Link, workload: Trajectories, index: int) -> RecordProducer:
        return _Producer(link, workload, index)

    def consumer(self, link: _Link, workload: Trajectories, producers: int) -> RecordConsumer:
        return _Consumer(link, workload)

    def leave(self) -> None:
        ray_cluster.stop()


def _join(address: str) -> Any:
    """The first to come, which is the consumer, starts the controller and the storage."""
    os.environ["TQ_LOGGING_LEVEL"] = "ERROR"
    import transfer_queue
    from omegaconf import OmegaConf

    ray_cluster.join(address)
    transfer_queue.init(OmegaConf.create({"controller": {"polling_mode": True}}))
    return transfer_queue.get_client()
