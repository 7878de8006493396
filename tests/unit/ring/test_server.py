"""The Server within one process: batches, waiting, policies, lifetimes."""

import asyncio
import contextlib
import gc
import threading
import time
from pathlib import Path

import numpy as np
import optree
import pytest

import rollway
from rollway._core import Producer

ONE = np.zeros(1, np.int64)


def value(i):
    return np.array([i], np.int64)


def submit(server, *values):
    return [server.submit(value(v)) for v in values]


def values(sample):
    return sample.batch[:, 0].tolist()


def in_thread(call):
    """Runs a call in a thread; gives a function that waits for its result, or the exception."""
    ended = []

    def run():
        try:
            ended.append(call())
        except rollway.RollwayError as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result():
        thread.join(timeout=20)
        assert ended, "it still waits"
        return ended[0]

    return result


def test_the_length_of_a_sample_is_the_number_of_its_samples():
    example = {"obs": np.zeros(3, np.float32), "reward": np.zeros((), np.float32)}
    with rollway.Server(example, 4) as server:
        for _ in range(6):
            server.submit(example)
        sample = server.sample()
        assert len(sample) == 4 and sample["obs"].shape == (4, 3) and sample["reward"].shape == (4,)
        assert "obs" in sample and "nothing" not in sample
        assert sample["obs"] is sample.batch["obs"] and sample[0] is sample[-2] is sample.batch
        assert sample[1].batch_number == sample[-1].batch_number == sample.info.batch_number
        batch, info = sample
        assert next(iter(sample)) is batch is sample.batch and info.size == 4
        with pytest.raises(KeyError):
            sample["no such leaf"]
        for place in (2, -3, 10**30):
            with pytest.raises(IndexError, match="a sample is a pair"):
                sample[place]
        server.flush()
        assert len(server.sample()) == 2
        assert len(rollway.Sample({"obs": np.zeros((4, 3))}, info)) == 4


@pytest.mark.parametrize("transport", [None, rollway.ShmTransport()], ids=["in process", "shm"])
def test_a_batch_has_the_key_order_of_the_example(transport):
    leaf = np.zeros(1)
    example = {"z": leaf, "a": {"y": leaf, "b": (leaf, {"q": leaf, "c": leaf})}, "m": leaf}
    given = {"m": leaf + 3, "a": {"b": (leaf, {"c": leaf + 2, "q": leaf + 1}), "y": leaf}, "z": leaf}
    with rollway.Server(example, 1, transport) as server:
        for data in (example, given):
            server.submit(data)
            batch = server.sample().batch
            assert list(batch) == ["z", "a", "m"] and list(batch["a"]) == ["y", "b"]
            assert list(batch["a"]["b"][1]) == ["q", "c"]
        assert [batch["m"].item(), batch["a"]["b"][1]["c"].item(), batch["a"]["b"][1]["q"].item()] == [3, 2, 1]
        server.submit(given)
        assert list(next(server.dataset_iter(copy=True)).batch) == ["z", "a", "m"]
        if transport is not None:
            with rollway.ShmClient(server.name, given) as client, client.reserve() as slot:
                assert list(slot.tree) == ["m", "a", "z"]
                slot["m"][:] = 9
            assert server.sample(timeout=10)["m"].item() == 9


def test_a_sample_unpacks_like_echos():
    with rollway.Server(ONE, 2) as server:
        submit(server, 1, 2)
        batch, info = server.sample()
        assert batch[:, 0].tolist() == [1, 2]
        assert info.size == 2 and info.batch_number == 1
        assert info.sequences.tolist() == [0, 1] and info.producer_ids.tolist() == [0, 0]
        assert (np.diff(info.committed_ns.astype(np.int64)) >= 0).all()
        assert info.committed_ns[0] <= time.monotonic_ns()


def test_the_weight_version_travels_with_the_sample():
    with rollway.Server(ONE, 3) as server:
        server.submit(value(0), version=7)
        server.submit_many(np.ones((1, 1), np.int64), version=8)
        with server._submitter().reserve() as slot:
            slot.version = 9
            slot.tree[0] = 5
        assert server.sample().info.versions.tolist() == [7, 8, 9]


