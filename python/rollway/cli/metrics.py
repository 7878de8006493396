"""`rollway metrics`: serves or prints the metrics of all segments. `rollway.metrics` does the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollway.cli import signals
from rollway.cli.console import console
from rollway.errors import InvalidArgument
from rollway.metrics import Exporter, segments_openmetrics
from rollway.transport import Tls


def show(names: Sequence[str]) -> None:
    """Prints the metrics as OpenMetrics text."""
    print(segments_openmetrics(*names), end="")


def serve(
    names: Sequence[str], host: str, port: int, token: str | None, tls_cert: Path | None, tls_key: Path | None
) -> None:
    """Serves the metrics until Ctrl-C or SIGTERM."""
    if (tls_cert is None) != (tls_key is None):
        raise InvalidArgument("--tls-cert and --tls-key belong together: give both")
    tls = Tls(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
    with signals.exit_on_signals(), Exporter(host, port, names=names, token=token, tls=tls) as exporter:
        console().print(f"metrics of {', '.join(names) or 'all segments'}: {exporter.url}", soft_wrap=True)
        exporter.wait()
