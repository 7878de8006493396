"""One-way latency of a trajectory, one sender at a fixed rate, batches of 1.

The sender writes CLOCK_MONOTONIC into the sample just before it sends it; the receiver reads the clock as
soon as the sample is in its hands, then compares. Both are on one machine, so it is one clock. Throughput is
measured in `cell`.
"""

from __future__ import annotations

from typing import Any

from board import Board
from cell import STALL_S, Outcome, Report, run_cell
from contenders.base import Contender
from workloads import TRAJECTORY, Workload

RATE_HZ = 1000
WARMUP = 200  # sends that are not counted


def measure_latency(contender: Contender, seconds: float) -> Outcome:
    """Waits in nanoseconds, every one of them, in `values["waits_ns"]`."""
    count = WARMUP + max(1, round(seconds * RATE_HZ))
    stall_s = STALL_S + count / RATE_HZ
    return run_cell(contender, TRAJECTORY.one_by_one(), 1, (receive, count), (send, count), stall_s)


def send(
    report: Report, contender: Contender, link: Any, workload: Workload, board: Board, index: int, count: int
) -> None:
    board.wait_for_consumer()
    producer = contender.producer(link, workload, index)
    board.announce(index, count)
    producer.send_paced(count, 1_000_000_000 // RATE_HZ)
    board.finish(index)
    board.wait_until_drained()
    producer.close()


def receive(report: Report, contender: Contender, link: Any, workload: Workload, board: Board, count: int) -> None:
    consumer = contender.consumer(link, workload, board.producers)
    board.consumer_ready()
    waits = consumer.receive_stamps(count)
    board.drained()
    report({"waits_ns": waits[WARMUP:]})
    consumer.close()
