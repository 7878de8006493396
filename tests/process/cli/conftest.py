"""The fixture of a command that needs no process of its own: torch is imported here already, and takes seconds elsewhere."""

import os
import signal
import threading

import pytest

from tests.support.processes import until


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


@pytest.fixture
def interrupted_command(run_command):
    """Runs `rollway …` in this process, with Ctrl-C as soon as a condition holds."""

    def run(condition, *args):
        ended = threading.Event()

        def press():
            until(lambda: ended.is_set() or condition(), timeout=200)
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGINT)

        presses = threading.Thread(target=press)
        presses.start()
        try:
            return run_command(*args)
        finally:
            ended.set()
            presses.join()

    return run
