"""Batches: the batches of a server as torch's `IterableDataset`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from rollway.errors import InvalidArgument
from rollway.torch.tensors import as_tensors

if TYPE_CHECKING:
    from rollway.ring.server import Server


class Batches(IterableDataset[Any]):
    """The batches of a `Server` as tensors, until it is closed. A `DataLoader` takes it with ``batch_size=None``.

    Each batch is a copy, which you may keep, unless ``copy`` is false: then its tensors lie in the ring, and their room
    goes back when the last of them is dropped.

    >>> import numpy as np, rollway
    >>> from torch.utils.data import DataLoader
    >>> with rollway.Server({"obs": np.zeros(2, np.float32)}, batch_size=2) as server:
    ...     for i in range(4):
    ...         _ = server.submit({"obs": [i, i]})
    ...     for _, batch in zip(range(2), DataLoader(Batches(server), batch_size=None)):
    ...         batch["obs"][:, 0].tolist()
    [0.0, 1.0]
    [2.0, 3.0]
    """

    def __init__(self, server: Server, *, copy: bool = True) -> None:
        self._server = server
        self._copy = copy

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise InvalidArgument(
                "Batches reads the ring in this process: use DataLoader(…, num_workers=0). "
                "The processes that load are the producers of the ring"
            )
        for sample in self._server.dataset_iter(copy=self._copy):
            yield as_tensors(sample.batch)
