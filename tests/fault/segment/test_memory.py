"""A shared-memory directory of one megabyte: an error at creation or where a lane has to grow, never a SIGBUS."""

import os
import subprocess
import sys
from pathlib import Path

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


def run(code, directory):
    environment = {**os.environ, "ROLLWAY_SHM_DIR": str(directory)}
    command = [sys.executable, "-c", code, str(directory)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip().splitlines()


def test_too_little_shared_memory_is_an_error_at_creation_that_says_what_to_do(tiny):
    message, left = run(CODE, tiny)
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


LANE = """
import asyncio, os, sys, numpy as np, rollway
from pathlib import Path
schema = {"tokens": "int32[*]"}
ballast = Path(sys.argv[1], "ballast")
ballast.write_bytes(bytes(300_000))

def record(value, length=5_000):
    return {"tokens": np.full(length, value, np.int32)}

def values(records):
    return [int(record["tokens"][0]) for record in records if len(set(record["tokens"].tolist())) == 1]

with (
    rollway.RecordServer(schema, rollway.ShmTransport("lane"), lanes=1, lane_bytes=4 << 20, max_records=64) as server,
    rollway.ShmRecordClient("lane", schema, on_full=POLICY) as client,
):
    try:
        client.send(record(0, 500_000))  # nothing is there to be read: nobody would ever give room back
    except rollway.NotEnoughMemory as error:
        print(error)
    sent = 0
    try:
        while True:
            client.send(record(sent), timeout=0.05)
            sent += 1
    except rollway.NotEnoughMemory as error:
        print(error)
    assert 5 < sent < 60
    tombstone = rollway.RecordKey("run", "train", 0, "task", 0), "r" * 20_000
    for attempt in (
        lambda: client.send_async(record(sent), timeout=0.05),
        lambda: client.reserve_async({"tokens": 5_000}, timeout=0.05),
        lambda: client.tombstone_async(*tombstone, timeout=0.05),
    ):
        try:
            asyncio.run(attempt())
        except rollway.NotEnoughMemory as error:
            print(error)
    assert sent > 16
    for taken in (1, sent // 2):  # one alone is less than the producer looks for while it has room
        read = server.read_many(taken)
        for one in read:
            one.release()
        client.send(record(sent), timeout=5)  # into the room of those
        sent += 1
    sent -= 1
    ballast.unlink()
    client.send(record(sent + 1, 60_000), timeout=30)  # and the lane grows again
    assert values(server.read_many(100)) == list(range(1 + taken, sent + 2))
    assert server.stats()["reserved_records"] == 0
print(os.listdir(sys.argv[1]))
"""


@pytest.mark.parametrize("policy", ["block", "error"])
def test_a_lane_that_cannot_grow_is_an_error_and_goes_on_when_there_is_room(tiny, policy):
    at_once, in_time, *async_twins, left = run(LANE.replace("POLICY", repr(policy)), tiny)
    assert len(async_twins) == 3
    for message in (at_once, in_time, *async_twins):
        assert "cannot reserve" in message and f"{tiny} has" in message and "rollway gc" in message
    assert left == "[]"


LIMITED = """
import numpy as np, rollway
small, large = np.zeros(8), np.broadcast_to(np.uint8(0), (1 << 29,))
rollway.Server(small, 4, rollway.ShmTransport()).close()
for transport in (None, rollway.ShmTransport()):
    try:
        rollway.Server(large, 2, transport, num_buffers=2)
    except rollway.NotEnoughMemory as error:
        print(error)
"""


def test_a_memory_limit_of_the_control_group_is_an_error_at_creation(tmp_path):
    """The limit is a file of ours, mounted over that of this process's group for a child of the test alone."""
    file = own_limit_file()
    if file is None:
        pytest.skip("this process is in no control group with a memory controller")
    limit = tmp_path / "limit"
    limit.write_text(f"{1 << 40}\n")
    usage = tmp_path / "usage"
    usage.write_text(f"{(1 << 40) - (1 << 30)}\n")
    stat = tmp_path / "memory.stat"
    stat.write_text("inactive_file 0\n")
    used = file.with_name({"memory.max": "memory.current"}.get(file.name, "memory.usage_in_bytes"))
    mounts = [(limit, file), (usage, used), (stat, file.with_name("memory.stat"))]
    script = " && ".join(f"mount --bind {ours} {theirs}" for ours, theirs in mounts)
    command = ["unshare", "--mount", "sh", "-c", f'{script} || exit 77; exec "$@"', "sh", sys.executable, "-c", LIMITED]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if result.returncode == 77 or "unshare" in result.stderr:
        pytest.skip(f"cannot mount here: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    messages = result.stdout.strip().splitlines()
    assert len(messages) == 2, result.stdout
    for message in messages:
        assert str(file) in message and str(1 << 40) in message and f"{(1 << 40) - (1 << 30)} are used" in message
        assert "raise the limit" in message


def own_limit_file():
    """The file with the limit of this process's own group, in either version."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            file = Path("/sys/fs/cgroup/memory" + path, "memory.limit_in_bytes")
        elif not controllers:
            file = Path("/sys/fs/cgroup" + path, "memory.max")
        else:
            continue
        if file.exists():
            return file
    return None


GROUP = """
import sys, numpy as np, rollway
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text("0")
limit, used = (rollway.machine.Cgroup().memory_limit(), rollway.machine.Cgroup().memory_used())
assert limit == 256 << 20 and 0 < used < limit, (limit, used)
kept = []
try:
    while True:
        kept.append(rollway.Server({"a": np.zeros(1 << 20, np.uint8)}, 8, num_buffers=2))
except rollway.NotEnoughMemory as error:
    print(len(kept), error)
"""


def test_a_control_group_that_is_nearly_full_is_an_error_and_not_a_process_killed():
    given = os.environ.get("ROLLWAY_TEST_CGROUP")
    if given is None:
        pytest.skip("ROLLWAY_TEST_CGROUP names no group with a memory controller in which tests may make others")
    group = Path(given, f"rollway-test-{os.getpid()}")
    group.mkdir()
    try:
        version_2 = (group / "memory.max").exists()
        (group / ("memory.max" if version_2 else "memory.limit_in_bytes")).write_text(str(256 << 20))
        command = [sys.executable, "-c", "import rollway.machine" + GROUP, str(group)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, f"{result.returncode}: {result.stderr}"
        count, message = result.stdout.strip().split(" ", 1)
        assert int(count) >= 1 and str(group) in message and "are used" in message and "raise the limit" in message
    finally:
        group.rmdir()
