"""Statistics of observations: the latest, and the running estimate, against numpy."""

import multiprocessing as mp
import os
import pickle
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollway
from rollway import RunningObsStats, SharedObsNormStats
from rollway.weights.running_obs_stats import Moments
from tests.support.processes import forked


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def stats(name):
    stats = SharedObsNormStats(mp.get_context("spawn"), name=name)
    yield stats
    stats.cleanup()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(5,), (1, 7), ()])
def test_what_is_put_is_got_once(stats, dtype, shape):
    assert stats.get() is None
    mean, std = np.full(shape, 0.1, dtype), np.full(shape, 0.3, dtype)
    stats.put((mean, std))
    got = stats.get()
    for ours, theirs in zip(got, (mean, std), strict=True):
        assert ours.dtype == dtype and ours.shape == shape and (ours == theirs).all()
    assert stats.get() is None


def test_only_the_latest_counts_and_its_arrays_are_the_readers_own(stats, torch):
    for number in range(10):
        stats.put((np.full(3, number, np.float32), np.ones(3, np.float32)))
    mean, _ = stats.get()
    stats.put((torch.full((4,), 77.0), torch.ones(4)))
    later, _ = stats.get()
    assert mean.tolist() == [9, 9, 9] and later.tolist() == [77] * 4


def test_every_handle_gets_for_itself(stats):
    other = pickle.loads(pickle.dumps(stats))
    stats.put((np.zeros(2), np.ones(2)))
    assert other.get() is not None and other.get() is None and stats.get() is not None
    other.close()


def get_by_name(name, answers):
    with SharedObsNormStats(name=name) as stats:
        answers.send(stats.get()[0].tolist())


def test_others_join_by_the_name_while_somebody_puts(stats):
    stats.put((np.full(2, 7.0), np.ones(2)))
    with SharedObsNormStats(name=stats.name) as other:
        assert other.get()[0].tolist() == [7, 7]
        other.put((np.full(2, 6.0), np.ones(2)))
        assert stats.get()[0].tolist() == [6, 6], "any of them may put"
        stats.put((np.full(2, 7.0), np.ones(2)))
    mine, theirs = mp.Pipe()
    pid = forked(get_by_name, stats.name, theirs)
    assert mine.poll(30) and mine.recv() == [7, 7] and ended(pid) == 0
    stats.put((np.full(2, 8.0), np.ones(2)))
    assert stats.get()[0].tolist() == [8, 8]


def join_at_once(name, barrier):
    for _ in range(20):
        barrier.wait(30)
        with SharedObsNormStats(name=name, max_obs_dim=4):
            barrier.wait(30)  # Nobody leaves before all are there.


def test_all_may_come_at_the_same_moment(name):
    barrier = mp.get_context("fork").Barrier(4)
    pids = [forked(join_at_once, name, barrier) for _ in range(4)]
    assert [ended(pid) for pid in pids] == [0] * 4


def join_and_put(name, barrier):
    for _ in range(50):
        barrier.wait(30)
        with SharedObsNormStats(name=name, max_obs_dim=4) as stats:
            stats.put((np.zeros(4), np.ones(4)))
            barrier.wait(30)


def only_join(name, barrier):
    for _ in range(50):
        barrier.wait(30)
        with SharedObsNormStats(name=name, max_obs_dim=4):
            barrier.wait(30)


def test_one_may_put_in_the_moment_in_which_another_makes_it(name):
    barrier = mp.get_context("fork").Barrier(3)
    pids = [forked(work, name, barrier) for work in (join_and_put, only_join, only_join)]
    assert [ended(pid) for pid in pids] == [0] * 3


def die_with_another_size(name):
    SharedObsNormStats(name=name, max_obs_dim=3)
    os.kill(os.getpid(), signal.SIGKILL)


def test_another_max_obs_dim_is_refused_by_the_living_and_replaces_what_the_dead_left(name):
    assert ended(forked(die_with_another_size, name)) == -signal.SIGKILL
    with SharedObsNormStats(name=name, max_obs_dim=5) as stats:
        stats.put((np.zeros(5), np.ones(5)))
        with pytest.raises(rollway.SchemaMismatch, match="moments"):
            SharedObsNormStats(name=name, max_obs_dim=3)


