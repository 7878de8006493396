"""The words that the processes of one cell share: ready, announced, received, finished, stop.

A producer announces a burst *before* it sends it, so a consumer that has received less than was announced may
block in its receive call without any timeout: more is certain to come. It carries no payload and is
not timed.
"""

from __future__ import annotations

import ctypes
import time
from multiprocessing.sharedctypes import RawArray

_STOP, _CONSUMER_READY, _RECEIVED, _DRAINED, _HEADER = 0, 1, 2, 3, 4


class CellState:
    """Plain 64-bit words in anonymous shared memory, one writer each. Handed to processes as they spawn."""

    def __init__(self, producers: int) -> None:
        self.producers = producers
        self._words = RawArray(ctypes.c_int64, _HEADER + 2 * producers)

    def consumer_ready(self) -> None:
        self._words[_CONSUMER_READY] = 1

    def wait_for_consumer(self) -> None:
        while not self._words[_CONSUMER_READY]:
            time.sleep(0.005)

    def announce(self, index: int, items: int) -> None:
        self._words[_HEADER + index] += items

    def announced(self) -> int:
        return sum(self._words[_HEADER : _HEADER + self.producers])

    def all_started(self) -> bool:
        return all(self._words[_HEADER : _HEADER + self.producers])

    def finish(self, index: int) -> None:
        self._words[_HEADER + self.producers + index] = 1

    def all_finished(self) -> bool:
        return all(self._words[_HEADER + self.producers : _HEADER + 2 * self.producers])

    def receive(self, total: int) -> None:
        self._words[_RECEIVED] = total

    def drained(self) -> None:
        self._words[_DRAINED] = 1

    def wait_until_drained(self) -> None:
        """A producer stays connected until then: a socket closed early may take its last samples with it."""
        while not self._words[_DRAINED]:
            time.sleep(0.005)

    def stop(self) -> None:
        self._words[_STOP] = 1

    def stopped(self) -> bool:
        return bool(self._words[_STOP])

    def progress(self) -> tuple[int, ...]:
        """Changes while any process makes progress; the watchdog compares two of them."""
        return tuple(self._words)
