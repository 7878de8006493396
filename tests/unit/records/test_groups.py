"""Groups from records in any order: complete, duplicate, dead, late, stale; and what becomes of the incomplete."""

import gc
import random

import numpy as np
import pytest

import rollway
from rollway import GroupAssembler, RecordKey

SCHEMA = {"tokens": "int32[*]"}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def server():
    with rollway.RecordServer(SCHEMA) as server:
        yield server


@pytest.fixture
def send(server):
    """Sends one record through shared memory and gives it back as read."""

    def send(instance, repetition, *, step=0, phase="train", version=0, tombstone=False):
        key = RecordKey("run", phase, step, instance, repetition)
        if tombstone:
            server.submit({"tokens": []}, version=version)  # makes the producer
            server.read().release()
            server._producer.tombstone(key, "dropped", version=version)
        else:
            server.submit({"tokens": [repetition]}, key=key, version=version)
        return server.read()

    return send


def held(server):
    return server.stats()["taken_records"]


def test_groups_come_out_whole_whatever_the_order(server, send):
    assembler = GroupAssembler(4)
    order = [(str(instance), repetition) for instance in range(8) for repetition in range(4)]
    random.Random(1).shuffle(order)
    for instance, repetition in order:
        assembler.add(send(instance, repetition))
    groups = list(assembler)
    assert sorted(group.key.instance_id for group in groups) == [str(i) for i in range(8)]
    for group in groups:
        assert group.is_complete and [record["tokens"].tolist() for record in group.records] == [[0], [1], [2], [3]]
        group.release()
    assert held(server) == 0 and assembler.pending == 0 and assembler.counts.complete == 8


def test_epochs_and_phases_do_not_mix(send):
    assembler = GroupAssembler(2)
    for step, phase in ((0, "train"), (1, "train"), (0, "eval")):
        assembler.add(send("task", 0, step=step, phase=phase))
    assert assembler.pop() is None and assembler.pending == 3
    assembler.add(send("task", 1, step=1))
    assert assembler.pop().key == ("run", "train", 1, "task")


def test_a_duplicate_is_released_and_counted(server, send):
    assembler = GroupAssembler(2)
    assembler.add(send("a", 0))
    assembler.add(send("a", 0))
    assert assembler.counts.duplicates == 1 and held(server) == 1
    assembler.close()
    assert held(server) == 0


def test_a_straggler_does_not_begin_a_finished_group_anew(server, send):
    assembler = GroupAssembler(2)
    assembler.add(send("a", 0))
    assembler.add(send("a", 1))
    assembler.pop().release()
    assembler.add(send("a", 1))
    assert assembler.counts.late == 1 and assembler.pending == 0 and held(server) == 0


@pytest.mark.parametrize(("policy", "handed_over"), [("wait", False), ("drop", False), ("partial", True)])
def test_a_group_with_a_tombstone_is_settled_when_the_rest_is_there(server, send, policy, handed_over):
    assembler = GroupAssembler(3, on_incomplete=policy)
    assembler.add(send("a", 0))
    assembler.add(send("a", 1, tombstone=True))
    assert assembler.pop() is None
    assembler.add(send("a", 2))
    group = assembler.pop()
    assert (group is not None) == handed_over
    if group is not None:
        assert group.missing == [1] and group.tombstones == {1: "dropped"} and not group.is_complete
        group.release()
    assert held(server) == 0 and assembler.pending == 0


def test_a_group_of_tombstones_is_told_of(server, send):
    for policy in ("partial", "wait"):
        assembler = GroupAssembler(2, on_incomplete=policy)
        for repetition in range(2):
            assembler.add(send("a", repetition, tombstone=True))
        group = assembler.pop()
        assert assembler.counts.dead == 1 and held(server) == 0
        if policy == "partial":
            assert group.records == [] and group.missing == [0, 1] and group.tombstones == {0: "dropped", 1: "dropped"}
        else:
            assert group is None


