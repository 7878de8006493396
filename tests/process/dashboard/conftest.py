"""A dashboard as a user starts it, and a real browser that looks at it."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.support.processes import Command


@pytest.fixture(scope="package", autouse=True)
def shm():
    """A shared-memory directory of these tests' own; empty at the end."""
    directory = Path(tempfile.mkdtemp(prefix="test-dashboard-", dir="/dev/shm"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLWAY_SHM_DIR", str(directory))
        yield directory
    left = [path.name for path in directory.iterdir()]
    shutil.rmtree(directory)
    assert not left


class Started:
    """`rollway dashboard …` on any free port."""

    def __init__(self, *args, **variables):
        self.command = Command("dashboard", "--port", 0, "--interval", 0.5, *args, **variables)
        self.url = self.command.line("Rollway dashboard: ").split()[-1]

    def kill(self):
        if self.command.process.poll() is None:
            os.killpg(self.command.process.pid, signal.SIGKILL)
        self.command.process.communicate()


@pytest.fixture
def start():
    """Starts dashboards with other options: ``start("--host", …)``."""
    dashboards = []

    def run(*args, **variables):
        dashboards.append(Started(*args, **variables))
        return dashboards[-1]

    yield run
    for one in dashboards:
        one.kill()


@pytest.fixture(scope="package")
def url(shm):
    """Of a dashboard on loopback that shows all segments of these tests."""
    dashboard = Started()
    yield dashboard.url
    dashboard.kill()


@pytest.fixture(scope="package")
def chromium():
    """Debian's, headless. `make` installs it: scripts/install_chromium.sh. Until it ends, an event loop runs in this thread."""
    with sync_playwright() as playwright:
        expect.set_options(timeout=30_000)
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def contexts(chromium):
    """One for each kind of window, so that its later pages find the scripts compiled."""
    return {}


@pytest.fixture
def visit(chromium, contexts):
    """Opens pages: ``visit(url, width=…, height=…, …)``. A page that had an error in it fails the test."""
    pages, errors = [], []

    def open_page(url, width=1180, height=900, **settings):
        kind = (width, height, *settings.items())
        if kind not in contexts:
            contexts[kind] = chromium.new_context(viewport={"width": width, "height": height}, **settings)
            contexts[kind].set_default_timeout(30_000)
        page = contexts[kind].new_page()
        pages.append(page)
        page.requests = []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("websocket", lambda socket: page.requests.append(socket.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield open_page
    for page in pages:
        page.context.clear_cookies()
        page.close()
    assert not errors
