"""Metrics of servers as OpenMetrics text, or as a collector for prometheus-client. Needs the extra ``metrics``.

Numbers are read from the ring on request, and cost nothing in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rollway.errors import need_packages
from rollway.metrics.families import Families, openmetrics_text
from rollway.metrics.numbers import of_servers
from rollway.transport.server_base import ServerBase

if TYPE_CHECKING:
    from prometheus_client.core import Metric


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
        families = Families(of_servers(), "transport")
        for ring, server in self._servers.items():
            for name, value in server.stats().items():
                families.add(name, value, {"ring": ring})
            for name, snapshot in server.histograms().items():
                families.add_histogram(name, snapshot, {"ring": ring})
        yield from families


def openmetrics(*servers: ServerBase) -> str:
    """The numbers of servers as OpenMetrics text, of the type `CONTENT_TYPE`.

    >>> import numpy as np, rollway
    >>> with rollway.Server({"x": np.zeros(1)}, batch_size=1) as server:
    ...     _ = server.submit({"x": np.zeros(1)})
    ...     text = openmetrics(server)
    >>> [line for line in text.splitlines() if line.startswith("rollway_ready_samples")]
    ['rollway_ready_samples{ring="in-process"} 1.0']
    """
    return openmetrics_text(Collector(*servers))


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
