"""Demo: what is measured, in which order: throughput and latency, through Rollway and through multiprocessing.Queue.

It runs the stages and keeps the results. A `Watcher` gets the events; `screen` has one that shows them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from rollway.cli import signals
from rollway.cli.demo.learner import BatchSource, Learner, QueueSource, RingSource
from rollway.cli.demo.trajectory import SAMPLE_BYTES, Array, Tally, Verdict
from rollway.cli.demo.worker import Job
from rollway.cli.demo.worker_processes import Death, WorkerProcesses

BATCH_SIZE = 32
NUM_BUFFERS = 3
SENDS_PER_S = 1_000
_LATENCY_BUFFERS = 64  # batches of one: a learner that is late for a moment does not delay the sender
_TICK_S = 0.1
_LAST_SAMPLES_S = 5.0
_QUIET_S = 0.5

ROLLWAY = "Rollway"
QUEUE = "multiprocessing.Queue"
THROUGHPUT = "throughput"
LATENCY = "latency"


@dataclass(frozen=True)
class Stage:
    """One thing that is measured."""

    path: str
    quantity: str
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """The result of a stage: a rate, or latencies."""

    stage: Stage
    verdict: Verdict
    samples_per_s: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None

    @property
    def gb_per_s(self) -> float | None:
        """The rate in bytes: 1 GB is 1e9 of them."""
        return None if self.samples_per_s is None else self.samples_per_s * SAMPLE_BYTES / 1e9


@dataclass(frozen=True)
class Progress:
    """A stage at one moment."""

    stage: Stage
    elapsed_s: float
    received: int
    batches: int
    waiting: int
    per_worker: Sequence[int]


class Watcher:
    """Gets the events of a run. This one ignores them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def started(self, pids: Sequence[int]) -> None:
        """The workers have started."""

    def began(self, stage: Stage) -> None:
        """A stage begins."""

    def progressed(self, progress: Progress) -> None:
        """Called ten times a second."""

    def died(self, death: Death) -> None:
        """A worker has died."""

    def ended(self, outcome: Outcome) -> None:
        """A stage is over."""


