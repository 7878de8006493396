"""The ring between real processes: every start method, attaching, errors, waiting, several learners."""

import dataclasses
import multiprocessing as mp
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import _core
from tests.support.processes import until

EXAMPLE = {"obs": np.zeros(4, np.float32), "reward": np.zeros(1, np.float32)}
PREAMBLE = """
import sys, numpy as np, rollway
example = {"obs": np.zeros(4, np.float32), "reward": np.zeros(1, np.float32)}
def sample(i): return {"obs": np.full(4, i, np.float32), "reward": np.full(1, -i, np.float32)}
"""


def work(name, worker, count):
    with rollway.ShmClient(name, EXAMPLE, producer_id=worker) as client:
        for i in range(count):
            client.send({"obs": np.full(4, i, np.float32), "reward": np.full(1, worker, np.float32)})


def take(server, count, timeout=30):
    """Rows of `count` samples, as (producer, sequence, obs[0]), in the order of their batches.

    A batch whose writer is kept from its core for longer than a few milliseconds is overtaken, so it may come later.
    """
    batches, taken = {}, 0
    while taken < count:
        batch, info = server.sample(timeout=timeout)
        assert (batch["obs"] == batch["obs"][:, :1]).all(), "a torn sample"
        rows = zip(info.producer_ids.tolist(), info.sequences.tolist(), batch["obs"][:, 0].tolist(), strict=True)
        assert info.batch_number not in batches, "a batch came twice"
        batches[info.batch_number] = list(rows)
        taken += len(batches[info.batch_number])
    return [row for number in sorted(batches) for row in batches[number]]


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_workers_of_every_start_method_send_in_order_and_exactly_once(name, method):
    context = mp.get_context(method)
    with rollway.Server(EXAMPLE, 8, rollway.ShmTransport(name)) as server:
        workers = [context.Process(target=work, args=(name, i, 400)) for i in range(3)]
        [worker.start() for worker in workers]
        rows = take(server, 1200)
        [worker.join(20) for worker in workers]
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
        for i in range(3):
            mine = [(seq, obs) for producer, seq, obs in rows if producer == i]
            assert sorted(mine) == [(k, float(k)) for k in range(400)]
            # One may find a later sample in an earlier row of its batch, which another had left over; but no further off.
            assert all(abs(place - seq) < 8 for place, (seq, _) in enumerate(mine))
        assert server.stats()["producers_alive"] == 0 and server.stats()["producers_died"] == 0


def test_a_forked_child_goes_on_with_its_parents_client_and_keeps_no_one_alive(name):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name)) as server:
        client = rollway.ShmClient(name, EXAMPLE)
        client.send({"obs": np.zeros(4, np.float32), "reward": np.zeros(1, np.float32)})
        reserved = client.reserve()
        pid = os.fork()
        if pid == 0:
            try:
                del reserved  # the parent's: must not be given back here
                client.send({"obs": np.ones(4, np.float32), "reward": np.zeros(1, np.float32)})
                client.close()
                server.close()  # the parent's: must not shut down the ring
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert sorted(take(server, 2)) == [(0, 0, 0.0), (1, 0, 1.0)], "the child is a producer of its own"
        assert server.stats()["claimed_slots"] == 1 and not server.closed
        reserved.tree["obs"][:] = 5
        reserved.commit()
        assert take(server, 1)[0][2] == 5.0
        client.close()


def test_a_worker_may_come_before_its_learner(name, child):
    worker = child(
        PREAMBLE
        + """
print("waiting", flush=True)
with rollway.ShmClient(sys.argv[1], example, connect_timeout_s=30) as client:
    client.send(sample(3))
""",
        name,
    )
    worker.says("waiting")
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name)) as server:
        assert take(server, 1)[0][2] == 3.0
        worker.ends()


def test_no_learner_is_a_clear_error(name):
    for timeout in (0, 0.05):
        with pytest.raises(rollway.SegmentNotFound, match=f"there is no segment '{name}' in .*Start the learner first"):
            rollway.ShmClient(name, EXAMPLE, connect_timeout_s=timeout)
    with pytest.raises(FileNotFoundError):
        rollway.ShmClient(name, EXAMPLE, connect_timeout_s=0)


