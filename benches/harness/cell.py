"""Run one cell: spawn a consumer and its producers, warm up, measure at the consumer, check, clean up.

A watchdog in the parent ends a cell that gets nowhere: its processes are killed and the cell is reported as
stalled. Knows nothing of any contender beyond `contenders.base`, and does not decide which cells run or in
which order.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from contenders.base import Contender
from harness.cell_state import CellState
from harness.workloads import Workload

SPAWN = multiprocessing.get_context("spawn")
_PR_SET_PDEATHSIG = 1


@dataclass
class Outcome:
    """What one cell gave. `status`: ok, lossy, stalled, miscounted, not installed or failed; `note` says why."""

    status: str
    values: dict[str, Any]
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_throughput(
    contender: Contender, workload: Workload, producers: int, seconds: float, warmup_s: float
) -> Outcome:
    """Samples per second at the consumer, between the first and the last sample after the warm-up."""
    seconds = max(seconds, contender.least_s)
    return run_cell(contender, workload, producers, (consume, seconds, warmup_s), (produce,))


Role = tuple[Any, ...]  # a function of this or a sibling module, then its own arguments


def run_cell(
    contender: Contender,
    workload: Workload,
    producers: int,
    consumer: Role,
    producer: Role,
    quiet_s: float = 0.0,
) -> Outcome:
    """Spawn one consumer and the producers, watch over them, and collect what each reports.

    `quiet_s` is how long nothing moves though all is well.
    """
    reason = contender.missing()
    if reason is not None:
        return Outcome("not installed", {}, reason)
    state = CellState(producers)
    processes = RunProcesses()
    link = None
    try:
        link = contender.link(workload, producers)
        processes.spawn("consumer", consumer, (contender, link, workload, state))
        for index in range(producers):
            processes.spawn("producer", producer, (contender, link, workload, state, index))
        stalled = processes.watch(state, contender.start_s, contender.stall_s + quiet_s)
    finally:
        processes.kill()
        if link is not None:
            contender.discard(link)
    return _judge(processes, stalled)


def run_alone(contender: Contender, role: Role) -> Outcome:
    """A measurement that one process makes by itself. It is called with a function to report by and its settings."""
    reason = contender.missing()
    if reason is not None:
        return Outcome("not installed", {}, reason)
    processes = RunProcesses()
    try:
        processes.spawn("alone", role, ())
        stalled = processes.watch(CellState(0), contender.start_s, contender.stall_s)
    finally:
        processes.kill()
    return _judge(processes, stalled)


class RunProcesses:
    """The processes of one run and what they reported. They die with their parent, and leave Ctrl-C to it."""

    def __init__(self) -> None:
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        self.reports: list[dict[str, Any]] = []
        self.exit_codes: list[int] = []  # of those that ended badly, by themselves

    def spawn(self, name: str, role: Role, args: tuple[Any, ...]) -> None:
        """Runs a role in a process of its own. It is called with a function to report by, `args`, and its settings."""
        ours, theirs = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=_enter, args=(os.getpid(), theirs, role, args), name=name, daemon=True)
        process.start()
        theirs.close()
        self.processes.append(process)
        self.pipes.append(ours)

    def alive(self) -> bool:
        return any(process.is_alive() for process in self.processes)

    def watch(self, state: CellState, start_s: float, stall_s: float) -> bool:
        """Waits until all processes have ended. True if the cell got nowhere, False if all ended or one failed."""
        seen = state.progress()
        moved_at = time.monotonic()
        limit_s = start_s
        while True:
            alive = self.alive()
            self.read()
            self.exit_codes = [p.exitcode for p in self.processes if p.exitcode]
            if not alive or self.exit_codes or any("error" in report for report in self.reports):
                return False
            now = time.monotonic()
            progress = state.progress()
            if progress != seen:
                seen, moved_at = progress, now
                if state.all_started():
                    limit_s = stall_s
            elif now - moved_at > limit_s:
                return True
            time.sleep(0.02)

    def read(self) -> None:
        """Collects what was reported since."""
        for pipe in self.pipes:
            try:
                while pipe.poll():
                    self.reports.append(pipe.recv())
            except (EOFError, OSError):
                continue

    def kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join()
        for pipe in self.pipes:
            pipe.close()


def _judge(processes: RunProcesses, stalled: bool) -> Outcome:
    values: dict[str, Any] = {}
    for report in processes.reports:
        if "error" in report:
            print(report["traceback"], file=sys.stderr)
            return Outcome("failed", {}, report["error"])
        for key, value in report.items():
            if key in values:  # producers add up
                values[key] += value
            else:
                values[key] = value
    if stalled:
        return Outcome("stalled", values, "nothing moved any more; its processes were killed")
    if processes.exit_codes:
        return Outcome("failed", values, f"a process ended with exit code {processes.exit_codes[0]}")
    for status in ("miscounted", "lossy"):
        if status in values:
            return Outcome(status, values, values[status])
    return Outcome("ok", values, values.pop("note", ""))


def _enter(parent: int, pipe: Connection, role: Role, args: tuple[Any, ...]) -> None:
    """First call in a spawned process: die with the parent, leave Ctrl-C to it, report what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(parent)
    work, *settings = role
    try:
        work(pipe.send, *args, *settings)
    except Exception as error:  # reported to the parent, which ends the cell
        pipe.send({"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})
        raise SystemExit(1) from error


def die_with(parent: int) -> None:
    """Ends this process when its parent ends, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call above
        os._exit(1)


Report = Callable[[dict[str, Any]], None]


def produce(report: Report, contender: Contender, link: Any, workload: Workload, state: CellState, index: int) -> None:
    """Send bursts until told to stop. Reports how many samples and how much CPU time."""
    state.wait_for_consumer()
    producer = contender.producer(link, workload, index)
    sent = 0
    cpu = time.process_time()
    while not state.stopped():
        state.announce(index, producer.burst_items)
        producer.burst()
        sent += producer.burst_items
    cpu = time.process_time() - cpu
    state.finish(index)
    report({"sent": sent, "producer_cpu_s": cpu})
    state.wait_until_drained()
    producer.close()


def consume(
    report: Report,
    contender: Contender,
    link: Any,
    workload: Workload,
    state: CellState,
    seconds: float,
    warmup_s: float,
) -> None:
    """Receive for `seconds` after the warm-up, then drain and compare with what was announced."""
    consumer = contender.consumer(link, workload, state.producers)
    state.consumer_ready()
    clock = time.perf_counter

    received = consumer.receive()
    while not state.all_started():
        received += consumer.receive()
        state.receive(received)
    begin_at = clock() + warmup_s
    while clock() < begin_at:
        received += consumer.receive()
        state.receive(received)

    first, cpu = received, time.process_time()
    consumer.careful = False
    now = began = clock()
    while now < began + seconds:
        received += consumer.receive()
        now = clock()
        state.receive(received)
    cpu = time.process_time() - cpu
    consumer.careful = True
    report(
        {
            "items_per_s": (received - first) / (now - began),
            "items": received - first,
            "elapsed_s": now - began,
            "consumer_cpu_s": cpu,
        }
    )

    state.stop()
    while True:
        finished = state.all_finished()
        if received < state.announced() or consumer.lossy:
            got = consumer.receive()
            received += got
            state.receive(received)
            if finished and not got:  # it says itself that no more will come
                break
        elif finished:
            break
        else:
            time.sleep(0.0002)
    state.drained()
    report(consumer.verdict(received, state.announced(), workload))
    consumer.close()
