"""What a library that costs nothing would reach with this benchmark's consumer: the second limit of records.

Producers copy in C, as in `memcpy_records`, each into a lane of its own, and wait where it is full. The consumer is
Python's: it looks at every record as that of `rollway_records` does, through arrays that were made before. There is no
key, no metadata, no allocation, no schema, no wake-up, nothing that survives a death: two counters for each lane.
"""

from __future__ import annotations

import ctypes
import time
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

import numpy as np

from contenders.base import Contender
from contenders.records import RecordConsumer, RecordProducer
from harness import cc
from harness.trajectories import Trajectories
from harness.workloads import Item

_LINE_WORDS = 8  # no two counters are on one cache line
_GULP = 64
_NAP_S = 20e-6


class Link(NamedTuple):
    library: str
    lanes: list[Any]
    heads: Any
    tails: Any


class _Producer(RecordProducer):
    def __init__(self, link: Link, workload: Trajectories, index: int) -> None:
        super().__init__(workload, index)
        sources = [leaf.ctypes.data for item in self.items for leaf in item.values()]
        leaf_bytes = [leaf.nbytes for leaf in workload.leaves]
        self._copy = ctypes.CDLL(link.library).copy_into_lane
        self._arguments = (
            link.lanes[index],
            (ctypes.c_void_p * len(sources))(*sources),
            ctypes.c_uint64(len(self.items)),
            (ctypes.c_uint64 * len(leaf_bytes))(*leaf_bytes),
            ctypes.c_uint64(len(leaf_bytes)),
            ctypes.c_uint64(workload.capacity),
            *(ctypes.byref(words, 8 * _LINE_WORDS * index) for words in (link.heads, link.tails)),
        )

    def burst(self) -> None:
        self.renumber()
        self._copy(*self._arguments)


class _Consumer(RecordConsumer):
    def __init__(self, link: Link, workload: Trajectories) -> None:
        super().__init__(workload)
        self._lanes = [_slots(lane, workload) for lane in link.lanes]
        self._heads, self._tails = (np.frombuffer(words, np.int64) for words in (link.heads, link.tails))
        self._read = [0] * len(self._lanes)
        self._turn = 0

    def receive(self) -> int:
        for _ in self._lanes:
            lane = self._turn
            self._turn = (lane + 1) % len(self._lanes)
            begin = self._read[lane]
            count = min(self._heads.item(lane * _LINE_WORDS) - begin, _GULP)
            if count:
                self._look(self._lanes[lane], begin, begin + count)
                self._read[lane] += count
                self._tails[lane * _LINE_WORDS] = begin + count
                return count
        time.sleep(_NAP_S)
        return 0

    def _look(self, slots: list[Item], begin: int, end: int) -> None:
        found = [slots[at % len(slots)] for at in range(begin, end)]
        if self.careful:
            for item in found:
                self.see(item, lambda: None)
            return
        number, first, last, touched = self._number, self._first, self._last, 0.0
        for item in found:
            tokens, logprobs, masks, score = item.values()
            number(score.item())
            first(tokens.item(0))
            last(tokens.item(-1))
            touched += logprobs.item(0) + masks.item(0)
        self.touched += touched


def _slots(lane: Any, workload: Trajectories) -> list[Item]:
    """The arrays of every slot: by name, in the order in which they lie there."""
    offset, slots = 0, []
    for _ in range(workload.capacity):
        slot = {}
        for leaf in workload.leaves:
            count = leaf.nbytes // np.dtype(leaf.dtype).itemsize
            slot[leaf.name] = np.frombuffer(lane, leaf.dtype, count, offset).reshape(leaf.shape)
            offset += leaf.nbytes
        slots.append(slot)
    return slots


class CopyAndLook(Contender):
    key = "memcpy"
    label = "memcpy, looked at (limit)"

    def missing(self) -> str | None:
        return None if cc.available() else cc.NO_COMPILER

    def suits(self, workload: Trajectories) -> bool:
        return "masks" in workload.example()

    def link(self, workload: Trajectories, producers: int) -> Link:
        lane_bytes = workload.capacity * workload.item_bytes
        lanes = [RawArray(ctypes.c_uint8, lane_bytes) for _ in range(producers)]  # zeroed: every page exists
        heads, tails = (RawArray(ctypes.c_uint64, _LINE_WORDS * producers) for _ in range(2))
        return Link(cc.shared_object("lanes"), lanes, heads, tails)

    def producer(self, link: Link, workload: Trajectories, index: int) -> _Producer:
        return _Producer(link, workload, index)

    def consumer(self, link: Link, workload: Trajectories, producers: int) -> _Consumer:
        return _Consumer(link, workload)
