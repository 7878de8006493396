"""Families: samples gathered into the metric families of prometheus-client. Needs the extra ``metrics``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from rollway._core import HistSnapshot
from rollway.errors import need_packages
from rollway.metrics.numbers import HISTOGRAMS, Number

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_QUANTILES = (("0.5", "p50_ns"), ("0.9", "p90_ns"), ("0.99", "p99_ns"))


class Families:
    """Metric families, each made with its first sample. All samples of a key have the same labels.

    Args:
        known: What each key means, and whether it only grows.
        owner: What a key that is not known belongs to.
    """

    def __init__(self, known: Mapping[str, Number], owner: str) -> None:
        need_packages("rollway.metrics", "metrics", "prometheus_client")
        self._known, self._owner = known, owner
        self._families: dict[str, Any] = {}

    def number(self, key: str) -> Number:
        """What a key means."""
        return self._known.get(key) or Number(f"`{key}` of a {self._owner}.", False)

    def add(self, key: str, value: float, labels: Mapping[str, str]) -> None:
        """Adds ``rollway_<key>``: a counter if it only grows, else a gauge."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        number = self.number(key)
        if key not in self._families:
            kind = CounterMetricFamily if number.only_grows else GaugeMetricFamily
            self._families[key] = kind(f"rollway_{key}", number.sentence, labels=list(labels))
        self._families[key].add_metric(list(labels.values()), value)

    def add_histogram(self, key: str, snapshot: HistSnapshot, labels: Mapping[str, str]) -> None:
        """Adds ``rollway_<key>_seconds``: a summary."""
        from prometheus_client.core import SummaryMetricFamily

        full = f"rollway_{key}_seconds"
        if full not in self._families:
            self._families[full] = SummaryMetricFamily(full, HISTOGRAMS[key], labels=list(labels))
        family = self._families[full]
        family.add_metric(list(labels.values()), snapshot.count, snapshot.mean_ns * snapshot.count / 1e9)
        for quantile, field in _QUANTILES if snapshot.count else ():
            family.add_sample(full, {**labels, "quantile": quantile}, getattr(snapshot, field) / 1e9)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


class Collects(Protocol):
    """What a registry of prometheus-client takes."""

    def collect(self) -> Iterator[Metric]:
        """Reads every number once."""
        ...


def openmetrics_text(collector: Collects) -> str:
    """What a collector gives, as text of the type `CONTENT_TYPE`."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    exposition: Any = import_module("prometheus_client.openmetrics.exposition")  # has no types
    text: bytes = exposition.generate_latest(registry)
    return text.decode()
