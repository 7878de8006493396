"""SAC: soft actor-critic. Collectors fill a replay buffer, the learner samples from it, and neither runs far ahead.

```text
 collector 0 ── adds transitions ──▶ ReplayBuffer ──▶ a batch is always ready ──▶ learner: SAC's update
 collector 1 ── … ───────────────▶                                                │
       │  └── reports each chunk ──▶ a small ring: so many steps, so many updates │
       └────────── the newest weights, before each chunk ◀── SharedWeightSync ◀────┘
```

The ring of reports keeps the pace: the learner takes a report, makes the updates that its steps call for, publishes the
weights, and takes the next. It has little room and collectors wait for it, so that there is no step without its
updates and no update without its steps. `SacLearner` does the arithmetic, `sac_collector` is what
collectors do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from rollway._core import Sample
from rollway.algorithms.policy import Policy
from rollway.algorithms.runner import AlgorithmRunner
from rollway.algorithms.sac_collector import Report, blank_report, collect
from rollway.algorithms.sac_learner import SacLearner
from rollway.algorithms.settings import SacSettings
from rollway.errors import WaitTimeout
from rollway.replay.buffer import ReplayBuffer
from rollway.replay.pipeline import ReplayPipeline
from rollway.ring.server import Server
from rollway.transport.shm import ShmTransport
from rollway.weights.weight_sync import SharedWeightSync


class Chunks:
    """The learner's end of the ring of reports: one report at a time, waited for as `AsyncRunner` waits for data."""

    def __init__(self, example: Report, room: int) -> None:
        self._server = Server(
            example,
            batch_size=1,
            transport=ShmTransport(),
            num_buffers=room,
            peer_timeout_s=None,  # the runner itself sees to dead collectors
        )
        self._held: Sample | None = None

    @property
    def name(self) -> str:
        """What collectors attach to."""
        assert self._server.name is not None  # it was given a transport
        return self._server.name

    @property
    def waiting(self) -> int:
        """Reports that nobody has taken yet."""
        return self._server.stats()["ready_samples"]

    def wait_for_data(self, timeout: float = 60.0) -> bool:
        """Waits until `take` has a report to give. False when time was over."""
        if self._held is None:
            try:
                self._held = self._server.sample(timeout)
            except WaitTimeout:
                return False
        return self._held is not None

    def take(self) -> tuple[Report, int]:
        """The report that was waited for, as our own, and the version of the weights behind it."""
        held, self._held = self._held, None
        assert held is not None
        return {name: leaf[0].copy() for name, leaf in held.batch.items()}, int(held.info.versions[0])

    def close(self) -> None:
        """Shuts the ring down: collectors that wait for room return."""
        self._held = None
        self._server.close()


class SacRunner(AlgorithmRunner):
    """Trains by SAC: a bounded box of actions. The arguments are those of `AlgorithmRunner`; see `SacSettings`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as logs:
    ...     settings = {"warmup_steps": 32, "batch_size": 16}
    ...     with SacRunner("Pendulum-v1", num_envs=2, num_collectors=1, rl_cfg=settings) as runner:
    ...         for progress in runner.train(max_iterations=4, log_dir=logs):
    ...             pass
    >>> progress.env_steps, runner.updates
    (64, 48)
    """

    settings: SacSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        s, env = self.settings, self.env
        self.learner = SacLearner(env, s, self.device)
        self.updates = 0
        self._steps = 0
        self._owed = 0.0
        self.weights = self.own(SharedWeightSync.from_state_dict(self.learner.actor.state_dict()))
        self.version = self.weights.version
        self.replay = self.own(ReplayBuffer(s.capacity, env.obs_dim, env.action_dim, self.device))
        self.batches = self.own(ReplayPipeline(self.replay, sample_count=s.batch_size, base_seed=s.seed))
        self.chunks = self.own(Chunks(blank_report(self.envs_of(0), s), room=self.num_collectors + 1))

    def _settings(self, given: Mapping[str, Any]) -> SacSettings:
        return SacSettings.of(given)

    def _start(self) -> None:
        arguments = self.env, self.settings, self.envs_of(0)
        self.start_collectors(collect, *arguments, self.replay, self.chunks.name, self.weights)

    @property
    def policy(self) -> Policy:
        """What was learnt so far."""
        return Policy("sac", self.env, self.settings, self.learner.actor)

    @property
    def queue_depth(self) -> int:
        """Chunks whose updates are still to be made."""
        return self.chunks.waiting

    def _iterate(self) -> Mapping[str, float]:
        steps = self._take()
        self._steps += steps
        if self._steps < self.settings.warmup_steps:
            return {}
        self._owed += steps * self.settings.updates_per_step
        losses: dict[str, torch.Tensor] = {}
        while self._owed >= 1:
            self._owed -= 1
            losses = self.learner.update(self.batches.next())
            self.updates += 1
        self._publish()
        return {key: float(value) for key, value in losses.items()} | {"alpha": self.learner.alpha}

    def _take(self) -> int:
        """Waits for the next chunk. Its numbers go on the board; gives its steps."""
        began = time.monotonic()
        while not self.wait_for_data(self.chunks):
            pass  # collectors live: they are slow
        self.board.waited(time.monotonic() - began)
        report, version = self.chunks.take()
        steps = int(report["ended"].size)
        waited_s, spent_s = report["seconds"].tolist()
        self.board.arrived(
            steps=steps,
            returns=report["episode_return"][report["ended"]].tolist(),
            staleness=self.version - version,
            waited_s=waited_s,
            spent_s=spent_s,
        )
        return steps
