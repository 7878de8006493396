"""`rollway.inspect`: what a look from outside says about each kind of segment, and that it changes nothing."""

import gc
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import _core
from rollway.inspect import Inspection, Interval, Monitor, Unreadable, watch, why
from rollway.inspect.process import process_state
from rollway.replay import TransitionBuffer
from rollway.weights import WeightSync
from tests.support.processes import until

EXAMPLE = {"obs": np.zeros(4, np.float32)}


def file_of(name):
    return Path(_core.shm_directory()) / f"rollway.{name}"


def only(look, role):
    (one,) = (one for one in look.participants if one.role == role)
    return one


def test_a_look_at_a_ring_says_what_server_stats_say(name):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)) as server, rollway.ShmClient(name, EXAMPLE) as client:
        for _ in range(5):
            client.send(EXAMPLE, version=3)
        sample = server.sample()
        look = Inspection(name).look()
        stats = server.stats()
        same = ("ready_samples", "held_batches", "free_buffers", "batch_size", "num_buffers", "blocked")
        assert {key: look.numbers[key] for key in same} == {key: stats[key] for key in same}
        learner, producer = only(look, "learner"), only(look, "producer")
        assert (learner.holding, learner.activity, learner.state, learner.process) == (1, "hold", "alive", "running")
        assert (producer.committed, producer.version, producer.activity) == (5, 3, "work")
        assert look.histograms["memcpy"].count == 1 and producer.copy_ns > 0
        sample.release()
        assert only(Inspection(name).look(), "learner").activity == "work"


def test_the_copies_of_sends_that_waited_are_counted(name):
    example = {"obs": np.zeros(1 << 18, np.float32)}
    with rollway.Server(example, 1, rollway.ShmTransport(name), num_buffers=2) as server:
        with rollway.ShmClient(name, example) as client:
            for _ in range(2):
                client.send(example)
            before = only(Inspection(name).look(), "producer").copy_ns
            worker = threading.Thread(target=client.send, args=(example,))
            worker.start()
            until(lambda: only(Inspection(name).look(), "producer").activity == "wait_room")
            server.sample().release()
            worker.join()
            assert only(Inspection(name).look(), "producer").copy_ns > before > 0


def test_a_file_that_was_cut_off_is_an_error_and_not_the_end(name):
    cut = f"{name}-cut"
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
        shutil.copy(file_of(name), file_of(cut))
    inspection = Inspection(cut)
    os.truncate(file_of(cut), 100)
    for look in (inspection.look, lambda: inspection.native.newest(1)):
        with pytest.raises(rollway.errors.SegmentDamaged, match="its file was cut off"):
            look()
    file_of(cut).unlink()


def test_a_look_counts_all_that_ever_joined(name):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
        for joined in (2, 3):
            with rollway.ShmClient(name, EXAMPLE):
                look = Inspection(name).look()
                assert (look.numbers["joined"], len(look.participants)) == (joined, 2)


def test_a_look_changes_no_byte_and_takes_no_seat(name):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)) as server:
        server.submit_many({"obs": np.ones((3, 4), np.float32)})
        before = file_of(name).read_bytes()
        rollway.inspect.peek(name)
        inspection = Inspection(name)
        assert [len(inspection.look().participants) for _ in range(3)] == [2, 2, 2]
        assert file_of(name).read_bytes() == before
        (segment,) = (one for one in rollway.segments() if one.name == name)
        assert segment.alive == 2
    assert inspection.look().closed and inspection.look().unlinked


def test_the_times_of_every_participant_add_up(name):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name), num_buffers=2) as server:
        client = rollway.ShmClient(name, EXAMPLE)

        def produce():
            with pytest.raises(rollway.ConnectionClosedError):
                while True:
                    client.send(EXAMPLE)

        worker = threading.Thread(target=produce)
        worker.start()
        inspection = Inspection(name)
        first = inspection.look()
        for _ in range(200):
            with server.sample():
                pass
        interval = Interval(first, inspection.look())
        for one in interval.after.participants:
            assert one.wait_data_ns + one.wait_room_ns + one.hold_ns + one.work_ns == one.wall_ns
            shares = interval.shares(one)
            assert shares.wait_data + shares.wait_room + shares.hold + shares.work == pytest.approx(1)
        assert interval.committed_rate > 0 and interval.taken_rate > 0
        client.close()
        worker.join()


