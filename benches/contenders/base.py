"""What every contender offers: a link made in the parent, a producer and a consumer made in their processes.

The loops over samples live in the contenders, so that no call of the harness stands between two sends. A
burst is `workload.distinct` samples; a `receive` call takes one or more and never needs more than was
announced in bursts.
"""

from __future__ import annotations

import socket
import time
from importlib.util import find_spec
from typing import Any

import numpy as np

from harness.workloads import Item, Workload


class Producer:
    """A worker's end. `burst` is timed; whatever can be prepared is prepared in the constructor."""

    def __init__(self, workload: Workload, index: int) -> None:
        self.items = workload.samples(seed=index)
        self.burst_items = len(self.items)

    def burst(self) -> None:
        """Send `burst_items` samples, blocking while there is no room."""
        raise NotImplementedError

    def send_one(self, item: Item) -> None:
        """Send one sample now (latency)."""
        raise NotImplementedError

    def send_paced(self, count: int, period_ns: int) -> None:
        """Send `count` trajectories on a schedule; the first 8 bytes of `tokens` are the time of the send."""
        stamps = [item["tokens"].view(np.int64) for item in self.items]
        due = time.monotonic_ns() + period_ns
        for i in range(count):
            pause = due - time.monotonic_ns()
            if pause > 0:
                time.sleep(pause / 1e9)
            k = i % len(stamps)
            stamps[k][0] = time.monotonic_ns()
            self.send_one(self.items[k])
            due += period_ns

    def close(self) -> None:
        """Let go, once everything sent is certain to arrive."""


class Consumer:
    """The learner's end. `touched` is the sum of the first element of every leaf of every sample received."""

    touched: float = 0
    lossy = False  #: loses and repeats by its nature: it is read until nothing comes any more, and that is reported
    careful = True  #: there is time to look at more than that; False inside the measured time

    def receive(self) -> int:
        """Block until there is something, touch all that is taken, return how many samples that was."""
        raise NotImplementedError

    def receive_one(self) -> np.ndarray:
        """Block for one trajectory and return its tokens (latency)."""
        raise NotImplementedError

    def receive_stamps(self, count: int) -> list[int]:
        """Nanoseconds from the send until the sample is in the receiver's hands, `count` times."""
        waits = []
        for _ in range(count):
            tokens = self.receive_one()
            now = time.monotonic_ns()
            waits.append(now - int(tokens[:2].view(np.int64)[0]))
        return waits

    def verdict(self, received: int, announced: int, workload: Workload) -> dict[str, Any]:
        """After draining, what there is to report; under `miscounted` what went wrong."""
        expected = received * len(workload.leaves)
        if received != announced:
            return {"miscounted": f"received {received} of {announced} samples"}
        if self.touched != expected:
            return {"miscounted": f"the first elements add up to {self.touched:g}, not to {expected}"}
        return {}

    def close(self) -> None:
        """Let go of what the constructor took."""


class Contender:
    """One row of the table. Instances travel to the spawned processes, so they hold plain values only."""

    key: str  #: what --only takes
    label: str  #: what the table shows
    package: str | None = None  #: the distribution it needs, None if it needs none
    module: str | None = None  #: the import name of that distribution
    least_s: float = 0.0  #: measured for at least so long, where few samples pass
    slow: bool = False  #: takes long to start, so it is repeated less often
    start_s: float = 60.0  #: importing and connecting, on a busy machine
    stall_s: float = 5.0  #: after so long in which nothing moved a cell is given up
    rate_hz: int = 1000  #: of the latency measurement; less where it would only show a queue
    shared_service: str | None = None  #: of contenders that share what is kept running between their cells

    def missing(self) -> str | None:
        """Why this contender cannot run here, or None."""
        if self.module is not None and find_spec(self.module) is None:
            return "not installed"
        return None

    def suits(self, workload: Workload) -> bool:
        """Whether this contender can carry that workload."""
        return True

    def link(self, workload: Workload, producers: int) -> Any:
        """In the parent: what both ends need to find each other, handed to the processes as they spawn."""
        raise NotImplementedError

    def producer(self, link: Any, workload: Workload, index: int) -> Producer:
        raise NotImplementedError

    def consumer(self, link: Any, workload: Workload, producers: int) -> Consumer:
        raise NotImplementedError

    def discard(self, link: Any) -> None:
        """In the parent, after all processes have ended, by themselves or killed: leave no file behind."""

    def leave(self) -> None:
        """In the parent, before a cell that does not share it: stop what was kept running."""


def free_port() -> int:
    """A port of loopback that nobody listens on. In the parent; the consumer binds it before producers are told."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


_FIRST = tuple((slice(None), *(0,) * dimensions) for dimensions in range(8))
"""Of every sample of a leaf with so many dimensions, the first element."""
_ONES: dict[tuple[str, int], bytes] = {}


def touch_batch(batch: Item) -> float:
    """Read the first element of every leaf of every sample of a batch; equal to `touch` on each sample.

    All of them are 1 (`Workload.samples`), and a comparison says so sooner than a sum: with the smallest samples that
    took longer than all that is measured.
    """
    total = 0.0
    for leaf in batch.values():
        firsts = leaf[_FIRST[leaf.ndim - 1]]
        kind = leaf.dtype.char, len(firsts)
        ones = _ONES.get(kind) or _ONES.setdefault(kind, np.ones(len(firsts), leaf.dtype).tobytes())
        total += len(firsts) if firsts.tobytes() == ones else float(np.add.reduce(firsts))
    return total


def touch(item: Item) -> float:
    """Read the first element of every leaf of one sample."""
    total = 0.0
    for leaf in item.values():
        total += leaf.item(0)
    return total
