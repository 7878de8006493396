"""Metrics of servers as OpenMetrics text, or as a collector for prometheus-client. Needs the extra ``metrics``.

Numbers are read from the ring on request, and cost nothing in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollway.errors import need_packages
from rollway.metrics.numbers import HISTOGRAMS, Number, of_servers
from rollway.transport.server_base import ServerBase

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_QUANTILES = (("0.5", "p50_ns"), ("0.9", "p90_ns"), ("0.99", "p99_ns"))


class Collector:
    """Gives the numbers of a `Server` or `RecordServer` to prometheus-client: ``REGISTRY.register(Collector(server))``.

    A registry takes one collector, because the names of the numbers are the same for every server: give it all servers.
    The label ``ring`` distinguishes them. A closed server shows its last numbers.
    """

    def __init__(self, *servers: ServerBase) -> None:
        need_packages("rollway.metrics", "metrics", "prometheus_client")
        self._servers = _labelled(servers)

    def collect(self) -> Iterator[Metric]:
        """Reads every number once."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        families: dict[str, Any] = {}
        known = of_servers()
        for ring, server in self._servers.items():
            for name, value in server.stats().items():
                if name not in families:
                    number = known.get(name) or Number(f"`{name}` of a transport.", False)
                    kind = CounterMetricFamily if number.only_grows else GaugeMetricFamily
                    families[name] = kind(f"rollway_{name}", number.sentence, labels=["ring"])
                families[name].add_metric([ring], value)
            for name, snapshot in server.histograms().items():
                full = f"rollway_{name}_seconds"
                if full not in families:
                    families[full] = SummaryMetricFamily(full, HISTOGRAMS[name], labels=["ring"])
                families[full].add_metric([ring], snapshot.count, snapshot.mean_ns * snapshot.count / 1e9)
                for quantile, field in _QUANTILES if snapshot.count else ():
                    seconds = getattr(snapshot, field) / 1e9
                    families[full].add_sample(full, {"ring": ring, "quantile": quantile}, seconds)
        yield from families.values()


def openmetrics(*servers: ServerBase) -> str:
    """The numbers of servers as OpenMetrics text, of the type `CONTENT_TYPE`.

    >>> import numpy as np, rollway
    >>> with rollway.Server({"x": np.zeros(1)}, batch_size=1) as server:
    ...     _ = server.submit({"x": np.zeros(1)})
    ...     text = openmetrics(server)
    >>> [line for line in text.splitlines() if line.startswith("rollway_ready_samples")]
    ['rollway_ready_samples{ring="in-process"} 1.0']
    """
    collector = Collector(*servers)
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    exposition: Any = import_module("prometheus_client.openmetrics.exposition")  # has no types
    text: bytes = exposition.generate_latest(registry)
    return text.decode()


def _labelled(servers: Sequence[ServerBase]) -> dict[str, ServerBase]:
    """The servers by the names of their rings. A second server of a name gets a number."""
    labelled: dict[str, ServerBase] = {}
    for server in servers:
        name = label = server.name or "in-process"
        number = 1
        while label in labelled:
            label = f"{name}-{(number := number + 1)}"
        labelled[label] = server
    return labelled
