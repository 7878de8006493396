"""One-way latency of a trajectory, one sender at a fixed rate, batches of 1.

The sender writes CLOCK_MONOTONIC into the sample just before it sends it; the receiver reads the clock as
soon as the sample is in its hands, then compares. Both are on one machine, so it is one clock. Throughput is
measured in `cell`.
"""

from __future__ import annotations

from typing import Any

from contenders.base import Contender
from harness.cell import Outcome, Report, run_cell
from harness.cell_state import CellState
from harness.workloads import Workload

WARMUP_S = 0.2  # of sends that are not counted


def measure_latency(contender: Contender, workload: Workload, seconds: float) -> Outcome:
    """Waits in nanoseconds, every one of them, in `values["waits_ns"]`."""
    seconds = max(seconds, contender.least_s)
    warmup, count = (max(1, round(part * contender.rate_hz)) for part in (WARMUP_S, seconds))
    roles = (receive, warmup, count), (send, warmup + count)
    return run_cell(contender, workload.one_by_one(), 1, *roles, quiet_s=WARMUP_S + seconds)


def send(
    report: Report, contender: Contender, link: Any, workload: Workload, state: CellState, index: int, count: int
) -> None:
    state.wait_for_consumer()
    producer = contender.producer(link, workload, index)
    state.announce(index, count)
    producer.send_paced(count, 1_000_000_000 // contender.rate_hz)
    state.finish(index)
    state.wait_until_drained()
    producer.close()


def receive(
    report: Report, contender: Contender, link: Any, workload: Workload, state: CellState, warmup: int, count: int
) -> None:
    consumer = contender.consumer(link, workload, state.producers)
    state.consumer_ready()
    waits = consumer.receive_stamps(warmup + count)
    state.drained()
    report({"waits_ns": waits[warmup:]})
    consumer.close()
