"""RunWeights: the weights of a run, as its workers read them. They follow a learner that is restarted."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from rollway._core import Weights
from rollway.errors import (
    ConnectionClosedError,
    ForeignSchema,
    LearnerUnreachable,
    PeerDied,
    SchemaMismatch,
    SegmentNotFound,
    WaitTimeout,
)
from rollway.integrations.ray.learner_entry import SegmentIdentity
from rollway.integrations.ray.node_link import has_living
from rollway.weights import WeightSync

_LOOK_S = 1.0


class _Run(Protocol):
    name: str

    def weights_name(self, timeout_s: float | None = None) -> str: ...


class RunWeights(WeightSync):
    """Weights that `Plane.weights` gives. Read them as any `WeightSync`.

    When the learner dies, the last version stays readable. When another learner has taken its place, the next read
    gives the new learner's weights: their versions may begin with 1 again. `SchemaMismatch` if these are other weights.
    """

    def __init__(self, run: _Run, timeout_s: float) -> None:
        self._follow_run(run, timeout_s)

    def _follow_run(self, run: _Run, timeout_s: float) -> None:
        self._run, self._timeout_s = run, timeout_s
        self._changing = threading.Lock()
        self._next_look = 0.0
        self._gone_since: float | None = None
        self._mismatch: str | None = None  # how the weights of the next learner differ from these
        self._floor = 0  # the highest number of earlier learners
        name = run.weights_name(timeout_s)
        self._identity = SegmentIdentity.of(name)
        self._attach(name, timeout_s, None, 60.0)

    @property
    def version(self) -> int:
        """The latest version on this node; 0 before the first."""
        self._follow()
        return super().version

    def read_weights_into(self, state_dict: Any, *, since: int = 0) -> int:
        """As `WeightSync.read_weights_into`. After a change of the learner all leaves are copied."""
        self._follow()
        return super().read_weights_into(state_dict, since=since if since > self._floor else 0)

    def read_weights(self, like: Any = None) -> Any:
        """As `WeightSync.read_weights`."""
        self._follow()
        return super().read_weights(like)

    def wait_for_version(self, version: int, timeout: float | None = None) -> int:
        """As `WeightSync.wait_for_version`. The first version of the next learner ends it, too."""
        deadline = None if timeout is None else time.monotonic() + timeout
        floor = self._floor
        while True:
            self._follow()
            left = _LOOK_S if deadline is None else min(max(deadline - time.monotonic(), 0.0), _LOOK_S)
            try:
                return super().wait_for_version(version if self._floor == floor else 1, left)
            except ConnectionClosedError:
                if not self._end.alive:  # this handle was closed
                    raise
                time.sleep(min(left, 0.1))
            except WaitTimeout:
                pass
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(
                    f"version {version} of the weights of run {self._run.name!r} was not published within {timeout} s"
                )
            gone, most = self._gone_since, self._peer_timeout_s
            if gone is not None and most is not None and time.monotonic() - gone > most:
                raise PeerDied(f"the learner of run {self._run.name!r} has been gone for {most:.0f} s")

    def _follow(self) -> None:
        """Goes on with the weights of the next learner, if there is one. `SchemaMismatch` if these are others."""
        self._look()
        if self._mismatch is not None:
            raise SchemaMismatch(self._mismatch)

    def _look(self) -> None:
        """Looks for the next learner, now and then, if these weights get no more versions."""
        is_over = self._core.closed and self._end.alive
        now = time.monotonic()
        if now < self._next_look and not (is_over and self._gone_since is None):
            return
        if not self._changing.acquire(blocking=False):
            return
        try:
            self._next_look = now + _LOOK_S
            if not self._end.alive or (not is_over and has_living(self.name, "writer")):
                self._gone_since = self._mismatch = None
                return
            self._gone_since = self._gone_since or now
            try:
                name = self._run.weights_name(0.0)
                identity = SegmentIdentity.of(name)
            except (LearnerUnreachable, SegmentNotFound):
                return
            if identity != self._identity:
                self._replace(name, identity)
        finally:
            self._changing.release()

    def _replace(self, name: str, identity: SegmentIdentity) -> None:
        core = Weights.attach(name, connect_timeout_s=0.0, threads=self._threads)
        if (schema := core.schema) != self._tree.text:
            core.close()
            there = ForeignSchema(f"at the learner that came back to run {self._run.name!r}", schema)
            self._mismatch = f"{self._tree.explain(there)}. For its weights call plane.weights() again"
            return
        self._mismatch = None
        self._floor = max(self._floor, self._core.version)
        self._closers[:] = [core.close]
        self._core, self._identity, self._gone_since = core, identity, None  # the last call on the old one closes it

    def __getstate__(self) -> tuple[Any, ...]:
        return self._run, self._timeout_s

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._follow_run(*state)
