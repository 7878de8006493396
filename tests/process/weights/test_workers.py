"""SharedWeightSync between real processes: spawned, forked, and attached by name."""

import multiprocessing as mp
import os
import signal

import numpy as np
import pytest

from rollway import SharedWeightSync

READER = """
import sys
import numpy as np
from rollway import SharedWeightSync

name, reads = sys.argv[1], int(sys.argv[2])
mine = {f"l{i}": np.zeros(size, np.int64) for i, size in enumerate((1, 700, 5000))}
with SharedWeightSync.attach(name, connect_timeout_s=30) as sync:
    sync.wait_for_version(1, timeout=30)
    print("ready", flush=True)
    last = torn = 0
    for _ in range(reads):
        version = sync.read_weights_into(mine)
        torn += any((leaf != version).any() for leaf in mine.values()) or version < last
        last = version
print(f"{torn} torn", flush=True)
"""


def filled(version):
    return {f"l{i}": np.full(size, version, np.int64) for i, size in enumerate((1, 700, 5000))}


def test_no_read_is_torn_in_ten_thousand_while_the_writer_never_stops(name, child):
    with SharedWeightSync.from_state_dict(filled(1), shm_name=name) as writer:
        readers = [child(READER, name, 5000) for _ in range(2)]
        for reader in readers:
            reader.says("ready")
        version = 1
        while any(reader.process.poll() is None for reader in readers):
            version += 1
            writer.write_weights(filled(version))
        for reader in readers:
            reader.says("0 torn")
            reader.ends()
        assert writer.version == version


def read_in_child(sync, pipe):
    with sync:
        pipe.send((sync.wait_for_version(2, timeout=30), int(sync.read_weights()["l1"].sum())))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_it_goes_into_a_child_process_as_an_argument(name, method):
    context = mp.get_context(method)
    ours, theirs = context.Pipe()
    with SharedWeightSync.from_state_dict(filled(1), shm_name=name) as writer:
        process = context.Process(target=read_in_child, args=(writer, theirs))
        process.start()
        writer.write_weights(filled(2))
        assert ours.poll(30) and ours.recv() == (2, 1400)
        process.join()
        assert process.exitcode == 0
        writer.write_weights(filled(3))
        assert writer.read_weights()["l0"] == 3


def write_in_child(sync, pipe, turns):
    for turn in range(turns):
        sync.write_weights(filled(9 + turn))
    pipe.send(sync.version)
    pipe.recv()  # The other one sees it alive.


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_child_writes_beside_its_parent(name, method):
    context = mp.get_context(method)
    ours, theirs = context.Pipe()
    with SharedWeightSync.from_state_dict(filled(1), shm_name=name) as writer:
        process = context.Process(target=write_in_child, args=(writer, theirs, 3))
        process.start()
        assert ours.poll(30) and ours.recv() == 4 == writer.version
        assert writer.writer_pid == process.pid and (writer.read_weights()["l1"] == 11).all()
        writer.write_weights(filled(2))
        assert writer.version == 5 and writer.writer_pid == os.getpid()
        ours.send("end")
        process.join()
        writer.write_weights(filled(3))
        assert writer.version == 6


def test_processes_that_write_at_once_lose_no_version_and_tear_none(name):
    context = mp.get_context("fork")
    with SharedWeightSync.from_state_dict(filled(1), shm_name=name) as writer:
        pipes = [context.Pipe() for _ in range(3)]
        processes = [context.Process(target=write_in_child, args=(writer, theirs, 100)) for _, theirs in pipes]
        for process in processes:
            process.start()
        while any(not ours.poll() for ours, _ in pipes):
            leaves = writer.read_weights()
            assert len({int(number) for leaf in leaves.values() for number in leaf.ravel()}) == 1, "torn"
        for ours, _ in pipes:
            ours.send("end")
        for process in processes:
            process.join()
        assert writer.version == 301


def test_a_reader_may_come_before_the_writer(name, child):
    reader = child(READER, name, 10)
    with SharedWeightSync(
        {key: value.shape for key, value in filled(1).items()}, dtypes="int64", shm_name=name
    ) as writer:
        writer.write_weights(filled(1))
        reader.says("ready")
        reader.says("0 torn")
        reader.ends()


def test_control_c_ends_a_wait(name, child):
    with SharedWeightSync({"a": (1,)}, shm_name=name):
        waiting = child(
            """
            import sys
            from rollway import SharedWeightSync
            with SharedWeightSync.attach(sys.argv[1]) as sync:
                try:
                    print("waits", flush=True)
                    sync.wait_for_version(1)
                except KeyboardInterrupt:
                    print("interrupted", flush=True)
            """,
            name,
        )
        waiting.says("waits")
        waiting.process.send_signal(signal.SIGINT)
        waiting.says("interrupted")
        waiting.ends()