def test_echos_metrics_are_there():
    with rollway.Server(ONE, 2) as server:
        submit(server, *range(5))
        info = server.sample().info
        assert info.store_size == 3 and info.samples_inserted_total == 5 and info.queue_depth_sum == 1
        assert info.active_connections == 0 and info.push_blocked_count == 0 and info.cas_failure_total == 0
        assert info.cas_success_total == 5 and info.reservation_retries_total == 0 and info.notify_count == 0
        assert info.queue_depth_max == 1 and info.wait.count == 0
        assert info.memcpy.count == 1 and info.queue_dwell.count == 1
        assert info.queue_dwell.min_ns <= info.queue_dwell.p50_ns <= info.queue_dwell.p99_ns <= info.queue_dwell.max_ns
        server.reset_histograms()
        assert info.memcpy.count == 0
        assert "p50" in repr(info.memcpy) and "batch_number=1" in repr(info)


def test_views_are_read_only_unless_asked_for():
    with rollway.Server(ONE, 1) as server:
        submit(server, 1)
        batch = server.sample().batch
        with pytest.raises(ValueError, match="read-only"):
            batch[0] = 5
    with rollway.Server(ONE, 1, writable=True) as server:
        submit(server, 1)
        batch = server.sample().batch
        batch[0] = 5
        assert batch[0, 0] == 5


def test_a_view_keeps_its_room_until_it_is_garbage():
    with rollway.Server(ONE, 1, num_buffers=2) as server:
        submit(server, 1)
        row = server.sample().batch[0]  # only a view of a view is left of the sample
        for i in range(2, 10):
            submit(server, i)
            assert values(server.sample()) == [i]
        assert row.tolist() == [1]
        assert server.stats()["held_batches"] == 1
        del row
        gc.collect()
        assert server.stats()["held_batches"] == 0


def test_release_gives_the_room_back_at_once():
    with rollway.Server(ONE, 1, num_buffers=2) as server:
        submit(server, 1)
        with server.sample() as sample:
            assert server.stats()["held_batches"] == 1
        assert server.stats()["held_batches"] == 0
        sample.release()
        submit(server, 2)
        assert values(server.sample()) == [2]


def test_several_batches_are_held_at_once_and_all_of_them_is_an_error():
    with rollway.Server(ONE, 1, num_buffers=3) as server:
        held = []
        for i in range(3):
            submit(server, i)
            held.append(server.sample())
        assert [values(sample) for sample in held] == [[0], [1], [2]]
        with pytest.raises(
            rollway.errors.BatchesHeld, match=r"all 3 batches are held by this learner.*dataset_iter\(copy=True\)"
        ):
            server.sample()
        with pytest.raises(rollway.WaitTimeout, match=r"within 0.01 s.*This learner holds all of the ring's batches"):
            asyncio.run(server.sample_async(timeout=0.01))
        with pytest.raises(rollway.errors.BatchesHeld, match="all 3 batches are held by this learner"):
            asyncio.run(server.sample_async())


@pytest.mark.parametrize("take", [rollway.Server.sample, lambda *args: asyncio.run(rollway.Server.sample_async(*args))])
def test_batches_that_are_held_until_a_timeout_are_why_none_comes(take):
    with rollway.Server(ONE, 1, num_buffers=2) as server:
        submit(server, 0, 1)
        held = [server.sample(), server.sample()]
        with pytest.raises(rollway.errors.BatchesHeld):
            take(server, 1.4)
        del held


def test_threads_that_take_and_release_may_be_more_than_the_batches():
    with rollway.Server(ONE, 4, num_buffers=2) as server:
        seen = []

        def take():
            while (sample := server.sample()) is not None:
                with sample:
                    seen.extend(values(sample))

        takers = [in_thread(take) for _ in range(3)]
        submit(server, *range(4000))
        while len(seen) < 4000:
            time.sleep(0.001)
        server.close()
        assert [taker() for taker in takers] == [None] * 3
        assert sorted(seen) == list(range(4000))


def test_a_view_outlives_the_server():
    with rollway.Server(ONE, 1) as server:
        submit(server, 41)
        batch = server.sample().batch
    del server
    gc.collect()
    assert batch.tolist() == [[41]]