@pytest.mark.parametrize(
    ("mean", "std", "words"),
    [
        (np.zeros(2), np.ones(3), "one shape"),
        (np.zeros(20_000), np.ones(20_000), "max_obs_dim"),
        (np.zeros(2, int), np.ones(2, int), "float32"),
        (np.zeros(2, np.float32), np.ones(2), "float32 and float64"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(stats, mean, std, words):
    with pytest.raises(rollway.InvalidArgument, match=words):
        stats.put((mean, std))
    assert stats.get() is None


def put_for_ever(stats):
    number = 0
    while True:
        number += 1
        stats.put((np.full(4000, number, np.float64), np.full(4000, -number, np.float64)))


def test_a_writer_that_never_stops_and_is_killed_tears_nothing(stats):
    for _ in range(3):
        pid = forked(put_for_ever, stats)
        seen = []
        while len(seen) < 200:
            if (got := stats.get()) is not None:
                mean, std = got
                assert (mean == mean[0]).all() and (std == -mean[0]).all(), "torn"
                seen.append(mean[0])
        os.kill(pid, signal.SIGKILL)
        assert ended(pid) == -signal.SIGKILL
        assert seen == sorted(seen)
        stats.get()


rows = st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=2), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, min_size=1, max_size=6), st.randoms())
def test_the_merged_estimate_is_that_of_numpy_in_any_order(batches, random):
    data = np.concatenate([np.array(batch) for batch in batches])
    shuffled = list(batches)
    random.shuffle(shuffled)
    for order in (batches, shuffled):
        merged = sum((Moments.of(np.array(batch)) for batch in order), start=Moments.none(2))
        assert merged.count == len(data)
        np.testing.assert_allclose(merged.mean, data.mean(axis=0), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(merged.std, data.std(axis=0), rtol=1e-9, atol=1e-6)


def test_large_offsets_do_not_eat_the_variance():
    data = 1e8 + np.random.default_rng(0).normal(size=(10_000, 3))
    merged = sum((Moments.of(part) for part in np.array_split(data, 97)), start=Moments.none(3))
    np.testing.assert_allclose(merged.std, data.std(axis=0), rtol=1e-7)


def add_all(stats, index, parts):
    for part in parts:
        stats.update(index, part)


def add_and_die(stats, index, parts):
    add_all(stats, index, parts)
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_dead_collectors_added_stays_and_their_successors_go_on():
    data = np.random.default_rng(1).normal(3, 2, size=(3, 40, 5, 4)).astype(np.float32)
    with RunningObsStats(obs_dim=4, num_collectors=3) as stats:
        assert stats.merged().count == 0 and stats.merged().std.tolist() == [1] * 4
        pids = [forked(add_and_die, stats, index, data[index][:20]) for index in range(3)]
        assert [ended(pid) for pid in pids] == [-signal.SIGKILL] * 3
        assert stats.merged().count == 3 * 20 * 5
        pids = [forked(add_all, stats, index, data[index][20:]) for index in range(3)]
        assert [ended(pid) for pid in pids] == [0] * 3
        merged, flat = stats.merged(), data.reshape(-1, 4).astype(np.float64)
    assert merged.count == len(flat)
    np.testing.assert_allclose(merged.mean, flat.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(merged.std, flat.std(axis=0), rtol=1e-10)


def test_a_pickled_handle_adds_to_the_same_numbers(torch):
    with RunningObsStats(obs_dim=2, num_collectors=2) as stats:
        with pickle.loads(pickle.dumps(stats)) as other:
            other.update(1, torch.ones(3, 2))
            stats.update(0, np.zeros((3, 2)))
            assert stats.merged().mean.tolist() == other.merged().mean.tolist() == [0.5, 0.5]


def test_wrong_numbers_and_shapes_are_refused():
    with RunningObsStats(obs_dim=2, num_collectors=1) as stats:
        stats.update(0, np.zeros((0, 2)))
        for index, rows in ((1, np.zeros((1, 2))), (0, np.zeros((1, 3))), (0, np.float64(1))):
            with pytest.raises(rollway.InvalidArgument):
                stats.update(index, rows)
        assert stats.merged().count == 0
    with pytest.raises(rollway.InvalidArgument, match="obs_dim"):
        RunningObsStats(0, 1)


def test_the_repr_of_a_closed_one_says_so():
    with SharedObsNormStats() as stats:
        assert "version 0" in repr(stats)
    assert repr(stats) == f"<rollway.SharedObsNormStats {stats.name} closed>"
