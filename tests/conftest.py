"""Fixtures: names that nobody else uses, and a check that no test leaves a file in shared memory."""

import os
import secrets
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import _core
from tests.support.authority import Authority
from tests.support.processes import Child


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="run the long tests, at full size")


def pytest_configure(config):
    # A shell that runs us in the background has Ctrl-C ignored, and every process of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "soak: the full size of a test that also runs small; needs --soak")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--soak"):
        return
    kept = [item for item in items if "soak" not in item.keywords]
    config.hook.pytest_deselected(items=[item for item in items if "soak" in item.keywords])
    items[:] = kept


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
