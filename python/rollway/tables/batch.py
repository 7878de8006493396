"""TableBatch: what a sample of a table gives."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class TableBatch(NamedTuple):
    """Items of a table, copied: yours to keep."""

    data: Any
    """The columns. Items of whole steps have the structure of the example, and each array the dimensions items and
    steps in front of the leaf's own. Items with columns of their own are a dict of them."""
    keys: Array
    """Names the items, for `TableView.update_priorities`."""
    probabilities: Array
    """With which each item was chosen."""
    priorities: Array
    times_sampled: Array
    """How often each item was sampled, with this time."""
    lengths: dict[str, Array] | None
    """The steps of each item in each column, where items differ; behind them are zeros. ``None``: all are full."""
    size: int
    """Items in the table."""

    def weights(self, beta: float) -> Array:
        """Importance weights, ``(size * probability) ** -beta``, divided by the greatest of them."""
        weights = (self.size * self.probabilities) ** -beta
        weights /= weights.max()
        return weights
