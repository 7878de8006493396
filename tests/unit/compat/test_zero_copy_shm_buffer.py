"""ZeroCopySHMBuffer: the proposal's calls, without what the proposal lost."""

import os
import threading

import numpy as np
import pytest

import rollway
from rollway import ZeroCopySHMBuffer
from tests.support.processes import forked


@pytest.fixture
def buffer(name):
    with ZeroCopySHMBuffer(name, size=10, entry_size=16, create=True) as buffer:
        yield buffer


def test_an_entry_comes_back_whole(buffer):
    assert buffer.read_next() is None
    assert buffer.write_trajectory([1, 2, 3], 0.25, "task", 4, {"logprobs": [0.5, None], "stop": "eos"})
    entry = buffer.read_next()
    assert entry["tokens"].tolist() == [1, 2, 3] and entry["tokens"].dtype == np.int32
    del entry["tokens"]
    assert entry == {
        "instance_id": "task",
        "repetition_id": 4,
        "score": 0.25,
        "metadata": {"logprobs": [0.5, None], "stop": "eos"},
    }
    assert buffer.read_next() is None


def test_nothing_is_cut(buffer):
    tokens, text = list(range(20)), "ü" * 500
    assert buffer.write_trajectory(tokens, 1.0, text, 0, {"long": text})
    entry = buffer.read_next()
    assert entry["tokens"].tolist() == tokens and entry["instance_id"] == text and entry["metadata"] == {"long": text}


def test_full_is_false_and_nothing_is_lost(buffer):
    wrote = [buffer.write_trajectory([i], float(i)) for i in range(20)]
    assert wrote == [True] * 16 + [False] * 4
    assert [buffer.read_next()["tokens"].tolist() for _ in range(16)] == [[i] for i in range(16)]
    assert buffer.read_next() is None and buffer.write_trajectory([1], 1.0)


def test_full_waits_if_asked(name):
    with ZeroCopySHMBuffer(name, size=2, entry_size=4, create=True, write_timeout_s=None) as buffer:
        assert buffer.write_trajectory([0], 0.0) and buffer.write_trajectory([1], 1.0)
        done = threading.Event()
        thread = threading.Thread(target=lambda: buffer.write_trajectory([2], 2.0) and done.set())
        thread.start()
        assert buffer.read_next()["tokens"].tolist() == [0]
        assert done.wait(30)
        thread.join()
        assert [buffer.read_next()["tokens"].tolist() for _ in range(2)] == [[1], [2]]


def test_tokens_of_other_types_are_taken_if_they_fit(buffer):
    for tokens in (np.array([1, 2]), np.array([1, 2], np.uint8), (1, 2), []):
        assert buffer.write_trajectory(tokens, 0.0)
        assert buffer.read_next()["tokens"].tolist() == list(tokens)
    for bad in ([1.5], [2**31], [[1]], ["a"]):
        with pytest.raises(rollway.InvalidArgument):
            buffer.write_trajectory(bad, 0.0)


@pytest.mark.parametrize("bad", [{"size": 0}, {"entry_size": 0}, {"instance_id_len": -1}, {"metadata_len": -(10**9)}])
def test_numbers_out_of_range_are_refused(name, bad):
    with pytest.raises(rollway.InvalidArgument, match=f"{next(iter(bad))} = "):
        ZeroCopySHMBuffer(name, create=True, **bad)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_time_to_wait_that_is_none_is_refused_before_the_first_write(name, seconds):
    with pytest.raises(rollway.InvalidArgument, match=r"write_timeout_s = .* is out of range"):
        ZeroCopySHMBuffer(name, create=True, write_timeout_s=seconds)


def test_a_buffer_that_nobody_could_attach_to_is_refused():
    with pytest.raises(rollway.InvalidArgument, match="name is None; it must be text"):
        ZeroCopySHMBuffer(None, create=True)


@pytest.mark.parametrize("metadata", [{}, [], "", 0, False])
def test_metadata_that_is_empty_or_zero_is_kept_as_it_is(buffer, metadata):
    assert buffer.write_trajectory([1], 0.0, metadata=metadata)
    kept = buffer.read_next()["metadata"]
    assert kept == metadata and type(kept) is type(metadata)


def test_attaching_to_none_is_an_error(name):
    with pytest.raises(rollway.SegmentNotFound):
        ZeroCopySHMBuffer(name)


def test_a_live_buffer_is_never_replaced(buffer, name):
    buffer.write_trajectory([1], 1.0)
    with pytest.raises(rollway.errors.SegmentInUse):
        ZeroCopySHMBuffer(name, create=True)
    assert buffer.read_next()["tokens"].tolist() == [1]


def test_what_is_in_it_outlives_the_writer(name):
    writer = ZeroCopySHMBuffer(name, size=10, create=True)
    writer.write_trajectory([1, 2], 1.0)
    writer.close()
    writer.close()
    with pytest.raises(rollway.ConnectionClosedError):
        writer.write_trajectory([1], 1.0)
    reader = ZeroCopySHMBuffer(name)
    assert reader.read_next()["tokens"].tolist() == [1, 2]
    reader.close(unlink=True)


