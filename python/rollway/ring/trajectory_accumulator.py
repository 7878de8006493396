"""TrajectoryAccumulator: gathers single steps into one fixed-size sample, before it is sent. Touches no ring."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree

from rollway._core import RowWriter
from rollway.errors import InvalidArgument, SchemaMismatch
from rollway.schema.arrays import as_array, fitted
from rollway.schema.pytree import NAMESPACE, Schema, path_text, register_dataclasses

_Array = np.ndarray[Any, Any]


class TrajectoryAccumulator:
    """Collects single steps into a sample of several timescales.

    The example is a dict of timescales. A timescale whose leaves all have the same leading dimension *N* > 1 takes *N*
    steps, one per `add`. One with a 0-d leaf, or whose leaves all start with 1, holds a single item (a bootstrap
    observation, an episode return), which `add` writes whole. Values are cast to the dtypes of the example where that
    keeps their kind: not from float to int. One that would be cut or become infinite is refused.

    >>> import numpy as np
    >>> acc = TrajectoryAccumulator({"step": {"reward": np.zeros((2, 1))}, "last": {"value": np.zeros(())}})
    >>> for r in (1.0, 2.0):
    ...     acc.add("step", {"reward": np.array([r])})
    >>> acc.add("last", {"value": np.array(0.5)})
    >>> acc.build()["step"]["reward"].tolist()
    [[1.0], [2.0]]
    """

    def __init__(self, example: dict[str, Any]) -> None:
        if not isinstance(example, dict):
            raise TypeError(f"the example must be a dict of timescales, not a {type(example).__name__}")
        register_dataclasses(example)
        self._tree = {name: _blank(name, tree) for name, tree in example.items()}
        self._capacity = {name: _capacity(name, tree) for name, tree in self._tree.items()}
        self._room = {name: max(capacity, 1) for name, capacity in self._capacity.items()}
        self._filled = dict.fromkeys(example, 0)
        self._compile()

    def _compile(self) -> None:
        self._writers = {name: _writer(tree, self._capacity[name]) for name, tree in self._tree.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_writers"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    def add(self, name: str, data: Any) -> None:
        """Writes one item into the next place of timescale ``name``. On an error nothing is changed."""
        place = self._filled.get(name)
        if place is None:
            raise KeyError(f"unknown timescale '{name}'; there are {list(self._capacity)}")
        if place >= self._room[name]:
            raise IndexError(f"timescale '{name}' is full: it has room for {self._room[name]}; call build() or reset()")
        if not self._writers[name].write(place, data):
            self._convert(name, place, data)
        self._filled[name] = place + 1

    def _convert(self, name: str, place: int, data: Any) -> None:
        """Writes what is not exact. Raises `SchemaMismatch` with the name of what does not fit."""
        capacity = self._capacity[name]
        stored, spec = optree.tree_flatten(self._tree[name], namespace=NAMESPACE)
        try:
            values = spec.flatten_up_to(data)
        except ValueError as error:
            raise SchemaMismatch(f"an item of timescale '{name}' must have the structure {spec}: {error}") from None
        items = [
            _item(value, path, leaf.shape[1:] if capacity else leaf.shape, leaf.dtype)
            for value, path, leaf in zip(values, _paths(name, self._tree[name]), stored, strict=True)
        ]
        for leaf, item in zip(stored, items, strict=True):
            leaf[place if capacity else ...] = item

    def build(self) -> dict[str, Any]:
        """Gives the sample, and starts anew. The next `add` writes into the same memory: send the sample before.

        Places that no `add` has filled are zeros.
        """
        for name, filled in self._filled.items():
            if filled < self._room[name]:
                rest = slice(filled, None) if self._capacity[name] else ...
                for leaf in optree.tree_leaves(self._tree[name], namespace=NAMESPACE):
                    leaf[rest] = 0
        self.reset()
        return self._tree

    def reset(self) -> None:
        """Starts anew; drops the steps of an episode that ended early."""
        self._filled = dict.fromkeys(self._filled, 0)


def _blank(name: str, tree: Any) -> Any:
    """A timescale of zeros."""
    return optree.tree_map_with_path(
        lambda path, leaf: np.zeros_like(as_array(leaf, path_text((name, *path)), None)), tree, namespace=NAMESPACE
    )


def _paths(name: str, tree: Any) -> list[str]:
    return [path_text((name, *path)) for path in optree.tree_paths(tree, namespace=NAMESPACE)]


def _writer(tree: Any, capacity: int) -> RowWriter:
    """Writes items into a timescale natively."""
    item = optree.tree_map(
        lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape[1:] if capacity else leaf.shape),
        tree,
        namespace=NAMESPACE,
    )
    return RowWriter(Schema.of(item).plan(), optree.tree_leaves(tree, namespace=NAMESPACE))


def _item(value: Any, path: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Array:
    """A value as an array of this shape and dtype; a leading 1 may be there or not."""
    array = _plain(value, path, dtype) if isinstance(value, _PLAIN) else as_array(value, path, None)
    if array.shape not in (shape, (1, *shape), shape[1:] if shape[:1] == (1,) else shape):
        raise SchemaMismatch(f"leaf '{path}' of an item must have shape {shape}, not {array.shape}")
    return fitted(array, dtype, f"leaf '{path}'").reshape(shape)


_PLAIN = (bool, int, float, complex, list, tuple)


def _plain(value: Any, path: str, dtype: np.dtype[Any]) -> _Array:
    """Python's numbers, and lists of them: whole numbers take the dtype of their leaf, if that can hold them."""
    try:
        array = np.asarray(value)
        return np.asarray(value, dtype) if array.dtype.kind in "iu" and dtype.kind in "iu" else array
    except (ValueError, OverflowError) as error:
        raise SchemaMismatch(f"leaf '{path}' is {value!r}, which makes no array of {dtype}: {error}") from None


def _capacity(name: str, tree: Any) -> int:
    """How many items a timescale takes; 0 for one that holds a single item, written whole."""
    leaves = optree.tree_leaves(tree, namespace=NAMESPACE)
    if not leaves:
        raise InvalidArgument(f"timescale '{name}' has no arrays in it")
    if any(leaf.ndim == 0 for leaf in leaves) or all(leaf.shape[0] == 1 for leaf in leaves):
        return 0
    leading = {int(leaf.shape[0]) for leaf in leaves}
    if len(leading) > 1:
        raise InvalidArgument(
            f"the leaves of timescale '{name}' have different leading dimensions {sorted(leading)}. Give them the "
            "same one, or make it a single item: one leaf 0-d, or every leaf of shape (1, ...)"
        )
    return leading.pop()
