"""UniLab's rollout ring, as its documentation describes it: one block per field, two pointers in `mp.Value`, a poll.

The installed unilab keeps torch tensors in place of it (`TensorRolloutRingBuffer`), with the same pointers and the same
poll. Written here anew with numpy views, so that both rings are filled and emptied by the same copies. As in the
original nothing keeps the writer from the slot that is being read.
"""

from __future__ import annotations

import multiprocessing as mp
import time
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from rollway.ring.rollout_ring import rollout_shapes

POLL_S = 0.001


class UnilabRollouts:
    """The calls that the benchmark makes; creator and children share it by forking."""

    def __init__(self, num_envs: int, num_steps: int, obs_dim: int, action_dim: int, *, num_slots: int = 4) -> None:
        self.num_slots = num_slots
        self._blocks: list[SharedMemory] = []
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        for field, shape in rollout_shapes(num_envs, num_steps, obs_dim, action_dim).items():
            whole = (num_slots, *shape)
            block = SharedMemory(create=True, size=4 * int(np.prod(whole)))
            self._blocks.append(block)
            self._arrays[field] = np.ndarray(whole, np.float32, block.buf)
            self._arrays[field][...] = 0
        self._write, self._read = mp.Value("l", 0), mp.Value("l", 0)

    @property
    def write_buffer(self) -> dict[str, np.ndarray[Any, Any]]:
        slot = self._write.value % self.num_slots
        return {field: array[slot] for field, array in self._arrays.items()}

    def signal_write_done(self) -> None:
        with self._write.get_lock():
            self._write.value += 1

    def available(self) -> int:
        self._skip_to_the_oldest()
        return min(max(0, self._write.value - self._read.value), self.num_slots)

    def wait_for_data(self, timeout: float = 60.0) -> bool:
        deadline = time.monotonic() + timeout
        while self.available() == 0:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def read_numpy_views(self) -> dict[str, np.ndarray[Any, Any]]:
        self._skip_to_the_oldest()
        slot = self._read.value % self.num_slots
        return {field: array[slot] for field, array in self._arrays.items()}

    def advance_read(self) -> None:
        with self._read.get_lock():
            written = self._write.value
            self._read.value = max(min(self._read.value + 1, written), written - self.num_slots, 0)

    def close(self) -> None:
        self._arrays.clear()
        for block in self._blocks:
            block.close()
            block.unlink()

    def _skip_to_the_oldest(self) -> None:
        oldest = max(0, self._write.value - self.num_slots)
        if self._read.value < oldest:
            with self._read.get_lock():
                self._read.value = max(self._read.value, oldest)