def test_sample_times_out_and_says_what_is_there():
    with rollway.Server(ONE, 4) as server:
        with pytest.raises(
            rollway.WaitTimeout, match=r"0 samples are committed, .* Wait longer, or look at the workers' logs$"
        ):
            server.sample(timeout=0.01)
        submit(server, 1, 2)
        message = (
            r"no whole batch of 4 within 0.01 s: 2 samples are committed, slots are being written by no process; 1 prod.* or take "
            r"what is there with sample\(timeout, at_least=1\)$"
        )
        with pytest.raises(rollway.WaitTimeout, match=message):
            server.sample(timeout=0.01)
        with pytest.raises(TimeoutError):
            server.sample(timeout=0)
        assert server.try_sample() is None
        submit(server, 3, 4)
        assert values(server.sample(timeout=0)) == [1, 2, 3, 4]


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_senseless_timeout_is_refused(timeout):
    with rollway.Server(ONE, 1) as server:
        with pytest.raises(ValueError, match="a timeout must be a number of seconds"):
            server.sample(timeout=timeout)
        with pytest.raises(ValueError, match="a timeout must be a number of seconds"):
            asyncio.run(server.sample_async(timeout=timeout))


@pytest.mark.parametrize(("at_least", "timeout"), [(0, 0.01), (5, 0.01), (1, None)])
def test_at_least_is_refused_where_it_could_never_be_met(at_least, timeout):
    with rollway.Server(ONE, 4) as server:
        submit(server, 1, 2, 3, 4)
        with pytest.raises(rollway.InvalidArgument, match="at_least"):
            server.sample(timeout, at_least)
        with pytest.raises(rollway.InvalidArgument, match="at_least"):
            asyncio.run(server.sample_async(timeout, at_least))
        assert values(server.sample(timeout=1)) == [1, 2, 3, 4]


def test_a_name_in_place_of_a_transport_is_refused_with_what_to_write():
    with pytest.raises(rollway.InvalidArgument, match=r"give ShmTransport\('run1'\)"):
        rollway.Server(ONE, 4, "run1")


def test_at_least_hands_over_a_short_batch_at_the_deadline():
    with rollway.Server(ONE, 4) as server:
        submit(server, 1, 2)
        with pytest.raises(rollway.WaitTimeout):
            server.sample(timeout=0.01, at_least=3)
        assert values(server.sample(timeout=0.01, at_least=2)) == [1, 2]
        submit(server, 3, 4, 5, 6)
        assert values(server.sample(timeout=1)) == [3, 4, 5, 6], "the next batch is whole again"


def test_flush_hands_over_what_is_there_and_only_then():
    with rollway.Server(ONE, 4) as server:
        server.flush()
        submit(server, 1)
        with pytest.raises(rollway.WaitTimeout):
            server.sample(timeout=0.01)
        server.flush()
        submit(server, 2, 3, 4, 5)
        assert values(server.sample(timeout=1)) in ([1], [1, 2, 3, 4])


def test_a_short_batch_with_a_gap_is_put_together():
    with rollway.Server(ONE, 4) as server:
        submit(server, 1)
        gap = server._submitter().reserve()
        submit(server, 2)
        server.flush()
        with pytest.raises(rollway.WaitTimeout, match=r"slots are being written by pid \d+ \(1\)"):
            server.sample(timeout=0.01)
        gap.abort()
        sample = server.sample(timeout=1)
        assert values(sample) == [1, 2] and sample.info.sequences.tolist() == [0, 1]
        assert server.stats()["held_batches"] == 0


def test_a_slot_held_for_long_holds_nobody_up():
    with rollway.Server(ONE, 2, num_buffers=3) as server:
        slow = server._submitter().reserve()
        submit(server, 0)
        seen = []
        for i in range(1, 21, 2):
            submit(server, i, i + 1)
            seen += values(server.sample(timeout=10))
        assert seen == [*range(1, 21)], "in order, but for what the slow one holds up"
        slow.tree[0] = 99
        slow.commit()
        assert values(server.sample(timeout=10)) == [99, 0]


