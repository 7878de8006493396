"""SharedObsNormStats: the latest mean and standard deviation of the observations, from the learner to its collectors.

Two arrays go through shared memory, as versions of weights do: whole or not at all, and nobody waits. It computes
nothing: `RunningObsStats` does.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import numpy as np

from rollway.errors import InvalidArgument
from rollway.schema.arrays import as_array
from rollway.weights.weight_sync import SharedWeightSync

Array = np.ndarray[Any, Any]

_DTYPES = ("float16", "float32", "float64")
_MAX_DIMENSIONS = 8


class SharedObsNormStats:
    """Moves (mean, std) from the process that puts to any number of processes that get.

    Each of those sees each version at most once and may miss some: only the latest counts. What a dead process had put
    stays. Neither call waits. A handle may be pickled into a spawned process and used in a forked one, and others may
    join by its ``name``. The first to put is the one who puts, as long as it lives.

    Args:
        ctx: A multiprocessing context: accepted for compatibility, and not needed.
        max_obs_dim: Room for so many numbers in an observation. The shape itself is that of what is put.
        name: What the segment is called; made up when left out. If there is one of that name, with the same
            ``max_obs_dim``, this joins it.

    >>> import numpy as np
    >>> with SharedObsNormStats() as stats:
    ...     stats.put((np.zeros(3, np.float32), np.ones(3, np.float32)))
    ...     mean, std = stats.get()
    ...     std.tolist(), stats.get()
    ([1.0, 1.0, 1.0], None)
    """

    def __init__(self, ctx: object = None, *, max_obs_dim: int = 16_384, name: str | None = None) -> None:
        if max_obs_dim < 1:
            raise InvalidArgument(f"max_obs_dim = {max_obs_dim} is out of range: at least 1")
        shapes = {"form": (2 + _MAX_DIMENSIONS,), "moments": (2, max_obs_dim)}
        self._bind(
            SharedWeightSync._without_writer(shapes, {"form": np.int64, "moments": np.float64}, name), max_obs_dim
        )

    def _bind(self, sync: SharedWeightSync, max_obs_dim: int) -> None:
        self._sync = sync
        self._max_obs_dim = max_obs_dim
        self._seen = 0
        self._form = np.zeros(2 + _MAX_DIMENSIONS, np.int64)
        self._moments = np.zeros((2, max_obs_dim), np.float64)

    @property
    def name(self) -> str:
        """What the segment is called."""
        return self._sync.name

    def put(self, stats: tuple[Any, Any]) -> None:
        """Publishes (mean, std): arrays or tensors of floats, of one shape. They replace what was put before."""
        mean, std = (as_array(value, what, None) for value, what in zip(stats, ("mean", "std"), strict=True))
        if mean.shape != std.shape:
            raise InvalidArgument(f"the mean is {list(mean.shape)} and the std {list(std.shape)}: give one shape")
        if mean.size > self._max_obs_dim or mean.ndim > _MAX_DIMENSIONS:
            raise InvalidArgument(
                f"there is room for {self._max_obs_dim} numbers in {_MAX_DIMENSIONS} dimensions, not for "
                f"{list(mean.shape)}: raise max_obs_dim"
            )
        if mean.dtype.name not in _DTYPES or std.dtype != mean.dtype:
            raise InvalidArgument(f"mean and std are {mean.dtype} and {std.dtype}: give both as one of {_DTYPES}")
        form, moments = np.zeros_like(self._form), np.zeros_like(self._moments)
        form[:2] = _DTYPES.index(mean.dtype.name), mean.ndim
        form[2 : 2 + mean.ndim] = mean.shape
        moments[0, : mean.size], moments[1, : mean.size] = mean.ravel(), std.ravel()
        self._sync.write_weights({"form": form, "moments": moments})

    def get(self) -> tuple[Array, Array] | None:
        """The latest (mean, std), as arrays of your own; ``None`` when this handle has it already, or none was put."""
        if self._sync.version == self._seen:
            return None
        self._seen = self._sync.read_weights_into({"form": self._form, "moments": self._moments})
        dtype, dimensions = _DTYPES[self._form[0]], int(self._form[1])
        shape = tuple(map(int, self._form[2 : 2 + dimensions]))
        mean, std = (row[: int(np.prod(shape))].reshape(shape).astype(dtype) for row in self._moments)
        return mean, std

    def close(self) -> None:
        """Lets go. The last one to leave takes the name away. Safe to call twice.

        A name that somebody chose stays if the process that put died without closing: the next one finds what it put.
        """
        self._sync.close()

    def cleanup(self) -> None:
        """Closes, and takes the name away at once."""
        self._sync.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self._sync, self._max_obs_dim)

    def __repr__(self) -> str:
        state = "closed" if self._sync.closed else f"version {self._sync.version}"
        return f"<rollway.SharedObsNormStats {self.name} {state}>"


def _attached(sync: SharedWeightSync, max_obs_dim: int) -> SharedObsNormStats:
    """What a pickled handle becomes in the other process."""
    stats = SharedObsNormStats.__new__(SharedObsNormStats)
    stats._bind(sync, max_obs_dim)
    return stats
