"""For JAX: batches as arrays of JAX.

```text
arrays.py   `as_arrays`: arrays of a batch as arrays of JAX
device_batches.py   what ``device_iter(framework="jax")`` gives
```

Importing this module imports JAX; nothing else in Rollway does, before it is asked for its arrays.
"""

from rollway.jax.arrays import as_arrays

__all__ = ["as_arrays"]
