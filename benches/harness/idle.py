"""What waiting costs: CPU time of rollway's consumer process while producers are attached and send nothing.

All threads of the process count. Only rollway is asked; a polling ring would use one core by design.
"""

from __future__ import annotations

import resource
import time
from typing import Any

from contenders.rollway import Rollway
from contenders.rollway_records import RollwayRecords
from contenders.rollway_tcp import RollwayTcp
from harness.cell import Outcome, Report, run_cell
from harness.cell_state import CellState
from harness.workloads import Workload

PRODUCERS = 4
Ours = Rollway | RollwayTcp | RollwayRecords


def measure_idle(contender: Ours, workload: Workload, seconds: float) -> Outcome:
    """Per cent of one core, in `values["cpu_percent"]`."""
    return run_cell(contender, workload, PRODUCERS, (wait, seconds), (attach,), quiet_s=seconds)


def attach(report: Report, contender: Ours, link: Any, workload: Workload, state: CellState, index: int) -> None:
    state.wait_for_consumer()
    producer = contender.producer(link, workload, index)
    state.announce(index, 1)  # attached; nothing is ever sent
    state.wait_until_drained()
    producer.close()


def wait(report: Report, contender: Ours, link: Any, workload: Workload, state: CellState, seconds: float) -> None:
    consumer = contender.consumer(link, workload, state.producers)
    state.consumer_ready()
    while not state.all_started():
        time.sleep(0.01)
    began, before = time.monotonic(), _cpu_s()
    consumer.wait_idle(seconds)
    cpu_s, elapsed_s = _cpu_s() - before, time.monotonic() - began
    state.drained()
    report({"cpu_percent": 100 * cpu_s / elapsed_s, "cpu_s": cpu_s, "elapsed_s": elapsed_s})
    consumer.close()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
