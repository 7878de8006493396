"""ObsNormStats: the latest mean and standard deviation of the observations, from the learner to its collectors.

The two arrays are a version of small weights: readers get both or neither, and no call waits. `RunningObsStats`
computes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollway.errors import InvalidArgument
from rollway.schema.arrays import as_array
from rollway.segment.closes_on_exit import ClosesOnExit
from rollway.weights.weight_sync import WeightSync

Array = np.ndarray[Any, Any]

_DTYPES = ("float16", "float32", "float64")
_MAX_DIMENSIONS = 8


class ObsNormStats(ClosesOnExit):
    """Moves (mean, std) from the process that puts to any number of processes that get.

    `get` gives each version at most once, and only the latest. What a process put stays after its death. A handle may
    be pickled into a spawned process and used in a forked one, and other processes may join by its ``name``. One
    process puts: the first that does, as long as it lives.

    Args:
        max_obs_dim: Room for so many numbers in an observation, of any shape.
        name: The name of the segment; automatic when left out. A segment of that name, with the same ``max_obs_dim``,
            is joined.

    >>> import numpy as np
    >>> with ObsNormStats() as stats:
    ...     stats.put((np.zeros(3, np.float32), np.ones(3, np.float32)))
    ...     mean, std = stats.get()
    ...     std.tolist(), stats.get()
    ([1.0, 1.0, 1.0], None)
    """

    def __init__(self, *, max_obs_dim: int = 16_384, name: str | None = None) -> None:
        if max_obs_dim < 1:
            raise InvalidArgument(f"max_obs_dim = {max_obs_dim} is out of range: at least 1")
        shapes = {"form": (2 + _MAX_DIMENSIONS,), "moments": (2, max_obs_dim)}
        self._bind(WeightSync._without_writer(shapes, {"form": np.int64, "moments": np.float64}, name), max_obs_dim)

    def _bind(self, sync: WeightSync, max_obs_dim: int) -> None:
        self._sync = sync
        self._max_obs_dim = max_obs_dim
        self._seen = 0
        self._form = np.zeros(2 + _MAX_DIMENSIONS, np.int64)
        self._moments = np.zeros((2, max_obs_dim), np.float64)

    @property
    def name(self) -> str:
        """The name of the segment."""
        return self._sync.name

    def put(self, stats: tuple[Any, Any]) -> None:
        """Publishes (mean, std): arrays or tensors of floats, of one shape."""
        if not isinstance(stats, tuple | list) or len(stats) != 2:
            raise InvalidArgument(f"put takes a pair, (mean, std); this is a {type(stats).__name__}")
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
        """The latest (mean, std), as new arrays; ``None`` when this handle has given it before, or there is none."""
        if self._sync.version == self._seen:
            return None
        self._seen = self._sync.read_weights_into({"form": self._form, "moments": self._moments})
        dtype, dimensions = _DTYPES[self._form[0]], int(self._form[1])
        shape = tuple(map(int, self._form[2 : 2 + dimensions]))
        mean, std = (row[: int(np.prod(shape))].reshape(shape).astype(dtype) for row in self._moments)
        return mean, std

    def close(self) -> None:
        """Closes this handle; the last process to close removes the name. Safe to call twice.

        A name that a user chose stays if the process that puts died without closing.
        """
        self._sync.close()

    def cleanup(self) -> None:
        """Closes, and removes the name at once."""
        self._sync.cleanup()

    def __getstate__(self) -> tuple[WeightSync, int]:
        return self._sync, self._max_obs_dim

    def __setstate__(self, state: tuple[WeightSync, int]) -> None:
        self._bind(*state)

    def __repr__(self) -> str:
        state = "closed" if self._sync.closed else f"version {self._sync.version}"
        return f"<rollway.{type(self).__name__} {self.name} {state}>"
