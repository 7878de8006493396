"""Batches as arrays of JAX on a device. JAX copies asynchronously, from memory that nobody else uses."""

from __future__ import annotations

from typing import Any

import jax

from rollway.device.batches import DeviceBatches
from rollway.device.block import BatchSource, HostBatch
from rollway.errors import InvalidArgument
from rollway.jax.arrays import put


def jax_batches(source: BatchSource, device: Any, depth: int) -> DeviceBatches:
    """The batches of ``source`` as arrays of JAX. Without a GPU, ``"cuda"`` means the CPU."""
    where = _device(device)
    return _JaxBatches(source, where, 1 if getattr(where, "platform", "") == "cpu" else depth)


class _JaxBatches(DeviceBatches):
    def __init__(self, source: BatchSource, device: Any, depth: int) -> None:
        super().__init__(source, depth)
        self._device = device

    def _started(self, host: HostBatch) -> Any:
        block, layout = host.block, host.layout
        if host.sample is not None:
            block = block.copy()  # JAX may keep the memory, and the room is used again.
            host.sample.release()
        return layout.build(put(layout.over(block), [array.path for array in layout.arrays], self._device))


def _device(device: Any) -> Any:
    """A device of JAX by its name, like ``"cuda:1"``. Anything else is for JAX: a device, a sharding or ``None``."""
    if not isinstance(device, str):
        return device
    platform, _, number = device.partition(":")
    try:
        found = jax.devices(platform)
    except RuntimeError as error:
        if platform not in ("cuda", "gpu"):
            raise InvalidArgument(f"device is {device!r}, which JAX does not have: {error}") from None
        return jax.devices("cpu")[0]
    if not (number or "0").isdecimal() or int(number or 0) >= len(found):
        raise InvalidArgument(f"device is {device!r}; of {platform} JAX has 0 to {len(found) - 1}")
    return found[int(number or 0)]
