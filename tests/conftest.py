"""Fixtures: names that nobody else uses, and a check that no test leaves a file in shared memory."""

import importlib.util
import os
import secrets
import shutil
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import _core
from tests.support.authority import Authority
from tests.support.processes import Child

PACKAGES = ("torch", "tensorboard")
"""Large ones, each with a fixture of its name: `make check` runs the unit tests without them."""
MISSING = {package for package in PACKAGES if importlib.util.find_spec(package) is None}
WITHOUT_PACKAGE = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="run the long tests, at full size")


def pytest_configure(config):
    # A shell that runs us in the background has Ctrl-C ignored, and every process of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "soak: the full size of a test that also runs small; needs --soak")


def pytest_collection_modifyitems(config, items):
    without = MISSING.intersection
    dropped = [item for item in items if without(item.fixturenames)]
    config.stash[WITHOUT_PACKAGE] = Counter(package for item in dropped for package in without(item.fixturenames))
    if not config.getoption("--soak"):
        dropped += [item for item in items if "soak" in item.keywords and item not in dropped]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in dropped]


def pytest_terminal_summary(terminalreporter, config):
    for package, tests in config.stash.get(WITHOUT_PACKAGE, Counter()).items():
        terminalreporter.write_line(f"{package} is not installed: {tests} tests that need it were left out")


@pytest.fixture
def torch():
    """The package. Where it is not installed, tests that take it are left out, and the end of the run says how many."""
    return importlib.import_module("torch")


@pytest.fixture
def tensorboard():
    """As `torch`."""
    return importlib.import_module("tensorboard")


@pytest.fixture(scope="session", autouse=True)
def _collected():
    """Removes the token files of learners that the tests killed."""
    yield
    rollway.gc()


@pytest.fixture
def name():
    """A segment name of this test's own; fails the test if the segment is still there afterwards."""
    name = f"test-{os.getpid()}-{secrets.token_hex(4)}"
    yield name
    path = Path(_core.shm_directory()) / f"rollway.{name}"
    left = path.exists()
    rollway.gc()
    assert not left, f"{path} was left behind"


@pytest.fixture
def example():
    """A transition: the smallest honest sample."""
    return {"obs": np.zeros(4, np.float32), "reward": np.zeros(1, np.float32)}


@pytest.fixture
def child():
    """Starts children: ``child("code", arg, …)``."""
    children = []

    def start(code, *args):
        children.append(Child(code, *args))
        return children[-1]

    yield start
    for one in children:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("making certificates needs openssl(1)")
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def certificate(authority):
    return authority.issue("DNS:learner.example", "IP:127.0.0.1")
