"""A naive numpy ring in shared memory: one ring per producer, polling at both ends, no recovery.

This is what many projects write for themselves. A producer copies leaf by leaf into its slot by slice
assignment and moves its head; the consumer visits the rings in turn, touches views and moves the tail. No
locks, no waiting calls. It relies on the store order of x86 and is no model to copy.
"""

from __future__ import annotations

import ctypes
import os
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy as np

from contenders.base import Consumer, Contender, Producer
from harness.workloads import Item, Workload

_LINE = 64  # bytes; head, tail and leaves each start on their own cache line
_GULP = 256  # samples taken from one ring before the next is visited


class _Ring:
    """Views over the memory of one producer's ring."""

    def __init__(self, memory: Any, workload: Workload) -> None:
        raw = np.frombuffer(memory, np.uint8)
        at = -raw.ctypes.data % _LINE
        self.head = raw[at : at + 8].view(np.int64)
        self.tail = raw[at + _LINE : at + _LINE + 8].view(np.int64)
        at += 2 * _LINE
        self.leaves: dict[str, np.ndarray] = {}
        for leaf in workload.leaves:
            size = leaf.nbytes * workload.capacity
            self.leaves[leaf.name] = raw[at : at + size].view(leaf.dtype).reshape(workload.capacity, *leaf.shape)
            at += -(-size // _LINE) * _LINE

    @staticmethod
    def nbytes(workload: Workload) -> int:
        return workload.item_bytes * workload.capacity + _LINE * (3 + len(workload.leaves))


class _Producer(Producer):
    def __init__(self, link: list[Any], workload: Workload, index: int) -> None:
        super().__init__(workload, index)
        self._ring = _Ring(link[index], workload)
        self._capacity = workload.capacity
        self._leaves = list(self._ring.leaves.values())
        self._flat = [tuple(item.values()) for item in self.items]

    def burst(self) -> None:
        self._write(self._flat)

    def send_one(self, item: Item) -> None:
        self._write([tuple(item.values())])

    def _write(self, items: list[tuple[np.ndarray, ...]]) -> None:
        head_word, tail_word, leaves, capacity = (
            self._ring.head,
            self._ring.tail,
            self._leaves,
            self._capacity,
        )
        head = int(head_word[0])
        tail = int(tail_word[0])
        for arrays in items:
            while head - tail >= capacity:
                os.sched_yield()
                tail = int(tail_word[0])
            slot = head % capacity
            for leaf, array in zip(leaves, arrays, strict=True):
                leaf[slot] = array
            head += 1
            head_word[0] = head


class _Consumer(Consumer):
    def __init__(self, link: list[Any], workload: Workload) -> None:
        self._rings = [_Ring(memory, workload) for memory in link]
        self._capacity = workload.capacity

    def receive(self) -> int:
        count = 0
        while not count:
            count = sum(self._drain(ring) for ring in self._rings)
            if not count:
                os.sched_yield()
        return count

    def _drain(self, ring: _Ring) -> int:
        tail_word, leaves, capacity = ring.tail, list(ring.leaves.values()), self._capacity
        touched = 0.0
        tail = int(tail_word[0])
        head = min(int(ring.head[0]), tail + _GULP)
        for position in range(tail, head):
            slot = position % capacity
            for leaf in leaves:
                touched += leaf[slot].item(0)
            tail_word[0] = position + 1
        self.touched += touched
        return head - tail

    def receive_one(self) -> np.ndarray:
        ring = self._rings[0]
        tail = int(ring.tail[0])
        while ring.head[0] == tail:
            pass
        item: Item = {name: leaf[tail % self._capacity] for name, leaf in ring.leaves.items()}
        ring.tail[0] = tail + 1  # early by a hair: with 63 more slots nobody overwrites what is being read
        return item["tokens"]


class Naive(Contender):
    key = "naive"
    label = "naive numpy ring, polling"

    def link(self, workload: Workload, producers: int) -> list[Any]:
        return [RawArray(ctypes.c_uint8, _Ring.nbytes(workload)) for _ in range(producers)]

    def producer(self, link: list[Any], workload: Workload, index: int) -> Producer:
        return _Producer(link, workload, index)

    def consumer(self, link: list[Any], workload: Workload, producers: int) -> Consumer:
        return _Consumer(link, workload)
