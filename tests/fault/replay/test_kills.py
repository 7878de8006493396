"""ReplayBuffer under death: adders killed in the middle of an add, or stopped while the others lap them."""

import itertools
import os
import random
import signal

import numpy as np
import pytest

from rollway import ReplayBuffer
from rollway.errors import RowsOverrun
from tests.support.processes import Ledger, forked, until

WIDTH = 200


def add(buffer, worker, ledger, index):
    """Rows of one number each, in runs of changing length; never ends."""
    number = 0
    while True:
        value = np.full(1 + number % 97, worker * 100_000 + number % 100_000, np.float32)
        wide = np.repeat(value[:, None], WIDTH, 1)
        buffer.add(wide, wide[:, :1], value, wide, value, value)
        number += 1
        ledger.note(index, number)


def check(batch):
    rewards = batch["rewards"]
    assert (batch["obs"] == rewards[:, None]).all() and (batch["next_obs"] == rewards[:, None]).all(), "a torn row"
    assert (batch["dones"] == rewards).all() and (batch["truncated"] == rewards).all(), "a torn row"


def stop_in_an_add(buffer, adder, ledger):
    """Stops it with rows in its hands; gives how many."""
    for _ in range(200):
        os.kill(adder, signal.SIGSTOP)
        until(lambda: os.waitpid(adder, os.WUNTRACED | os.WNOHANG)[0] == adder)
        held = buffer.stats()["writing"]
        if held:
            return held
        before = ledger.read(0)
        os.kill(adder, signal.SIGCONT)
        until(lambda before=before: ledger.read(0) > before)
    raise AssertionError("it was never stopped in the middle of an add")


def test_killed_adders_leave_no_torn_row():
    rng = random.Random(0)
    capacity, kills = 500, 40
    ledger = Ledger(4 + kills)
    with ReplayBuffer(capacity, WIDTH, 1, "cpu") as buffer:
        alive = {worker: forked(add, buffer, worker, ledger, worker) for worker in range(4)}
        index = {worker: worker for worker in alive}
        assert buffer.wait_for(1, timeout=30)
        for kill in range(kills):
            for _ in range(rng.randrange(1, 6)):
                check(buffer.sample(300))
            victim = rng.randrange(4)
            os.kill(alive[victim], signal.SIGKILL)
            os.waitpid(alive[victim], 0)
            index[victim] = 4 + kill
            alive[victim] = forked(add, buffer, victim, ledger, 4 + kill)
        for worker, number in index.items():
            until(lambda number=number: ledger.read(number) > 0, timeout=30)  # each of the last ones gets through
            os.kill(alive[worker], signal.SIGKILL)
            os.waitpid(alive[worker], 0)
        stats = buffer.stats()
        assert stats["writing"] == 0 and stats["rows"] == len(buffer), "the dead hold nothing"
        assert stats["rows"] > capacity / 2
        buffer.add(
            *(np.full((2 * capacity, *shape), 7, np.float32) for shape in ((WIDTH,), (1,), (), (WIDTH,), (), ()))
        )
        assert len(buffer) == capacity and set(buffer.sample(4000)["rewards"].tolist()) == {7.0}


def test_a_stopped_adder_is_passed_over_and_its_rows_are_whole_when_it_goes_on():
    capacity = 300
    ledger = Ledger(2)
    with ReplayBuffer(capacity, WIDTH, 1, "cpu") as buffer:
        adder = forked(add, buffer, 1, ledger, 0)
        try:
            assert buffer.wait_for(capacity, timeout=30)
            held = stop_in_an_add(buffer, adder, ledger)
            rows = [np.full((capacity, *shape), 9, np.float32) for shape in ((WIDTH,), (1,), (), (WIDTH,), (), ())]
            for _ in range(3):  # the others go round it
                buffer.add(*rows)
            assert buffer.stats()["writing"] == held, "a stopped process is not dead"
            assert set(buffer.sample(3000)["rewards"].tolist()) == {9.0}
            before = ledger.read(0)
            os.kill(adder, signal.SIGCONT)
            until(lambda: ledger.read(0) > before + 20)
            for _ in range(20):
                check(buffer.sample(300))
        finally:
            os.kill(adder, signal.SIGKILL)
            os.waitpid(adder, 0)


def test_a_buffer_whose_only_row_is_being_written_for_ever_says_so():
    ledger = Ledger(1)
    with ReplayBuffer(1, 100_000, 1, "cpu") as buffer:
        adder = forked(add_wide, buffer, ledger)
        try:
            assert buffer.wait_for(1, timeout=30)
            stop_in_an_add(buffer, adder, ledger)
            with pytest.raises(RowsOverrun, match="overwritten faster than they can be read"):
                buffer.sample(1)
        finally:
            os.kill(adder, signal.SIGKILL)
            os.waitpid(adder, 0)


def add_wide(buffer, ledger):
    wide, narrow = np.zeros((1, 100_000), np.float32), np.zeros(1, np.float32)
    for number in itertools.count(1):
        buffer.add(wide, wide[:, :1], narrow, wide, narrow, narrow)
        ledger.note(0, number)