@pytest.mark.parametrize("bad", ["", "a/b", "../x", ".hidden", "ä", "x" * 201])
def test_a_bad_name_is_refused(bad):
    for make in (
        lambda: rollway.ShmClient(bad, EXAMPLE),
        lambda: rollway.Server(EXAMPLE, 1, rollway.ShmTransport(bad)),
    ):
        with pytest.raises(rollway.InvalidArgument, match="is not a valid segment name"):
            make()


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (
            {"obs": np.zeros(4), "reward": np.zeros(1, np.float32)},
            r"leaf 'obs' is float64\[4\] here but float32\[4\] in segment '{name}' \(created by pid {pid}\). Cast before send",
        ),
        (
            {"obs": np.zeros(4, np.int32), "reward": np.zeros(1, np.float32)},
            r"leaf 'obs' is int32\[4\] here but float32\[4\]",
        ),
        ({"obs": np.zeros(4, np.float32)}, r"leaf 'reward' is missing here but float32\[1\] in segment"),
        ({**EXAMPLE, "done": np.zeros(1)}, r"leaf 'done' is float64\[1\] here but missing in segment"),
    ],
)
def test_a_client_with_another_schema_is_told_which_leaf(name, example, message):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name)):
        with pytest.raises(rollway.SchemaMismatch, match=message.format(name=name, pid=os.getpid())):
            rollway.ShmClient(name, example)


def test_a_live_ring_is_never_replaced(name, child):
    learner = child(
        PREAMBLE
        + """
server = rollway.Server(example, 2, rollway.ShmTransport(sys.argv[1]))
print("ready", flush=True); sys.stdin.readline(); server.close()
""",
        name,
    )
    learner.says("ready")
    transport = rollway.ShmTransport(name, if_exists="replace")
    with pytest.raises(
        rollway.errors.SegmentInUse, match=f"segment '{name}' is in use: created by pid {learner.pid}, 1 attached"
    ):
        rollway.Server(EXAMPLE, 2, transport)
    with pytest.raises(rollway.errors.SegmentExists, match="exists already"):
        rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name, if_exists="error"))
    with pytest.raises(
        rollway.errors.GeometryMismatch, match=r"has batch_size = 2, but 3 was asked for. Ask for batch_size = 2, cho"
    ):
        rollway.Server(EXAMPLE, 3, rollway.ShmTransport(name))
    with pytest.raises(rollway.errors.GeometryMismatch, match=r"on_full = 'block', but 'error' was asked for"):
        rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name), on_full="error")
    with pytest.raises(rollway.SchemaMismatch, match="leaf 'obs'"):
        rollway.Server({"obs": np.zeros(1)}, 2, rollway.ShmTransport(name))
    with pytest.raises(
        rollway.SchemaMismatch, match=r"holds the samples of a Server .*, not the records of a RecordSer"
    ):
        rollway.RecordServer({"obs": "float32[*]"}, rollway.ShmTransport(name))
    assert rollway.gc() == [] or all(gone.name != name for gone in rollway.gc())
    learner.tell()
    learner.ends()


def test_a_stale_ring_is_resumed_and_an_empty_one_of_another_shape_replaced(name, child):
    learner = child(
        PREAMBLE
        + """
server = rollway.Server(example, 2, rollway.ShmTransport(sys.argv[1]))
server.submit(sample(1)); server.submit(sample(2)); server.submit(sample(3))
print("ready", flush=True); sys.stdin.readline()
""",
        name,
    )
    learner.says("ready")
    learner.kill()
    assert [s.state for s in rollway.segments() if s.name == name] == ["stale"]
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name, if_exists="resume")) as server:
        assert server.resumed
        assert [row[2] for row in take(server, 2)] == [1.0, 2.0]
        assert server.stats()["ready_samples"] == 1
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)) as server:
        assert not server.resumed
    # the same death again, and then another shape
    learner = child(
        PREAMBLE
        + """
server = rollway.Server(example, 2, rollway.ShmTransport(sys.argv[1])); print("ready", flush=True); sys.stdin.readline()
""",
        name,
    )
    learner.says("ready")
    learner.kill()
    with rollway.Server({"other": np.zeros(3)}, 5, rollway.ShmTransport(name)) as server:
        assert not server.resumed


