"""The batches of a source on a device, some of them ahead of their use. Torch and JAX say how one gets there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from rollway.device.block import Array, BatchSource, HostBatch
from rollway.errors import ConnectionClosedError, InvalidArgument

Framework = Literal["torch", "jax"]
"""Whose arrays the batches are."""


def device_batches(source: BatchSource, device: Any, depth: int, framework: Framework) -> Iterator[Any]:
    """The batches of ``source`` on ``device``, of which up to ``depth`` are under way or ready at a time."""
    if depth < 1:
        raise InvalidArgument(f"depth = {depth} is out of range: at least 1")
    if framework == "torch":
        from rollway.torch.device_batches import torch_batches

        return torch_batches(source, device, depth)
    if framework == "jax":
        from rollway.jax.device_batches import jax_batches

        return jax_batches(source, device, depth)
    raise InvalidArgument(f"framework is {framework!r}; it must be 'torch' or 'jax'")


class DeviceBatches(Iterator[Any]):
    """Starts copies ahead, as many as there are batches for and ``depth`` allows; waits only when none is under way."""

    def __init__(self, source: BatchSource, depth: int) -> None:
        self._source, self._depth = source, depth
        self._pending: deque[Any] = deque()
        self._ended = False

    def __next__(self) -> Any:
        while not self._ended and len(self._pending) < self._depth:
            try:
                host = self._source.take(self._allocate, wait=not self._pending)
            except ConnectionClosedError:
                self._ended = True
                break
            if host is None:
                break
            try:
                self._pending.append(self._started(host))
            except BaseException:
                if host.sample is not None:
                    host.sample.release()
                raise
        if not self._pending:
            raise StopIteration
        return self._arrived(self._pending.popleft())

    def _allocate(self, nbytes: int) -> Array:
        return np.empty(nbytes, np.uint8)

    def _started(self, host: HostBatch) -> Any:
        """Starts the copy of a batch, and sees to it that its room goes back."""
        raise NotImplementedError

    def _arrived(self, started: Any) -> Any:
        """The batch of a copy, for the caller."""
        return started
