"""TransitionSource: batches of a replay buffer for a device, drawn into one block of packed rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollway.device.block import Allocate, BatchSource, HostBatch

if TYPE_CHECKING:
    from rollway.replay.buffer import TransitionBuffer


class TransitionSource(BatchSource):
    """Batches of so many transitions. There is always a next one, until the buffer is closed."""

    def __init__(self, buffer: TransitionBuffer, batch_size: int) -> None:
        self._buffer, self._batch_size = buffer, batch_size
        self._layout = buffer.layout.of_rows(batch_size)

    def take(self, allocate: Allocate, *, wait: bool) -> HostBatch | None:
        """The next batch; see `BatchSource`. `BufferEmpty` when there is nothing to draw from."""
        block = allocate(self._layout.nbytes)
        self._buffer.fill(self._batch_size, block[: self._batch_size * self._buffer.layout.row_bytes])
        return HostBatch(block, self._layout)
