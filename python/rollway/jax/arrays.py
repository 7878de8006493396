"""Arrays of JAX from arrays of numpy. An array of JAX never changes, so each gets memory of its own."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optree

from rollway.schema.pytree import NAMESPACE


def as_arrays(tree: Any, device: Any = None) -> Any:
    """The same tree with an array of JAX in place of each array, on ``device`` (JAX's default when left out).

    `jax.device_put` may take over the memory of an array on the CPU. A batch's memory is used again after its release,
    so this copies each array first; JAX takes over that copy.

    >>> import numpy as np
    >>> as_arrays({"x": np.arange(3, dtype=np.float32)})["x"].tolist()
    [0.0, 1.0, 2.0]
    """
    copies = optree.tree_map(np.array, tree, namespace=NAMESPACE)
    return jax.device_put(copies, device)
