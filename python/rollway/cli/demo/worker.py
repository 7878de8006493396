"""A worker of the demo: a spawned process that makes trajectories and sends them, as the learner orders.

It ends when the learner closes the pipe of its orders, also by dying. It imports no rich and no typer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from rollway.cli.demo.trajectory import Item, example, trajectory
from rollway.errors import ConnectionClosedError
from rollway.ring.shm_client import ShmClient
from rollway.runner.collector import Collector

_LEARNER_GONE_S = 10.0


@dataclass(frozen=True)
class Job:
    """What to send, until when, and how."""

    ring: str | None
    """The ring to send through; ``None`` for the queue."""
    until_ns: int
    """By ``time.monotonic_ns()``."""
    period_ns: int | None = None
    """Time between two sends; ``None`` sends as fast as it can."""


@dataclass(frozen=True)
class Report:
    """What was sent. For a paced job also when, sample by sample."""

    sent: int
    sent_at_ns: list[int]


def work(collector: Collector, workers: int, orders: Connection, link: Any) -> None:
    """Main function of a worker: takes a job, does it, reports, again. ``link`` is the queue of the comparison."""
    link.cancel_join_thread()  # no process reads the rest of the queue after the learner
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError, ConnectionClosedError):  # the end
        orders.send(Report(0, []))  # ready
        while True:
            job = orders.recv()
            with _sender(job, collector.index, link) as send:
                report = _stream(job, collector.index, workers, send)
            orders.send(report)


@contextlib.contextmanager
def _sender(job: Job, index: int, link: Any) -> Iterator[Callable[[Item], object]]:
    if job.ring is None:
        yield lambda item: link.put(item, timeout=_LEARNER_GONE_S)
        return
    with ShmClient(job.ring, example(), producer_id=index, peer_timeout_s=_LEARNER_GONE_S) as client:
        yield client.send


def _stream(job: Job, index: int, workers: int, send: Callable[[Item], object]) -> Report:
    clock, key, sent_at_ns = time.monotonic_ns, index, list[int]()
    if job.period_ns is None:
        while clock() < job.until_ns:
            send(trajectory(key))
            key += workers
    else:
        due = clock() + job.period_ns
        while due < job.until_ns:
            item = trajectory(key)
            time.sleep(max(0, due - clock()) / 1e9)
            sent_at_ns.append(clock())
            send(item)
            key += workers
            due += job.period_ns
    return Report((key - index) // workers, sent_at_ns)