def test_what_was_committed_is_not_replaced_by_a_ring_of_another_size_or_schema(name, child):
    learner = child(
        PREAMBLE
        + """
server = rollway.Server(example, 2, rollway.ShmTransport(sys.argv[1]))
server.submit(sample(1)); server.submit(sample(2)); server.submit(sample(3))
print("ready", flush=True); sys.stdin.readline()
""",
        name,
    )
    learner.says("ready")
    learner.kill()
    resume = rollway.ShmTransport(name, if_exists="resume")
    with pytest.raises(rollway.errors.GeometryMismatch) as refused:
        rollway.Server(EXAMPLE, 5, resume)
    for part in ("has batch_size = 2, but 5 was asked for", 'if_exists="replace"', "rollway gc"):
        assert part in str(refused.value)
    with pytest.raises(rollway.SchemaMismatch, match=r"leaf 'other' is .* here but missing .*if_exists=\"replace\""):
        rollway.Server({"other": np.zeros(3)}, 2, resume)
    with pytest.raises(rollway.SchemaMismatch, match=r"holds the samples of a Server .*if_exists=\"replace\""):
        rollway.RecordServer({"obs": "float32[*]"}, resume)
    with rollway.Server(EXAMPLE, 2, resume) as server:
        assert server.resumed and server.stats()["ready_samples"] == 3
        server.close()
    learner = child(DIES, name)
    learner.says("ready")
    learner.kill()
    with rollway.Server({"other": np.zeros(3)}, 5, rollway.ShmTransport(name, if_exists="replace")) as server:
        assert not server.resumed


DIES = (
    PREAMBLE
    + "server = rollway.Server(example, 2, rollway.ShmTransport(sys.argv[1])); print('ready', flush=True); input()"
)


def test_a_stale_ring_is_replaced_by_records_and_takes_another_policy(name, child):
    for _ in range(2):
        learner = child(DIES, name)
        learner.says("ready")
        learner.kill()
        with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name), num_buffers=3, on_full="drop_newest") as server:
            assert server.resumed
            assert [server.submit(EXAMPLE) for _ in range(7)] == [True] * 6 + [False]
            with rollway.ShmClient(name, EXAMPLE) as client:
                assert not client.blocks
    learner = child(DIES, name)
    learner.says("ready")
    learner.kill()
    with rollway.RecordServer({"obs": "float32[*]"}, rollway.ShmTransport(name, if_exists="replace")) as records:
        assert not records.resumed


