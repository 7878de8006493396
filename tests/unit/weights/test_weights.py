"""SharedWeightSync in one process: what is moved, what is refused, and what is left behind."""

import collections
import contextlib
import copy
import dataclasses
import os
import pickle
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import rollway
from rollway import SchemaMismatch, SharedWeightSync
from rollway.errors import NothingPublished
from rollway.weights.tree import WeightTree
from tests.support.segments import overwrite


def weights(value=1.0):
    return {"w": np.full((3, 2), value, np.float32), "b": np.full(2, value, np.float16), "n": np.array(int(value))}


def like(tree):
    return {name: np.zeros_like(array) for name, array in tree.items()}


@pytest.fixture
def pair(name):
    """A writer with one version, and a reader that knows the name only."""
    with SharedWeightSync.from_state_dict(weights(), shm_name=name) as writer, SharedWeightSync.attach(name) as reader:
        yield writer, reader


def test_a_reader_attached_by_name_gets_what_was_written(pair):
    writer, reader = pair
    writer.write_weights(weights(2))
    mine = like(weights())
    assert reader.read_weights_into(mine) == 2 == reader.version == reader.read_version
    for name, array in weights(2).items():
        np.testing.assert_array_equal(mine[name], array)
        assert mine[name].dtype == array.dtype


def test_shapes_alone_make_float32_weights_as_in_unilab(name):
    shapes = {"w": (3, 2), "b": (2,)}
    with SharedWeightSync(shapes, shm_name=name, lock=threading.Lock()) as writer:
        assert writer.version == 0
        writer.write_weights({"w": np.ones((3, 2), np.float32), "b": np.zeros(2, np.float32)})
        with SharedWeightSync(shapes, create=False, shm_name=name, lock=None) as reader:
            assert reader.read_weights()["w"].sum() == 6


def test_dtypes_can_be_given_for_all_leaves_or_for_some(name):
    with SharedWeightSync({"a": (2,), "b": (2,)}, dtypes={"b": "bfloat16"}, shm_name=name) as sync:
        assert [leaf.dtype for leaf in sync._tree.leaves] == ["float32", "bfloat16"]
    with SharedWeightSync({"a": (2,), "b": ()}, dtypes=np.int8, shm_name=name) as sync:
        sync.write_weights({"a": np.zeros(2, np.int8), "b": 7})
        assert sync.read_weights()["b"] == 7


def test_before_the_first_version_nothing_is_touched(name):
    with SharedWeightSync({"a": (2,)}, shm_name=name) as sync:
        mine = {"a": np.full(2, 5, np.float32)}
        assert sync.read_weights_into(mine) == 0 and mine["a"].tolist() == [5, 5]
        with pytest.raises(NothingPublished, match="wait_for_version"):
            sync.read_weights()
    with SharedWeightSync({"a": (2,), "b": (1,)}, shm_name=name) as sync:
        with pytest.raises(NothingPublished, match="write all weights once"):
            sync.update_weights({"a": np.zeros(2, np.float32)})


def test_an_update_changes_some_leaves_and_since_copies_only_those(pair):
    writer, reader = pair
    mine = like(weights())
    assert reader.read_weights_into(mine) == 1
    writer.update_weights({"b": np.full(2, 9, np.float16)})
    mine["w"][:] = -1  # Not copied again, so it stays.
    assert reader.read_weights_into(mine, since=1) == 2
    assert mine["b"].tolist() == [9, 9] and (mine["w"] == -1).all()
    assert reader.read_weights_into(mine) == 2 and (mine["w"] == 1).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"w": np.zeros((2, 3), np.float32)}, r"leaf 'w' is float32\[2,3\] here but float32\[3,2\]"),
        ({"w": np.zeros((3, 2), np.float64)}, r"leaf 'w' is float64\[3,2\] here but float32\[3,2\]"),
        ({"w": "weights"}, "leaf 'w' is a str"),
        ({"x": np.zeros(1)}, "unexpected 'x'"),
        ({"w": np.zeros((3, 2), ">f4")}, "byte order"),
    ],
)
def test_a_leaf_that_does_not_fit_is_named_and_nothing_changes(pair, change, words):
    writer, _ = pair
    with pytest.raises(SchemaMismatch, match=words):
        writer.write_weights({**weights(5), **change})
    assert writer.version == 1
    with pytest.raises(SchemaMismatch, match="missing 'n'"):
        writer.write_weights({"w": weights()["w"], "b": weights()["b"]})


