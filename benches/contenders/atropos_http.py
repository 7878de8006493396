"""Atropos as it ships: its API server in a process of its own, its environments' way of sending, `/batch` for trainers.

The server is `atroposlib.api:app` under uvicorn. A producer is an environment as far as sending goes: it registers, and
sends scored groups of four by the `_send_scored_data_to_api` of the package (a new session, JSON, gzip, one POST per
group), two at a time. The trainer registers, asks for batches of eight with `requests`, and asks again after 5 ms when
there is none; trainers that ship with the package wait for a second. Ids and metadata travel in `overrides`. A producer
waits while the trainer is four bursts behind: the server itself would take any number.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import socket
import time
from multiprocessing.sharedctypes import RawArray
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from contenders.base import Contender, free_port
from contenders.records import RecordConsumer, RecordProducer
from harness.trajectories import Trajectories
from harness.workloads import Item

_GROUP = 4  # the default of an environment
_AT_ONCE = 2
_BATCH = _GROUP * _AT_ONCE
_AHEAD = 4 * _BATCH
_AGAIN_S = 0.005
_START_S = 60.0
_servers: dict[int, Any] = {}  # by port, in the parent


class _Link(NamedTuple):
    port: int
    received: Any  #: by the trainer, of all producers
    producers: int


class _Producer(RecordProducer):
    def __init__(self, link: _Link, workload: Trajectories, index: int) -> None:
        import requests

        super().__init__(workload, index)
        url = f"http://127.0.0.1:{link.port}"
        self._received, self._producers, self._sent = link.received, link.producers, 0
        group = 1 if workload.batch == 1 else _GROUP  # one by one, for latency
        self.burst_items = _BATCH
        self._environment = _environment(url)
        self._loop = asyncio.new_event_loop()
        reply = requests.post(
            f"{url}/register-env",
            json={"max_token_length": 1 << 20, "desired_name": "bench", "weight": 1.0, "group_size": group},
            timeout=_START_S,
        )
        self._environment.env_id = reply.json()["env_id"]
        self._lists = [{name: array.tolist() for name, array in item.items()} for item in self.items]
        self._at = len(self.items)

    def burst(self) -> None:
        while self._sent * self._producers - self._received[0] >= _AHEAD * self._producers:
            time.sleep(_AGAIN_S)
        self._sent += _BATCH
        if self._at >= len(self.items):
            self.renumber()
            self._at = 0
        groups = [self._group(self._at + at, _GROUP) for at in range(0, _BATCH, _GROUP)]
        self._at += _BATCH
        self._loop.run_until_complete(self._send(groups))

    def send_one(self, item: Item) -> None:
        group = self._group(0, 1)
        group["tokens"] = [item["tokens"].tolist()]
        self._loop.run_until_complete(self._send([group]))

    async def _send(self, groups: list[dict[str, Any]]) -> None:
        await asyncio.gather(*(self._environment._send_scored_data_to_api(group) for group in groups))

    def _group(self, at: int, size: int) -> dict[str, Any]:
        lists, notes = self._lists[at : at + size], self.notes[at : at + size]
        return {
            "tokens": [each["tokens"] for each in lists],
            "masks": [each["masks"] for each in lists],
            "inference_logprobs": [each["logprobs"] for each in lists],
            "scores": [item["score"].item() for item in self.items[at : at + size]],
            "overrides": [{"instance_id": note.instance_id, "metadata": note.metadata} for note in notes],
        }


class _Consumer(RecordConsumer):
    def __init__(self, link: _Link, workload: Trajectories) -> None:
        import requests

        super().__init__(workload)
        self._get = requests.get
        self._url = f"http://127.0.0.1:{link.port}"
        self._received = link.received
        _wait_for_port(link.port)
        settings = {
            "wandb_group": "bench",
            "wandb_project": "bench",
            "batch_size": 1 if workload.batch == 1 else _BATCH,
            "max_token_len": 1 << 20,
            "checkpoint_dir": "",
            "save_checkpoint_interval": 0,
            "starting_step": 0,
            "num_steps": 1 << 30,
        }
        requests.post(f"{self._url}/register", json=settings, timeout=_START_S).raise_for_status()
        if self._ask() is not None:
            raise RuntimeError("there is a batch though nobody has sent")

    def receive(self) -> int:
        count = 0
        for group in self._batch():
            for row in range(len(group["scores"])):
                got = {
                    "tokens": np.array(group["tokens"][row], np.int32),
                    "logprobs": np.array(group["inference_logprobs"][row], np.float32),
                    "masks": np.array(group["masks"][row], np.int8),
                    "score": np.float64(group["scores"][row]),
                }
                note = group["overrides"][row]
                self.see(got, lambda note=note: (note["instance_id"], note["metadata"]))
                count += 1
        self._received[0] += count
        return count

    def receive_one(self) -> np.ndarray:
        return np.array(self._batch()[0]["tokens"][0], np.int32)

    def _batch(self) -> list[dict[str, Any]]:
        while (batch := self._ask()) is None:
            time.sleep(_AGAIN_S)
        return batch

    def _ask(self) -> list[dict[str, Any]] | None:
        batch: list[dict[str, Any]] | None = self._get(f"{self._url}/batch", timeout=_START_S).json()["batch"]
        return batch


class AtroposHttp(Contender):
    key = "atropos"
    label = "Atropos HTTP/JSON, stock"
    package = "atroposlib"
    module = "atroposlib"
    slow = True
    start_s = 240.0
    least_s = 3.0
    stall_s = 60.0
    rate_hz = 5

    def suits(self, workload: Trajectories) -> bool:
        return "masks" in workload.example()

    def link(self, workload: Trajectories, producers: int) -> _Link:
        port = free_port()
        server = multiprocessing.get_context("spawn").Process(target=_serve, args=(port,), daemon=True)
        server.start()
        _servers[port] = server
        return _Link(port, RawArray(ctypes.c_int64, 1), producers)

    def producer(self, link: _Link, workload: Trajectories, index: int) -> RecordProducer:
        return _Producer(link, workload, index)

    def consumer(self, link: _Link, workload: Trajectories, producers: int) -> RecordConsumer:
        return _Consumer(link, workload)

    def discard(self, link: _Link) -> None:
        server = _servers.pop(link.port)
        server.kill()
        server.join()


def _serve(port: int) -> None:
    import uvicorn

    uvicorn.run("atroposlib.api:app", host="127.0.0.1", port=port, log_level="warning")


def _environment(url: str) -> Any:
    """The sending half of an environment: the package's own methods, with the little of it that they look at."""
    from atroposlib.envs.base import BaseEnv

    class Sending(BaseEnv):
        def __init__(self) -> None:
            self.config = SimpleNamespace(rollout_server_url=url)

        async def get_next_item(self) -> Any:
            raise NotImplementedError("it only sends")

        async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError("it only sends")

    return Sending()


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