def test_the_policies_when_full():
    def full(**kwargs):
        server = rollway.Server(ONE, 2, num_buffers=2, **kwargs)
        assert submit(server, 1, 2, 3, 4) == [True] * 4
        return server

    with full(on_full="block") as server:
        message = r"no room in ring '\(in process\)' within 0.01 s: 4 samples wait for the learner, 0 batches"
        with pytest.raises(rollway.WaitTimeout, match=message):
            server.submit(value(5), timeout=0.01)
        assert server._submitter().try_send(value(5)) is False and server._submitter().try_reserve() is None
        assert server.stats()["blocked"] == 1
    with (
        full(on_full="error") as server,
        pytest.raises(rollway.RingFull, match=r"ring '\(in process\)' is full: 4 samples"),
    ):
        submit(server, 5)
    with full(on_full="drop_newest") as server:
        assert submit(server, 5) == [False] and server.stats()["dropped_newest"] == 1
        assert values(server.sample()) == [1, 2]
    with full(on_full="drop_oldest") as server:
        assert submit(server, 5, 6) == [True, True] and server.stats()["dropped_oldest"] == 2
        kept = server.sample()
        assert values(kept) == [3, 4]
        assert submit(server, 7, 8) == [True, True] and server.stats()["dropped_oldest"] == 4
        assert values(kept) == [3, 4], "a batch in the learner's hands is never dropped"
        other = server.sample()
        assert values(other) == [7, 8]
        assert submit(server, 9) == [False] and server.stats()["dropped_newest"] == 1, "nothing is left to drop"


def test_send_many_says_how_far_it_came():
    with rollway.Server(ONE, 2, num_buffers=2) as server:
        with pytest.raises(rollway.WaitTimeout) as caught:
            server.submit_many(np.arange(6).reshape(6, 1), timeout=0.01)
        assert caught.value.sent == 4
        assert values(server.sample()) == [0, 1]
        assert server.submit_many(np.arange(4, 6).reshape(2, 1)) == 2
        assert values(server.sample()) == [2, 3] and values(server.sample()) == [4, 5]


def test_try_send_many_sends_what_fits():
    with rollway.Server(ONE, 2, num_buffers=2) as server:
        producer = server._submitter()
        assert producer.try_send_many(np.arange(6).reshape(6, 1)) == 4
        assert producer.try_send_many(np.arange(6).reshape(6, 1)) == 0
        assert values(server.sample()) == [0, 1] and values(server.sample()) == [2, 3]


def test_send_many_streams_more_than_the_ring_holds():
    with rollway.Server(ONE, 4, num_buffers=2) as server:
        worker = threading.Thread(target=server.submit_many, args=(np.arange(1000).reshape(1000, 1),))
        worker.start()
        seen = [v for _ in range(250) for v in values(server.sample(timeout=10))]
        worker.join()
        assert seen == list(range(1000))


def test_an_exception_in_reserve_gives_the_slot_back():
    with rollway.Server(ONE, 2) as server:
        producer = server._submitter()
        with pytest.raises(RuntimeError, match="mine"), producer.reserve() as slot:
            slot.tree[0] = 13
            raise RuntimeError("mine")
        submit(server, 1, 2)
        assert values(server.sample()) == [1, 2] and server.stats()["aborted"] == 1


def test_a_slot_cannot_be_used_after_it_is_done():
    with rollway.Server(ONE, 2) as server:
        slot = server._submitter().reserve()
        array = slot.tree
        array[0] = 1
        slot.commit()
        assert "done" in repr(slot)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2
        with pytest.raises(ValueError, match="committed or aborted already"):
            slot.commit()
        slot.abort()
        del slot
        server._submitter().reserve()  # dropped: given back
        submit(server, 2)
        assert values(server.sample()) == [1, 2]


def test_sample_from_two_threads_gives_each_batch_to_one():
    with rollway.Server(ONE, 2, num_buffers=4) as server:
        seen, lock = [], threading.Lock()

        def take():
            while (sample := server.sample(timeout=20)) is not None:
                with lock:
                    seen.extend(values(sample))
                del sample

        takers = [threading.Thread(target=take) for _ in range(3)]
        [taker.start() for taker in takers]
        submit(server, *range(2000))
        while len(seen) < 2000:
            time.sleep(0.001)
        server.close()
        [taker.join(timeout=10) for taker in takers]
        assert sorted(seen) == list(range(2000))


