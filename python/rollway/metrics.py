"""Metrics of a `Server` as OpenMetrics text, or as a collector for prometheus-client. Needs the extra ``metrics``.

Everything is read off the ring when somebody asks, and costs nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollway._core import HistSnapshot
from rollway.server import Server

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# What only grows; every other number of `Server.stats` may fall.
_COUNTERS = frozenset(
    {
        "samples_released",
        "batches_released",
        "claim_retries",
        "blocked",
        "dropped_oldest",
        "dropped_newest",
        "recovered_slots",
        "reoffered_batches",
        "aborted",
        "wakeups",
        "producers_died",
    }
)
_NOW = frozenset({"tcp_connections", "tcp_sessions", "tcp_weight_clients"})
_QUANTILES = (("0.5", "p50_ns"), ("0.9", "p90_ns"), ("0.99", "p99_ns"))
_HISTOGRAMS = {
    "memcpy": "Copying a sample into its slot.",
    "queue_dwell": "From the commit of a batch's first sample until the batch was taken.",
    "wait": "How long the learner waited for a batch, when it had to.",
}


class Collector:
    """Gives a server's numbers to prometheus-client: ``REGISTRY.register(Collector(server))``."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Reads every number once."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        label = {"ring": self._server.name or "in-process"}
        for name, value in self._server.stats().items():
            grows = name in _COUNTERS or (name.startswith("tcp_") and name not in _NOW)
            family = (CounterMetricFamily if grows else GaugeMetricFamily)(
                f"rollway_{name}", f"`{name}` of Server.stats().", labels=list(label)
            )
            family.add_metric(list(label.values()), value)
            yield family
        for name, snapshot in self._server.histograms().items():
            text = _HISTOGRAMS[name]
            summary = SummaryMetricFamily(f"rollway_{name}_seconds", text, labels=list(label))
            summary.add_metric(list(label.values()), snapshot.count, snapshot.mean_ns * snapshot.count / 1e9)
            for quantile, field in _QUANTILES if snapshot.count else ():
                labels = {**label, "quantile": quantile}
                summary.add_sample(f"rollway_{name}_seconds", labels, _seconds(snapshot, field))
            yield summary


def openmetrics(server: Server) -> str:
    """A server's numbers as OpenMetrics text, to be served as `CONTENT_TYPE`.

    >>> import numpy as np, rollway
    >>> with rollway.Server({"x": np.zeros(1)}, batch_size=1) as server:
    ...     _ = server.submit({"x": np.zeros(1)})
    ...     text = openmetrics(server)
    >>> [line for line in text.splitlines() if line.startswith("rollway_ready_samples")]
    ['rollway_ready_samples{ring="in-process"} 1.0']
    """
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(server))
    exposition: Any = import_module("prometheus_client.openmetrics.exposition")  # has no types
    text: bytes = exposition.generate_latest(registry)
    return text.decode()


def _seconds(snapshot: HistSnapshot, field: str) -> float:
    nanoseconds: int = getattr(snapshot, field)
    return nanoseconds / 1e9
