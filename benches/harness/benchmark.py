"""A benchmark: which contenders it compares, what its files are called, and by which ratios it is read.

Plain values. The three benchmarks are in `registry`; how cells are run is in `suite`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from contenders.base import Contender
from harness.cell import Outcome
from harness.idle import Ours
from harness.summary import Ratio, Record
from harness.tables import TableText
from harness.workloads import Workload


@dataclass(frozen=True)
class Extra:
    """A measurement that only one benchmark makes."""

    table: str  #: the list that it is recorded in
    contenders: tuple[Contender, ...]
    measure: Callable[[Any, float], Outcome]
    tabulate: Callable[[Record], TableText]


@dataclass(frozen=True)
class Benchmark:
    """What an entry point hands to `suite.main`."""

    stem: str  #: of the script and of the files that it writes
    title: str  #: of the page
    purpose: str  #: for --help
    throughput: tuple[Contender, ...]
    latency: tuple[Contender, ...]
    idle: Ours  #: whose waiting consumer is watched
    ratios: Callable[[Record], list[Ratio]]
    workloads: Mapping[str, Workload]
    paced: Workload  #: what latency and idle are measured with
    extras: tuple[Extra, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """What --only takes."""
        return tuple(dict.fromkeys(contender.key for contender in self._all))

    @property
    def slow(self) -> str:
        """What --slow-repeats is about."""
        return ", ".join(dict.fromkeys(contender.key for contender in self._all if contender.slow))

    @property
    def packages(self) -> tuple[str, ...]:
        """The distributions whose versions are recorded."""
        return tuple(dict.fromkeys(c.package for c in self._all if c.package is not None))

    @property
    def _all(self) -> tuple[Contender, ...]:
        return (*self.throughput, *self.latency, *(c for extra in self.extras for c in extra.contenders))
