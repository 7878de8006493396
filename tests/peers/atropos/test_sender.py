"""An environment's end of the line: groups leave whole, or the learner is told; keys never come twice."""

import asyncio
import signal

import numpy as np
import pytest

import rollway
from rollway.integrations.atropos import ATROPOS_SCHEMA, GroupReader, decode_group, encode_group
from rollway.integrations.atropos import group_sender as module
from rollway.integrations.atropos.group_sender import GroupSender, TcpGroupSender
from tests.support.processes import until
from tests.support.segments import overwrite

SECONDS = 20.0


def group(size=3, length=8):
    tokens = [[repetition] * length for repetition in range(size)]
    return {"tokens": tokens, "masks": tokens, "scores": [float(repetition) for repetition in range(size)]}


@pytest.fixture
def learner(name):
    with rollway.RecordServer(ATROPOS_SCHEMA, rollway.ShmTransport(name), lane_bytes=64 << 10) as server:
        yield server


@pytest.fixture
def sender(learner):
    sender = GroupSender(rollway.ShmRecordClient(learner.name, ATROPOS_SCHEMA, on_full="block"), "run")
    yield sender
    sender.close()


def test_keys_name_the_instance_and_how_often_it_came(learner, sender):
    async def run():
        return [await sender.send(group(), instance, 0) for instance in ("a", "b", "a")]

    keys = asyncio.run(run())
    assert [(key.instance_id, key.step) for key in keys] == [("a", 0), ("b", 0), ("a", 1)]
    reader = GroupReader(learner)
    assert [reader.read(SECONDS).key for _ in range(3)] == keys


def test_a_whole_number_is_a_name_as_good_as_text(learner, sender):
    async def run():
        return [await sender.send(group(), instance, 0) for instance in (17, np.int64(17), "17")]

    keys = asyncio.run(run())
    assert [(key.instance_id, key.step) for key in keys] == [("17", 0), ("17", 1), ("17", 2)]
    assert GroupReader(learner).read(SECONDS).key == keys[0]


@pytest.mark.parametrize("called", [None, 1.5, True, ("a",), b"a", "\ud800"])
def test_what_is_no_name_is_refused_before_anything_is_sent(learner, sender, called):
    with pytest.raises(TypeError, match="must be text or a whole number, not"):
        asyncio.run(sender.send(group(), called, 0))
    assert learner.try_read() is None


def test_another_start_is_another_run(learner, sender):
    again = GroupSender(rollway.ShmRecordClient(learner.name, ATROPOS_SCHEMA), "run")
    assert again.run != sender.run
    again.close()