def test_who_attached_is_in_it_before_the_first_call(name):
    maker = ZeroCopySHMBuffer(name, size=4, create=True)
    maker.write_trajectory([1], 1.0)
    reader, other = ZeroCopySHMBuffer(name), ZeroCopySHMBuffer(name)
    maker.close()
    rollway.gc()
    other.close(unlink=True)
    assert reader.read_next()["tokens"].tolist() == [1]
    reader.close(unlink=True)  # the name is gone already


def test_who_has_written_goes_on_after_the_name_is_gone(name):
    with ZeroCopySHMBuffer(name, size=4, create=True) as buffer:
        writer, other = ZeroCopySHMBuffer(name), ZeroCopySHMBuffer(name)
        assert writer.write_trajectory([1], 1.0)
        buffer.close(unlink=True)
        assert writer.write_trajectory([2], 1.0)
        assert [other.read_next()["tokens"].tolist() for _ in range(2)] == [[1], [2]]
        with pytest.raises(rollway.SegmentNotFound, match="unlinked before this handle wrote"):
            other.write_trajectory([3], 1.0)
        writer.close()
        other.close()


def test_a_forgotten_handle_takes_nothing_away(name, child):
    ZeroCopySHMBuffer(name, size=4, create=True).close()
    code = """
        import sys, rollway
        buffer = rollway.ZeroCopySHMBuffer(sys.argv[1])
        assert buffer.write_trajectory([1], 1.0)
    """
    child(code, name).ends()
    reader = ZeroCopySHMBuffer(name)
    assert reader.read_next()["tokens"].tolist() == [1]
    reader.close(unlink=True)


def test_a_forked_child_that_leaves_the_block_leaves_it_to_its_parent(name):
    def leave(buffer):
        assert buffer.write_trajectory([1], 1.0)  # through a lane of its own
        with buffer:
            pass

    with ZeroCopySHMBuffer(name, size=4, create=True) as buffer:
        assert os.waitpid(forked(leave, buffer), 0)[1] == 0
        with ZeroCopySHMBuffer(name) as attached:
            assert attached.read_next()["tokens"].tolist() == [1]


def test_one_writer_too_many_is_told_what_to_do_here(buffer, name):
    writers = [ZeroCopySHMBuffer(name) for _ in range(64)]
    assert all(writer.write_trajectory([1], 1.0) for writer in writers)
    with pytest.raises(rollway.errors.NoLaneLeft, match=r"64 writers.*Close a handle"):
        buffer.write_trajectory([1], 1.0)
    writers.pop().close()
    assert buffer.write_trajectory([1], 1.0)
    for writer in writers:
        writer.close()


def test_an_entry_larger_than_a_whole_share_is_told_what_to_do_here(buffer):
    with pytest.raises(
        rollway.errors.RecordTooLarge, match=r"100000 tokens.*a larger size, entry_size or metadata_len"
    ):
        buffer.write_trajectory(np.zeros(100_000, np.int32), 1.0)


def test_records_of_another_kind_are_named_on_attach(name):
    with rollway.RecordServer({"text": "uint8[*]"}, rollway.ShmTransport(name)):
        with pytest.raises(rollway.SchemaMismatch, match="'tokens'"):
            ZeroCopySHMBuffer(name)


def test_four_writers_and_two_readers_lose_and_tear_nothing(name, child):
    """The proposal: 1,745 of 3,200 arrived, 3 of them torn."""
    writer = """
        import sys, numpy as np, rollway
        buffer = rollway.ZeroCopySHMBuffer(sys.argv[1], write_timeout_s=None)
        me = int(sys.argv[2])
        for i in range(800):
            assert buffer.write_trajectory(np.full(512, 1000 * me + i, np.int32), float(i), f"w{me}", i, {"me": me})
        buffer.close()
    """
    reader = """
        import sys, rollway
        buffer = rollway.ZeroCopySHMBuffer(sys.argv[1])
        print("ready", flush=True)
        sys.stdin.readline()
        while (entry := buffer.read_next()) is not None:
            tokens = entry["tokens"]
            assert (tokens == tokens[0]).all() and len(tokens) == 512
            print(entry["instance_id"], entry["repetition_id"], int(tokens[0]), entry["metadata"]["me"])
        buffer.close()
    """
    with ZeroCopySHMBuffer(name, size=1000, create=True) as buffer:
        writers = [child(writer, name, me) for me in range(4)]
        seen = []
        while len(seen) < 1600:
            entry = buffer.read_next()
            if entry is None:
                os.sched_yield()
                continue
            tokens = entry["tokens"]
            assert (tokens == tokens[0]).all() and len(tokens) == 512
            seen.append((entry["instance_id"], entry["repetition_id"], int(tokens[0]), entry["metadata"]["me"]))
        for one in writers:
            one.ends()
        other = child(reader, name)
        other.says("ready")
        other.tell()
        out, _ = other.ends()
        for line in out.splitlines():
            who, repetition, token, me = line.split()
            seen.append((who, int(repetition), int(token), int(me)))
    assert sorted(seen) == sorted((f"w{me}", i, 1000 * me + i, me) for me in range(4) for i in range(800))
