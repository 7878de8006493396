"""Estimates against what is really allocated, and the words of a refusal."""

import os

import numpy as np
import pytest

import rollway
from rollway.memory_budget import MemoryBudget, Room, raise_if_over_budget, warn_if_over_budget

GIB = 2**30


def test_the_estimate_of_a_rollout_ring_is_its_size(name):
    dims = {"num_envs": 128, "num_steps": 32, "obs_dim": 60, "action_dim": 12}
    fields = {"images": ((128, 32, 4), np.uint8)}
    for more in ({}, {"critic_dim": 90}, {"fields": fields}, {"num_slots": 7}):
        with rollway.RolloutRingBuffer(**dims, **more, shm_name_prefix=name) as ring:
            estimated = MemoryBudget().add_rollout_ring(**dims, **more).shared_bytes
            assert ring.stats()["bytes"] == pytest.approx(estimated, rel=0.03, abs=64 * 1024)


def test_no_estimate_is_below_what_is_allocated():
    def allocated(name):
        return os.stat(f"{rollway._core.shm_directory()}/rollway.{name}").st_size

    for dims, slots in (((1, 1, 1, 1), 4), ((1, 1, 1, 1), 1000), ((2, 3, 4, 1), 7)):
        with rollway.RolloutRingBuffer(*dims, num_slots=slots) as ring:
            estimated = MemoryBudget().add_rollout_ring(*dims, num_slots=slots).shared_bytes
            assert 0 <= estimated - ring.stats()["bytes"] < 1024
    for sizes in ((1, 1, 1), (10_000, 3, 1), (10_000, 6, 2), (10_000, 17, 6), (10_000, 27, 8), (10_000, 30, 6)):
        with rollway.ReplayBuffer(*sizes) as buffer:
            assert 0 <= MemoryBudget().add_replay(*sizes).shared_bytes - allocated(buffer.name) < 1024
    for leaves, numbers in ((1, 100), (1000, 1), (300, 17)):
        with rollway.SharedWeightSync({f"layers.{at}.weight": (numbers,) for at in range(leaves)}) as weights:
            estimated = MemoryBudget().add_weights(leaves * numbers * 4).shared_bytes
            assert estimated >= allocated(weights.name)


def test_negative_numbers_are_refused():
    budget = MemoryBudget()
    for wrong, add in (
        ("capacity", lambda: budget.add_replay(-5, 1, 1)),
        ("critic_dim", lambda: budget.add_replay(5, 1, 1, critic_dim=-9)),
        ("nbytes", lambda: budget.add_weights(-(10**9))),
        ("buffers", lambda: budget.add_pinned(10, buffers=-1)),
        ("num_slots", lambda: budget.add_rollout_ring(1, 1, 1, 1, num_slots=-4)),
    ):
        with pytest.raises(rollway.InvalidArgument, match=f"{wrong} = -"):
            add()
    assert not budget.lines


@pytest.mark.parametrize(
    ("room", "words"),
    [
        (Room(shared_memory=GIB, memory=None, cgroup=None), "free shared memory"),
        (Room(shared_memory=None, memory=GIB, cgroup=None), "available memory"),
        (Room(shared_memory=None, memory=64 * GIB, cgroup=GIB), "control group"),
    ],
)
def test_each_limit_refuses_with_the_arithmetic(room, words):
    budget = (
        MemoryBudget().add_replay(1_000_000, 128, 16).add_pinned(10**6).add("simulator", "a guess", 10**6, "private")
    )
    with pytest.raises(rollway.NotEnoughMemory) as refused:
        raise_if_over_budget(budget, "sac on Humanoid", room=room)
    text = str(refused.value)
    assert words in text and "sac on Humanoid" in text and "1,000,000 rows x 275 numbers x 4 B + " in text
    assert "pinned staging: 2 buffers x 1,000,000 B" in text and "simulator: a guess" in text
    with pytest.warns(RuntimeWarning, match="does not fit"):
        warn_if_over_budget(budget, room=room)


def test_what_is_private_does_not_count_against_shared_memory():
    budget = MemoryBudget().add("network", "a guess", 10 * GIB, "private")
    assert budget.excesses(Room(shared_memory=GIB, memory=64 * GIB, cgroup=None)) == []


def test_what_fits_is_let_through_without_a_word(recwarn):
    budget = MemoryBudget().add_weights(1000)
    raise_if_over_budget(budget)
    warn_if_over_budget(budget)
    assert not recwarn.list


def test_unknown_limits_refuse_nothing():
    assert MemoryBudget().add_weights(10**15).excesses(Room(None, None, None)) == []


def test_the_room_is_read_from_the_machine(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (tmp_path / "proc/self/mountinfo").write_text("1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("10000\n")
    (group / "memory.current").write_text("7000\n")
    room = Room.now(tmp_path, str(tmp_path))
    assert room.memory == 4000 * 1024 and room.cgroup == 3000 and room.shared_memory
    assert Room.now(tmp_path / "nothing", str(tmp_path / "nothing")) == Room(None, None, None)


def test_the_group_that_leaves_the_least_counts_without_its_file_cache(tmp_path):
    files = {
        "proc/self/cgroup": "0::/pod/job\n",
        "proc/self/mountinfo": "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/pod/memory.max": "20000\n",
        "sys/fs/cgroup/pod/memory.current": "17000\n",
        "sys/fs/cgroup/pod/memory.stat": "anon 9000\ninactive_file 2000\nactive_file 1000\n",
        "sys/fs/cgroup/pod/job/memory.max": "10000\n",
        "sys/fs/cgroup/pod/job/memory.current": "1000\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert Room.now(tmp_path, str(tmp_path)).cgroup == 20000 - (17000 - 3000)


def test_nonsense_is_refused():
    with pytest.raises(rollway.InvalidArgument, match="threshold"):
        MemoryBudget().excesses(threshold=0)
    with pytest.raises(rollway.InvalidArgument, match="at least 0"):
        MemoryBudget().add("x", "y", -1)
