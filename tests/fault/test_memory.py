"""A shared-memory directory of one megabyte: an error at creation, never a SIGBUS."""

import os
import subprocess
import sys

import pytest

CODE = """
import os, sys, numpy as np, rollway
small = {"a": np.zeros(64)}
with rollway.Server(small, 4, rollway.ShmTransport("small")) as server, rollway.ShmClient("small", small) as client:
    for _ in range(4): client.send(small)
    assert server.sample().batch["a"].shape == (4, 64)
try:
    rollway.Server({"a": np.zeros(1_000_000)}, 4, rollway.ShmTransport("big"))
except rollway.NotEnoughMemory as error:
    print(error)
print(os.listdir(sys.argv[1]))
"""


@pytest.fixture
def tiny(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_too_little_shared_memory_is_an_error_at_creation_that_says_what_to_do(tiny):
    environment = {**os.environ, "ROLLWAY_SHM_DIR": str(tiny)}
    run = subprocess.run(
        [sys.executable, "-c", CODE, tiny], env=environment, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    message, left = run.stdout.strip().splitlines()
    assert "cannot reserve 96" in message and f"{tiny} has" in message and "of 1048576 bytes free" in message
    assert "rollway gc" in message and "--shm-size" in message
    assert left == "[]"


@pytest.mark.parametrize("transport", ["None", "rollway.ShmTransport('huge')", "rollway.TcpTransport()"])
def test_more_than_the_machine_has_is_an_error_and_not_a_process_killed_by_the_kernel(transport):
    code = f"""
import numpy as np, rollway
try:
    rollway.Server({{"a": np.broadcast_to(np.float32(0), (1 << 34,))}}, 64, {transport})
except rollway.NotEnoughMemory as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "bytes of memory left" in run.stdout and "fewer buffers" in run.stdout
