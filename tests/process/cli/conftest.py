"""The fixture of a command that needs no process of its own: torch is imported here already, and takes seconds elsewhere."""

import pytest


@pytest.fixture
def run_command(monkeypatch, capfd):
    """Runs `rollway …` in this process: its status, its output, its errors."""
    from rollway.cli import app

    def run(*args):
        monkeypatch.setattr("sys.argv", ["rollway", *map(str, args)])
        status = app.run()
        said = capfd.readouterr()
        return status, said.out, said.err

    return run
