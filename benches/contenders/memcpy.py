"""The limit: memcpy of the same samples into prefaulted shared memory of the ring's geometry, looping in C.

Nothing is handed over and nobody reads the data. Several producers copy at once, and each goes round the whole ring, as
it does in a ring that is shared: the lines it writes were last written by another core. The "consumer" only sleeps and
reads how far the copying processes have come.
"""

from __future__ import annotations

import ctypes
import time
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

import numpy as np

from contenders.base import Consumer, Contender, Producer
from harness import cc
from harness.workloads import Workload

_CALL_BYTES = 32 << 20  # copied per call into C: some milliseconds, so that the call itself does not count
_CALL_SAMPLES = 1 << 18  # and at most so many samples
_LINE_WORDS = 8  # the counters of two producers are not on one cache line
_TICK_S = 0.005


class Link(NamedTuple):
    library: str
    ring: Any
    slots: int
    copied: Any
    producers: int


class CopyingProducer(Producer):
    """Copies sample after sample, in batches in which each leaf is contiguous."""

    def __init__(self, link: Link, workload: Workload, index: int, batch: int) -> None:
        super().__init__(workload, index)
        sources = [leaf.ctypes.data for item in self.items for leaf in item.values()]
        leaf_bytes = [leaf.nbytes for leaf in workload.leaves]
        start = index * (link.slots // link.producers)
        rounds = min(_CALL_BYTES // workload.item_bytes, _CALL_SAMPLES) // len(self.items)
        self.burst_items = rounds * len(self.items)
        self._position = ctypes.c_uint64(start)
        self._copy = ctypes.CDLL(link.library).copy_samples
        self._arguments = (
            link.ring,
            (ctypes.c_void_p * len(sources))(*sources),
            ctypes.c_uint64(len(self.items)),
            (ctypes.c_uint64 * len(leaf_bytes))(*leaf_bytes),
            ctypes.c_uint64(len(leaf_bytes)),
            ctypes.c_uint64(batch),
            ctypes.c_uint64(link.slots),
            ctypes.c_uint64(rounds),
            ctypes.byref(self._position),
            ctypes.byref(link.copied, 8 * _LINE_WORDS * index),
        )

    def burst(self) -> None:
        self._copy(*self._arguments)


class _Consumer(Consumer):
    def __init__(self, link: Link, workload: Workload) -> None:
        self._link = link
        self._copied = np.frombuffer(link.copied, np.uint64)
        self._seen = 0
        self._workload = workload

    def receive(self) -> int:
        time.sleep(_TICK_S)
        copied = int(self._copied.sum())
        count, self._seen = copied - self._seen, copied
        self.touched += count * len(self._workload.leaves)  # nobody reads here: copied counts as touched
        return count


class Memcpy(Contender):
    key = "memcpy"
    label = "memcpy (limit)"

    def missing(self) -> str | None:
        return None if cc.available() else cc.NO_COMPILER

    def link(self, workload: Workload, producers: int) -> Link:
        return self.region(workload, producers, workload.capacity)

    def region(self, workload: Workload, producers: int, slots: int) -> Link:
        """Memory for so many samples, shared by all producers."""
        ring = RawArray(ctypes.c_uint8, slots * workload.item_bytes)  # zeroed: every page exists
        copied = RawArray(ctypes.c_uint64, _LINE_WORDS * producers)
        return Link(cc.shared_object("memcpy"), ring, slots, copied, producers)

    def producer(self, link: Link, workload: Workload, index: int) -> Producer:
        return CopyingProducer(link, workload, index, workload.batch)

    def consumer(self, link: Link, workload: Workload, producers: int) -> Consumer:
        return _Consumer(link, workload)