def is_watching(pid):
    try:
        return any("inotify" in os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:  # one was closed meanwhile
        return False


def test_a_worker_waits_for_the_learner_that_replaces_a_stale_ring_of_another_shape(name, child):
    learner = child(DIES, name)
    learner.says("ready")
    learner.kill()
    with pytest.raises(rollway.SchemaMismatch, match="leaf"):
        rollway.ShmClient(name, {"other": np.zeros(3)}, connect_timeout_s=0.05)
    code = "client = rollway.ShmClient(sys.argv[1], {'other': np.zeros(3)}, connect_timeout_s=30); print('attached')"
    worker = child(PREAMBLE + "print('waits', flush=True); " + code, name)
    worker.says("waits")
    until(lambda: is_watching(worker.pid))
    with rollway.Server({"other": np.zeros(3)}, 5, rollway.ShmTransport(name)):
        worker.says("attached")
        worker.ends()


def test_a_restarted_learner_goes_on_with_what_was_committed(name, child):
    learner = child(
        PREAMBLE
        + """
server = rollway.Server(example, 4, rollway.ShmTransport(sys.argv[1]))
print("ready", flush=True)
taken = server.sample()            # seen, and never released
print("holding", flush=True); sys.stdin.readline()
""",
        name,
    )
    learner.says("ready")
    client = rollway.ShmClient(name, EXAMPLE)
    for i in range(10):
        client.send({"obs": np.full(4, i, np.float32), "reward": np.zeros(1, np.float32)})
    learner.says("holding")
    learner.kill()
    with rollway.Server(EXAMPLE, 4, rollway.ShmTransport(name, if_exists="resume")) as server:
        assert server.resumed and server.stats()["reoffered_batches"] == 1
        for i in range(10, 12):
            client.send({"obs": np.full(4, i, np.float32), "reward": np.zeros(1, np.float32)})
        assert [row[2] for row in take(server, 12)] == list(map(float, range(12)))
        client.close()


def test_a_blocked_worker_is_told_that_the_learner_died(name, child):
    learner = child(
        PREAMBLE
        + """
server = rollway.Server(example, 1, rollway.ShmTransport(sys.argv[1]), num_buffers=2)
print("ready", flush=True); sys.stdin.readline()
""",
        name,
    )
    learner.says("ready")
    with rollway.ShmClient(name, EXAMPLE, peer_timeout_s=0.05) as client:
        for _ in range(2):
            client.send(EXAMPLE)
        learner.kill()
        with pytest.raises(
            rollway.PeerDied, match=rf"the learner on '{name}' died \(pid {learner.pid}\).*2 samples wait"
        ):
            client.send(EXAMPLE)
    assert [gone.name for gone in rollway.gc() if gone.name == name] == [name]


def test_a_learner_is_told_that_all_workers_died(name, child):
    with rollway.Server(EXAMPLE, 4, rollway.ShmTransport(name), peer_timeout_s=0.05) as server:
        worker = child(
            PREAMBLE
            + """
client = rollway.ShmClient(sys.argv[1], example); client.send(sample(1))
print("sent", flush=True); sys.stdin.readline()
""",
            name,
        )
        worker.says("sent")
        worker.kill()
        message = rf"every producer of '{name}' is gone, and 1 died without closing \(pid {worker.pid}\).*1 committed"
        with pytest.raises(rollway.PeerDied, match=message):
            server.sample()
        server.flush()
        assert take(server, 1)[0][2] == 1.0


def test_close_tells_the_workers(name, child):
    server = rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name), num_buffers=2)
    worker = child(
        PREAMBLE
        + """
client = rollway.ShmClient(sys.argv[1], example)
try:
    while True: client.send(sample(1))
except rollway.ConnectionClosedError as error:
    print(error)
""",
        name,
    )
    until(lambda: server.stats()["blocked"] > 0)
    server.close()
    out, _ = worker.ends()
    assert f"the learner has closed ring '{name}'; nothing more can be sent" in out


OUT_OF_FILES = """
    import os, resource, sys, numpy as np, rollway
    transport = rollway.ShmTransport(sys.argv[1])
    if sys.argv[2] == "ring":
        server = rollway.Server(np.zeros(1), 1, transport, num_buffers=2)
    else:
        server = rollway.RecordServer({"x": "float64[*]"}, transport, max_records=2)
    print("up", flush=True)
    input()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        while True:
            os.dup(0)
    except OSError:
        server.close()
    print("closed", flush=True)
"""


@pytest.mark.parametrize("kind", ["ring", "records"])
def test_a_learner_that_has_no_file_left_to_open_shuts_down_all_the_same(name, child, kind):
    learner = child(OUT_OF_FILES, name, kind)
    learner.says("up")
    if kind == "ring":
        client, data = rollway.ShmClient(name, np.zeros(1)), np.zeros(1)
    else:
        client, data = rollway.ShmRecordClient(name, {"x": "float64[*]"}), {"x": [1.0]}
    with client:
        while client.try_send(data):
            pass
        learner.tell()
        with pytest.raises(rollway.ConnectionClosedError):
            client.send(data, timeout=10)
    learner.says("closed")
    learner.ends()


