"""One process: what each call of a ring of rollouts does."""

import pickle

import numpy as np
import pytest

import rollway
from rollway import RolloutRingBuffer
from rollway.ring import RolloutRing

DIMS = {"num_envs": 3, "num_steps": 5, "obs_dim": 4, "action_dim": 2}


@pytest.fixture
def ring(name):
    with RolloutRingBuffer(**DIMS, shm_name_prefix=name) as ring:
        yield ring


def write(ring, number, version=0):
    with ring.writing(version=version) as rollout:
        for array in rollout.values():
            array[...] = number


def read(ring):
    """The number of the next rollout, which must be whole."""
    assert ring.wait_for_data(5)
    numbers = {float(x) for array in ring.read_numpy_views().values() for x in array.ravel()}
    ring.advance_read()
    assert len(numbers) == 1
    return numbers.pop()


def test_the_fields_are_those_of_unilab_in_float32(ring):
    assert ring.slot_shapes == {
        "obs": (3, 5, 4),
        "actions": (3, 5, 2),
        "log_probs": (3, 5),
        "rewards": (3, 5),
        "dones": (3, 5),
        "truncated": (3, 5),
        "last_obs": (3, 4),
    }
    assert {array.dtype for array in ring.write_buffer.values()} == {np.dtype(np.float32)}
    assert set(ring.name) == set(ring.slot_shapes) and len(set(ring.name.values())) == 1


def test_the_critic_has_fields_of_its_own_when_it_has_dimensions(name):
    with RolloutRingBuffer(**DIMS, critic_dim=7, shm_name_prefix=name) as ring:
        assert ring.slot_shapes["critic"] == (3, 5, 7) and ring.slot_shapes["last_critic"] == (3, 7)


def test_rollouts_come_out_in_order_and_whole(ring):
    for number in range(4):
        write(ring, number)
    assert ring.available() == 4
    assert [read(ring) for _ in range(4)] == [0, 1, 2, 3]
    assert ring.available() == 0 and not ring.wait_for_data(0.01)


def test_the_documented_calls_alone_are_enough(ring, torch):
    buffer = ring.write_buffer
    assert all(np.shares_memory(buffer[field], ring.write_buffer[field]) for field in buffer)
    for array in buffer.values():
        array[:] = 3
    written = ring.write_slot
    ring.attach_sync_primitives(None, None)
    ring.signal_write_done()
    assert ring.available() == 1 and ring.wait_for_data(timeout=1.0) and ring.read_slot == written
    assert ring.read_torch("cpu")["obs"].sum() == 3 * 3 * 5 * 4
    assert ring.available() == 1
    ring.advance_read()
    assert ring.available() == 0


def test_a_full_ring_drops_the_oldest_and_counts_it(ring):
    for number in range(10):
        write(ring, number)
    assert [read(ring) for _ in range(4)] == [6, 7, 8, 9]
    assert ring.stats()["dropped_oldest"] == 6


def test_a_slot_that_is_being_read_is_never_overwritten(ring):
    write(ring, 1)
    assert ring.wait_for_data(1)
    views = ring.read_numpy_views()
    for number in range(2, 20):
        write(ring, number)
        assert all((view == 1).all() for view in views.values())
    ring.advance_read()
    for number in range(20, 40):
        write(ring, number)
        assert all((view == 1).all() for view in views.values()), "kept too long, and overwritten"
    del views
    assert [read(ring) for _ in range(3)] == [37, 38, 39]


def test_a_rollout_in_the_readers_hands_cannot_be_dropped_between_waiting_and_reading(ring):
    write(ring, 1)
    assert ring.wait_for_data(1)
    for number in range(2, 20):
        write(ring, number)
    assert read(ring) == 1


def test_a_blocking_ring_makes_the_writer_wait(name):
    with RolloutRingBuffer(**DIMS, num_slots=2, on_full="block", shm_name_prefix=name) as ring:
        write(ring, 1)
        write(ring, 2)
        assert not ring.wait_for_slot(0.01)
        with pytest.raises(rollway.WaitTimeout, match="no room"), ring.writing(timeout=0.01):
            pass
        assert read(ring) == 1
        assert ring.wait_for_slot(1)
        write(ring, 3)
        assert [read(ring), read(ring)] == [2, 3]


