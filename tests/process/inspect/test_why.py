"""`rollway.inspect.why` names the process that holds the others up, also when processes are stopped or dead."""

import threading

import numpy as np
import pytest

import rollway
from rollway.inspect import Inspection, Interval
from rollway.inspect.verdict import judge
from rollway.weights import WeightSync
from tests.support.processes import until

EXAMPLE = {"obs": np.zeros(4, np.float32)}

LEARNER = """
    import sys, numpy as np, rollway
    server = rollway.Server({"obs": np.zeros(4, np.float32)}, 1, rollway.ShmTransport(sys.argv[1]), num_buffers=2)
    print("up", flush=True)
    for line in sys.stdin:
        kept = server.sample()
        print("took", flush=True)
    server.close()
"""

WRITER_IN_A_SLOT = """
    import sys, numpy as np, rollway
    client = rollway.ShmClient(sys.argv[1], {"obs": np.zeros(4, np.float32)})
    client.send({"obs": np.zeros(4, np.float32)})
    slot = client.reserve()
    print("reserved", flush=True)
    sys.stdin.read()
"""

PRODUCER = """
    import sys, numpy as np, rollway
    client = rollway.ShmClient(sys.argv[1], {"obs": np.zeros(4, np.float32)})
    print("up", flush=True)
    try:
        while True:
            client.send({"obs": np.zeros(4, np.float32)})
    except rollway.ConnectionClosedError:
        pass
"""


def judged_when(name, is_so):
    """The verdict over an interval that begins and ends with looks of which ``is_so`` holds."""
    inspection = Inspection(name)
    until(lambda: is_so(inspection.look()))
    before = inspection.look()
    threading.Event().wait(0.05)  # the length of the interval
    return judge(Interval(before, inspection.look()))


def all_wait_for_room(look):
    return bool(look.givers) and all(one.activity == "wait_room" for one in look.givers)


def test_a_learner_that_keeps_every_batch_is_the_bottleneck(name, child):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name), num_buffers=2) as server:
        workers = [child(PRODUCER, name) for _ in range(2)]
        kept = [server.sample(), server.sample()]
        verdict = judged_when(name, lambda look: len(look.givers) == 2 and all_wait_for_room(look))
        assert verdict.culprit == "learner"
        assert verdict.lines[0].startswith(
            "the learner is the bottleneck: 2 of 2 producers blocked for 100% of the last"
        )
        assert "it holds 2 of 2 batches, the oldest for " in verdict.lines[0]
        assert "holds 100%, 2 batches in hand" in verdict.lines[1]
        assert "2 alive, 0.0 samples/s: wait for room 100%" in verdict.lines[2]
        del kept
    for worker in workers:
        worker.ends()


def test_a_learner_that_is_stopped_is_named_with_what_it_holds(name, child):
    learner = child(LEARNER, name)
    learner.says("up")
    with rollway.ShmClient(name, EXAMPLE) as client:
        client.send(EXAMPLE)
        learner.tell()
        learner.says("took")
        client.send(EXAMPLE)
        learner.stop()
        worker = threading.Thread(target=client.send, args=(EXAMPLE,))
        worker.start()
        verdict = judged_when(name, all_wait_for_room)
        assert (verdict.culprit, verdict.pids) == ("learner", (learner.pid,))
        assert f"the learner is stopped (pid {learner.pid}: stopped" in verdict.lines[0]
        assert "it holds 1 of 2 batches, the oldest for " in verdict.lines[0]
        learner.resume()
        learner.tell()
        learner.says("took")
        worker.join()
    learner.ends()


def test_a_learner_that_always_has_a_batch_holds_the_last_one_only_since_it_took_it(name):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name)) as server:
        kept = None
        for _ in range(3):
            server.submit(EXAMPLE)
            kept = server.sample()  # what was kept goes after it, as in a `for` loop
            (learner,) = Inspection(name).look().takers
            assert learner.activity == "hold" and learner.activity_ns <= learner.oldest_held_ns + 10**6
            threading.Event().wait(0.02)
        del kept


def test_a_reservation_does_not_hide_a_learner_that_is_the_bottleneck(name, child):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name), num_buffers=3) as server:
        with rollway.ShmClient(name, EXAMPLE) as client:
            slot = client.reserve()
            worker = child(PRODUCER, name)
            kept = server.sample()
            verdict = judged_when(name, lambda look: any(one.activity == "wait_room" for one in look.givers))
            assert verdict.culprit == "learner" and verdict.lines[0].startswith("the learner is the bottleneck: 1 of 2")
            slot.abort()
            del kept
    worker.ends()