def test_a_closed_client_says_so(name):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name)):
        client = rollway.ShmClient(name, EXAMPLE)
        assert repr(client) == f"<rollway.ShmClient {name} open>" and client.name == name
        client.wait()
        client.close()
        client.close()
        for call in (client.send, client.try_send):
            with pytest.raises(rollway.ConnectionClosedError, match=f"this client of '{name}' is closed"):
                call(EXAMPLE)
        with pytest.raises(ConnectionError):
            client.reserve()


def test_several_learners_share_the_batches_and_the_last_one_shuts_down(name, child):
    code = (
        PREAMBLE
        + """
server = rollway.Server(example, 4, rollway.ShmTransport(sys.argv[1]))
print("ready", flush=True)
count = 0
while (s := server.sample()) is not None:
    count += len(s.batch["obs"])
    if s.batch["reward"][-1, 0] < 0: break
server.close()
print(count)
"""
    )
    server = rollway.Server(EXAMPLE, 4, rollway.ShmTransport(name))
    others = [child(code, name) for _ in range(2)]
    [other.says("ready") for other in others]
    with rollway.ShmClient(name, EXAMPLE) as client:
        for _ in range(4000):
            client.send(EXAMPLE)
        until(lambda: server.stats()["samples_released"] + server.stats()["held_samples"] == 4000)
        server.close()  # one of three leaves: the ring stays
        assert not client.closed
        last_word = {"obs": np.zeros(4, np.float32), "reward": np.full(1, -1, np.float32)}
        for _ in range(8):  # one batch each: they leave, and the second one takes the ring away
            client.send(last_word)
        counts = [int(other.ends()[0]) for other in others]
        assert sum(counts) == 4008
        with pytest.raises(rollway.ConnectionClosedError):
            client.send(EXAMPLE)


@pytest.mark.parametrize("call", ["server.sample()", "fill(); client.send(sample(0))", "fill(); client.reserve()"])
def test_ctrl_c_ends_every_wait(name, child, call):
    waiting = child(
        PREAMBLE
        + f"""
server = rollway.Server(example, 1, rollway.ShmTransport(sys.argv[1]), num_buffers=2)
client = rollway.ShmClient(sys.argv[1], example)
def fill():
    while client.try_send(sample(0)): pass
print("ready", flush=True)
try:
    {call}
except KeyboardInterrupt:
    print("interrupted")
server.close()
""",
        name,
    )
    waiting.says("ready")
    until(lambda: "futex" in Path(f"/proc/{waiting.pid}/wchan").read_text() or waiting.process.poll() is not None)
    started = time.monotonic()
    os.kill(waiting.pid, signal.SIGINT)
    out, _ = waiting.ends()
    assert out.strip() == "interrupted" and time.monotonic() - started < 20


def test_ctrl_c_in_a_send_many_says_how_many_were_sent(name, child):
    waiting = child(
        PREAMBLE
        + """
server = rollway.Server(example, 1, rollway.ShmTransport(sys.argv[1]), num_buffers=3)
client = rollway.ShmClient(sys.argv[1], example)
print("ready", flush=True)
try:
    client.send_many({"obs": np.zeros((8, 4), np.float32), "reward": np.zeros((8, 1), np.float32)})
except KeyboardInterrupt as interrupted:
    print(interrupted.sent, server.stats()["ready_samples"])
server.close()
""",
        name,
    )
    waiting.says("ready")
    until(lambda: "futex" in Path(f"/proc/{waiting.pid}/wchan").read_text() or waiting.process.poll() is not None)
    os.kill(waiting.pid, signal.SIGINT)
    assert waiting.ends()[0].strip() == "3 3"


def test_a_learner_that_forgets_to_close_leaves_nothing(name, child):
    child(
        PREAMBLE
        + """
server = rollway.Server(example, 1, rollway.ShmTransport(sys.argv[1]))
""",
        name,
    ).ends()
    assert all(segment.name != name for segment in rollway.segments())


