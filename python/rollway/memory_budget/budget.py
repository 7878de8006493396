"""Memory budget: what a run will allocate, line by line, against what this machine has left.

It estimates before anything is allocated, so that a run that does not fit raises an error instead of being killed
later. It counts what Rollway shares and what you add; not the memory of simulators or of CUDA.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from rollway._core import shm_directory, weights_bytes
from rollway.errors import InvalidArgument, NotEnoughMemory
from rollway.machine.cgroup import Cgroup
from rollway.replay.buffer import replay_bytes
from rollway.ring.rollout_ring import rollout_layout, rollout_ring_bytes

Place = Literal["shared", "private"]

_MIB = 2**20
_FLOAT32 = 4
_LEAF_TEXT = 512  # of weights: the assumed length of a leaf's name, dtype and shape
_WEIGHT_HANDLES = 64 + 2  # as many as a `WeightSync` has room for


@dataclass(frozen=True)
class BudgetLine:
    """One allocation: what it is, how its size is computed, and where it is."""

    what: str
    arithmetic: str
    nbytes: int
    place: Place = "shared"

    def __str__(self) -> str:
        return f"{self.what}: {self.arithmetic} = {_mib(self.nbytes)} ({self.place})"


@dataclass(frozen=True)
class Room:
    """What is left on this machine, in bytes. ``None``: no limit, or not known."""

    shared_memory: int | None
    memory: int | None
    cgroup: int | None

    @classmethod
    def now(cls, root: Path = Path("/"), directory: str | None = None) -> Self:
        """Reads the shared-memory directory, MemAvailable, and what is left of the control group's limit."""
        limit, used = Cgroup(root).memory_limit(), Cgroup(root).memory_used()
        return cls(
            get_available_shared_memory_bytes(directory or shm_directory()),
            get_available_memory_bytes(root / "proc/meminfo"),
            None if limit is None else max(0, limit - (used or 0)),
        )


