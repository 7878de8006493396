"""Packets that are lost, late, out of order or doubled, and a network that is cut in two for seconds: exactly once.

The packets are real: they go through a TUN device of a network namespace that the test makes for itself (`packet_relay`).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import packet_relay


def run(samples, records, partition_s, seed, timeout_s):
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs the programs unshare (util-linux) and ip (iproute2)")
    namespace = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine does not let us make a network namespace")
    numbers = map(str, (samples, records, partition_s, seed))
    command = [*namespace, sys.executable, str(Path(packet_relay.__file__)), *numbers]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    if ended.returncode == packet_relay.UNAVAILABLE:
        pytest.skip(ended.stdout.strip())
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_packet_loss_reordering_and_a_partition_lose_and_double_nothing():
    run(samples=1000, records=200, partition_s=2, seed=1, timeout_s=120)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_packet_loss_reordering_and_long_partitions_lose_and_double_nothing(seed):
    run(samples=20_000, records=3_000, partition_s=8, seed=seed, timeout_s=900)