def test_a_target_that_does_not_fit_is_named_and_nothing_changes(pair):
    _, reader = pair
    for wrong in (np.zeros((3, 2), np.float64), np.zeros(6, np.float32)):
        mine = {**like(weights()), "w": wrong}
        with pytest.raises(SchemaMismatch, match="leaf 'w'"):
            reader.read_weights_into(mine)
        assert not mine["b"].any()
    mine = like(weights())
    mine["w"].flags.writeable = False
    with pytest.raises(SchemaMismatch, match=r"leaf 'w' .* cannot be changed in place"):
        reader.read_weights_into(mine)


def test_an_update_of_a_leaf_that_is_not_there_is_refused(pair):
    writer, _ = pair
    with pytest.raises(SchemaMismatch, match="no leaf 'lora'"):
        writer.update_weights({"lora": np.zeros(1)})


def test_arrays_that_are_not_in_one_piece_are_copied_as_they_look(name):
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    with SharedWeightSync.from_state_dict({"a": whole.T, "b": whole[::2, ::3]}, shm_name=name) as sync:
        target = np.zeros((4, 6), np.float32)
        into = np.zeros((2, 4), np.float32)[:, ::2]
        assert sync.read_weights_into({"a": target.T, "b": into}) == 1
        np.testing.assert_array_equal(target, whole)
        np.testing.assert_array_equal(into, whole[::2, ::3])


def strided(shape, strides):
    """A writable array with these strides, in elements, over memory that is large enough."""
    return np.lib.stride_tricks.as_strided(np.zeros(32, np.float32), shape, [4 * stride for stride in strides])