def test_auto_named_rings_of_the_dead_go_with_the_next_ring(name, child):
    learner = child(
        PREAMBLE
        + """
server = rollway.Server(example, 1, rollway.ShmTransport())
print(server.name, flush=True); sys.stdin.readline()
"""
    )
    auto = learner.line()
    learner.kill()
    assert any(segment.name == auto and segment.state == "stale" for segment in rollway.segments())
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name)):
        assert all(segment.name != auto for segment in rollway.segments())


def test_a_name_that_somebody_chose_is_not_made_up_whatever_it_looks_like():
    transport = rollway.ShmTransport()
    assert transport.auto_named and pickle.loads(pickle.dumps(transport)).auto_named
    assert dataclasses.replace(transport, max_peers=3).auto_named
    assert not rollway.ShmTransport("auto-pilot").auto_named


def test_as_many_peers_as_there_are_seats(name):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name, max_peers=2)):
        with rollway.ShmClient(name, EXAMPLE):
            with pytest.raises(rollway.errors.NoSeatLeft, match=r"all 2 are taken\. Create it with a larger max_peers"):
                rollway.ShmClient(name, EXAMPLE)
        rollway.ShmClient(name, EXAMPLE).close()
    with pytest.raises(rollway.InvalidArgument, match="max_peers = 0 is out of range"):
        rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name, max_peers=0))


def test_huge_pages_are_given_or_refused_clearly(name):
    big = {"frame": np.zeros((512, 1024), np.float32)}
    try:
        server = rollway.Server(big, 2, rollway.ShmTransport(name, huge_pages=True))
    except rollway.errors.HugePagesUnavailable as error:
        assert "shmem_enabled" in str(error)
        return
    with server:
        huge_kb = sum(map(int, re.findall(r"ShmemPmdMapped:\s+(\d+) kB", Path("/proc/self/smaps").read_text())))
        assert huge_kb >= 12 * 1024, "six frames of 2 MB lie in huge pages"
        server.submit_many({"frame": np.ones((2, 512, 1024), np.float32)})
        assert server.sample(timeout=5).batch["frame"].sum() == 2 * 512 * 1024


def test_segments_are_private(name):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name)):
        path = f"{_core.shm_directory()}/rollway.{name}"
        assert os.stat(path).st_mode & 0o777 == 0o600
        os.chmod(path, 0o644)
        with pytest.raises(rollway.errors.SegmentNotOurs, match="mode 0644; it must belong to user"):
            rollway.ShmClient(name, EXAMPLE)
        os.chmod(path, 0o600)


def test_a_file_that_is_no_segment_is_refused(name):
    path = f"{_core.shm_directory()}/rollway.{name}"
    try:
        with open(path, "wb") as file:
            file.write(b"nonsense" * 1000)
        os.chmod(path, 0o600)
        with pytest.raises(
            rollway.errors.SegmentDamaged, match="is not a Rollway segment: it does not start with the magic"
        ):
            rollway.ShmClient(name, EXAMPLE)
        assert [s.state for s in rollway.segments() if s.name == name] == ["unreadable"]
    finally:
        os.unlink(path)


def test_workers_with_other_process_ids_are_recovered_too(name):
    """As between containers that share /dev/shm but not pids."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode:
        pytest.skip("a process-id namespace needs root and unshare(1)")
    code = (
        PREAMBLE
        + """
client = rollway.ShmClient(sys.argv[1], example)
client.send(sample(1)); slot = client.reserve()
print("holding", flush=True); sys.stdin.readline()
"""
    )
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)) as server:
        inside = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert inside.stdout.readline().strip() == "holding"
        assert server.stats()["claimed_slots"] == 1 and server.stats()["producers_alive"] == 1
        inside.kill()
        inside.communicate()
        with rollway.ShmClient(name, EXAMPLE) as client:
            until(lambda: server.stats()["producers_alive"] <= 1)
            client.send({"obs": np.full(4, 2, np.float32), "reward": np.zeros(1, np.float32)})
            rows = take(server, 2)
        assert [row[2] for row in rows] == [1.0, 2.0]


def test_ctrl_c_while_a_server_is_made_leaves_nothing(name, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rollway.transport.server_base.LoopNotifier", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name))