def test_one_tombstone_may_speak_for_the_whole_group(server, send):
    assembler = GroupAssembler(3, on_incomplete="partial")
    assembler.add(send("a", 1))
    assert assembler.held == 1
    assembler.add(send("a", rollway.records.key.WHOLE_GROUP, tombstone=True))
    group = assembler.pop()
    assert [record.key.repetition_id for record in group.records] == [1] and group.missing == [0, 2]
    assert group.key.whole == RecordKey("run", "train", 0, "a", -1)
    assembler.add(send("b", -1, tombstone=True))
    assert assembler.pop().records == []


@pytest.mark.parametrize("policy", ["drop", "partial"])
def test_a_deadline_settles_what_is_incomplete(server, send, policy):
    clock = Clock()
    assembler = GroupAssembler(2, on_incomplete=policy, group_timeout_s=5, clock=clock)
    assembler.add(send("a", 1))
    assert assembler.next_deadline_s == 5 and assembler.missing() == {("run", "train", 0, "a"): [0]}
    clock.now += 5.1
    group = assembler.pop()
    if policy == "partial":
        assert group.missing == [0] and [record.key.repetition_id for record in group.records] == [1]
        group.release()
    else:
        assert group is None and assembler.counts.dropped == 1
    assert held(server) == 0 and assembler.next_deadline_s is None


def test_memory_is_bounded(server, send):
    assembler = GroupAssembler(2, max_groups=3)
    for instance in range(10):
        assembler.add(send(str(instance), 0))
    assert assembler.pending == 3 and assembler.counts.evicted == 7 and held(server) == 3
    assembler.close()


def test_a_group_that_is_over_when_it_is_first_heard_of_takes_no_others_room(server, send):
    assembler = GroupAssembler(2, max_groups=1)
    assembler.add(send("a", 0))
    assembler.add(send("b", rollway.records.key.WHOLE_GROUP, tombstone=True))
    assert assembler.counts.dead == 1 and assembler.counts.evicted == 0
    assembler.add(send("a", 1))
    assert assembler.pop().is_complete


def test_finished_groups_are_forgotten_in_the_end(send):
    assembler = GroupAssembler(1, memory=2)
    for instance in ("a", "b", "c", "a"):
        assembler.add(send(instance, 0))
    assert assembler.counts.late == 0 and len(list(assembler)) == 4


def test_stale_records_are_dropped(server, send):
    assembler = GroupAssembler(2, max_staleness=1, on_incomplete="partial")
    assembler.set_version(5)
    assembler.add(send("a", 0, version=3))
    assembler.add(send("a", 1, version=4))
    group = assembler.pop()
    assert group.missing == [0] and "2 versions behind" in group.tombstones[0] and group.staleness == 1
    assert assembler.counts.stale == 1 and held(server) == 1


def test_stale_groups_are_withheld_or_reported(send):
    for policy in ("withhold", "report"):
        assembler = GroupAssembler(1, max_staleness=1, on_stale=policy)
        assembler.set_version(5)
        assembler.add(send("a", 0, version=1))
        withheld, reported = assembler.pop_withheld(), assembler.pop()
        assert (withheld is None, reported is None) == (policy == "report", policy == "withhold")
        assert (withheld or reported).staleness == 4


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("policy", ["wait", "partial"])
def test_records_that_age_in_the_assembler_are_dropped(server, send, policy, ready):
    assembler = GroupAssembler(2, max_staleness=1, on_incomplete=policy)
    assembler.add(send("a", 0, version=0))
    if ready:
        assembler.add(send("a", 1, version=3))
        assembler.set_version(4)
    else:
        assembler.set_version(4)
        assembler.add(send("a", 1, version=3))
    group = assembler.pop()
    assert assembler.counts.stale == 1 and assembler.counts.complete == 0
    if policy == "partial":
        assert [record.version for record in group.records] == [3] and group.staleness == 1
        assert group.missing == [0] and group.tombstones == {0: "stale: 4 versions behind"}
        assert assembler.counts.partial == 1 and held(server) == 1
        group.release()
    else:
        assert group is None and assembler.counts.dropped == 1
    assert held(server) == 0


