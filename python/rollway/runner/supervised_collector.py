"""SupervisedCollector: one collector as its supervisor sees it, wherever it runs, and what is known of its past lives.

`CollectorProcess` runs on this machine, in a process of its own. `rollway.integrations.ray` has one that runs as an
actor on any node of a cluster.
"""

from __future__ import annotations

import json
import signal
import time
from abc import ABC, abstractmethod
from collections import deque

from rollway.errors import CollectorError
from rollway.runner.restart_policy import RestartCount

Reports = deque[tuple[int, dict[str, float]]]
"""The index of a collector, and the numbers that it has reported."""


class SupervisedCollector(ABC):
    """One collector, over all its lives. `CollectorSupervisor` calls it, from one thread."""

    def __init__(self, index: int, faults: RestartCount) -> None:
        self.index = index
        self.faults = faults
        self.life = 0
        self.deaths_in_row = 0
        self.worked_s = 0.0
        self.restart_at: float | None = None
        self._began: float | None = None

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether it was started, and not reaped since."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Its process; ``None`` when that is not known yet."""

    @abstractmethod
    def start(self) -> None:
        """Starts it. Does not wait until it works."""

    def restart(self) -> None:
        """Starts it again after a death."""
        self.life += 1
        self.restart_at = None
        self.start()

    @abstractmethod
    def fds(self) -> list[int]:
        """Descriptors that become readable when it has reported or ended."""

    @abstractmethod
    def read_reports(self, reports: Reports) -> None:
        """Takes what it has reported so far."""

    @abstractmethod
    def has_ended(self, fd: int) -> bool:
        """Whether it has ended, now that this one of its `fds` is readable."""

    @abstractmethod
    def signal(self, number: signal.Signals) -> None:
        """Ends it: SIGTERM asks, SIGKILL does."""

    @abstractmethod
    def reap(self) -> CollectorError | None:
        """Lets go of a collector that has ended, and returns why it did; ``None`` when its target returned."""

    def start_failed(self, failed: OSError) -> CollectorError:
        """The error for a restart that the system refused."""
        self.worked_s = 0.0
        error = CollectorError(f"collector {self.index} could not be started again: {failed}")
        error.index = self.index
        return error

    def _take(self, data: bytes, reports: Reports) -> None:
        """Takes one message of `Collector`: numbers, or nothing when the target begins."""
        if data:
            reports.append((self.index, json.loads(data)))
        else:
            self._began = time.monotonic()

    def _count_work(self) -> None:
        """Notes, when it has ended, for how long its target ran."""
        self.worked_s = 0.0 if self._began is None else time.monotonic() - self._began
