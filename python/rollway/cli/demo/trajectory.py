"""Trajectory: the sample that the demo streams, and Tally, which checks every element of it on arrival.

A sample is known by its key, ``counter * workers + worker``, which the four bytes of its score hold. Its other leaves
are windows into fixed random texts, at an offset given by the key. So a worker can make any sample, the learner knows
every element that it must have, and a sample put together from two others is recognised as torn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Item = dict[str, Array]

LENGTH = 2048
SAMPLE_BYTES = 3 * 4 * LENGTH + 4
_OFFSETS = 4096

_random = np.random.default_rng(LENGTH)
_TEXTS: Item = {
    "tokens": _random.integers(0, 32_000, _OFFSETS + LENGTH, dtype=np.int32),
    "masks": _random.integers(-100, 32_000, _OFFSETS + LENGTH, dtype=np.int32),
    "logprobs": -_random.random(_OFFSETS + LENGTH, dtype=np.float32),
}
_WINDOWS = {leaf: np.lib.stride_tricks.sliding_window_view(text, LENGTH) for leaf, text in _TEXTS.items()}


def example() -> Item:
    """A sample of zeros, for the schema."""
    return {leaf: np.zeros_like(array) for leaf, array in trajectory(0).items()}


def trajectory(key: int) -> Item:
    """The sample of that key. Most of it is views of the texts: do not write to it."""
    offset = key % _OFFSETS
    sample = {leaf: text[offset : offset + LENGTH] for leaf, text in _TEXTS.items()}
    sample["score"] = np.array([key], np.int32).view(np.float32)
    return sample


@dataclass(frozen=True)
class Verdict:
    """How many samples arrived, and how many arrived wrong or not at all."""

    verified: int = 0
    lost: int = 0
    repeated: int = 0
    torn: int = 0

    @property
    def flawless(self) -> bool:
        """Whether every sample arrived once and whole."""
        return not (self.lost or self.repeated or self.torn)

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return f"verified {self.verified:,} samples: {self.lost:,} lost, {self.repeated:,} repeated, {self.torn:,} torn"


class Tally:
    """Checks batches as they come, and remembers which samples were in them. Used by one thread; others may read.

    Args:
        workers: How many workers number their samples.

    >>> tally = Tally(workers=2)
    >>> for key in (0, 2, 3, 3):
    ...     _ = tally.check({leaf: array[None] for leaf, array in trajectory(key).items()})
    >>> str(tally.verdict([2, 2]))
    'verified 4 samples: 1 lost, 1 repeated, 0 torn'
    """

    def __init__(self, workers: int) -> None:
        self.per_worker = np.zeros(workers, np.int64)
        self.received = 0
        self.batches = 0
        self._workers = workers
        self._torn = 0
        self._seen = np.zeros(1 << 16, np.uint8)

    def check(self, batch: Item) -> Array:
        """Compares every element of a batch with what it must be, and counts its samples. Returns their keys."""
        keys: Array = batch["score"].view(np.int32)[:, 0].copy()
        whole = keys >= 0
        for leaf, windows in _WINDOWS.items():
            whole &= (windows[keys % _OFFSETS] == batch[leaf]).all(axis=1)
        self.received += len(keys)
        self.batches += 1
        if not whole.all():
            self._torn += int(np.count_nonzero(~whole))
            keys = keys[whole]
        self._remember(keys)
        return keys

    def verdict(self, sent: Sequence[int | None]) -> Verdict:
        """The verdict on the samples, when each worker has sent ``sent[worker]``.

        ``None``: the worker died before its report. Then everything up to the last sample seen of it must be there.
        """
        lost = repeated = 0
        for worker, count in enumerate(sent):
            times = self._seen[worker :: self._workers]
            arrived = np.flatnonzero(times)
            until = count if count is not None else (int(arrived[-1]) + 1 if len(arrived) else 0)
            lost += int(np.count_nonzero(times[:until] == 0)) + max(0, until - len(times))
            # A sample that no worker reports to have sent counts as repeated.
            repeated += int(np.sum(times[:until][times[:until] > 1] - 1)) + int(np.sum(times[until:]))
        return Verdict(self.received - self._torn, lost, repeated, self._torn)

    def _remember(self, keys: Array) -> None:
        if not len(keys):
            return
        last = int(keys.max())
        if last >= len(self._seen):
            self._seen = np.concatenate([self._seen, np.zeros(max(last, len(self._seen)), np.uint8)])
        np.add.at(self._seen, keys, 1)
        self.per_worker += np.bincount(keys % self._workers, minlength=self._workers)