def test_keys_stay_new_when_old_instances_are_forgotten(learner, sender, monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED", 2)
    keys = [sender._next_key(instance) for instance in "aabcabcdabcda"]
    assert len(set(keys)) == len(keys)
    assert len(sender._visits) == 2


def room_for_one_record_less(learner, sender):
    """Fills the lane until a group finds room for a part of it only; gives back what fills it."""
    client, held = sender._client, []
    record = {leaf: np.zeros(0, ATROPOS_SCHEMA[leaf].partition("[")[0]) for leaf in ATROPOS_SCHEMA}
    record |= {"score": np.array(0.0), "tokens": np.zeros(3000, np.int32)}
    while client.try_send(record):
        held += learner.try_read_many(1)
    return held


def test_a_send_that_is_cancelled_before_its_first_record_sends_nothing(learner, sender):
    async def run():
        held = room_for_one_record_less(learner, sender)
        sending = asyncio.create_task(sender.send(group(length=2500), "a", 0))
        await asyncio.sleep(0)  # it has begun, and waits for room
        assert not sending.done()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        for record in held:
            record.release()
        await sender.send(group(), "b", 0)

    asyncio.run(run())
    assert [record.key.instance_id for record in learner.read_many(10, SECONDS)] == ["b"] * 3


def test_a_send_that_is_cancelled_in_the_middle_sends_the_rest(learner, sender):
    async def run():
        held = room_for_one_record_less(learner, sender)
        for record in held[:2]:
            record.release()
        sending = asyncio.create_task(sender.send(group(size=8, length=600), "a", 0))
        while not learner.stats()["ready_records"]:
            await asyncio.sleep(0)
        assert not sending.done(), "there was room for some of it only"
        sending.cancel()
        sending.cancel()
        for record in held:
            record.release()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(sending, SECONDS)

    asyncio.run(run())
    assert sender.groups_sent == 1
    whole = GroupReader(learner).read(SECONDS)
    assert decode_group(whole.records) == group(size=8, length=600)


@pytest.mark.parametrize(
    "large",
    [group(size=3, length=5_000), {**group(), "images": ["x" * 30_000] * 3}, {**group(), "images": "x" * 30_000}],
    ids=["tokens", "images", "an image for all"],
)
def test_a_group_that_is_larger_than_a_lane_ends_as_a_tombstone(learner, sender, large):
    async def run():
        async with asyncio.timeout(SECONDS):
            with pytest.raises(rollway.errors.RecordTooLarge, match=r"a group of 3 .* does not fit into a lane"):
                await sender.send(large, "a", 0)
            await sender.send(group(), "b", 0)

    asyncio.run(run())
    records = learner.read_many(10, SECONDS)
    assert [(record.key.instance_id, record.is_tombstone) for record in records] == [("a", True), *[("b", False)] * 3]
    assert "larger lane_bytes" in records[0].metadata["reason"]


@pytest.mark.parametrize("lengths", [[5_000] * 3, [4, 20_000, 4]], ids=["together", "one of them"])
def test_over_tcp_a_group_that_is_larger_than_the_lane_is_buried_too(lengths):
    large = group()
    large["tokens"] = large["masks"] = [[1] * length for length in lengths]

    async def run(sender):
        with pytest.raises(rollway.errors.RecordTooLarge, match=r"a group of 3 .* does not fit into a lane of 65,536"):
            await sender.send(large, "a", 0)
        await sender.send(group(), "b", 0)

    with rollway.RecordServer(ATROPOS_SCHEMA, rollway.TcpTransport(), lane_bytes=64 << 10) as learner:
        client = rollway.TcpRecordClient("localhost", learner.port, ATROPOS_SCHEMA)
        assert client.stats()["lane_bytes"] == 64 << 10
        sender = TcpGroupSender(client, "run")
        asyncio.run(run(sender))
        sender.close()
        records = [learner.read(SECONDS) for _ in range(4)]
    assert [(record.key.instance_id, record.is_tombstone) for record in records] == [("a", True), *[("b", False)] * 3]


def test_what_cannot_be_encoded_is_buried(learner, sender):
    with pytest.raises(rollway.SchemaMismatch):
        asyncio.run(sender.send({**group(), "masks": [["x"]] * 3}, "a", 0))
    records = learner.read_many(10, SECONDS)
    assert [record.is_tombstone for record in records] == [True]
    assert "'masks' of trajectory 0" in records[0].metadata["reason"]


def test_whatever_goes_wrong_with_a_group_it_is_buried(learner, sender):
    endless = {}
    endless["again"] = endless
    with pytest.raises(RecursionError):
        asyncio.run(sender.send({**group(), "group_overrides": endless}, "a", 0))
    records = learner.read_many(10, SECONDS)
    assert [record.is_tombstone for record in records] == [True]
    assert "recursion" in records[0].metadata["reason"]


def test_a_reason_that_is_larger_than_the_lane_is_cut(learner, sender):
    with pytest.raises(rollway.SchemaMismatch):
        asyncio.run(sender.send({**group(), "tokens": {"a": "x" * 200_000}}, "a", 0))
    (record,) = learner.read_many(10, SECONDS)
    assert record.is_tombstone
    assert record.metadata["reason"].startswith("a group needs 'tokens'")


def test_a_tombstone_that_waits_for_room_is_sent_though_its_task_is_cancelled(learner, sender):
    async def run():
        held = room_for_one_record_less(learner, sender)
        while sender._client.try_send(encode_group(group())[0].data):
            held += learner.try_read_many(1)
        burying = asyncio.create_task(sender.tombstone("a", 0, "x" * 900))
        await asyncio.sleep(0)
        burying.cancel()
        await asyncio.sleep(0)
        assert not burying.done()
        for record in held:
            record.release()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(burying, SECONDS)

    asyncio.run(run())
    assert [record.key.instance_id for record in learner.read_many(10, SECONDS)] == ["a"]


def test_what_has_grown_too_old_since_it_was_taken_is_not_handed_over(learner, sender):
    reader = GroupReader(learner, max_staleness=2)

    async def send(*groups):
        for size, instance, version in groups:
            await sender.send(group(size=size), instance, version)

    asyncio.run(send((4, "a", 1)))
    assert reader.read(SECONDS).key.instance_id == "a"
    asyncio.run(send((2, "b", 1), (2, "c", 1)))
    assert reader.read(SECONDS).key.instance_id == "b"  # both were taken, as many records as the group before had
    learner.publish(4)
    asyncio.run(send((2, "d", 4)))
    assert reader.read(SECONDS).key.instance_id == "d"


def test_the_reader_skips_what_was_given_up_half_way(learner, sender):
    mixed = group()
    mixed["tokens"][2] = mixed["masks"][2] = [1] * 20_000

    async def run():
        with pytest.raises(rollway.RollwayError):
            await sender.send(mixed, "a", 0)
        await sender.tombstone("b", 0, "all scores are equal")
        await sender.send(group(size=2), "c", 0)

    asyncio.run(run())
    reader = GroupReader(learner)
    assert reader.read(SECONDS).key.instance_id == "c"
    assert (reader.pending, reader.tombstones) == (0, 2)
    with pytest.raises(rollway.WaitTimeout, match="0 are incomplete; 2 were given up"):
        reader.read(0.01)


def test_a_group_that_is_too_old_is_not_handed_over(learner, sender):
    async def run():
        await sender.send(group(), "old", 1)
        await sender.send(group(), "new", 3)

    asyncio.run(run())
    learner.publish(4)
    assert GroupReader(learner, max_staleness=2).read(SECONDS).key.instance_id == "new"


def test_a_group_that_grew_too_old_in_the_reader_is_not_handed_over(learner, sender):
    async def run():
        await sender.send(group(), "first", 1)
        await sender.send(group(), "old", 1)
        await sender.send(group(size=2), "other size, old", 1)
        await sender.send(group(), "new", 3)

    asyncio.run(run())
    learner.publish(1)
    reader = GroupReader(learner, max_staleness=2)
    reader.read(SECONDS).release()
    learner.publish(4)
    second = reader.read(SECONDS)
    assert (second.key.instance_id, second.staleness) == ("new", 1)
    second.release()
    with pytest.raises(rollway.WaitTimeout):
        reader.read(0)
    assert learner.stats()["taken_records"] == 0, "those that are too old were released"


@pytest.mark.parametrize(
    ("label", "complaint"),
    [
        ({"metadata": {"group_size": 1}}, "a record without a key came from producer"),
        (
            {"key": rollway.RecordKey("r", "train", 0, "odd", 0)},
            "'odd', 0\\) does not come from an Atropos environment",
        ),
        ({"key": rollway.RecordKey("r", "train", 0, "odd", 0), "metadata": {"group_size": "x"}}, "'odd'.*metadata is"),
        ({"key": rollway.RecordKey("r", "train", 0, "odd", 7), "metadata": {"group_size": 2}}, "'odd', 7"),
        ({"key": rollway.RecordKey("r", "train", 0, "odd", 0), "metadata": {"group_size": 10**12}}, "'odd', 0"),
    ],
)
def test_an_odd_record_is_named_and_the_others_are_read(learner, sender, label, complaint):
    asyncio.run(sender.send(group(), "a", 0))
    learner.submit(encode_group(group())[0].data, **label)
    asyncio.run(sender.send(group(), "b", 0))
    reader = GroupReader(learner)
    with pytest.raises(rollway.InvalidArgument, match=complaint):
        reader.read(SECONDS)
    read = [reader.read(SECONDS) for _ in range(2)]
    assert [one.key.instance_id for one in read] == ["a", "b"]
    assert learner.stats()["taken_records"] == 2 * 3, "the odd one was released"


def test_a_record_that_cannot_be_read_costs_no_other(learner, sender):
    asyncio.run(sender.send(group(), "a", 0))
    odd = encode_group(group(size=1))[0]
    learner.submit(odd.data, key=rollway.RecordKey("r", "train", 0, "odd", 0), metadata="this will be no JSON")
    overwrite(learner.name, b'"this will be no JSON"', b"!this will be no JSON!")
    asyncio.run(sender.send(group(), "b", 0))
    reader = GroupReader(learner)
    with pytest.raises(rollway.InvalidArgument, match="is not JSON"):
        reader.read(SECONDS)
    assert [reader.read(SECONDS).key.instance_id for _ in range(2)] == ["a", "b"]


def test_a_reason_with_half_a_character_is_told_to_the_learner(learner, sender):
    asyncio.run(sender.tombstone("a", 0, "it had \ud800 in it"))
    told = learner.read(SECONDS)
    assert told.is_tombstone and told.metadata == {"reason": "it had \ud800 in it"}


def test_after_the_learner_has_closed_there_is_nobody_to_generate_for(learner, sender):
    learner.close()
    assert sender.closed
    with pytest.raises(rollway.ConnectionClosedError, match="the learner has closed the records"):
        sender.status()
    with pytest.raises(rollway.ConnectionClosedError):
        asyncio.run(sender.send(group(), "a", 0))


def test_the_half_group_of_a_killed_environment_stays_half(learner, child):
    environment = """
        import asyncio, os, signal, sys
        import rollway
        from rollway.integrations.atropos import ATROPOS_SCHEMA
        from rollway.integrations.atropos.group_sender import GroupSender

        class Doomed(rollway.ShmRecordClient):
            left = int(sys.argv[2])

            async def send_async(self, *args, **kwargs):
                if self.left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                self.left -= 1
                return await super().send_async(*args, **kwargs)

        async def run():
            sender = GroupSender(Doomed(sys.argv[1], ATROPOS_SCHEMA), "run")
            tokens = [[1], [2], [3]]
            for instance in "ab":
                await sender.send({"tokens": tokens, "masks": tokens, "scores": [1.0, 2.0, 3.0]}, instance, 0)

        asyncio.run(run())
    """
    first, second = child(environment, learner.name, 4), child(environment, learner.name, 99)
    first.ends(-signal.SIGKILL)
    second.ends()
    reader = GroupReader(learner, group_timeout_s=0.2)
    whole = [reader.read(SECONDS).key for _ in range(3)]
    assert sorted(key.instance_id for key in whole) == ["a", "a", "b"]
    assert len({key.run for key in whole}) == 2
    with pytest.raises(rollway.WaitTimeout, match="0 are incomplete"):
        reader.read(1.0)
    stats = learner.stats()
    assert (stats["records_committed"], stats["ready_records"], stats["taken_records"]) == (10, 0, 0)


def test_a_learner_that_died_and_does_not_come_back_is_told_to_the_caller(name, child):
    dead = child(
        """
        import sys, rollway
        from rollway.integrations.atropos import ATROPOS_SCHEMA
        server = rollway.RecordServer(ATROPOS_SCHEMA, rollway.ShmTransport(sys.argv[1]), lane_bytes=64 << 10)
        print("there", flush=True)
        sys.stdin.readline()
        """,
        name,
    )
    dead.says("there")
    client = rollway.ShmRecordClient(name, ATROPOS_SCHEMA, on_full="block", peer_timeout_s=0.2)
    dead.kill()

    async def run():
        sender = GroupSender(client, "run")
        while True:
            await sender.send(group(length=1000), "a", 0)

    with pytest.raises(rollway.PeerDied):
        asyncio.run(asyncio.wait_for(run(), SECONDS))
    client.close()
    until(lambda: any(segment.name == name for segment in rollway.gc()))


def test_an_environment_that_only_waits_hears_of_its_learners_death(name, child, monkeypatch):
    monkeypatch.setattr(module, "_ALONE_S", 0.05)
    learner = child(
        """
        import sys, rollway
        from rollway.integrations.atropos import ATROPOS_SCHEMA
        server = rollway.RecordServer(ATROPOS_SCHEMA, rollway.ShmTransport(sys.argv[1]))
        print("there", flush=True)
        sys.stdin.readline()
        """,
        name,
    )
    learner.says("there")
    sender = GroupSender(rollway.ShmRecordClient(name, ATROPOS_SCHEMA), "run")
    assert sender.status() == (0, 0)
    learner.kill()

    def has_heard():
        try:
            sender.status()
        except rollway.PeerDied:
            return True
        return False

    until(has_heard)
    sender.close()
    rollway.gc()


# ── over TCP, where the learner says what waits ─────────────────────────────────────────────────────────────────────


def test_over_tcp_what_waits_is_what_the_learner_has_not_taken_and_what_is_on_its_way():
    with rollway.RecordServer(ATROPOS_SCHEMA, rollway.TcpTransport()) as learner:
        senders = [
            TcpGroupSender(rollway.TcpRecordClient("localhost", learner.port, ATROPOS_SCHEMA), "run") for _ in range(2)
        ]

        for sender in senders:
            asyncio.run(sender.send(group(), "a", 0))
            assert sender.status()[1] >= 3, "its own at least, at once"
            sender._client.wait(SECONDS)  # so that the groups lie one after the other
        until(lambda: [sender.status() for sender in senders] == [(0, 6), (0, 6)])
        reader = GroupReader(learner)
        held = reader.read(SECONDS)
        learner.publish(4)
        until(lambda: [sender.status() for sender in senders] == [(4, 3), (4, 3)])
        held.release()
        learner.close()
        until(lambda: senders[0].closed)
        with pytest.raises(rollway.ConnectionClosedError, match="the learner has closed the records"):
            senders[0].status()
        for sender in senders:
            sender.close()


def test_a_reader_that_holds_much_of_what_an_environment_has_room_for_is_told_so(learner, sender):
    async def run():
        for _ in range(2):
            await sender.send(group(size=2, length=1_500), "a", 0)

    asyncio.run(run())
    reader = GroupReader(learner)
    held = [reader.read(SECONDS) for _ in range(2)]
    with pytest.raises(rollway.WaitTimeout, match="A lane has room for 65,536 bytes and 64 records; held are"):
        reader.read(0.01)
    for one in held:
        one.release()
    with pytest.raises(rollway.WaitTimeout, match=r"1 producers attached, 0 died\.$"):
        reader.read(0.01)


@pytest.mark.parametrize("setting", [{"group_timeout_s": -1.0}, {"max_staleness": -1}, {"max_groups": 0}])
def test_settings_that_mean_nothing_are_refused_before_the_first_record(learner, setting):
    with pytest.raises(rollway.InvalidArgument, match=next(iter(setting))):
        GroupReader(learner, **setting)


def test_a_reader_that_waits_in_vain_says_who_is_there_and_who_was_not_let_in():
    with rollway.RecordServer(ATROPOS_SCHEMA, rollway.TcpTransport()) as learner:
        with pytest.raises(rollway.SchemaMismatch):
            rollway.TcpRecordClient("localhost", learner.port, {"tokens": "int64[*]"})
        until(lambda: learner.refusals)
        with pytest.raises(
            rollway.WaitTimeout, match=r"0 are incomplete.*producers attached.*Last refused worker: .*tokens"
        ):
            GroupReader(learner).read(0.01)
