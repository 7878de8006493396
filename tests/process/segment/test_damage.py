"""One wrong word in shared memory ends a call with `SegmentDamaged`: nobody retries for ever, with or without the GIL.

The calls are made in processes of their own: one that spins with the GIL held could not be given up in this one.
"""

import pytest

CHILD = """
import struct, sys
from pathlib import Path
import numpy as np
import rollway

name = sys.argv[1]

def replaces(old, new):
    "Writes over the first word that is ``old``; false when there is none."
    path = Path(rollway._core.shm_directory()) / f"rollway.{name}"
    with path.open("r+b") as file:
        at = file.read().find(struct.pack("<Q", old))
        file.seek(max(at, 0))
        return at >= 0 and at % 8 == 0 and file.write(struct.pack("<Q", new)) == 8

def ends(call):
    try:
        call()
        print("no error", flush=True)
    except rollway.SegmentDamaged:
        print("damaged", flush=True)
"""

WEIGHTS = """
with rollway.SharedWeightSync({"w": (SIZE,)}, dtypes=np.uint8, shm_name=name) as sync:
    weights = {"w": np.zeros(SIZE, np.uint8)}
    while sync.version < 777:
        sync.write_weights(weights)
    # The word that says which version is the latest, and in which of the buffers it lies: the version is nowhere else.
    assert any(replaces(777 << 8 | buffer, 778 << 8 | buffer) for buffer in range(3))
    ends(sync.read_weights)
    ends(lambda: sync.read_weights_into(weights))
"""

TABLE = """
with rollway.ReplayBuffer(101, obs_dim=2, action_dim=1, name=name) as buffer:
    def add(rows):
        ones = np.ones((rows, 2), np.float32)
        buffer.add(ones, ones[:, :1], ones[:, 0], ones, ones[:, 0], ones[:, 0])
    for _ in range(41):
        add(25)
    assert replaces(1025, ((1 << 39) + 100) * 101)  # The head: positions that were given out so far.
    ends(lambda: add(25))
    ends(lambda: add(100_000))
"""

CASES = {
    "small weights, read with the GIL held": WEIGHTS.replace("SIZE", "40"),
    "large weights, read without the GIL": WEIGHTS.replace("SIZE", "400_000"),
    "a table whose head claims nothing": TABLE,
}


@pytest.mark.parametrize("code", CASES.values(), ids=CASES.keys())
def test_a_wrong_word_is_damage_and_not_the_end_of_all_progress(code, name, child):
    spoiled = child(CHILD + code, name)
    out, _ = spoiled.ends(timeout=30)
    assert out.split() == ["damaged", "damaged"]
