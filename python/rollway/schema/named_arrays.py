"""NamedArrays: a dict of arrays that torch and JAX can have. Replay batches and rollouts are such dicts."""

from __future__ import annotations

from typing import Any


class NamedArrays(dict[str, Any]):
    """Arrays by name.

    >>> import numpy as np
    >>> arrays = NamedArrays(obs=np.ones((2, 3), np.float32), reward=np.zeros(2, np.float32))
    >>> arrays.torch()["obs"].sum(), arrays.tensordict().batch_size
    (tensor(6.), torch.Size([2]))
    """

    __slots__ = ()

    def torch(self) -> dict[str, Any]:
        """The same memory as torch tensors, which keep it as the arrays do."""
        from rollway.torch import as_tensors

        return dict(as_tensors(dict(self)))

    def tensordict(self) -> Any:
        """The same memory as a `TensorDict`, of the first dimension if all arrays have the same. Needs tensordict."""
        from rollway.torch import as_tensordict

        dims = {tuple(array.shape[:1]) for array in self.values()}
        return as_tensordict(dict(self), *(dims.pop() if len(dims) == 1 else ()))

    def jax(self, device: Any = None) -> dict[str, Any]:
        """Copies as arrays of JAX on a device, which never change."""
        from rollway.jax import as_arrays

        return dict(as_arrays(dict(self), device))
