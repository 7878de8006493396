"""Ray's object store: `ray.put` by producers, references through a `ray.util.queue.Queue`, `ray.get` by the consumer.

`each` puts every trajectory by itself and passes references in runs of 32; `batch` puts 32 trajectories as one object,
the quicker of the two. Both fetch a run by one `ray.get`. The queue holds as many as one lane.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from contenders import ray_cluster
from contenders.base import Contender
from contenders.records import RecordConsumer, RecordProducer, document
from harness.trajectories import Trajectories
from harness.workloads import Item

_RUN = 32
_QUEUE = "trajectories"
Way = Literal["each", "batch"]


class _Producer(RecordProducer):
    def __init__(self, address: str, workload: Trajectories, index: int, way: Way) -> None:
        import ray

        super().__init__(workload, index)
        ray_cluster.join(address)
        self._put = ray.put
        self._way = way
        self._queue = ray.get_actor(_QUEUE)
        self._get = ray.get
        documents = [document(item, note) for item, note in zip(self.items, self.notes, strict=True)]
        self._runs = [documents[at : at + _RUN] for at in range(0, len(documents), _RUN)]

    def burst(self) -> None:
        self.renumber()
        for run in self._runs:
            refs = [self._put(run)] if self._way == "batch" else [self._put(each) for each in run]
            self._pass_on(refs)

    def send_one(self, item: Item) -> None:
        self._pass_on([self._put([item] if self._way == "batch" else item)])

    def _pass_on(self, refs: list[Any]) -> None:
        self._get(self._queue.put.remote(refs))


class _Consumer(RecordConsumer):
    def __init__(self, address: str, workload: Trajectories, way: Way) -> None:
        import ray
        from ray.util.queue import Queue

        super().__init__(workload)
        ray_cluster.join(address)
        runs = max(1, workload.capacity // _RUN)
        self._queue: Any = Queue(maxsize=runs, actor_options={"name": _QUEUE, "num_cpus": 0})
        ray.get(self._queue.actor.empty.remote())  # it is up
        self._get = ray.get
        self._way = way

    def receive(self) -> int:
        documents = self._fetch()
        for each in documents:
            self.see_document(each)
        return len(documents)

    def receive_one(self) -> np.ndarray:
        tokens: np.ndarray = self._fetch()[0]["tokens"]
        return tokens

    def _fetch(self) -> list[dict[str, Any]]:
        got: list[Any] = self._get(self._get(self._queue.actor.get.remote()))
        documents: list[dict[str, Any]] = got[0] if self._way == "batch" else got
        return documents

    def close(self) -> None:
        self._queue.shutdown()


class RayRefs(Contender):
    key = "ray"
    package = "ray"
    module = "ray"
    slow = True
    start_s = 240.0
    least_s = 1.0
    stall_s = 20.0
    rate_hz = 100
    shared_service = ray_cluster.SHARED_SERVICE

    def __init__(self, way: Way) -> None:
        self.way = way
        self.label = "ray.put, one object each" if way == "each" else "ray.put, 32 per object"

    def suits(self, workload: Trajectories) -> bool:
        return "masks" in workload.example()

    def link(self, workload: Trajectories, producers: int) -> str:
        return ray_cluster.start()

    def producer(self, link: str, workload: Trajectories, index: int) -> RecordProducer:
        return _Producer(link, workload, index, self.way)

    def consumer(self, link: str, workload: Trajectories, producers: int) -> RecordConsumer:
        return _Consumer(link, workload, self.way)

    def leave(self) -> None:
        ray_cluster.stop()
