"""`generate()` of SkyRL's generator over records, for latency: a coroutine asks it for one trajectory, again and again.

The sender's records are those of an Atropos environment, with the schema and metadata of the integration, and 2,048
tokens. `resumed` begins at the commit of the record and ends when `generate()` was woken with its groups and turns to
the first trajectory; `resumed, since the send` begins before the sender's call, as all other latencies do. `returned`
does, too, and ends when the caller has the output, for which SkyRL wants lists of tokens, masks and logprobs, and its
metrics. That takes most of a millisecond, so it is asked 200 times a second.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from contenders.base import Consumer, Contender, Producer
from contenders.rollway_records import RollwayRecords, lane_bytes
from harness.trajectories import Trajectories
from harness.workloads import Item

_STAMP = 2  # tokens that hold the time of the send: the prompt
Moment = Literal["resumed", "resumed, since the send", "returned"]


class _Sender(Producer):
    def __init__(self, link: str, workload: Trajectories, index: int) -> None:
        import rollway
        from rollway.integrations.atropos import ATROPOS_SCHEMA, encode_group

        (source,) = workload.samples(index, 1)
        ids = source["tokens"].tolist()
        group = {
            "tokens": [ids],
            "masks": [[-100] * _STAMP + ids[_STAMP:]],
            "scores": [1.0],
            "inference_logprobs": [source["logprobs"].astype(float).tolist()],
        }
        ((data, self._metadata),) = encode_group(group)
        self.items = [data]
        self.burst_items = 1
        self._client: Any = rollway.ShmRecordClient(link, ATROPOS_SCHEMA)
        self._key = rollway.RecordKey
        self._steps = itertools.count()

    def send_one(self, item: Item) -> None:
        key = self._key("bench", "train", next(self._steps), "problem", 0)
        self._client.send(item, key=key, metadata=self._metadata)

    def close(self) -> None:
        self._client.close()


class _Generator(Consumer):
    def __init__(self, link: str, workload: Trajectories, moment: Moment) -> None:
        from rollway import RecordServer, ShmTransport
        from rollway.integrations.atropos import ATROPOS_SCHEMA
        from rollway.integrations.skyrl import AtroposSHMGenerator, generator

        self._moment = moment
        self._committed_ns = self._resumed_ns = 0
        self._convert = generator.trajectory_of
        generator.trajectory_of = self._note  # the first that generate() calls when it goes on
        room = lane_bytes(workload, 8 * workload.capacity)
        server = RecordServer(ATROPOS_SCHEMA, transport=ShmTransport(link), lane_bytes=room, lanes=1)
        server.start()
        self._generator: Any = AtroposSHMGenerator(server, match="stream", group_size=1)

    def receive_stamps(self, count: int) -> list[int]:
        return asyncio.run(self._stamps(count))

    async def _stamps(self, count: int) -> list[int]:
        wanted = {"prompts": [[0]], "trajectory_ids": None, "sampling_params": None, "batch_metadata": None}
        waits = []
        for _ in range(count):
            output = await self._generator.generate(wanted)
            now = time.monotonic_ns() if self._moment == "returned" else self._resumed_ns
            sent = int(np.array(output["prompt_token_ids"][0], np.int32).view(np.int64)[0])
            waits.append(now - (self._committed_ns if self._moment == "resumed" else sent))
        return waits

    def _note(self, record: Any) -> Any:
        self._resumed_ns = time.monotonic_ns()
        self._committed_ns = record.committed_ns
        return self._convert(record)

    def close(self) -> None:
        self._generator.close()


class SkyrlGenerate(Contender):
    key = "rollway"
    package = "skyrl"
    start_s = 240.0
    rate_hz = 200
    least_s = 1.0

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.label = f"rollway generate() {moment}"

    def missing(self) -> str | None:
        lacking = [name for name in ("rollway", "skyrl", "atroposlib") if find_spec(name) is None]
        return f"not installed: {', '.join(lacking)}" if lacking else None

    def link(self, workload: Trajectories, producers: int) -> str:
        return RollwayRecords().link(workload, producers)

    def producer(self, link: str, workload: Trajectories, index: int) -> Producer:
        return _Sender(link, workload, index)

    def consumer(self, link: str, workload: Trajectories, producers: int) -> Consumer:
        return _Generator(link, workload, self.moment)

    def discard(self, link: str) -> None:
        RollwayRecords().discard(link)
