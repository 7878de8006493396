"""iceoryx2 from Python: publish-subscribe of u8 slices, one publisher per producer, one subscriber.

Quickest of what was tried: join the leaves to bytes and move them into the loaned slice in one `memmove` (one
call per leaf, numpy views and memoryviews over the slice were slower). The consumer polls and yields; for
latency it spins, or waits on an iceoryx2 event that the producer sends after each sample. Every cell has its
own prefix and folder, so that `discard` can remove what iceoryx2 leaves behind, which is something even after
a clean exit.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contenders.base import Consumer, Contender, Producer, touch
from harness.workloads import Item, Workload

_SHM = Path("/dev/shm")
_SERVICE = "ring"
Wait = Literal["poll", "spin", "event"]


class _Ports:
    """One node and its services, under the folder and prefix of this cell."""

    def __init__(self, root: str, workload: Workload) -> None:
        import iceoryx2 as iox2

        iox2.set_log_level(iox2.LogLevel.Error)
        config = iox2.config.default()
        config.global_cfg.root_path = iox2.Path.new(root)
        config.global_cfg.prefix = iox2.FileName.new(_prefix(root))
        self.node = (
            iox2.NodeBuilder.new()
            .config(config)
            .signal_handling_mode(iox2.SignalHandlingMode.Disabled)
            .create(iox2.ServiceType.Ipc)
        )
        self.samples: Any = (
            self.node.service_builder(iox2.ServiceName.new(_SERVICE))
            .publish_subscribe(iox2.Slice[ctypes.c_uint8])
            .enable_safe_overflow(False)
            .history_size(0)
            .max_publishers(16)
            .max_subscribers(1)
            .subscriber_max_buffer_size(workload.capacity)
            .open_or_create()
        )
        self.events: Any = self.node.service_builder(iox2.ServiceName.new(_SERVICE)).event().open_or_create()


class _Producer(Producer):
    def __init__(self, root: str, workload: Workload, index: int, wait: Wait) -> None:
        import iceoryx2 as iox2

        super().__init__(workload, index)
        self._bytes = workload.item_bytes
        self._ports = _Ports(root, workload)
        self._publisher = (
            self._ports.samples.publisher_builder()
            .initial_max_slice_len(self._bytes)
            .backpressure_strategy(iox2.BackpressureStrategy.RetryUntilDelivered)
            .create()
        )
        self._notifier = self._ports.events.notifier_builder().create() if wait == "event" else None

    def burst(self) -> None:
        loan, size, move = self._publisher.loan_slice_uninit, self._bytes, ctypes.memmove
        join: Any = b"".join
        for item in self.items:
            sent = 0
            while not sent:  # see send_one
                sample = loan(size)
                move(sample.payload_ptr, join(item.values()), size)
                sent = sample.assume_init().send()

    def send_one(self, item: Item) -> None:
        join: Any = b"".join
        sent = 0
        while not sent:  # until the subscriber has noticed a new publisher, send() may deliver to nobody
            sample = self._publisher.loan_slice_uninit(self._bytes)
            ctypes.memmove(sample.payload_ptr, join(item.values()), self._bytes)
            sent = sample.assume_init().send()
        if self._notifier is not None:
            self._notifier.notify()


class _Consumer(Consumer):
    def __init__(self, root: str, workload: Workload, wait: Wait) -> None:
        self._ports = _Ports(root, workload)
        self._subscriber = self._ports.samples.subscriber_builder().buffer_size(workload.capacity).create()
        self._listener = self._ports.events.listener_builder().create() if wait == "event" else None
        self._gulp = workload.batch
        self._slice = ctypes.c_uint8 * workload.item_bytes
        self._fields = []
        at = 0
        for leaf in workload.leaves:
            dtype = np.dtype(leaf.dtype)
            self._fields.append((leaf.name, dtype, leaf.nbytes // dtype.itemsize, at, leaf.shape))
            at += leaf.nbytes

    def _views(self, sample: Any) -> Item:
        memory: Any = self._slice.from_address(sample.payload_ptr)
        return {
            name: np.frombuffer(memory, dtype, count, at).reshape(shape)
            for name, dtype, count, at, shape in self._fields
        }

    def receive(self) -> int:
        receive = self._subscriber.receive
        touched = 0.0
        for _ in range(self._gulp):  # a burst is a whole number of gulps, so none of these waits for ever
            sample = receive()
            while sample is None:
                os.sched_yield()
                sample = receive()
            touched += touch(self._views(sample))
            sample.delete()
        self.touched += touched
        return self._gulp

    def receive_one(self) -> np.ndarray:
        sample = self._subscriber.receive()
        while sample is None:
            if self._listener is not None:
                self._listener.blocking_wait()
            sample = self._subscriber.receive()
        self._last = sample  # the views point into it until the next one is taken
        return self._views(sample)["tokens"]


class Iceoryx(Contender):
    key = "iceoryx2"
    package = "iceoryx2"
    module = "iceoryx2"

    def __init__(self, wait: Wait = "poll") -> None:
        self.wait = wait
        self.label = "iceoryx2 (Python, u8 slice)" if wait == "poll" else f"iceoryx2, {wait}"

    def link(self, workload: Workload, producers: int) -> str:
        return tempfile.mkdtemp(prefix="ring-bench-")

    def producer(self, link: str, workload: Workload, index: int) -> Producer:
        return _Producer(link, workload, index, self.wait)

    def consumer(self, link: str, workload: Workload, producers: int) -> Consumer:
        return _Consumer(link, workload, self.wait)

    def discard(self, link: str) -> None:
        shutil.rmtree(link, ignore_errors=True)
        for left in _SHM.glob(f"{_prefix(link)}*"):
            left.unlink()


def _prefix(root: str) -> str:
    return Path(root).name + "_"