def test_a_dropping_writer_waits_only_when_every_slot_is_in_somebodys_hands(name):
    with RolloutRingBuffer(**DIMS, num_slots=2, shm_name_prefix=name) as ring:
        other = RolloutRingBuffer(**DIMS, num_slots=2, create=False, shm_name_prefix=name)
        write(ring, 1)
        assert ring.wait_for_data(1)
        assert other.wait_for_slot(0)
        assert not ring.wait_for_slot(0.05)
        with pytest.raises(rollway.WaitTimeout, match="more num_slots"), ring.writing(timeout=0.0):
            pass
        other.abort_write()
        assert ring.wait_for_slot(1)
        other.close()


def test_an_exception_while_writing_gives_the_slot_back(ring):
    with pytest.raises(ZeroDivisionError), ring.writing() as rollout:
        rollout["obs"][:] = 1
        1 / 0
    assert ring.available() == 0 and ring.stats()["claimed_slots"] == 0
    write(ring, 2)
    assert read(ring) == 2


def test_closing_a_writer_gives_its_slot_back(ring):
    other = RolloutRingBuffer(**DIMS, create=False, shm_name_prefix=ring.name)
    other.write_buffer["obs"][:] = 1
    assert ring.stats()["claimed_slots"] == 1
    other.close()
    assert ring.stats()["claimed_slots"] == 0 and ring.available() == 0


def test_what_was_published_can_no_longer_be_written(ring):
    buffer = ring.write_buffer
    ring.signal_write_done()
    with pytest.raises(ValueError, match="read-only"):
        buffer["obs"][:] = 1


def test_views_are_read_only(ring):
    write(ring, 1)
    ring.wait_for_data(1)
    with pytest.raises(ValueError, match="read-only"):
        ring.read_numpy_views()["obs"][:] = 1


def test_the_reader_learns_the_version_and_the_writer(ring):
    other = pickle.loads(pickle.dumps(ring))
    write(ring, 1, version=11)
    write(other, 2, version=12)
    write(other, 3, version=13)
    seen = []
    for _ in range(3):
        assert ring.wait_for_data(1)
        seen.append(ring.read_info())
        ring.advance_read()
    assert [info.version for info in seen] == [11, 12, 13]
    assert [info.sequence for info in seen] == [0, 0, 1]
    assert seen[0].producer_id != seen[1].producer_id == seen[2].producer_id
    other.close()


def test_more_fields_of_any_dtype_travel_along(name, torch):
    fields = {"values": ((3, 5), np.float64), "seeds": ((3,), np.int64), "images": ((3, 5, 8, 8), np.uint8)}
    with RolloutRingBuffer(**DIMS, fields=fields, shm_name_prefix=name) as ring:
        write(ring, 7)
        assert ring.wait_for_data(1)
        tensors = ring.read_torch("cpu")
        assert {field: tensors[field].dtype for field in fields} == {
            "values": torch.float64,
            "seeds": torch.int64,
            "images": torch.uint8,
        }
        assert tensors["images"].shape == (3, 5, 8, 8) and (tensors["images"] == 7).all()
        ring.advance_read()
    with pytest.raises(rollway.InvalidArgument, match=r"'obs' as \[3\]; it must begin with \[3, 5\]"):
        RolloutRingBuffer(**DIMS, fields={"obs": ((3,), np.float32)})


def test_a_usual_field_may_have_another_dtype_and_shape(name):
    fields = {"obs": ((3, 5, 8, 8), np.uint8), "last_obs": "uint8[3,8,8]"}
    with RolloutRingBuffer(**DIMS, fields=fields, shm_name_prefix=name) as ring:
        with pickle.loads(pickle.dumps(ring)) as writer:
            write(writer, 7)
        assert ring.wait_for_data(1)
        views = ring.read_numpy_views()
        assert (views["obs"] == np.full((3, 5, 8, 8), 7, np.uint8)).all() and views["obs"].dtype == np.uint8
        assert views["last_obs"].shape == (3, 8, 8)


def test_tensors_are_filled_in_place_and_checked(ring, torch):
    write(ring, 4)
    ring.wait_for_data(1)
    mine = {field: torch.zeros(shape) for field, shape in ring.slot_shapes.items()}
    ring.copy_read_slot_to_torch(mine)
    assert all((tensor == 4).all() for tensor in mine.values())
    with pytest.raises(rollway.InvalidArgument, match="no field"):
        ring.copy_read_slot_to_torch({"nothing": torch.zeros(1)})
    with pytest.raises(rollway.InvalidArgument, match="'obs'"):
        ring.copy_read_slot_to_torch({"obs": torch.zeros(1)})