def test_close_wakes_everybody():
    server = rollway.Server(ONE, 2, num_buffers=2)
    submit(server, 1, 2, 3, 4)
    results = {}

    def blocked_submit():
        try:
            server.submit(value(5))
        except rollway.ConnectionClosedError as error:
            results["submit"] = str(error)

    threads = [threading.Thread(target=blocked_submit)]
    threads[0].start()
    while server.stats()["blocked"] == 0:
        time.sleep(0.001)
    idle = rollway.Server(ONE, 2)
    threads.append(threading.Thread(target=lambda: results.update(sample=idle.sample())))
    threads[1].start()
    server.close()
    idle.close()
    [thread.join(timeout=10) for thread in threads]
    assert not any(thread.is_alive() for thread in threads)
    assert results["sample"] is None and "closed" in results["submit"]


def test_closing_a_server_ends_its_own_calls_also_when_another_learner_is_attached(name):
    first, second = (rollway.Server(ONE, 1, rollway.ShmTransport(name), num_buffers=2) for _ in range(2))
    idle = in_thread(first.sample)
    first.close()
    assert idle() is None
    submit(second, 1, 2)
    assert values(second.sample()) == [1]  # and nothing was taken for the closed one
    third = rollway.Server(ONE, 1, rollway.ShmTransport(name), num_buffers=2)
    submit(second, 3)
    blocked = in_thread(lambda: third.submit(value(4)))
    while third.stats()["blocked"] == 0:
        time.sleep(0.001)
    third.close()
    assert isinstance(blocked(), rollway.ConnectionClosedError)
    assert values(second.sample()) == [2] and values(second.sample()) == [3]
    assert second.try_sample() is None and second.stats()["claimed_slots"] == 0
    second.close()


@pytest.mark.parametrize(
    "blocked_call",
    [
        lambda client: client.send(value(9)),
        lambda client: client.send_many(np.ones((2, 1), np.int64)),
        lambda client: client.reserve(),
    ],
)
def test_closing_a_client_ends_its_own_blocked_call(name, blocked_call):
    with rollway.Server(ONE, 1, rollway.ShmTransport(name), num_buffers=2) as server:
        client = rollway.ShmClient(name, ONE)
        submit(server, 1, 2)
        blocked = in_thread(lambda: blocked_call(client))
        while server.stats()["blocked"] == 0:
            time.sleep(0.001)
        client.close()
        assert "this client of" in str(blocked())
        assert [values(server.sample()), values(server.sample())] == [[1], [2]]
        assert server.try_sample() is None and server.stats()["claimed_slots"] == 0


def test_a_signal_handler_may_close_the_client_that_is_blocked(child, name):
    with rollway.Server(ONE, 1, rollway.ShmTransport(name), num_buffers=2) as server:
        submit(server, 1, 2)
        worker = child(
            """
            import signal, sys, numpy as np, rollway
            client = rollway.ShmClient(sys.argv[1], np.zeros(1, np.int64))
            signal.signal(signal.SIGTERM, lambda *_: client.close())
            try:
                client.send(np.ones(1, np.int64))
            except rollway.ConnectionClosedError as error:
                print(error)
            """,
            name,
        )
        while server.stats()["blocked"] == 0:
            time.sleep(0.001)
        worker.process.terminate()
        worker.says(f"this client of '{name}' is closed")
        worker.ends()


def test_a_closed_server_answers_with_none_and_errors():
    server = rollway.Server(ONE, 1)
    server.submit(value(1))
    server.close()
    server.close()
    assert server.closed and server.sample() is None and asyncio.run(server.sample_async()) is None
    assert list(server.dataset_iter()) == []
    with pytest.raises(rollway.ConnectionClosedError):
        server.try_sample()
    with pytest.raises(rollway.ConnectionClosedError):
        server.submit(value(1))
    assert repr(server) == "<rollway.Server (in process) batch_size=1 closed>"


def test_dataset_iter_ends_at_shutdown_and_copies_on_request():
    with rollway.Server(ONE, 1, num_buffers=2) as server:
        kept = []
        worker = threading.Thread(target=submit, args=(server, *range(10)))
        worker.start()
        for sample in server.dataset_iter(copy=True):
            kept.append(sample)
            if len(kept) == 10:
                server.close()
        worker.join()
        assert [values(sample) for sample in kept] == [[i] for i in range(10)]
        kept[0].batch[0] = 3  # ours


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size = 0 is out of range: 1 to 8,388,607"),
        ({"batch_size": 1, "num_buffers": 1}, "num_buffers = 1 is out of range: 2 to 65,535"),
        ({"batch_size": 1, "on_full": "sometimes"}, "on_full is 'sometimes'; it must be 'block', 'drop_oldest'"),
    ],
)
def test_senseless_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        rollway.Server(ONE, **arguments)