class MemoryBudget:
    """A list of what will be allocated. The ``add_`` calls return the budget itself, so that they can be chained.

    >>> budget = MemoryBudget().add_rollout_ring(64, 24, 48, 12, num_slots=4).add_weights(1_000_000, buffers=3)
    >>> print(budget)
    rollout ring: 4 slots x (64 x 24 steps x 64 numbers + 64 x 48 last) x 4 B + 208 KiB = 1.8 MiB (shared)
    weights: 3 buffers x 1,000,000 B + 767 KiB = 3.6 MiB (shared)
    total = 5.4 MiB shared, 0.0 MiB private
    """

    def __init__(self) -> None:
        self.lines: list[BudgetLine] = []

    def add(self, what: str, arithmetic: str, nbytes: int, place: Place = "shared") -> Self:
        """Anything else: ``shared`` is in /dev/shm, ``private`` in the memory of one process."""
        if nbytes < 0:
            raise InvalidArgument(f"{what} has {nbytes} bytes: at least 0")
        self.lines.append(BudgetLine(what, arithmetic, int(nbytes), place))
        return self

    def add_rollout_ring(
        self,
        num_envs: int,
        num_steps: int,
        obs_dim: int,
        action_dim: int,
        *,
        critic_dim: int = 0,
        num_slots: int = 4,
        fields: Mapping[str, Any] | None = None,
    ) -> Self:
        """A `RolloutRing` with these arguments."""
        _check_counts(num_slots=num_slots)
        layout = rollout_layout((num_envs, num_steps, obs_dim, action_dim), critic_dim, fields)
        slot = sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout.values())
        step, last = obs_dim + action_dim + 4 + critic_dim, obs_dim + critic_dim
        more = slot - num_envs * (num_steps * step + last) * _FLOAT32
        arithmetic = (
            f"{num_slots} slots x ({num_envs} x {num_steps} steps x {step} numbers + {num_envs} x {last} last) x 4 B"
            + (f" + {num_slots} x {more:,} B of fields" if more else "")
        )
        total = rollout_ring_bytes(layout, num_slots)
        return self._add_segment("rollout ring", arithmetic, num_slots * slot, total)

    def add_replay(self, capacity: int, obs_dim: int, action_dim: int, *, critic_dim: int = 0) -> Self:
        """A `TransitionBuffer` of so many transitions."""
        total = replay_bytes(capacity, obs_dim, action_dim, critic_dim=critic_dim)
        numbers = 2 * obs_dim + action_dim + 3 + 2 * critic_dim
        arithmetic = f"{capacity:,} rows x {numbers} numbers x 4 B"
        return self._add_segment("replay", arithmetic, capacity * numbers * _FLOAT32, total)

    def add_weights(self, nbytes: int, *, buffers: int = 8, leaves: int = 1000) -> Self:
        """A `WeightSync` of so many bytes of parameters, with as many buffers as it may grow to.

        ``leaves``: at most so many arrays, each with an overhead of some bytes.
        """
        _check_counts(nbytes=nbytes, buffers=buffers, leaves=leaves)
        # No other sizes of so many leaves take more room: each small one begins at its own cache line.
        sizes = [nbytes] + [1] * (leaves - 1)
        total = weights_bytes(sizes, buffers, leaves * _LEAF_TEXT, _WEIGHT_HANDLES)
        return self._add_segment("weights", f"{buffers} buffers x {nbytes:,} B", nbytes * buffers, total)

    def add_pinned(self, nbytes: int, *, buffers: int = 2) -> Self:
        """Page-locked staging buffers of the learner."""
        _check_counts(nbytes=nbytes, buffers=buffers)
        return self.add("pinned staging", f"{buffers} buffers x {nbytes:,} B", nbytes * buffers, "private")

    @property
    def shared_bytes(self) -> int:
        """What will be in shared memory."""
        return sum(line.nbytes for line in self.lines if line.place == "shared")

    @property
    def total_bytes(self) -> int:
        """All of it. Shared memory counts as memory, too."""
        return sum(line.nbytes for line in self.lines)

    def excesses(self, room: Room | None = None, *, threshold: float = 0.8) -> list[str]:
        """What does not fit into ``threshold`` of the room, in words; empty when everything fits.

        ``room``: `Room.now` when left out.
        """
        if not 0 < threshold <= 1:
            raise InvalidArgument(f"threshold = {threshold} must be between 0 and 1")
        room = room or Room.now()
        limits: Sequence[tuple[str, int, int | None, str]] = (
            (
                "free shared memory",
                self.shared_bytes,
                room.shared_memory,
                "enlarge it (docker: --shm-size=8g; root: mount -o remount,size=8G /dev/shm)",
            ),
            ("available memory", self.total_bytes, room.memory, "use a machine with more"),
            ("what is left of the control group's limit", self.total_bytes, room.cgroup, "raise the limit"),
        )
        return [
            f"{_mib(wanted)} > {threshold:.0%} of {_mib(left)}, {what}: {advice}, or have fewer envs, slots or rows"
            for what, wanted, left, advice in limits
            if left is not None and wanted > left * threshold
        ]

    def _add_segment(self, what: str, arithmetic: str, nbytes: int, total: int) -> Self:
        """``nbytes``: the data of a segment. ``total``: the whole of it, rounded up to whole KiB for the message."""
        overhead = -(-(total - nbytes) // 1024)
        return self.add(what, f"{arithmetic} + {overhead:,} KiB", nbytes + overhead * 1024)

    def __str__(self) -> str:
        shared = self.shared_bytes
        total = f"total = {_mib(shared)} shared, {_mib(self.total_bytes - shared)} private"
        return "\n".join([*map(str, self.lines), total])


def raise_if_over_budget(
    estimated: MemoryBudget, label: str = "this run", threshold: float = 0.8, room: Room | None = None
) -> None:
    """`NotEnoughMemory`, with the arithmetic, when the estimate does not fit into ``threshold`` of what is left.

    >>> room = Room(shared_memory=64 * 2**20, memory=2**33, cgroup=None)
    >>> raise_if_over_budget(MemoryBudget().add_weights(10**9), "appo", room=room)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    rollway.errors.NotEnoughMemory: appo does not fit into memory:
      7,630.5 MiB > 80% of 64.0 MiB, free shared memory: enlarge it ...
    """
    if text := _over(estimated, label, threshold, room):
        raise NotEnoughMemory(text)


def warn_if_over_budget(
    estimated: MemoryBudget, label: str = "this run", threshold: float = 0.8, room: Room | None = None
) -> None:
    """As `raise_if_over_budget`, but only warns (`RuntimeWarning`)."""
    if text := _over(estimated, label, threshold, room):
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def get_available_memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """What is available without swapping, according to the kernel; ``None`` where it does not say."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def get_available_shared_memory_bytes(path: str = "/dev/shm") -> int | None:
    """What is free in a shared-memory directory; ``None`` when it is not there."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize


def _over(estimated: MemoryBudget, label: str, threshold: float, room: Room | None) -> str:
    excesses = estimated.excesses(room, threshold=threshold)
    if not excesses:
        return ""
    parts = [f"  {part}" for part in [*excesses, *str(estimated).splitlines()]]
    return "\n".join([f"{label} does not fit into memory:", *parts])


def _check_counts(**counts: int) -> None:
    for what, count in counts.items():
        if count < 0:
            raise InvalidArgument(f"{what} = {count} is out of range: at least 0")


def _mib(count: int) -> str:
    return f"{count / _MIB:,.1f} MiB"
