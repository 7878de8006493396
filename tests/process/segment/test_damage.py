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
    "Writes over the first word of the body that is ``old``; false when there is none."
    path = Path(rollway._core.shm_directory()) / f"rollway.{name}"
    with path.open("r+b") as file:
        memory = file.read()
        (seats,), (schema,) = struct.unpack_from("<I", memory, 28), struct.unpack_from("<Q", memory, 40)
        at = memory.find(struct.pack("<Q", old), -(-(4096 + seats * 128 + schema) // 4096) * 4096)
        file.seek(max(at, 0))
        return at >= 0 and at % 8 == 0 and file.write(struct.pack("<Q", new)) == 8

def ends(call):
    try:
        call()
        print("no error", flush=True)
    except rollway.errors.SegmentDamaged:
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


POSTED = """
import multiprocessing, os, signal, threading, time
import gymnasium

fork = multiprocessing.get_context("fork")
asked, spoiled = fork.Event(), fork.Event()

class Patient(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)
    patience = 0

    def reset(self, *, seed=None, options=None):
        asked.set()
        assert spoiled.wait(20)
        return 0, {}

envs = rollway.make_vec([Patient] * 2, num_workers=1, context="fork")
last_sent = envs._pool.arrays.last_sent  # By worker: up to which message it is to read its pipe.
"""

RESET = """
def spoil():
    assert asked.wait(20)
    last_sent[0] = WRONG
    spoiled.set()

threading.Thread(target=spoil).start()
call = envs.reset
"""

CALL = """
(worker,) = [process.pid for process in multiprocessing.active_children()]
os.kill(worker, signal.SIGSTOP)
before = int(last_sent[0])

def spoil():
    while last_sent[0] == before:
        time.sleep(0.001)
    last_sent[0] = WRONG
    os.kill(worker, signal.SIGCONT)

threading.Thread(target=spoil).start()
call = lambda: envs.get_attr("patience")
"""

ENDS = """
try:
    call()
    print("no error", flush=True)
except rollway.RollwayError as error:
    print("damaged" if "damaged" in str(error) else error, flush=True)
envs.close()
"""


@pytest.mark.parametrize("wrong", ["1 << 62", "-1", "int(last_sent[0]) + 1", "0"])
@pytest.mark.parametrize("code", [RESET, CALL], ids=["reset", "call"])
def test_a_worker_does_not_wait_for_a_message_that_nobody_sent(code, wrong, name, child):
    spoiled = child(CHILD + POSTED + code.replace("WRONG", wrong) + ENDS, name)
    out, _ = spoiled.ends(timeout=30)
    assert out.split() == ["damaged"]
