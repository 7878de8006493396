"""TrajectoryAccumulator: gathers single steps into one fixed-size sample, before it is sent. Touches no ring."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree

from rollway.errors import InvalidArgument, SchemaMismatch

_NAMESPACE = "rollway"


class TrajectoryAccumulator:
    """Collects steps, step by step, into a sample of several timescales.

    The example is a dict of timescales. A timescale whose leaves all have the same leading dimension *N* > 1 takes *N*
    steps, one per `add`. One with a 0-d leaf, or whose leaves all start with 1, holds a single item (a bootstrap
    observation, an episode return), which `add` writes whole.

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
        self._capacity = {name: _capacity(name, tree) for name, tree in example.items()}
        self._filled = dict.fromkeys(example, 0)
        self._tree = {
            name: optree.tree_map(np.zeros_like, tree, namespace=_NAMESPACE) for name, tree in example.items()
        }

    def add(self, name: str, data: Any) -> None:
        """Writes one item into the next place of timescale ``name``. On an error nothing is changed."""
        if name not in self._capacity:
            raise KeyError(f"unknown timescale '{name}'; there are {list(self._capacity)}")
        capacity, place = self._capacity[name], self._filled[name]
        if place >= max(capacity, 1):
            raise IndexError(f"timescale '{name}' is full: it has room for {max(capacity, 1)}; call build() or reset()")
        where: Any = Ellipsis if capacity == 0 else place
        stored, spec = optree.tree_flatten(self._tree[name], namespace=_NAMESPACE)
        try:
            items = [np.asarray(item) for item in spec.flatten_up_to(data)]
        except ValueError as error:
            raise SchemaMismatch(f"an item of timescale '{name}' must have the structure {spec}: {error}") from None
        targets = [leaf[where] if capacity else leaf for leaf in stored]
        for target, item in zip(targets, items, strict=True):
            shape = np.shape(target)
            if item.shape not in (shape, (1, *shape)):
                raise SchemaMismatch(f"an item of timescale '{name}' must have shape {shape}, not {item.shape}")
        for leaf, target, item in zip(stored, targets, items, strict=True):
            leaf[where] = item.reshape(np.shape(target))
        self._filled[name] += 1

    def build(self) -> dict[str, Any]:
        """The sample, and starts anew. It is the accumulator's own memory: send it before the next `add`."""
        self.reset()
        return self._tree

    def reset(self) -> None:
        """Starts anew, as when an episode is given up."""
        self._filled = dict.fromkeys(self._filled, 0)


def _capacity(name: str, tree: Any) -> int:
    """How many items a timescale takes; 0 for one that holds a single item, written whole."""
    leaves = optree.tree_leaves(tree, namespace=_NAMESPACE)
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
