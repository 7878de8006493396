"""CollectorCall: what a collector calls, as bytes for any node; rings and weights in its arguments become those there.

```text
learner                                       node of the collector
RolloutRing, WeightSync ──publish──▶ run ──connect──▶ RolloutRing, WeightSync
        on the learner's node: the same segments; elsewhere: the node's ring, and its copy of the weights
```
"""

from __future__ import annotations

import io
import pickle
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

from rollway.errors import InvalidArgument
from rollway.integrations.ray.cluster import initialised
from rollway.integrations.ray.plane import Plane, Route, connect
from rollway.integrations.ray.publication import publish
from rollway.replay import TransitionBuffer
from rollway.ring import RolloutRing
from rollway.weights import ObsNormStats, RunningObsStats, TcpWeights, WeightSync

Call = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]
_OF_ONE_MACHINE = (TransitionBuffer, ObsNormStats, RunningObsStats, TcpWeights)
_CONNECT_WAIT_S = 60.0


class PublishedResources:
    """The rings and weights of a learner that its collectors use, each ring under the name of a run of its own."""

    def __init__(self) -> None:
        self._stem = f"collectors-{secrets.token_hex(6)}"
        self._rings: list[RolloutRing] = []
        self._weights: list[WeightSync] = []
        self._published = 0
        self._publications = ExitStack()

    def pickled(self, call: Call) -> bytes:
        """A call for `unpickled`, with its rings and weights published."""
        buffer = io.BytesIO()
        _pickler(buffer, self._place).dump(call)
        if len(self._weights) > len(self._rings):
            raise InvalidArgument(
                f"collectors that Ray places have {len(self._weights)} WeightSync but {len(self._rings)} RolloutRing "
                "among their arguments: each ring carries one WeightSync to the nodes. Put all weights into one, or "
                "publish() them and connect() in the collector"
            )
        for index in range(self._published, len(self._rings)):
            weights = self._weights[index] if index < len(self._weights) else None
            self._publications.enter_context(publish(self._run(index), self._rings[index], weights))
            self._published += 1
        return buffer.getvalue()

    def close(self) -> None:
        """Withdraws them: collectors on other nodes that wait for room get an error. Safe to call twice."""
        self._publications.close()

    def _run(self, index: int) -> str:
        return f"{self._stem}-{index}"

    def _place(self, value: Any) -> tuple[Any, ...] | None:
        """What stands in the pickle for a ring or weights; ``None`` for anything else."""
        if isinstance(value, RolloutRing | WeightSync):
            known: list[Any] = self._rings if isinstance(value, RolloutRing) else self._weights
            if not any(value is one for one in known):
                known.append(value)
            index = next(index for index, one in enumerate(known) if one is value)
            version = value.version if isinstance(value, WeightSync) else 0
            return self._run(index), type(value), value.__getstate__()[1:], version
        if isinstance(value, _OF_ONE_MACHINE):
            raise InvalidArgument(
                f"a {type(value).__name__} is for processes of one machine: a collector that Ray places on any node "
                "cannot use it. It can use a RolloutRing and a WeightSync, and what it makes itself"
            )
        return None


def unpickled(data: bytes, route: Route, opened: ExitStack) -> Call:
    """The call, in the process of a collector. What it attaches to is closed with ``opened``."""
    planes: dict[str, Plane] = {}

    def load(stands_for: Any) -> Any:
        run, kind, state, version = stands_for
        plane = planes.setdefault(run, connect(run, _CONNECT_WAIT_S, route=route))
        name = plane.ring_name() if issubclass(kind, RolloutRing) else plane.weights_name()
        resource = kind.__new__(kind)
        resource.__setstate__((name, *state))
        opened.callback(resource.close)
        if version:
            resource.wait_for_version(version, _CONNECT_WAIT_S)  # the copy of a node may be new and empty
        return resource

    unpickler = _Unpickler(io.BytesIO(data))
    unpickler.persistent_load = load
    return cast(Call, unpickler.load())


class _Unpickler(pickle.Unpickler):
    persistent_load: Any


def _pickler(buffer: io.BytesIO, place: Callable[[Any], tuple[Any, ...] | None]) -> Any:
    """As Ray pickles: also functions and classes of a script."""

    class Pickler(initialised().cloudpickle.CloudPickler):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
            return place(value)

    return Pickler(buffer)