def test_tensors_that_were_read_are_the_readers_own(ring, torch):
    write(ring, 1)
    ring.wait_for_data(1)
    tensors = ring.read_torch("cpu")
    ring.advance_read()
    for number in range(2, 12):
        write(ring, number)
    assert all((tensor == 1).all() for tensor in tensors.values())


def test_reading_nothing_and_publishing_nothing_are_clear_errors(ring):
    with pytest.raises(rollway.WaitTimeout, match="wait_for_data"):
        ring.read_numpy_views()
    ring.advance_read()
    with RolloutRing(**DIMS) as own, pytest.raises(rollway.InvalidArgument, match="write_buffer"):
        own.signal_write_done()


def test_attaching_checks_shapes_and_slots(ring):
    with pytest.raises(rollway.SchemaMismatch, match="actions"):
        RolloutRingBuffer(3, 5, 4, 9, create=False, shm_name_prefix=ring.name)
    with pytest.raises(rollway.errors.GeometryMismatch, match="num_slots is 9 here but 4"):
        RolloutRingBuffer(**DIMS, num_slots=9, create=False, shm_name_prefix=ring.name)
    with pytest.raises(rollway.InvalidArgument, match="one segment"):
        RolloutRingBuffer(**DIMS, create=False, shm_name_prefix={"obs": "a", "actions": "b"})
    with pytest.raises(rollway.InvalidArgument, match="shm_name_prefix"):
        RolloutRingBuffer(**DIMS, create=False)
    with pytest.raises(rollway.SegmentNotFound):
        RolloutRingBuffer(**DIMS, create=False, shm_name_prefix="nobody-made-this")


@pytest.mark.parametrize(
    "wrong", [{"num_envs": 0}, {"obs_dim": -1}, {"critic_dim": -1}, {"num_slots": 1}, {"num_slots": -1}]
)
def test_impossible_sizes_are_refused(wrong):
    with pytest.raises(rollway.InvalidArgument, match=next(iter(wrong))):
        RolloutRingBuffer(**{**DIMS, **wrong})


def test_an_attached_handle_can_read(ring):
    other = RolloutRingBuffer(**DIMS, create=False, shm_name_prefix=ring.name)
    write(ring, 5)
    assert read(other) == 5
    other.close()
    write(ring, 6)
    assert read(ring) == 6, "a second reader that leaves must not shut the ring"


def test_writers_hear_that_the_ring_is_closed(name):
    ring = RolloutRingBuffer(**DIMS, shm_name_prefix=name)
    other = pickle.loads(pickle.dumps(ring))
    buffer = other.write_buffer
    ring.cleanup()
    buffer["obs"][:] = 1
    with pytest.raises(rollway.ConnectionClosedError):
        other.signal_write_done()
    with pytest.raises(rollway.ConnectionClosedError):
        other.write_buffer
    other.close()
    other.close()
    with pytest.raises(rollway.ConnectionClosedError, match="closed"):
        ring.wait_for_data(0)
    assert "closed" in repr(ring)


def test_a_version_that_is_none_is_refused_and_the_rollout_stays(ring):
    ring.write_buffer["rewards"][:] = 3
    for version in (-1, 2**32):
        with pytest.raises(rollway.InvalidArgument, match="version"):
            ring.signal_write_done(version=version)
        with pytest.raises(rollway.InvalidArgument, match="version"), ring.writing(version=version):
            pytest.fail("the block is not entered")
    with pytest.raises(TypeError):
        ring.signal_write_done(version="7")
    ring.signal_write_done(version=2**32 - 1)
    assert ring.wait_for_data(10) and ring.read_info().version == 2**32 - 1
    assert (ring.read_numpy_views()["rewards"] == 3).all()


def test_a_field_without_dimensions_is_an_array_too(torch):
    with RolloutRingBuffer(**DIMS, fields={"loss": ((), "f4")}) as ring:
        write(ring, 7)
        assert ring.wait_for_data(10) and ring.read_torch("cpu")["loss"].item() == 7
        loss = torch.zeros(())
        ring.copy_read_slot_to_torch({"loss": loss})
        view = ring.read_numpy_views()["loss"]
        assert loss.item() == 7 and view.shape == () and not view.flags.writeable
