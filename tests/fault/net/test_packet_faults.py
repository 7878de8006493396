"""Packets that are lost, late, out of order or doubled, and a network that is cut in two for seconds: exactly once.

The packets are real. They go through a TUN device of a network namespace that the test makes for itself (`packet_relay`),
or from one namespace to another (`two_hosts`).
"""

import os
import shutil
import subprocess
import sys

import pytest

from tests.support import packet_relay, two_hosts


def run(script, *arguments, timeout_s):
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs the programs unshare (util-linux) and ip (iproute2)")
    namespace = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine does not let us make a network namespace")
    command = [*namespace, sys.executable, script.__file__, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    if ended.returncode == script.UNAVAILABLE:
        pytest.skip(ended.stdout.strip())
    assert ended.returncode == 0, ended.stdout + ended.stderr


def run_relay(samples, records, partition_s, seed, timeout_s):
    run(packet_relay, samples, records, partition_s, seed, timeout_s=timeout_s)


def test_packet_loss_reordering_and_a_partition_lose_and_double_nothing():
    run_relay(samples=1000, records=200, partition_s=2, seed=1, timeout_s=120)


@pytest.mark.parametrize("faults", ["", "delay 5ms 3ms loss 2% reorder 20% duplicate 1%"], ids=["cut", "netem"])
def test_a_forwarder_on_another_host_loses_and_doubles_nothing_when_the_link_is_cut(faults):
    if faults and shutil.which("tc") is None:
        pytest.skip("needs the program tc (iproute2)")
    run(two_hosts, 5000, 2, faults, timeout_s=180)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_packet_loss_reordering_and_long_partitions_lose_and_double_nothing(seed):
    run_relay(samples=20_000, records=3_000, partition_s=8, seed=seed, timeout_s=900)
