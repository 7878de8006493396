"""WeightReading: what `WeightSync` and `TcpWeights` have in common: reading the latest version."""

from __future__ import annotations

from typing import Any, Protocol

from rollway.errors import NothingPublished
from rollway.segment.closes_on_exit import ClosesOnExit
from rollway.weights.tree import WeightTree


class _Handle(Protocol):
    """The native handle."""

    @property
    def version(self) -> int: ...
    def read(self, leaves: list[int], addresses: list[int], since: int) -> tuple[int, list[int]]: ...


class WeightReading(ClosesOnExit):
    """Reads the latest whole version, into given tensors and arrays or into new ones."""

    _core: _Handle
    _tree: WeightTree
    _read_version = 0

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
        places = self._tree.targets(state_dict)
        version, copied = self._core.read(places.leaves, places.addresses, since)
        if places.finish:
            for at in copied:
                if at in places.finish:
                    places.finish[at]()
        self._read_version = version
        return version

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