@pytest.mark.parametrize("strides", [(0, 1), (2, 1), (1, 1), (3, 0)])
def test_a_target_that_overlaps_itself_is_refused_by_name_and_nothing_changes(name, strides):
    source = {"b": np.ones(2, np.float32), "w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    with SharedWeightSync.from_state_dict(source, shm_name=name) as sync:
        into = {"b": np.zeros(2, np.float32), "w": strided((2, 3), strides)}
        with pytest.raises(SchemaMismatch, match=r"leaf 'w' overlaps itself.*\.copy\(\)"):
            sync.read_weights_into(into)
        assert not into["b"].any() and not into["w"].any()


def test_a_target_that_overlaps_itself_by_part_of_a_number_is_refused(name):
    with SharedWeightSync.from_state_dict({"w": np.ones(3, np.float32)}, shm_name=name) as sync:
        halves = np.lib.stride_tricks.as_strided(np.zeros(3, np.float32), (3,), (2,))
        with pytest.raises(SchemaMismatch, match="leaf 'w' overlaps itself"):
            sync.read_weights_into({"w": halves})


@pytest.mark.parametrize("strides", [(1, 2), (8, 2), (3, 2), (2, 7)])  # of (3, 2): rows between the numbers of others
def test_a_target_with_gaps_or_in_another_order_is_read_as_it_looks(name, strides):
    source = {"w": np.arange(1, 7, dtype=np.float32).reshape(2, 3)}
    with SharedWeightSync.from_state_dict(source, shm_name=name) as sync:
        into = {"w": strided((2, 3), strides)}
        assert sync.read_weights_into(into) == 1 and into["w"].tolist() == source["w"].tolist()
        into = {"w": strided((2, 3), strides)[::-1]}
        assert sync.read_weights_into(into) == 1 and into["w"].tolist() == source["w"].tolist()


def test_empty_and_zero_dimensional_leaves_travel(name):
    tree = {"none": np.zeros((0, 3), np.float32), "one": np.float64(2.5), "flag": np.array(True)}
    with SharedWeightSync.from_state_dict(tree, shm_name=name) as sync:
        got = sync.read_weights()
        assert got["none"].shape == (0, 3) and got["one"] == 2.5 and bool(got["flag"])


@dataclasses.dataclass
class Layer:
    kernel: np.ndarray
    bias: np.ndarray


Moments = collections.namedtuple("Moments", "mean var")


def test_a_tree_comes_back_in_its_own_structure_here_and_in_plain_ones_elsewhere(name):
    tree = {
        "layers": [Layer(np.ones(2), np.zeros(1)), Layer(np.full(2, 2.0), np.ones(1))],
        "norm": Moments(np.zeros(3), np.ones(3)),
        "pair": (np.zeros(1), None),
    }
    with SharedWeightSync.from_state_dict(tree, shm_name=name) as writer, SharedWeightSync.attach(name) as reader:
        mine = writer.read_weights()
        assert isinstance(mine["layers"][1], Layer) and isinstance(mine["norm"], Moments)
        assert mine["layers"][1].kernel.tolist() == [2, 2] and mine["pair"][1] is None
        theirs = reader.read_weights()
        assert theirs["layers"][1]["kernel"].tolist() == [2, 2] and theirs["pair"][1] is None
        assert theirs["norm"]["var"].tolist() == [1, 1, 1]
        alike = reader.read_weights(like=tree)
        assert isinstance(alike["layers"][0], Layer) and alike["norm"].var.tolist() == [1, 1, 1]
        into = copy.deepcopy(tree)
        into["layers"][1].kernel[:] = 0
        assert reader.read_weights_into(into) == 1 and into["layers"][1].kernel.tolist() == [2, 2]


@pytest.mark.parametrize("tree", [[np.ones(2), np.zeros(1)], (np.ones(2), [np.zeros(1)])])
def test_a_tree_may_be_a_list_or_a_tuple(tree):
    with SharedWeightSync.from_state_dict(tree) as writer, SharedWeightSync.attach(writer.name) as reader:
        for there in (writer.read_weights(), reader.read_weights()):
            assert type(there) is type(tree) and type(there[1]) is type(tree[1]) and there[0].tolist() == [1, 1]
        writer.write_weights(type(tree)([np.zeros(2), tree[1]]))
        assert reader.read_weights()[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    "text",
    [
        b'{"leaves":[["w","float32",[2]]],"tree":{"dict":[["w",1]]}}',
        b'{"leaves":[["w","float32",[2]]],"tree":"w"}',
        b'{"leaves":[["w","float32",[2]]],"tree":{}}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_schema_of_weights_is_refused_when_it_comes(text):
    with pytest.raises(SchemaMismatch, match="cannot be read"):
        WeightTree.from_text(text)


def test_two_leaves_of_one_name_are_refused():
    with pytest.raises(SchemaMismatch, match="two leaves are called 'a/b'"):
        WeightTree.of({"a/b": np.zeros(1), "a": {"b": np.zeros(1)}})


def test_a_tree_without_arrays_or_with_something_else_is_refused():
    for tree in ({}, {"a": "text"}, {"a": np.array(["text"])}, {"a": np.array([object()])}):
        with pytest.raises(SchemaMismatch):
            SharedWeightSync.from_state_dict(tree)
    with pytest.raises(SchemaMismatch, match="'b'"):
        SharedWeightSync({"a": (2,)}, dtypes={"b": "float32"})
    with pytest.raises(SchemaMismatch, match="tuple of ints"):
        SharedWeightSync({"a": 2})


@pytest.mark.parametrize("options", [{"max_buffers": 2}, {"max_readers": 0}, {"max_readers": 2000}, {"threads": 0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(rollway.InvalidArgument, match=next(iter(options))):
        SharedWeightSync({"a": (2,)}, **options)
    with pytest.raises(rollway.InvalidArgument, match="shm_name"):
        SharedWeightSync({"a": (2,)}, create=False)


def test_creating_what_a_living_process_created_is_refused_and_told_who_did(pair, name):
    writer, reader = pair
    reader.write_weights(weights(2))
    with pytest.raises(rollway.errors.SegmentInUse, match=f"pid {writer.writer_pid} writes.*Attach to them"):
        SharedWeightSync.from_state_dict(weights(), shm_name=name)
    writer.close()
    with SharedWeightSync.from_state_dict(weights(3), shm_name=name) as again:
        reader.write_weights(weights(4))
        assert again.version == 4, "one that is attached, and wrote, does not keep the learner away"


def test_handles_write_by_turns(pair):
    writer, reader = pair
    third = pickle.loads(pickle.dumps(reader))
    with third:
        for number, sync in enumerate((reader, writer, reader, third, writer), start=2):
            sync.write_weights(weights(number))
            sync.update_weights({"b": weights(number + 10)["b"]})
        assert writer.version == 11
        for sync in (writer, reader, third):
            np.testing.assert_equal(sync.read_weights(), {**weights(6), "b": weights(16)["b"]})
    writer.close()
    assert reader.writer_pid is not None, "it is a writer, too, and lives"
    reader.write_weights(weights(9))
    assert reader.version == 12


IDLE, WRITING = (struct.pack("<Q", word) for word in (1 << 22 | 1, 1 << 62 | 1 << 22 | 1))
"""The writer word that names the first handle on the first seat: between two writes, and in the middle of one."""


def test_a_write_waits_for_the_end_of_another_and_says_whose_it_is(pair, name):
    _, second = pair
    with SharedWeightSync.attach(name, peer_timeout_s=0) as hurried:
        overwrite(name, IDLE, WRITING)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(second.write_weights, weights(2))
            with pytest.raises(rollway.errors.SegmentInUse, match=f"pid {os.getpid()} is in the middle of a write"):
                hurried.write_weights(weights(3))
            assert not waiting.done() and second.version == 1
            overwrite(name, WRITING, IDLE)
            waiting.result(30)
        assert second.version == 2
        hurried.write_weights(weights(3))


def test_closing_a_handle_ends_its_wait_for_another_write(pair, name):
    _, second = pair
    overwrite(name, IDLE, WRITING)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.write_weights, weights(2))
        second.close()
        with pytest.raises(rollway.ConnectionClosedError, match="this handle on the weights"):
            waiting.result(30)
    overwrite(name, WRITING, IDLE)


def test_threads_with_handles_of_their_own_write_one_after_the_other(name):
    with SharedWeightSync.from_state_dict(weights(), shm_name=name) as first, contextlib.ExitStack() as handles:
        others = [handles.enter_context(SharedWeightSync.attach(name)) for _ in range(3)]

        def write(sync):
            for number in range(50):
                sync.write_weights(weights(number))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, [first, *others]))
        assert first.version == 201


def test_creating_again_goes_on_and_other_leaves_are_refused(pair, name):
    writer, reader = pair
    writer.close()
    with pytest.raises(SchemaMismatch, match=rf"leaf 'w' is float32\[9\] here but float32\[3,2\] in segment '{name}'"):
        SharedWeightSync.from_state_dict({**weights(), "w": np.zeros(9, np.float32)}, shm_name=name)
    with pytest.raises(SchemaMismatch, match="leaf 'x' is float32"):
        SharedWeightSync({"x": (9,)}, create=False, shm_name=name)
    with SharedWeightSync.from_state_dict(weights(4), shm_name=name) as again:
        assert again.version == 2 == reader.wait_for_version(2, timeout=0)


def test_a_checksum_that_does_not_fit_is_damage(name):
    with SharedWeightSync.from_state_dict({"a": np.zeros(1000, np.uint8)}, shm_name=name, checksum=True) as sync:
        assert sync.read_weights()["a"].sum() == 0
        path = f"{rollway._core.shm_directory()}/rollway.{name}"
        with open(path, "r+b") as file:  # One page for each of eight buffers, at the end; three of them exist.
            end = file.seek(0, 2)
            for pages in (6, 7, 8):
                file.seek(end - pages * 4096)
                file.write(b"\1")
        with pytest.raises(rollway.errors.SegmentDamaged, match="checksum"):
            sync.read_weights()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"float32",[3,2]', b'"float32",[3,9]'),
        (b'"float32",[3,2]', b'"float32",[3,1]'),
        (b'"float16",[2]', b'"float64",[2]'),
        (b'"float16",[2]', b'"floatxx",[2]'),
        (b'"float32",[3,2]', b'"float32",[3-2]'),
        (b'{"dict":[["b",0]', b'{"dict":[["b",2]'),
        (b'{"leaves":', b'{"LEAVES":'),
    ],
)
def test_a_schema_in_memory_that_does_not_fit_the_leaves_is_damage_at_attach(name, old, new):
    with SharedWeightSync.from_state_dict(weights(), shm_name=name) as writer:
        overwrite(name, old, new)
        with pytest.raises(rollway.errors.SegmentDamaged, match=r"its schema|its leaves"):
            SharedWeightSync.attach(name)
        overwrite(name, new, old)
        with SharedWeightSync.attach(name) as reader:
            overwrite(name, old, new)  # What was read once is not read again.
            assert reader.read_weights()["w"].shape == (3, 2)
            assert pickle.dumps(writer)


def test_sizes_in_memory_that_do_not_fit_the_schema_are_damage_at_attach(name):
    with SharedWeightSync.from_state_dict(weights(), shm_name=name):
        right = struct.pack("3Q", 4, 8, 24)  # b, n, w
        for wrong in [(4, 8, 25), (4, 8, 23), (4, 8, 2**62), (12, 0, 24), (8, 4, 24), (2**64 - 1, 8, 24)]:
            overwrite(name, right, struct.pack("3Q", *wrong))
            with pytest.raises(rollway.errors.SegmentDamaged, match="is damaged"):
                SharedWeightSync.attach(name)
            overwrite(name, struct.pack("3Q", *wrong), right)
        SharedWeightSync.attach(name).close()


def test_waiting_ends_with_the_version_the_time_or_the_end(pair):
    writer, reader = pair
    assert reader.wait_for_version(1, timeout=0) == 1
    with pytest.raises(rollway.WaitTimeout, match=r"version 2 .* 1 is the latest, and the writer \(pid \d+\) lives"):
        reader.wait_for_version(2, timeout=0.01)
    woken = []
    waiting = threading.Thread(target=lambda: woken.append(reader.wait_for_version(2, timeout=30)))
    waiting.start()
    writer.write_weights(weights(2))
    waiting.join()
    assert woken == [2]
    writer.cleanup()
    with pytest.raises(rollway.ConnectionClosedError, match="version 3 will not come"):
        reader.wait_for_version(3, timeout=30)
    assert reader.read_weights()["n"] == 2, "what was published stays readable"


def test_a_wait_for_a_writer_that_is_gone_says_so(name):
    writer = SharedWeightSync({"a": (1,)}, shm_name=name)
    with SharedWeightSync.attach(name, peer_timeout_s=0) as reader:
        writer.close()
        with pytest.raises(rollway.PeerDied, match="there is no writer"):
            reader.wait_for_version(1, timeout=30)


def test_the_last_to_close_takes_the_name_away_and_cleanup_does_so_at_once(name):
    writer = SharedWeightSync.from_state_dict(weights(), shm_name=name)
    reader = SharedWeightSync.attach(name)
    assert [info.kind for info in rollway.segments() if info.name == name] == ["weights"]
    writer.close()
    writer.close()
    assert reader.read_weights()["n"] == 1
    reader.close()
    with pytest.raises(rollway.SegmentNotFound):
        SharedWeightSync.attach(name, connect_timeout_s=0)
    again = SharedWeightSync.from_state_dict(weights(), shm_name=name)
    with SharedWeightSync.attach(name) as reader:
        again.cleanup()
        again.cleanup()
        assert not [info for info in rollway.segments() if info.name == name]
        assert reader.closed
    with pytest.raises(rollway.ConnectionClosedError, match="is closed"):
        again.write_weights(weights())
    assert "closed" in repr(again)


def test_a_pickle_of_it_attaches_by_name(pair):
    writer, _ = pair
    with pickle.loads(pickle.dumps(writer)) as other:
        assert other.read_weights()["w"].sum() == 6
        assert "version 1" in repr(other) and "3 leaves" in repr(other)


def test_large_weights_are_copied_by_several_threads_as_by_one(name):
    rng = np.random.default_rng(0)
    tree = {f"l{i}": rng.integers(0, 255, size, np.uint8) for i, size in enumerate((9_000_001, 3, 13_000_000))}
    for threads in (1, 3):
        with SharedWeightSync.from_state_dict(tree, shm_name=name, threads=threads, checksum=True) as sync:
            got = sync.read_weights()
            assert all(np.array_equal(got[key], value) for key, value in tree.items())


def test_stats_are_plain_numbers(pair):
    writer, _ = pair
    assert writer.stats() == {"version": 1, "buffers": 3, "retries": 0, "overtaken": 0, "recovered": 0}


def test_negative_numbers_are_refused_by_the_name_of_the_argument():
    with pytest.raises(rollway.InvalidArgument, match="max_buffers = -1"):
        SharedWeightSync({"w": (1,)}, max_buffers=-1)
    with SharedWeightSync({"w": (1,)}) as sync, pytest.raises(rollway.InvalidArgument, match="version = -1"):
        sync.wait_for_version(-1, timeout=10)
