"""`log_to`: the numbers of a server in TensorBoard and in Weights & Biases, in one line."""

import threading

import numpy as np
import pytest

import rollway
from rollway.metrics import log_to

EXAMPLE = {"x": np.zeros(4, np.float32)}


class Scalars:
    """A writer that keeps what it is given, and says when."""

    def __init__(self):
        self.rows, self.came = [], threading.Semaphore(0)

    def add_scalar(self, name, value, step):
        self.rows.append((name, value, step))
        if name == "rollway/ready_samples":
            self.came.release()


def test_numbers_rates_shares_and_quantiles_are_written():
    writer = Scalars()
    with rollway.Server(EXAMPLE, 2) as server, log_to(writer, server, every_s=3600) as log:
        log.write()
        first = dict((name, value) for name, value, _ in writer.rows)
        for _ in range(4):
            server.submit(EXAMPLE)
        server.sample().release()
        writer.rows.clear()
        log.write()
        second = dict((name, value) for name, value, _ in writer.rows)
    assert first["rollway/ready_samples"] == 0 and not any(name.endswith(("_per_s", "_share")) for name in first)
    assert second["rollway/ready_samples"] == 2 and second["rollway/samples_released"] == 2
    assert second["rollway/samples_released_per_s"] > 0
    assert second["rollway/bytes"] > 0 and "rollway/bytes_per_s" not in second  # the size of the ring
    assert 0 <= second["rollway/learners_hold_share"] <= 1
    assert second["rollway/queue_dwell_p99_s"] > 0
    assert not any(name.endswith("_ns") for name in second)
    assert all(type(value) is float for value in second.values())


def test_it_writes_again_and_again_and_once_at_the_end():
    writer = Scalars()
    with rollway.Server(EXAMPLE, 2) as server, log_to(writer, server, every_s=0.001):
        for _ in range(3):
            assert writer.came.acquire(timeout=30)
    with rollway.Server(EXAMPLE, 2) as server, log_to(last := Scalars(), server, every_s=3600):
        server.submit(EXAMPLE)
    assert [value for name, value, _ in last.rows if name == "rollway/ready_samples"] == [1]


def test_the_step_and_the_prefix_are_those_of_the_caller():
    writer = Scalars()
    with rollway.ReplayBuffer(2, 1, 1) as buffer, log_to(writer, buffer, prefix="replay", step=lambda: 17):
        pass
    assert {step for _, _, step in writer.rows} == {17}
    assert {name.partition("/")[0] for name, _, _ in writer.rows} == {"replay"}


class Full(Scalars):
    def add_scalar(self, name, value, step):
        self.came.release()
        raise OSError("no space left")


def test_what_the_writer_raises_is_raised_by_the_end_of_the_block():
    writer = Full()
    with rollway.Server(EXAMPLE, 2) as server:
        with pytest.raises(OSError, match="no space left"), log_to(writer, server, every_s=0.001):
            assert writer.came.acquire(timeout=30)
        with pytest.raises(OSError, match="no space left"), log_to(writer, server, every_s=3600):
            pass
        with pytest.raises(KeyError), log_to(writer, server, every_s=3600):
            raise KeyError("of the block")


def test_what_is_no_writer_and_no_time_is_refused():
    with rollway.Server(EXAMPLE, 2) as server:
        with pytest.raises(
            rollway.InvalidArgument, match=r"writer = 5 has neither add_scalar nor log: give a TensorBoard writer"
        ):
            log_to(5, server)
        for bad in (0, -1, float("nan"), float("inf")):
            with pytest.raises(rollway.InvalidArgument, match=r"every_s = .* is out of range: more than 0"):
                log_to(Scalars(), server, bad)


def test_tensorboard_reads_the_numbers_back(tmp_path, tensorboard):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary import Writer
    from tensorboard.util.tensor_util import make_ndarray

    writer = Writer(str(tmp_path))
    with rollway.Server(EXAMPLE, 2) as server, log_to(writer, server, step=lambda: 3):
        server.submit(EXAMPLE)
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload().Tensors("rollway/ready_samples")
    assert [(event.step, make_ndarray(event.tensor_proto)) for event in events] == [(3, 1)]


def test_the_writer_of_torch_takes_the_numbers(tmp_path, torch, tensorboard):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        with rollway.Server(EXAMPLE, 2) as server, log_to(writer, server, step=lambda: 3):
            server.submit(EXAMPLE)
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("rollway/ready_samples")
    assert [(event.step, event.value) for event in events] == [(3, 1)]