def test_async_twins_wait_without_blocking_the_loop(name):
    async def run():
        with rollway.Server(ONE, 2, rollway.ShmTransport(name), num_buffers=2) as server:
            with rollway.ShmClient(name, ONE) as client:
                waiting = asyncio.create_task(server.sample_async())
                for i in range(2):
                    await client.send_async(value(i))
                first = await asyncio.wait_for(waiting, 10)
                assert values(first) == [0, 1]
                del first, waiting

                with pytest.raises(rollway.WaitTimeout):
                    await server.sample_async(timeout=0.01)
                await client.send_async(value(5))
                short = await server.sample_async(timeout=0.01, at_least=1)
                assert values(short) == [5]
                del short

                sending = asyncio.create_task(client.send_many_async(np.arange(100).reshape(100, 1)))
                seen = []
                while len(seen) < 100:
                    seen += values(await server.sample_async(timeout=10))
                assert seen == list(range(100)) and await sending == 100

                slot = await client.reserve_async()
                slot.abort()
                for i in range(4):
                    await client.send_async(value(i))
                with pytest.raises(rollway.WaitTimeout, match="no room"):
                    await client.send_async(value(9), timeout=0.01)
                with pytest.raises(rollway.WaitTimeout):
                    await client.reserve_async(timeout=0.01)
                cancelled = asyncio.create_task(client.send_async(value(9)))
                await asyncio.sleep(0)
                cancelled.cancel()
                assert values(await server.sample_async()) == [0, 1]
                assert values(await server.sample_async()) == [2, 3]

                pending = asyncio.create_task(server.sample_async())
                await asyncio.sleep(0)
                server.close()
                assert await asyncio.wait_for(pending, 10) is None

    asyncio.run(run())


def test_a_send_many_async_that_is_ended_says_how_many_were_sent(name):
    async def main():
        with rollway.ShmClient(name, np.zeros(1)) as client:
            sending = asyncio.create_task(client.send_many_async(np.zeros((9, 1))))
            while server.stats()["ready_samples"] < 4:
                await asyncio.sleep(0.001)
            server.close()
            with pytest.raises(rollway.ConnectionClosedError) as ended:
                await sending
            assert ended.value.sent == 4

    with rollway.Server(np.zeros(1), batch_size=2, transport=rollway.ShmTransport(name), num_buffers=2) as server:
        asyncio.run(main())


def test_a_send_many_async_that_is_cancelled_says_how_many_were_sent(name):
    async def main():
        with rollway.ShmClient(name, np.zeros(1)) as client:
            sending = asyncio.create_task(client.send_many_async(np.zeros((9, 1))))
            while server.stats()["ready_samples"] < 4:
                await asyncio.sleep(0.001)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await sending
            assert cancelled.value.sent == 4
            with pytest.raises(TimeoutError) as late:
                await asyncio.wait_for(client.send_many_async(np.zeros((9, 1))), 0.01)
            assert late.value.__cause__.sent == 0

    with rollway.Server(np.zeros(1), batch_size=2, transport=rollway.ShmTransport(name), num_buffers=2) as server:
        asyncio.run(main())


