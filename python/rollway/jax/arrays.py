"""Arrays of JAX from arrays of numpy. An array of JAX never changes, so each gets memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optree

from rollway.errors import SchemaMismatch
from rollway.schema.arrays import as_array
from rollway.schema.pytree import NAMESPACE, path_text


def as_arrays(tree: Any, device: Any = None) -> Any:
    """The same tree with an array of JAX in place of each array, on ``device`` (JAX's default when left out).

    `jax.device_put` may take over the memory of an array on the CPU. A batch's memory is used again after its release,
    so this copies each array first; JAX takes over that copy.

    >>> import numpy as np
    >>> as_arrays({"x": np.arange(3, dtype=np.float32)})["x"].tolist()
    [0.0, 1.0, 2.0]
    """
    paths, leaves, treedef = optree.tree_flatten_with_path(tree, namespace=NAMESPACE)
    copies = [np.array(as_array(leaf, path_text(path), None)) for path, leaf in zip(paths, leaves, strict=True)]
    return optree.tree_unflatten(treedef, put(copies, paths, device))


def put(arrays: list[np.ndarray[Any, Any]], paths: Sequence[tuple[Any, ...]], device: Any) -> list[Any]:
    """Hands arrays over to JAX, which may keep their memory: nobody may write to it any more."""
    try:
        return list(jax.device_put(arrays, device))
    except (TypeError, ValueError):
        for path, array in zip(paths, arrays, strict=True):
            if not _is_known(array.dtype):
                raise SchemaMismatch(
                    f"leaf '{path_text(path)}' is {array.dtype}, which JAX does not have: leave it out, or send it in "
                    "another dtype"
                ) from None
        raise


def _is_known(dtype: np.dtype[Any]) -> bool:
    try:
        jax.device_put(np.empty(0, dtype))
    except (TypeError, ValueError):
        return False
    return True
