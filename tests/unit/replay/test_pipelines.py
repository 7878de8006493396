"""ReplayPipeline: the next batch is ready, stays as it is, and failures reach the caller."""

import gc
import os
import threading

import numpy as np
import pytest

from rollway import ConnectionClosedError, InvalidArgument, ReplayBuffer, ReplayPipeline
from rollway.errors import BufferEmpty, NotInThisProcess
from tests.support.processes import until


def add(buffer, *values):
    column = np.array(values, np.float32)
    buffer.add(column[:, None], column[:, None], column, column[:, None], column, column)


@pytest.fixture
def buffer():
    with ReplayBuffer(100, 1, 1, "cpu", seed=3) as made:
        yield made


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "rollway-replay"]


def test_batches_come_one_after_the_other(buffer, torch):
    add(buffer, *range(50))
    with ReplayPipeline(buffer, sample_count=32, base_seed=9) as pipeline:
        got = [pipeline.next(timeout=30)["obs"].clone() for _ in range(5)]
    buffer.reseed(9)
    assert all(torch.equal(batch, buffer.sample(32)["obs"]) for batch in got), "the draws of the seed, in order"


def test_a_batch_stays_as_it_is_until_the_next_call(buffer, torch):
    add(buffer, 1, 2, 3)
    with ReplayPipeline(buffer, sample_count=8) as pipeline:
        batch = pipeline.next()
        before = {name: tensor.clone() for name, tensor in batch.items()}
        until(lambda: pipeline.batch_ready(1, 8) or pipeline._kitchen.is_ready())  # the one after it is made
        assert all(torch.equal(batch[name], before[name]) for name in before)


def test_one_may_wait_without_end(buffer):
    add(buffer, 7)
    with ReplayPipeline(buffer, sample_count=2) as pipeline:
        assert pipeline.next(timeout=float("inf"))["rewards"].tolist() == [7, 7]


def test_a_field_that_the_learner_replaced_is_fresh_in_later_batches(buffer, torch):
    add(buffer, *[1] * 100)
    with ReplayPipeline(buffer, sample_count=4) as pipeline:
        for _ in range(4):
            batch = pipeline.next(timeout=30)
            assert len(batch) == 6 and batch["obs"].unique().tolist() == [1]
            batch["obs"] = batch["obs"] * 10
            batch["mine"] = batch.pop("dones")


@pytest.mark.parametrize("device", ["cpu:0", "torch.device"])
def test_the_cpu_may_be_called_by_any_of_its_names(device, torch):
    device = torch.device("cpu") if device == "torch.device" else device
    with ReplayBuffer(10, 1, 1, device) as buffer:
        add(buffer, 7)
        for given in (None, device):
            with ReplayPipeline(buffer, sample_count=2, device=given) as pipeline:
                assert pipeline.next(timeout=30)["rewards"].tolist() == [7, 7]


def test_it_is_an_iterator_that_ends_when_it_is_closed(buffer):
    add(buffer, 1)
    pipeline = ReplayPipeline(buffer, sample_count=2)
    taken = 0
    for batch in pipeline:
        assert batch["rewards"].tolist() == [1, 1]
        taken += 1
        if taken == 3:
            pipeline.close()
    assert taken == 3


def test_ticks_name_their_batches(buffer):
    add(buffer, 1, 2)
    with ReplayPipeline(buffer, sample_count=4) as pipeline:
        assert not pipeline.batch_ready(0, 4)
        assert pipeline.start_prepare(0, 4, min_snapshot_ptr=2)
        assert not pipeline.start_prepare(0, 4), "it is under way"
        with pytest.raises(InvalidArgument, match="tick 0 is not used yet"):
            pipeline.start_prepare(1, 4)
        assert pipeline.wait_until_ready(0, 4) and pipeline.batch_ready(0, 4)
        batch = pipeline.sample_large_batch(0, 4)
        assert pipeline.sample_large_batch(0, 4) is batch, "the same until after_tick"
        with pytest.raises(InvalidArgument, match="tick 0 is in use"):
            pipeline.sample_large_batch(1, 4)
        assert pipeline.start_prepare(1, 4)
        pipeline.after_tick()
        assert pipeline.sample_large_batch(1, 4) is not batch
        with pytest.raises(InvalidArgument, match="only 2 rows"):
            pipeline.start_prepare(2, 4, min_snapshot_ptr=3)
        with pytest.raises(InvalidArgument, match="batches of 4"):
            pipeline.start_prepare(2, 5)


def test_a_failure_of_the_thread_is_raised_by_the_next_call_and_the_one_after_tries_again(buffer, torch):
    with ReplayPipeline(buffer, sample_count=4) as pipeline:
        pipeline.start_prepare(0, 4)
        with pytest.raises(BufferEmpty):
            pipeline.next(timeout=30)
        with pytest.raises(BufferEmpty):
            pipeline.next(timeout=30)
        add(buffer, 7)
        assert pipeline.next(timeout=30)["obs"].eq(7).all()
    with pytest.raises(ConnectionClosedError):
        pipeline.next()


def test_a_buffer_that_closes_under_it_is_an_error(buffer):
    add(buffer, 1)
    with ReplayPipeline(buffer, sample_count=4) as pipeline:
        pipeline.next()
        buffer.close()
        with pytest.raises(ConnectionClosedError):
            for _ in range(3):
                pipeline.next(timeout=30)


def test_the_thread_ends_with_its_pipeline(buffer):
    add(buffer, 1)
    pipeline = ReplayPipeline(buffer, sample_count=4)
    pipeline.next()
    assert len(threads()) == 1
    pipeline.close()
    pipeline.close()
    assert not threads()
    forgotten = ReplayPipeline(buffer, sample_count=4)
    forgotten.next()
    del forgotten
    gc.collect()
    assert not threads()


def test_a_forked_child_is_told_to_make_its_own(buffer, torch):
    add(buffer, 1)
    with ReplayPipeline(buffer, sample_count=4) as pipeline:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                pipeline.next(timeout=5)
            except NotInThisProcess:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert pipeline.next(timeout=30)["obs"].eq(1).all()


def test_bad_arguments_are_refused(buffer, torch):
    with pytest.raises(InvalidArgument, match="sample_count"):
        ReplayPipeline(buffer, sample_count=0)
    with pytest.raises(InvalidArgument, match="'cpu' or on a CUDA"):
        ReplayPipeline(buffer, sample_count=1, device="meta")
    assert not threads()