class Demo:
    """Runs the stages one after the other, with the same workers. After a death the current stage is the last.

    A throughput stage takes ``seconds``, a latency stage a third of it.
    """

    def __init__(self, seconds: float, workers: int, watcher: Watcher) -> None:
        self.seconds = seconds
        self.workers = workers
        self.outcomes: list[Outcome] = []
        self.deaths: list[Death] = []
        self.arrived_of_the_dead: dict[int, int] = {}
        """By worker that died while it sent through Rollway: how many samples arrived."""
        self.verified_now = 0
        """Samples of the stage in progress."""
        self._watcher = watcher

    @property
    def stages(self) -> list[Stage]:
        """What is measured, in order."""
        return [
            Stage(ROLLWAY, THROUGHPUT, self.seconds),
            Stage(QUEUE, THROUGHPUT, self.seconds),
            Stage(ROLLWAY, LATENCY, self.seconds / 3),
            Stage(QUEUE, LATENCY, self.seconds / 3),
        ]

    @property
    def verdict(self) -> Verdict:
        """Of all stages together."""
        return sum((outcome.verdict for outcome in self.outcomes), Verdict())

    @property
    def succeeded(self) -> bool:
        """Whether all stages ran, no worker died and no sample was lost, repeated or torn."""
        return len(self.outcomes) == len(self.stages) and not self.deaths and self.verdict.flawless

    def run(self) -> None:
        """Runs all stages. `outcomes` and `deaths` have the results, also when it was interrupted."""
        with WorkerProcesses(self.workers, queue_size=BATCH_SIZE * NUM_BUFFERS) as processes:
            self._watcher.started(processes.pids)
            self._notice_deaths(processes)
            for stage in self.stages:
                if self.deaths:
                    return
                self._watcher.began(stage)
                outcome = self._run(stage, processes)
                if outcome is not None:
                    self.outcomes.append(outcome)
                    self.verified_now = 0
                    self._watcher.ended(outcome)

    def outcome(self, path: str, quantity: str) -> Outcome | None:
        """The outcome of a stage, if it was run to its end."""
        wanted = (path, quantity)
        return next((o for o in self.outcomes if (o.stage.path, o.stage.quantity) == wanted), None)

    def figures(self, path: str) -> dict[str, float | None]:
        """What was measured through a path; ``None`` for what was not."""
        rate, delay = self.outcome(path, THROUGHPUT), self.outcome(path, LATENCY)
        return {
            "samples_per_s": rate.samples_per_s if rate else None,
            "gb_per_s": rate.gb_per_s if rate else None,
            "latency_p50_us": delay.p50_us if delay else None,
            "latency_p99_us": delay.p99_us if delay else None,
        }

    def as_json(self) -> dict[str, Any]:
        """Everything, for other programs."""
        return {
            "workers": self.workers,
            "seconds": self.seconds,
            "sample_bytes": SAMPLE_BYTES,
            "batch_size": BATCH_SIZE,
            "paths": {path: self.figures(path) for path in (ROLLWAY, QUEUE)},
            **vars(self.verdict),
            "deaths": [vars(death) for death in self.deaths],
            "ok": self.succeeded,
        }

    def _run(self, stage: Stage, processes: WorkerProcesses) -> Outcome | None:
        if stage.quantity == THROUGHPUT:
            meter: _RateMeter | _Stopwatch = _RateMeter(BATCH_SIZE)
            sender, period_ns = None, None
        else:
            meter = _Stopwatch(self.workers)
            sender, period_ns = 0, 1_000_000_000 // SENDS_PER_S
        tally = Tally(self.workers)
        with contextlib.ExitStack() as endings:
            with signals.deferred():
                source = self._source(stage, processes)
                learner = Learner(source, tally, meter.note)
                learner.start()
                for ending in (partial(learner.join, _QUIET_S), source.close, learner.stop):  # the last one first
                    endings.callback(ending)
            began = time.monotonic()
            processes.assign(Job(source.ring, time.monotonic_ns() + int(stage.seconds * 1e9), period_ns), sender)
            while learner.is_alive():
                if processes.poll(_TICK_S):
                    sent = self._sent(processes, sender)
                    total = None if None in sent else sum(count or 0 for count in sent)
                    learner.expect(total, _QUIET_S if total is None else _LAST_SAMPLES_S)
                self._progress(stage, began, tally, source)
                self._notice_deaths(processes)
                if self.deaths and stage.path == QUEUE:
                    return None  # the dead worker may have held the queue's lock, or left half a message in its pipe
            if learner.error is not None:
                raise learner.error
        if stage.path == ROLLWAY:
            self.arrived_of_the_dead = {d.worker: int(tally.per_worker[d.worker]) for d in self.deaths}
        report = processes.report(0)
        return meter.outcome(stage, tally.verdict(self._sent(processes, sender)), report.sent_at_ns if report else [])

    def _source(self, stage: Stage, processes: WorkerProcesses) -> BatchSource:
        batch_size = BATCH_SIZE if stage.quantity == THROUGHPUT else 1
        if stage.path == QUEUE:
            return QueueSource(processes.queue, batch_size)
        return RingSource(batch_size, NUM_BUFFERS if stage.quantity == THROUGHPUT else _LATENCY_BUFFERS)

    def _sent(self, processes: WorkerProcesses, sender: int | None) -> list[int | None]:
        """How many samples each worker has sent; ``None`` for a worker that died before its report."""
        sent: list[int | None] = []
        for worker in range(self.workers):
            report = processes.report(worker)
            idle = sender not in (None, worker)
            sent.append(0 if idle else report.sent if report is not None else None)
        return sent

    def _progress(self, stage: Stage, began: float, tally: Tally, source: BatchSource) -> None:
        self.verified_now = tally.received
        elapsed_s = time.monotonic() - began
        per_worker = tally.per_worker.tolist()
        self._watcher.progressed(
            Progress(stage, elapsed_s, tally.received, tally.batches, source.waiting(), per_worker)
        )

    def _notice_deaths(self, processes: WorkerProcesses) -> None:
        for death in processes.deaths[len(self.deaths) :]:
            self.deaths.append(death)
            self._watcher.died(death)


class _RateMeter:
    """Samples per second, from the first whole batch to the last."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._first_ns = self._last_ns = 0
        self._samples = 0

    def note(self, arrived_ns: int, keys: Array) -> None:
        if len(keys) < self._batch_size:
            return
        if not self._first_ns:
            self._first_ns = arrived_ns
        else:
            self._samples += len(keys)
        self._last_ns = arrived_ns

    def outcome(self, stage: Stage, verdict: Verdict, sent_at_ns: list[int]) -> Outcome:
        elapsed_ns = self._last_ns - self._first_ns
        return Outcome(stage, verdict, samples_per_s=self._samples / elapsed_ns * 1e9 if elapsed_ns else 0.0)


class _Stopwatch:
    """Time from just before a send until the learner has the sample."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._arrived_ns: dict[int, int] = {}

    def note(self, arrived_ns: int, keys: Array) -> None:
        for key in keys.tolist():
            self._arrived_ns[key // self._workers] = arrived_ns

    def outcome(self, stage: Stage, verdict: Verdict, sent_at_ns: list[int]) -> Outcome:
        pairs = [(sent, self._arrived_ns.get(counter)) for counter, sent in enumerate(sent_at_ns)]
        delays = [arrived - sent for sent, arrived in pairs if arrived is not None]
        if not delays:
            return Outcome(stage, verdict)
        p50, p99 = np.percentile(delays, [50, 99]) / 1e3
        return Outcome(stage, verdict, p50_us=float(p50), p99_us=float(p99))