def test_a_group_that_is_all_stale_by_the_time_it_is_popped_is_dead(server, send):
    for policy in ("partial", "wait"):
        assembler = GroupAssembler(1, max_staleness=1, on_incomplete=policy)
        assembler.add(send("a", 0))
        assembler.set_version(9)
        group = assembler.pop()
        assert (group is None) == (policy == "wait") and held(server) == 0
        assert assembler.counts.dead == 1 and assembler.counts.stale == 1 and assembler.counts.dropped == 0


def test_a_ready_group_that_ages_is_withheld_or_reported(send):
    for policy in ("withhold", "report"):
        assembler = GroupAssembler(1, max_staleness=1, on_stale=policy)
        assembler.add(send("a", 0, version=1))
        assembler.set_version(4)
        if policy == "withhold":
            assert assembler.pop() is None and assembler.counts.withheld == 1 and assembler.counts.complete == 0
            assembler.set_version(5)
            assert assembler.pop_withheld().staleness == 4
        else:
            assert assembler.pop().staleness == 3 and assembler.counts.complete == 1


def test_a_record_newer_than_the_version_told_of_is_not_stale(send):
    assembler = GroupAssembler(1, max_staleness=0)
    assembler.add(send("a", 0, version=5))
    assert assembler.pop().staleness == 0


def test_withheld_groups_are_bounded(server, send):
    assembler = GroupAssembler(1, max_staleness=0, on_stale="withhold", max_groups=2)
    assembler.set_version(5)
    for instance in "abcde":
        assembler.add(send(instance, 0))
    assert assembler.counts.withheld == 5 and assembler.counts.evicted == 3 and held(server) == 2
    assert [assembler.pop_withheld().key.instance_id for _ in range(2)] == ["d", "e"]


def test_giving_up_settles_a_group(server, send):
    assembler = GroupAssembler(3, on_incomplete="partial")
    record = send("a", 0)
    key = record.key
    assembler.add(record)
    del record
    assembler.give_up(key, "its worker is gone")
    group = assembler.pop()
    assert group.tombstones == {1: "its worker is gone", 2: "its worker is gone"}
    assembler.give_up(key)
    assert assembler.pop() is None


def test_the_same_record_given_twice_is_not_released_while_it_is_held(server, send):
    assembler = GroupAssembler(2)
    record = send("a", 0)
    assembler.add(record)
    assembler.add(record)
    assert (assembler.counts.duplicates, record.released) == (1, False)
    assembler.add(send("a", 1))
    assert [one["tokens"].tolist() for one in assembler.pop().records] == [[0], [1]]


def test_a_size_that_is_not_whole_is_refused():
    with pytest.raises(TypeError):
        GroupAssembler(2.5)


def test_what_is_no_group_record_is_refused(server, send):
    assembler = GroupAssembler(2)
    server.submit({"tokens": []})
    with pytest.raises(rollway.InvalidArgument, match="needs a key"):
        assembler.add(server.read())
    with pytest.raises(rollway.InvalidArgument, match="outside a group of 2"):
        assembler.add(send("a", 2))


@pytest.mark.parametrize(
    "bad",
    [
        {"size": 0},
        {"size": 1, "on_incomplete": "x"},
        {"size": 1, "on_stale": "x"},
        {"size": 1, "group_timeout_s": 1},
        {"size": 1, "on_incomplete": "drop", "group_timeout_s": -1.0},
        {"size": 1, "on_incomplete": "drop", "group_timeout_s": float("nan")},
        {"size": 1, "max_staleness": -1},
    ],
)
def test_settings_that_mean_nothing_are_refused(bad):
    with pytest.raises(rollway.InvalidArgument):
        GroupAssembler(**bad)