class OnlyAnArray:
    """Has nothing of an array but the way to make one."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


def test_send_many_async_takes_what_send_many_takes(name):
    async def three_batches():
        return [(await server.sample_async()).batch.ravel().tolist() for _ in range(3)]

    async def main():
        with rollway.ShmClient(name, np.zeros(1)) as client:
            sending = client.send_many_async(OnlyAnArray(np.arange(6.0).reshape(6, 1)))
            assert await asyncio.gather(sending, three_batches()) == [6, [[0, 1], [2, 3], [4, 5]]]

    with rollway.Server(np.zeros(1), batch_size=2, transport=rollway.ShmTransport(name), num_buffers=2) as server:
        asyncio.run(main())


def test_sample_async_tells_that_every_worker_died(child, name):
    with rollway.Server(ONE, 2, rollway.ShmTransport(name), peer_timeout_s=0.1) as server:
        worker = child(
            "import sys, numpy as np, rollway; c = rollway.ShmClient(sys.argv[1], np.zeros(1, int)); input()", name
        )
        while server.stats()["producers_alive"] == 0:
            time.sleep(0.001)
        worker.kill()
        with pytest.raises(rollway.PeerDied, match=f"pid {worker.pid}"):
            asyncio.run(server.sample_async(timeout=20))


def test_a_cancelled_sample_async_takes_nothing():
    async def run():
        with rollway.Server(ONE, 2) as server:
            task = asyncio.create_task(server.sample_async())
            await asyncio.sleep(0.01)
            task.cancel()
            submit(server, 1, 2)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert values(await server.sample_async(timeout=10)) == [1, 2]

    asyncio.run(run())


def test_a_server_without_a_name_is_not_looked_for():
    with rollway.Server(ONE, 1) as server, pytest.raises(rollway.InvalidArgument, match="ShmTransport"):
        rollway.ShmClient(server.name, ONE)


def test_pinning_without_a_gpu_is_a_clear_error_and_leaves_nothing(name):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here: scripts/check_cuda.py checks pinning on it")
    with pytest.raises(
        rollway.errors.DeviceFailed, match=r"cannot be page-locked for CUDA: (it needs the NVIDIA driver|.* failed)"
    ):
        rollway.Server(ONE, 1, rollway.ShmTransport(name), pin_host_memory=True)


def test_a_batch_that_cannot_be_built_is_offered_again():
    refused = ["not now", "nor now"]

    class Own:
        def __init__(self, x):
            self.x = x

    def build(_, leaves):
        if leaves[0].ndim == 2 and refused:
            raise RuntimeError(refused.pop(0))
        return Own(*leaves)

    optree.register_pytree_node(Own, lambda own: ((own.x,), None, ("x",)), build, namespace="rollway")
    with rollway.Server(Own(np.zeros(1)), 1) as server:
        server.submit(Own(np.ones(1)))
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"no[tr] now"):
                server.sample(1)
        assert server.sample(1).batch.x.tolist() == [[1.0]]


def test_threads_that_submit_first_at_the_same_time_are_one_producer(monkeypatch):
    both = threading.Barrier(2)

    class Slow:
        @staticmethod
        def _of_server(*args):
            with contextlib.suppress(threading.BrokenBarrierError):  # the other does not come here, as it should be
                both.wait(0.2)
            return Producer._of_server(*args)

    monkeypatch.setattr("rollway.ring.server.Producer", Slow)
    with rollway.Server(ONE, 2) as server:
        threads = [threading.Thread(target=submit, args=(server, 1)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(server.sample().info.producer_ids.tolist())) == 1


class Closing:
    """A server's consumer, where another thread closes the server just before the given method is called."""

    def __init__(self, server, method):
        self._server, self._consumer, self._method = server, server._consumer, method
        server._consumer = self

    def __getattr__(self, name):
        if name == self._method:
            self._server.close()
        return getattr(self._consumer, name)


@pytest.mark.parametrize("method", ["producers", "holds_all", "stats", "writers"])
def test_a_wait_that_ends_while_the_server_closes_finds_it_shut_down_or_times_out(method):
    for sample in (lambda server: server.sample(0.001), lambda server: asyncio.run(server.sample_async(0.001))):
        server = rollway.Server(ONE, 1)
        Closing(server, method)
        try:
            assert sample(server) is None
        except rollway.WaitTimeout:
            assert method in ("stats", "writers")  # it was open when it was asked


@pytest.mark.parametrize("method", ["try_take_in_order", "take", "holds_all", "producers"])
def test_a_server_that_closes_while_a_coroutine_waits_ends_the_wait(method):
    server = rollway.Server(ONE, 1)

    async def wait():
        waiting = asyncio.create_task(server.sample_async())
        await asyncio.sleep(0)
        Closing(server, method)
        await asyncio.sleep(0.1)  # the first check for dead peers
        server.close()
        return await waiting

    assert asyncio.run(wait()) is None
