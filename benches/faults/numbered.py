"""Numbered samples of which every word is known: a receiver can tell whose it got, which, and whether it is whole.

A sample names its worker, the life of that worker and a counter, and carries a payload that follows from the three. For
the runs under faults (kills.py, cuts.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.workloads import Item


class Numbered:
    """Samples of `words` words of payload, and three that say which it is: worker, life, counter."""

    def __init__(self, words: int) -> None:
        self._pattern = np.arange(words, dtype=np.int64) * 31

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.example().values())

    def example(self, *rows: int) -> Item:
        """Zeros; with a leading dimension, if one is given."""
        return {"id": np.zeros((*rows, 3), np.int64), "payload": np.zeros((*rows, len(self._pattern)), np.int64)}

    def write(self, sample: Any, worker: int, life: int, counter: int) -> Any:
        """Makes it the sample of that number."""
        sample["id"][:] = worker, life, counter
        np.add(self._pattern, _key(worker, life, counter), out=sample["payload"])
        return sample

    def write_run(self, samples: Any, worker: int, life: int, counter: int) -> Any:
        """Makes them the samples from that number on."""
        ids = samples["id"]
        ids[:, 0], ids[:, 1], ids[:, 2] = worker, life, np.arange(counter, counter + len(ids))
        np.add(self._pattern, _key(worker, life, ids[:, 2:]), out=samples["payload"])
        return samples

    def torn(self, batch: Any) -> int:
        """How many samples of a batch are not what their number says."""
        workers, lives, counters = batch["id"].T[..., None]
        return int((batch["payload"] != self._pattern + _key(workers, lives, counters)).any(axis=1).sum())


def _key(worker: Any, life: Any, counter: Any) -> Any:
    return worker * 1_000_003 + life * 7919 + counter
