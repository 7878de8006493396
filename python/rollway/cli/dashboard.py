"""`rollway dashboard`: starts the web server of `rollway.dashboard`, and prints its URL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollway.cli import signals
from rollway.cli.console import console
from rollway.dashboard.server import Dashboard
from rollway.integrations.token_file import read_token


def show(names: Sequence[str], host: str, port: int, token_file: Path | None, interval_s: float) -> int:
    """Serves the dashboard until Ctrl-C, which is its regular end."""
    dashboard = Dashboard(names, host, port, read_token(token_file, "--token-file"), interval_s)
    out = console()
    out.print(f"Rollway dashboard: {dashboard.url}", soft_wrap=True, markup=False)
    out.print("Ctrl-C ends it.", style="dim")
    with signals.exit_on_signals():
        try:
            dashboard.run()
        except KeyboardInterrupt:
            out.print("The dashboard has ended.")
    return 0
