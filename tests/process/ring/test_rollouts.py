"""Rollouts between real processes: spawned and forked writers, a reader that is lapped."""

import multiprocessing as mp
import os
import signal

import numpy as np
import pytest

import rollway
from rollway import RolloutRingBuffer
from tests.support.processes import until

DIMS = {"num_envs": 4, "num_steps": 8, "obs_dim": 16, "action_dim": 2}


def write_many(ring, worker, count):
    for number in range(count):
        with ring.writing(version=number) as rollout:
            for array in rollout.values():
                array[...] = worker * 100_000 + number
    ring.close()


def fill_half_and_wait(ring, ready):
    ring.write_buffer["obs"][:] = -1
    ready.set()
    signal.pause()


def read(ring):
    """The number of the rollout in hand, which must be whole."""
    numbers = {float(array.flat[0]) for array in ring.read_numpy_views().values()}
    assert len(numbers) == 1 and all((a == a.flat[0]).all() for a in ring.read_numpy_views().values()), "torn"
    return int(numbers.pop())


@pytest.mark.parametrize(("method", "on_full"), [("spawn", "drop_oldest"), ("fork", "drop_oldest"), ("fork", "block")])
def test_writers_that_lap_the_reader_never_tear_a_rollout(name, method, on_full):
    writers, count = 2, 400
    with RolloutRingBuffer(**DIMS, num_slots=4, on_full=on_full, shm_name_prefix=name) as ring:
        context = mp.get_context(method)
        processes = [context.Process(target=write_many, args=(ring, worker, count)) for worker in range(writers)]
        for process in processes:
            process.start()
        seen = {worker: [] for worker in range(writers)}
        while any(process.is_alive() for process in processes) or ring.available():
            if not ring.wait_for_data(0.1):
                continue
            if on_full == "drop_oldest" and not any(seen.values()):
                until(lambda: ring.stats()["dropped_oldest"] >= 20)  # lapped five times with this one in hand
            worker, number = divmod(read(ring), 100_000)
            info = ring.read_info()
            assert info.version == number == info.sequence
            seen[worker].append(number)
            ring.advance_read()
        for process in processes:
            process.join()
            assert process.exitcode == 0
        for numbers in seen.values():
            assert numbers == sorted(set(numbers)), "a writer's rollouts came twice or out of order"
        dropped = ring.stats()["dropped_oldest"]
        assert sum(map(len, seen.values())) + dropped == writers * count
        assert on_full == "drop_oldest" or dropped == 0
        assert any(numbers[-1:] == [count - 1] for numbers in seen.values()), "the newest rollout was dropped"


def test_a_writer_killed_while_filling_gives_its_slot_back(name):
    with RolloutRingBuffer(**DIMS, num_slots=2, on_full="block", shm_name_prefix=name) as ring:
        context = mp.get_context("fork")
        for number in range(2):
            ready = context.Event()
            process = context.Process(target=fill_half_and_wait, args=(ring, ready))
            process.start()
            assert ready.wait(30)
            assert ring.stats()["claimed_slots"] == 1
            process.kill()
            process.join()
            for again in range(2):  # needs both slots: the dead writer's is one of them
                with ring.writing(timeout=10) as rollout:
                    for array in rollout.values():
                        array[...] = 10 * number + again
            seen = set()
            for _ in range(2):
                assert ring.wait_for_data(10)
                seen.add(read(ring))
                ring.advance_read()
            assert seen == {10 * number, 10 * number + 1}
        assert ring.stats()["recovered_slots"] == 2


def test_a_forked_child_leaves_its_parents_slot_and_rollout_alone(name):
    with RolloutRingBuffer(**DIMS, num_slots=4, shm_name_prefix=name) as ring:
        with ring.writing() as rollout:
            for array in rollout.values():
                array[...] = 1
        assert ring.wait_for_data(1)
        mine = ring.write_buffer
        mine["obs"][:] = 2
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert not np.shares_memory(ring.write_buffer["obs"], mine["obs"])
                for array in ring.write_buffer.values():
                    array[...] = 3
                ring.signal_write_done()
                ring.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert read(ring) == 1
        ring.advance_read()
        for array in mine.values():
            array[...] = 2
        ring.signal_write_done()
        numbers = []
        while ring.wait_for_data(0.2):
            numbers.append(read(ring))
            ring.advance_read()
        assert sorted(numbers) == [2, 3]


def test_a_blocked_writer_hears_that_the_reader_has_left(name):
    with RolloutRingBuffer(**DIMS, num_slots=2, on_full="block", shm_name_prefix=name) as ring:
        process = mp.get_context("fork").Process(target=_write_until_closed, args=(ring,))
        process.start()
        until(lambda: ring.stats()["blocked"] > 0)
    process.join(20)
    assert process.exitcode == 7


def _write_until_closed(ring):
    try:
        write_many(ring, 0, 10**9)
    except rollway.ConnectionClosedError:
        os._exit(7)
