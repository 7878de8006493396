"""RunningObsStats: mean and standard deviation of all that several collectors have observed, kept while they go on.

Each collector adds to numbers of its own in shared memory; the process that asks merges them. What a collector has
added stays when it dies, and the collector that is started in its place goes on from there. `SharedObsNormStats`
publishes the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from rollway.errors import InvalidArgument
from rollway.schema.arrays import as_array
from rollway.weights.weight_sync import SharedWeightSync

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of some observations: enough to merge with those of others, exactly.

    >>> import numpy as np
    >>> data = np.arange(12.0).reshape(6, 2)
    >>> merged = Moments.of(data[:1]) + Moments.of(data[1:])
    >>> merged.count, merged.mean.tolist(), bool(np.allclose(merged.std, data.std(axis=0)))
    (6.0, [5.0, 6.0], True)
    """

    count: float
    mean: Array
    squares: Array

    @classmethod
    def none(cls, obs_dim: int) -> Self:
        """Of no observation at all."""
        return cls(0.0, np.zeros(obs_dim), np.zeros(obs_dim))

    @classmethod
    def of(cls, observations: Array) -> Self:
        """Of the rows of an array."""
        mean = observations.mean(axis=0, dtype=np.float64)
        return cls(float(len(observations)), mean, np.square(observations - mean).sum(axis=0, dtype=np.float64))

    def __add__(self, other: Moments) -> Moments:
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        squares = self.squares + other.squares + np.square(apart) * (self.count * other.count / count)
        return Moments(count, mean, squares)

    @property
    def std(self) -> Array:
        """The standard deviation, as ``numpy.std``; ones while there is no observation."""
        deviation: Array = np.sqrt(self.squares / self.count) if self.count else np.ones_like(self.squares)
        return deviation


class RunningObsStats:
    """Merges what collectors have observed: each adds under its own number, and any process may ask. No call waits.

    A handle may be pickled into a spawned process. Under one number one process adds at a time; when it is dead,
    another may, and goes on with what was added.

    Args:
        obs_dim: Numbers in an observation.
        num_collectors: How many add, each under a number from 0 on.

    >>> import numpy as np
    >>> data = np.arange(12.0).reshape(6, 2)
    >>> with RunningObsStats(obs_dim=2, num_collectors=2) as stats:
    ...     stats.update(0, data[:4])
    ...     stats.update(1, data[4:])
    ...     merged = stats.merged()
    >>> merged.count, merged.mean.tolist()
    (6.0, [5.0, 6.0])
    """

    def __init__(self, obs_dim: int, num_collectors: int) -> None:
        for what, value in {"obs_dim": obs_dim, "num_collectors": num_collectors}.items():
            if value < 1:
                raise InvalidArgument(f"{what} = {value} is out of range: at least 1")
        shapes: dict[str, tuple[int, ...]] = {"count": (), "mean": (obs_dim,), "squares": (obs_dim,)}
        dtypes = dict.fromkeys(shapes, np.float64)
        self._bind(obs_dim, [SharedWeightSync._without_writer(shapes, dtypes, None) for _ in range(num_collectors)])

    def _bind(self, obs_dim: int, shares: list[SharedWeightSync]) -> None:
        self._obs_dim = obs_dim
        self._shares = shares
        self._mine: dict[int, tuple[int, Moments]] = {}

    def update(self, index: int, observations: Any) -> None:
        """Adds observations of collector ``index``: an array or tensor whose last dimension is ``obs_dim``."""
        if not 0 <= index < len(self._shares):
            raise InvalidArgument(f"collector {index} is none of the {len(self._shares)} that these were made for")
        array = as_array(observations, "observations", None)
        if array.ndim == 0 or array.shape[-1] != self._obs_dim:
            raise InvalidArgument(f"observations are {list(array.shape)}: the last dimension must be {self._obs_dim}")
        rows = array.reshape(-1, self._obs_dim)
        if not len(rows):
            return
        share = self._shares[index]
        version, before = self._mine.get(index, (-1, None))
        if before is None or version != share.version:
            before = self._read(share)
        after = before + Moments.of(rows)
        share.write_weights({"count": np.float64(after.count), "mean": after.mean, "squares": after.squares})
        self._mine[index] = (share.version, after)

    def merged(self) -> Moments:
        """Everything that was added so far, by the living and the dead."""
        moments = Moments.none(self._obs_dim)
        for share in self._shares:
            moments += self._read(share)
        return moments

    def close(self) -> None:
        """Lets go. The last one to leave takes the names away. Safe to call twice."""
        for share in self._shares:
            share.close()

    def cleanup(self) -> None:
        """Closes, and takes the names away at once."""
        for share in self._shares:
            share.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self._obs_dim, self._shares)

    def __repr__(self) -> str:
        return f"<rollway.RunningObsStats obs_dim={self._obs_dim} of {len(self._shares)} collectors>"

    def _read(self, share: SharedWeightSync) -> Moments:
        there = {"count": np.zeros((), np.float64), "mean": np.zeros(self._obs_dim), "squares": np.zeros(self._obs_dim)}
        share.read_weights_into(there)  # Changes nothing when no process has added yet.
        return Moments(float(there["count"]), there["mean"], there["squares"])


def _attached(obs_dim: int, shares: list[SharedWeightSync]) -> RunningObsStats:
    """What a pickled handle becomes in the other process."""
    stats = RunningObsStats.__new__(RunningObsStats)
    stats._bind(obs_dim, shares)
    return stats
