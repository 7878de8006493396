"""SIGKILL and SIGSTOP of those who read and write weights, at no chosen moment: the core's kill matrix chooses them."""

import numpy as np
import pytest

import rollway
from rollway import SharedWeightSync

SIZES = (1, 3000, 200_000)

WRITER = """
import sys
import numpy as np
from rollway import SharedWeightSync

name, whole = sys.argv[1], sys.argv[2] == "whole"
leaves = {f"l{i}": np.zeros(size, np.int64) for i, size in enumerate((1, 3000, 200_000))}
sync = SharedWeightSync({key: leaf.shape for key, leaf in leaves.items()}, dtypes="int64", shm_name=name)
if sync.version == 0:
    sync.write_weights(leaves)
print("writes", flush=True)
while True:
    version = sync.version + 1
    for leaf in leaves.values():
        leaf[:] = version
    if whole:
        sync.write_weights(leaves)
    else:
        sync.update_weights({"l0": leaves["l0"], "l2": leaves["l2"]})
"""


def is_whole(tree, version, whole):
    leaves = [tree["l0"], tree["l2"], *([tree["l1"]] if whole else [])]
    return all((leaf == (version if version > 1 else 0)).all() for leaf in leaves)


@pytest.mark.parametrize("kind", ["whole", "part"])
def test_a_writer_killed_again_and_again_leaves_the_last_whole_version(name, child, kind):
    mine = {f"l{i}": np.zeros(size, np.int64) for i, size in enumerate(SIZES)}
    writer = child(WRITER, name, kind)
    writer.says("writes")
    reader = SharedWeightSync.attach(name)
    with reader:
        before = reader.version
        for _ in range(4):
            reader.wait_for_version(before + 20, timeout=30)
            writer.kill()
            version = reader.read_weights_into(mine)
            assert version == reader.version >= before + 20
            assert is_whole(mine, version, kind == "whole"), version
            writer = child(WRITER, name, kind)
            writer.says("writes")
            before = version
        writer.kill()
        reader.cleanup()  # What a dead writer published stays otherwise.


def test_a_stopped_writer_is_not_dead_and_goes_on(name, child):
    writer = child(WRITER, name, "whole")
    writer.says("writes")
    with SharedWeightSync.attach(name, peer_timeout_s=0) as reader:
        writer.stop()
        there = reader.version
        with pytest.raises(rollway.WaitTimeout, match="lives"):
            reader.wait_for_version(there + 1, timeout=0.1)
        with pytest.raises(rollway.errors.SegmentInUse, match=f"pid {writer.pid} writes"):
            SharedWeightSync({f"l{i}": (size,) for i, size in enumerate(SIZES)}, dtypes="int64", shm_name=name)
        with SharedWeightSync.attach(name, peer_timeout_s=0) as second:
            try:
                second.write_weights(second.read_weights())
            except rollway.errors.SegmentInUse as stopped:
                assert f"pid {writer.pid} is in the middle of a write" in str(stopped)
            else:
                there += 1
                assert reader.version == there, "it was stopped between two writes"
        writer.resume()
        assert reader.wait_for_version(there + 1, timeout=30) > there
        writer.kill()
        with pytest.raises(rollway.PeerDied, match=rf"the writer \(pid {writer.pid}\) died without closing"):
            reader.wait_for_version(reader.version + 1, timeout=30)
        reader.write_weights(reader.read_weights())


READER = """
import sys
import numpy as np
from rollway import SharedWeightSync

mine = {f"l{i}": np.zeros(size, np.int64) for i, size in enumerate((1, 3000, 200_000))}
sync = SharedWeightSync.attach(sys.argv[1])
print("reads", flush=True)
while True:
    sync.read_weights_into(mine)
"""


def test_killed_and_stopped_readers_do_not_hold_up_the_writer(name, child):
    tree = {f"l{i}": np.zeros(size, np.int64) for i, size in enumerate(SIZES)}
    with SharedWeightSync.from_state_dict(tree, shm_name=name) as writer:
        for _ in range(3):
            reader, paused = child(READER, name), child(READER, name)
            reader.says("reads")
            paused.says("reads")
            for _ in range(10):
                writer.write_weights(tree)
            paused.stop()
            reader.kill()
            for _ in range(10):
                writer.write_weights(tree)
            paused.resume()
            paused.kill()
        stats = writer.stats()
        assert stats["version"] == 61 and stats["overtaken"] == 0 and stats["buffers"] <= 5
