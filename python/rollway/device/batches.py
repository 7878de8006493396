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
                started = self._start_next(wait=not self._pending)
            except ConnectionClosedError:
                self._ended = True
                break
            if started is None:
                break
            self._pending.append(started)
        if not self._pending:
            raise StopIteration
        return self._arrived(self._pending.popleft())

    def _start_next(self, wait: bool) -> Any:
        """Starts the copy of the next batch; ``None`` when there is none yet and ``wait`` is false."""
        host = self._source.take(self._allocate, wait=wait)
        return None if host is None else self._started_or_released(host)

    def _started_or_released(self, host: HostBatch) -> Any:
        try:
            return self._started(host)
        except BaseException:
            if host.sample is not None:
                host.sample.release()
            raise

    def _allocate(self, nbytes: int) -> Array:
        return np.empty(nbytes, np.uint8)

    def _started(self, host: HostBatch) -> Any:
        """Starts the copy of a batch, and sees to it that its room goes back."""
        raise NotImplementedError

    def _arrived(self, started: Any) -> Any:
        """The batch of a copy, for the caller."""
        return started