def test_a_worker_of_an_earlier_run_is_not_blamed(name, child):
    learner, worker = child(LEARNER, name), None
    learner.says("up")
    worker = child(WRITER_IN_A_SLOT, name)
    worker.says("reserved")
    worker.kill()
    learner.kill()
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name, if_exists="resume"), num_buffers=2) as server:
        server.sample().release()
        waiter = threading.Thread(target=server.sample)
        waiter.start()
        verdict = judged_when(name, lambda look: bool(look.takers) and look.takers[0].activity == "wait_data")
        assert verdict.lines[0].startswith("no producer is attached: the learner waited for data")
        server.submit(EXAMPLE)
        waiter.join()


def test_a_worker_that_died_is_in_the_first_line(name, child):
    with rollway.Server(EXAMPLE, 4, rollway.ShmTransport(name)) as server, rollway.ShmClient(name, EXAMPLE) as client:
        worker = child(WRITER_IN_A_SLOT, name)
        worker.says("reserved")
        worker.kill()
        waiter = threading.Thread(target=server.sample)
        waiter.start()
        verdict = judged_when(name, lambda look: look.takers[0].activity == "wait_data" and bool(look.dead))
        assert worker.pid in verdict.pids and f"1 died without closing (pid {worker.pid}" in verdict.lines[0]
        for _ in range(4):
            client.send(EXAMPLE)
        waiter.join()


def test_a_producer_that_is_stopped_inside_a_slot_is_named(name, child):
    with rollway.Server(EXAMPLE, 4, rollway.ShmTransport(name)) as server:
        worker = child(WRITER_IN_A_SLOT, name)
        worker.says("reserved")
        worker.stop()
        waiter = threading.Thread(target=server.sample)
        waiter.start()
        verdict = judged_when(name, lambda look: look.takers[0].activity == "wait_data")
        assert (verdict.culprit, verdict.pids) == ("producers", (worker.pid,))
        assert f"pid {worker.pid} (stopped) has 1 sample reserved, no commit for " in verdict.lines[0]
        worker.kill()
        with rollway.ShmClient(name, EXAMPLE) as client:
            for _ in range(3):
                client.send(EXAMPLE)
        waiter.join()


def test_a_learner_that_died_is_named(name, child):
    learner = child(LEARNER, name)
    learner.says("up")
    with rollway.ShmClient(name, EXAMPLE) as client:
        client.send(EXAMPLE)
        client.send(EXAMPLE)
        learner.kill()
        until(lambda: Inspection(name).look().dead)
        verdict = judged_when(name, lambda look: not look.takers)
        assert (verdict.culprit, verdict.pids) == ("learner", (learner.pid,))
        assert f"the learner died without closing (pid {learner.pid})" in verdict.lines[0]
    verdict = judged_when(name, lambda look: not look.givers)
    assert verdict.culprit == "no process" and "2 samples are left in it" in verdict.lines[0]
    rollway.gc()


REMOTE = """
    import sys, numpy as np, rollway
    client = rollway.TcpClient("127.0.0.1", int(sys.argv[1]), {"obs": np.zeros(4, np.float32)})
    client.send({"obs": np.zeros(4, np.float32)})
    client.wait(10)
    print("sent", flush=True)
    sys.stdin.read()
    client.close()
"""


def test_a_remote_worker_that_died_is_named_and_one_that_closed_is_not(name, child):
    transports = [rollway.ShmTransport(name), rollway.TcpTransport()]
    with rollway.Server(EXAMPLE, 4, transports) as server:

        def network():
            (one,) = (one for one in Inspection(name).look().givers if one.role == "network")
            return one.remote_connected, one.remote_lost

        closing, dying = child(REMOTE, server.port), child(REMOTE, server.port)
        closing.says("sent")
        dying.says("sent")
        assert network() == (2, 0)
        closing.ends()
        until(lambda: network() == (1, 0))
        dying.kill()
        until(lambda: network() == (0, 1))
        waiter = threading.Thread(target=server.sample)
        waiter.start()
        verdict = judged_when(name, lambda look: look.takers[0].activity == "wait_data")
        assert verdict.culprit == "producers"
        assert verdict.lines[0].startswith("no remote worker is connected: the learner waited for data for 100%")
        assert "1 lost without a goodbye: the last one, from 127.0.0.1:" in verdict.lines[0]
        server.submit_many({"obs": np.zeros((2, 4), np.float32)})
        waiter.join()


