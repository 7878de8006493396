"""The floor for latency: a stamp in a shared page and a futex wake, both ends in C. It moves no payload.

Takes part in the latency table only.
"""

from __future__ import annotations

import ctypes
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

from contenders.base import Consumer, Contender, Producer
from harness import cc
from harness.workloads import Workload


class _Link(NamedTuple):
    library: str
    page: Any


class _Producer(Producer):
    def __init__(self, link: _Link, workload: Workload, index: int) -> None:
        super().__init__(workload, index)
        self._link = link
        self._library = ctypes.CDLL(link.library)

    def send_paced(self, count: int, period_ns: int) -> None:
        self._library.futex_send(self._link.page, ctypes.c_uint64(count), ctypes.c_int64(period_ns))


class _Consumer(Consumer):
    def __init__(self, link: _Link) -> None:
        self._link = link
        self._library = ctypes.CDLL(link.library)
        self._library.futex_receive.restype = ctypes.c_uint64

    def receive_stamps(self, count: int) -> list[int]:
        waits = (ctypes.c_int64 * count)()
        entries = self._library.futex_receive(self._link.page, ctypes.c_uint64(count), waits)
        return waits[:entries]


class Futex(Contender):
    key = "futex"
    label = "bare futex in C (floor)"

    def missing(self) -> str | None:
        return None if cc.available() else cc.NO_COMPILER

    def link(self, workload: Workload, producers: int) -> _Link:
        return _Link(cc.shared_object("futex"), RawArray(ctypes.c_uint64, 512))

    def producer(self, link: _Link, workload: Workload, index: int) -> Producer:
        return _Producer(link, workload, index)

    def consumer(self, link: _Link, workload: Workload, producers: int) -> Consumer:
        return _Consumer(link)