def test_a_producer_that_waits_for_room_is_seen_waiting_and_since_when(name):
    with rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name), num_buffers=2) as server:
        client = rollway.ShmClient(name, EXAMPLE)
        client.send(EXAMPLE)
        client.send(EXAMPLE)
        worker = threading.Thread(target=client.send, args=(EXAMPLE,))
        worker.start()
        inspection = Inspection(name)
        until(lambda: only(inspection.look(), "producer").activity == "wait_room")
        assert server.stats()["producers_waiting"] == 1
        one = only(inspection.look(), "producer")
        assert 0 < one.activity_ns <= one.wait_room_ns <= one.wall_ns
        server.sample().release()
        worker.join()
        assert only(inspection.look(), "producer").activity == "work"
        assert server.stats()["producers_waiting"] == 0 and server.stats()["producers_wait_ns"] >= one.wait_room_ns
        client.close()


def test_a_look_at_records_says_who_has_unread_ones(name):
    with rollway.RecordServer({"tokens": "int32[*]"}, rollway.ShmTransport(name)) as server:
        with rollway.ShmRecordClient(name, {"tokens": "int32[*]"}) as client:
            for length in range(3):
                client.send({"tokens": np.arange(length, dtype=np.int32)}, version=9)
            record = server.read()
            look = Inspection(name).look()
            assert look.kind == "records" and look.numbers["records_committed"] == 3
            assert (only(look, "learner").holding, only(look, "learner").activity) == (1, "hold")
            producer = only(look, "producer")
            assert (producer.unread, producer.committed, producer.version) == (2, 3, 9)
            record.release()
            assert server.stats()["learners_hold_ns"] > 0


def test_a_look_at_weights_says_which_version_each_reader_has(name):
    weights = {"w": np.ones(3, np.float32)}
    with WeightSync({"w": (3,)}, name=name) as writer:
        with WeightSync.attach(name) as reader:
            writer.write_weights(weights)
            reader.read_weights()
            writer.write_weights(weights)
            look = Inspection(name).look()
            assert look.numbers["version"] == 2 and look.numbers["published_ago_ns"] > 0
            assert only(look, "reader").version == 1
            assert (only(look, "writer").version, only(look, "writer").committed) == (2, 2)
            waiter = threading.Thread(target=reader.wait_for_version, args=(3,))
            waiter.start()
            until(lambda: only(Inspection(name).look(), "reader").activity == "wait_data")
            writer.write_weights(weights)
            waiter.join()


def test_what_gives_weights_to_remote_workers_is_no_reader_that_is_behind(name):
    with WeightSync({"w": (4,)}, name=name) as weights:
        transport = rollway.TcpTransport(weights=weights)
        with rollway.Server(EXAMPLE, 2, transport):
            weights.write_weights({"w": np.ones(4, np.float32)})
            roles = sorted(one.role for one in Inspection(name).look().participants)
            assert roles == ["network", "writer"] and why(name, seconds=0.01).culprit == "nobody"


def test_a_look_at_a_replay_buffer_counts_rows(name):
    buffer = TransitionBuffer(8, 2, 1, name=name)
    rows = {"obs": np.ones((3, 2)), "actions": np.ones((3, 1)), "rewards": np.ones(3), "next_obs": np.ones((3, 2))}
    buffer.add(**rows, dones=np.zeros(3), truncated=np.zeros(3))
    look = Inspection(name).look()
    assert (look.kind, look.numbers["rows"], look.numbers["added"]) == ("replay", 3, 3)
    assert only(look, "learner").committed == 3
    buffer.close()