def test_a_group_knows_its_oldest_weights_and_what_its_leaves_are_filled_with(server, send):
    assembler = GroupAssembler(2)
    assembler.set_version(9)
    for repetition, version in ((1, 5), (0, 7)):
        ready = assembler.add(send("a", repetition, version=version))
    assert ready == 1
    group = assembler.pop()
    assert (group.version, group.staleness) == (5, 4) and group.key is group.key
    assert "instance_id='a'" in repr(group) and "records=2" in repr(group)
    assert group.filled_with("tokens", np.int32(1).tobytes()) == [1]
    with pytest.raises(KeyError):
        group.filled_with("token", b"1234")
    for odd in (b"", b"12345"):
        with pytest.raises(rollway.InvalidArgument, match="tokens"):
            group.filled_with("tokens", odd)
    group.release()
    with pytest.raises(rollway.InvalidArgument, match="released"):
        group.filled_with("tokens", np.int32(1).tobytes())


def test_an_empty_leaf_is_filled_with_anything(server):
    assembler = GroupAssembler(1)
    for instance, tokens in (("a", []), ("b", [1, 2, 1]), ("c", [1, 1, 1])):
        server.submit({"tokens": tokens}, key=RecordKey("run", "train", 0, instance, 0))
        assembler.add(server.read())
    assert [group.filled_with("tokens", np.int32(1).tobytes()) for group in assembler] == [[0], [], [0]]


def test_a_record_tells_its_phase_and_how_its_metadata_begins(server):
    server.submit({"tokens": []}, key=RecordKey("run", "eval", 0, "a", 0), metadata={"size": 2, "more": []})
    with server.read() as record:
        assert record.phase == "eval"
        assert record.metadata_starts(b'{"size":2,') and not record.metadata_starts(b'{"size":21')
    with pytest.raises(rollway.InvalidArgument, match="released"):
        record.metadata_starts(b"{")
    server.submit({"tokens": []})
    with server.read() as bare:
        assert bare.phase is None and bare.metadata_starts(b"") and not bare.metadata_starts(b"{")


def test_a_clock_that_fails_is_heard_and_loses_nothing(server, send):
    def clock():
        raise RuntimeError("no time")

    assembler = GroupAssembler(1, clock=clock)
    record = send("a", 0)
    with pytest.raises(RuntimeError, match="no time"):
        assembler.add(record)
    assert not record.released and assembler.held == 0


@pytest.mark.parametrize("bad", [None, -1, 2**32, "1"])
def test_a_version_that_is_none_is_refused(bad):
    with pytest.raises((TypeError, rollway.InvalidArgument)):
        GroupAssembler(1).set_version(bad)


def test_what_is_no_record_is_refused():
    with pytest.raises(TypeError):
        GroupAssembler(1).add("a record")


def test_a_clock_that_holds_on_to_its_assembler_keeps_nothing_alive(server, send):
    class Trainer:
        def __init__(self):
            self.assembler = GroupAssembler(2, clock=self.now)

        def now(self):
            return 1.0

    trainer = Trainer()
    trainer.assembler.add(send("a", 0))
    assert held(server) == 1
    del trainer
    gc.collect()
    assert held(server) == 0


def test_the_old_name_of_the_timeout_works_with_a_warning():
    with pytest.warns(DeprecationWarning, match="'deadline_s' is deprecated: use 'group_timeout_s'") as seen:
        assembler = GroupAssembler(2, on_incomplete="drop", deadline_s=5)
    assert seen[0].filename == __file__ and assembler.size == 2
    with pytest.raises(rollway.InvalidArgument), pytest.warns(DeprecationWarning):
        GroupAssembler(2, on_incomplete="drop", deadline_s=-5)
    with pytest.raises(TypeError, match="got both 'group_timeout_s' and 'deadline_s'"):
        GroupAssembler(2, on_incomplete="drop", deadline_s=5, group_timeout_s=5)
