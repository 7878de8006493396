"""rollway's records: a `RecordServer` in the consumer, a `ShmRecordClient` with a lane of its own in each producer.

`send` is one record per call, with its key and its metadata as an object; `send, metadata as bytes` is handed JSON that
was written before; `send, arrays only` leaves key and metadata out. `send_many` is handed `_GROUP` records per call, in
lists that were made before: an environment that finishes a group has them so. The consumer takes what is there, at most
`_GULP` at a time, looks at every array through its view, and releases. For latency it waits in `read`, or as a
coroutine in `read_async`.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contenders.base import Contender
from contenders.records import RecordConsumer, RecordProducer
from harness import forms
from harness.trajectories import PACED, Trajectories
from harness.workloads import Item

_SHM = Path("/dev/shm")
_GULP = 64
_GROUP = 8
Way = Literal[
    "send",
    "send, metadata as bytes",
    "send, arrays only",
    "send_many, groups of 8",
    "send_many, groups of 8, arrays only",
    "read_async",
]


def schema(workload: Trajectories) -> dict[str, str]:
    """Arrays are ragged, the score is not."""
    return {leaf.name: f"{leaf.dtype}[{'*' if leaf.shape else ''}]" for leaf in workload.leaves}


def lane_bytes(workload: Trajectories, records: int) -> int:
    """Room for so many records, with their keys and metadata."""
    return -(-(workload.item_bytes + 512) * records // 4096) * 4096


class _Sender(RecordProducer):
    def __init__(self, link: str, workload: Trajectories, index: int, way: Way, form: str = forms.PLAIN) -> None:
        import rollway

        super().__init__(workload, index)
        self._client: Any = rollway.ShmRecordClient(link, schema(workload))
        keys = [rollway.RecordKey("bench", "train", 0, note.instance_id, note.repetition_id) for note in self.notes]
        metadata: list[Any] = [note.metadata for note in self.notes]
        if way == "send, metadata as bytes":
            metadata = [json.dumps(each).encode() for each in metadata]
        self._whole = list(zip(self.items, keys, metadata, strict=True))
        self._bare = way.endswith("arrays only")
        self._data = [forms.TRAJECTORIES[form](item) for item in self.items]
        self._number = None if form == forms.PLAIN else forms.TRAJECTORIES[form].values

    def burst(self) -> None:
        self.renumber()
        send = self._client.send
        if self._number is not None:
            for data, item in zip(self._data, self.items, strict=True):
                data["score"] = self._number({"score": item["score"]})["score"]  # The last one was a copy.
        if self._bare:
            for data in self._data:
                send(data)
        else:
            for item, key, metadata in self._whole:
                send(item, key=key, metadata=metadata)

    def send_one(self, item: Item) -> None:
        self._client.send(item)

    def close(self) -> None:
        self._client.close()


class _GroupSender(_Sender):
    def __init__(self, link: str, workload: Trajectories, index: int, way: Way, form: str = forms.PLAIN) -> None:
        super().__init__(link, workload, index, way, form)
        groups = [self._whole[first : first + _GROUP] for first in range(0, len(self._whole), _GROUP)]
        self._groups = [tuple(map(list, zip(*group, strict=True))) for group in groups]

    def burst(self) -> None:
        self.renumber()
        send_many = self._client.send_many
        if self._bare:
            for items, _, _ in self._groups:
                send_many(items)
        else:
            for items, keys, metadata in self._groups:
                send_many(items, keys=keys, metadata=metadata)


def _note(record: Any) -> tuple[str, Any] | None:
    return None if record.key is None else (record.key.instance_id, json.loads(record.metadata_bytes))


class RecordLearner(RecordConsumer):
    """Reads from a `RecordServer`, whatever its transport."""

    def __init__(self, transport: Any, workload: Trajectories, producers: int) -> None:
        from rollway import RecordServer

        super().__init__(workload)
        self._server: Any = RecordServer(
            schema(workload), transport=transport, lane_bytes=lane_bytes(workload, workload.capacity), lanes=producers
        )
        self._server.start()
        self._held: Any = None

    def receive(self) -> int:
        records = self._server.read_many(_GULP)
        if self.careful:
            for record in records:
                with record:
                    self.see(record.fields, partial(_note, record))
            return len(records)
        number, first, last, touched = self._number, self._first, self._last, 0.0
        for record in records:  # `see`, without a call per record
            tokens, logprobs, masks, score = record.values()
            number(score.item())
            first(tokens.item(0))
            last(tokens.item(-1))
            touched += logprobs.item(0) + masks.item(0)
            record.release()
        self.touched += touched
        return len(records)

    def receive_one(self) -> np.ndarray:
        self._held = self._server.read()  # the caller reads the view, so it is let go one call later
        tokens: np.ndarray = self._held["tokens"]
        return tokens

    def wait_idle(self, seconds: float) -> None:
        """Wait in `read` for data that does not come."""
        from rollway.errors import WaitTimeout

        try:
            self._server.read(timeout=seconds)
        except WaitTimeout:
            return
        raise RuntimeError("a record arrived though nobody sends")

    def close(self) -> None:
        self._held = None
        self._server.close()


class _AsyncLearner(RecordLearner):
    def receive_stamps(self, count: int) -> list[int]:
        return asyncio.run(self._stamps(count))

    async def _stamps(self, count: int) -> list[int]:
        waits = []
        for _ in range(count):
            record = await self._server.read_async()
            now = time.monotonic_ns()
            waits.append(now - int(record["tokens"][:2].view(np.int64)[0]))
            record.release()
        return waits


class RollwayRecords(Contender):
    key = "rollway"
    package = "rollway"
    module = "rollway"

    def __init__(self, way: Way = "send", form: str = forms.PLAIN) -> None:
        self.way = way
        self.form = form
        self.label = f"rollway records {way}" + ("" if form == forms.PLAIN else f", {form}")

    def missing(self) -> str | None:
        return super().missing() or forms.TRAJECTORIES[self.form].missing()

    def suits(self, workload: Trajectories) -> bool:
        return workload is PACED if self.form != forms.PLAIN else "masks" in workload.example()

    def link(self, workload: Trajectories, producers: int) -> str:
        return f"bench-{os.getpid()}-{secrets.token_hex(4)}"

    def producer(self, link: str, workload: Trajectories, index: int) -> RecordProducer:
        kind = _GroupSender if self.way.startswith("send_many") else _Sender
        return kind(link, workload, index, self.way, self.form)

    def consumer(self, link: str, workload: Trajectories, producers: int) -> RecordLearner:
        from rollway import ShmTransport

        kind = _AsyncLearner if self.way == "read_async" else RecordLearner
        return kind(ShmTransport(link), workload, producers)

    def discard(self, link: str) -> None:
        for left in _SHM.glob(f"rollway.{link}*"):  # only a killed cell leaves one
            left.unlink()
