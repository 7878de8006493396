"""WeightReading: what `WeightSync` and `TcpWeights` have in common: reading the latest version."""

from __future__ import annotations

import functools
from typing import Any, Protocol

from rollway.errors import NothingPublished
from rollway.segment.closes_on_exit import ClosesOnExit
from rollway.weights.gpu_staging import GpuStaging
from rollway.weights.tree import Places, WeightTree


class _Handle(Protocol):
    """The native handle."""

    @property
    def version(self) -> int: ...
    @property
    def leaf_offsets(self) -> list[int]: ...
    def read(
        self, leaves: list[int], addresses: list[int], since: int, on_gpus: list[tuple[int, int, list[int], bool]] = ...
    ) -> tuple[int, list[int]]: ...


class WeightReading(ClosesOnExit):
    """Reads the latest whole version, into given tensors and arrays or into new ones."""

    _core: _Handle
    _tree: WeightTree
    _read_version = 0

    @functools.cached_property
    def _staging(self) -> GpuStaging:
        return GpuStaging(self._tree)

    @property
    def _place(self) -> str:
        """Where the weights are, for messages."""
        raise NotImplementedError

    @property
    def version(self) -> int:
        """The latest version on this host; 0 before the first."""
        return self._core.version

    @property
    def read_version(self) -> int:
        """The version that this handle read last; 0 before the first read."""
        return self._read_version

    def read_weights_into(self, state_dict: Any, *, since: int = 0) -> int:
        """Copies the latest version into these tensors or arrays, in place, and returns its number.

        ``since``: the version that they hold; then only leaves that changed after it are copied. Returns 0, and changes
        nothing, before the first version. Autograd does not see the change of a parameter, as with
        ``param.data.copy_``. A tensor whose elements share memory, as after ``expand``, is refused.
        """
        values = self._tree.values(state_dict)
        gpu = self._staging.gpu_of(values)
        if gpu is not None:
            with self._staging.on(gpu, self._core) as block:
                if block is not None:
                    version, copied = self._read(block.places, since)
                    block.scatter(values, copied)
                    return version
        places = self._tree.targets(values)
        version, copied = self._read(places, since)
        if places.finish:
            for at in copied:
                if at in places.finish:
                    places.finish[at]()
        return version

    def _read(self, places: Places, since: int) -> tuple[int, list[int]]:
        self._read_version, copied = self._core.read(places.leaves, places.addresses, since, places.on_gpus)
        return self._read_version, copied

    def read_weights(self, like: Any = None) -> Any:
        """The latest version as a new tree of numpy arrays; `read_version` says which it is.

        In the process that made the weights it is the writer's own tree; elsewhere it is made of dicts, lists and
        tuples. ``like``: a tree to copy the structure of. `NothingPublished` before the first version.
        """
        arrays, places = self._tree.fresh()
        version, _ = self._core.read(places.leaves, places.addresses, 0)
        if version == 0:
            raise NothingPublished(f"nothing has been published {self._place} yet: wait_for_version(1) waits for it")
        self._read_version = version
        return self._tree.build(arrays) if like is None else self._tree.build_like(like, arrays)