def test_a_participant_that_came_during_an_interval_has_the_shares_of_its_life(name):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
        inspection = Inspection(name)
        before = inspection.look()
        with rollway.ShmClient(name, EXAMPLE) as client:
            client.send(EXAMPLE)
            interval = Interval(before, inspection.look())
            producer = only(interval.after, "producer")
            assert interval.earlier(producer) is None and interval.shares(producer).work == 1
            assert interval.rate_of(producer) > 0


def test_an_interval_without_length_has_no_rates(name):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
        look = Inspection(name).look()
        assert Interval(look, look).committed_rate == 0 and Interval(look, look).dropped_rate == 0


def test_a_dead_participant_is_seen_dead(name, child):
    code = """
        import sys, numpy as np, rollway
        client = rollway.ShmClient(sys.argv[1], {"obs": np.zeros(4, np.float32)})
        client.send({"obs": np.zeros(4, np.float32)})
        print("sent", flush=True)
        sys.stdin.read()
    """
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
        worker = child(code, name)
        worker.says("sent")
        assert only(Inspection(name).look(), "producer").state == "alive"
        worker.stop()
        stopped = only(Inspection(name).look(), "producer")
        assert (stopped.state, stopped.process, stopped.is_stopped) == ("alive", "stopped", True)
        worker.kill()
        look = Inspection(name).look()
        assert [(one.pid, one.state, one.process) for one in look.dead] == [(worker.pid, "dead", "dead")]
        assert look.givers == []


def test_a_process_that_is_younger_than_its_seat_is_another_one(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "stat").write_text("cpu 1\nbtime 1000\n")
    fields = ["T", *["0"] * 18, "5000", "0"]
    (tmp_path / "7" / "stat").write_text(f"7 (a) b) {' '.join(fields)}")
    assert process_state(7, 2_000_000_000_000, tmp_path) == "stopped"
    assert process_state(7, 1_000_000_000_000, tmp_path) is None
    assert process_state(8, 2_000_000_000_000, tmp_path) is None


def test_what_is_no_segment_is_an_error_with_words(name):
    with pytest.raises(rollway.SegmentNotFound, match="there is no segment"):
        Inspection(name)
    with pytest.raises(rollway.InvalidArgument, match="not a valid segment name"):
        Inspection("../etc/passwd")
    file_of(name).write_bytes(b"no segment" * 1000)
    file_of(name).chmod(0o600)
    with pytest.raises(rollway.errors.SegmentDamaged, match="magic number"):
        Inspection(name)
    file_of(name).unlink()


def test_a_monitor_finds_new_segments_and_forgets_those_that_are_gone(name):
    monitor = Monitor([name])
    (missing,) = monitor.look()
    assert isinstance(missing, Unreadable) and "there is no segment" in missing.problem
    for batch_size in (2, 3):
        with rollway.Server(EXAMPLE, batch_size, rollway.ShmTransport(name)) as server:
            (first,) = monitor.look()
            server.submit(EXAMPLE)
            (second,) = monitor.look()
            assert second.before is first.after and second.after.numbers["batch_size"] == batch_size
            assert second.committed_rate > 0
            assert name in [one.after.name for one in Monitor().look() if isinstance(one, Interval)]
    (missing,) = monitor.look()
    assert isinstance(missing, Unreadable)


def test_watch_looks_twice(name):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
        started = time.monotonic_ns()
        interval = watch(name, 0.01)
        assert started <= interval.before.at_ns < interval.after.at_ns and interval.seconds >= 0.01


def test_an_inspection_lets_go_of_its_mapping(name):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
        inspection = Inspection(name)
        assert maps_of(name) == ["r--s"], "it is mapped read-only"
        del inspection
        gc.collect()
        assert maps_of(name) == []


def maps_of(name):
    """How a segment is mapped under its name. The server maps it before it has one."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[1] for line in lines if line.endswith(f"rollway.{name}")]