def test_producers_that_bring_nothing_are_the_bottleneck(name):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name)) as server:
        waiter = threading.Thread(target=server.sample)
        waiter.start()
        waits = "the learner waited for data for 100% of the last"
        verdict = judged_when(name, lambda look: look.takers[0].activity == "wait_data")
        assert verdict.culprit == "producers" and f"no producer is attached: {waits}" in verdict.lines[0]
        with rollway.ShmClient(name, EXAMPLE) as client:
            verdict = judged_when(name, lambda look: look.takers[0].activity == "wait_data")
            assert f"none of them committed anything, and {waits}" in verdict.lines[0]
            client.send(EXAMPLE)
        waiter.join()


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
def test_drops_are_the_learners_doing(name, policy):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name), num_buffers=2, on_full=policy) as server:
        kept = [server.submit(EXAMPLE) and server.sample() for _ in range(2)]
        inspection = Inspection(name)
        before = inspection.look()
        server.submit(EXAMPLE)
        verdict = judge(Interval(before, inspection.look()))
        assert verdict.culprit == "learner" and "samples/s are dropped because there is no room" in verdict.lines[0]
        del kept


def test_nobody_is_blamed_when_nobody_waits(name):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name)) as server:
        server.submit(EXAMPLE)
        verdict = judged_when(name, lambda look: look.givers)
        assert (verdict.culprit, verdict.pids) == ("nobody", ())


def test_records_that_no_learner_reads_block_their_worker(name):
    schema = {"tokens": "int32[*]"}
    server = rollway.RecordServer(schema, rollway.ShmTransport(name), lane_bytes=4096)
    with server, rollway.ShmRecordClient(name, schema) as client:
        record = {"tokens": np.zeros(900, np.int32)}
        client.send(record)
        worker = threading.Thread(target=client.send, args=(record,))
        worker.start()
        verdict = judged_when(name, all_wait_for_room)
        assert verdict.culprit == "learner"
        assert "1 of 1 producers blocked for 100%" in verdict.lines[0] and "1 wait to be read" in verdict.lines[0]
        server.read().release()
        worker.join()
        server.read().release()


def test_readers_that_wait_for_a_version_and_readers_that_are_behind(name):
    weights = {"w": np.ones(2, np.float32)}
    with WeightSync({"w": (2,)}, name=name) as writer, WeightSync.attach(name) as reader:
        writer.write_weights(weights)
        waiter = threading.Thread(target=reader.wait_for_version, args=(2,))
        waiter.start()
        verdict = judged_when(name, lambda look: look.takers and look.takers[0].activity == "wait_data")
        assert verdict.culprit == "writer" and "1 reader waits for a version" in verdict.lines[0]
        writer.write_weights(weights)
        waiter.join()
        verdict = judged_when(name, lambda look: True)
        assert verdict.culprit == "reader" and "by 2 versions" in verdict.lines[0]
        reader.read_weights()
        assert judged_when(name, lambda look: True).culprit == "nobody"


def test_the_process_that_keeps_a_copy_of_weights_is_no_late_reader(name):
    weights = {"w": np.ones(2, np.float32)}
    with WeightSync.from_state_dict(weights) as origin, origin.serve(rollway.TcpTransport()) as learner:
        with rollway.TcpWeights("localhost", learner.port, name=name) as copy:
            copy.wait_for_version(1, timeout=20)
            assert judged_when(name, lambda look: True).culprit == "nobody"


def test_a_timeout_says_what_the_other_side_is_doing(name):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name), num_buffers=2) as server:
        with rollway.ShmClient(name, EXAMPLE) as client:
            client.send(EXAMPLE)
            sample = server.sample()
            with pytest.raises(rollway.WaitTimeout, match=r"0 died \(pid \d+ committed \d+\.\d s ago\)\."):
                server.sample(timeout=0.01)
            client.send(EXAMPLE)
            said = r"the learner: pid \d+ has had data in its hands for \d+\.\d s"
            with pytest.raises(rollway.WaitTimeout, match=said):
                client.send(EXAMPLE, timeout=0.01)
            sample.release()
