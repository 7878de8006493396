"""SAC: soft actor-critic. Collectors fill a replay buffer; the learner samples from it, at the same pace.

```text
 collector 0 ── adds transitions ──▶ TransitionBuffer ──▶ a batch is always ready ──▶ learner: SAC's update
 collector 1 ── … ───────────────▶                                                    │
       │  └── reports each chunk ──▶ a small ring: so many steps, so many updates     │
       └────────── the newest weights, before each chunk ◀── WeightSync ◀─────────────┘
```

The ring of reports keeps the pace: the learner takes a report, makes as many updates as its steps require, publishes
the weights, and takes the next one. The ring is small and collectors wait for room in it. `SacLearner` does the
arithmetic; `sac_collector` runs in the collectors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rollway._core import Sample
from rollway.algorithms import checkpoints
from rollway.algorithms.runner import AlgorithmRunner
from rollway.algorithms.sac_collector import Report, blank_report, collect
from rollway.algorithms.sac_learner import SacLearner
from rollway.algorithms.settings import SacSettings
from rollway.errors import InvalidArgument, WaitTimeout
from rollway.replay.buffer import TransitionBuffer
from rollway.replay.pipeline import ReplayPipeline
from rollway.ring.server import Server
from rollway.runner.supervisor import Placement
from rollway.transport.shm import ShmTransport


class Chunks:
    """The learner's end of the ring of reports: one report at a time. `Runner.wait_for_data` takes it."""

    def __init__(self, example: Report, room: int) -> None:
        self._server = Server(
            example,
            batch_size=1,
            transport=ShmTransport(),
            num_buffers=room,
            peer_timeout_s=None,  # the runner handles dead collectors
        )
        self._held: Sample | None = None

    @property
    def name(self) -> str:
        """The name that collectors attach to."""
        assert self._server.name is not None  # it was given a transport
        return self._server.name

    @property
    def waiting(self) -> int:
        """How many reports wait for the learner."""
        return self._server.stats()["ready_samples"]

    def wait_for_data(self, timeout: float = 60.0) -> bool:
        """Waits until there is a report to `take`. False when the time is over."""
        if self._held is None:
            try:
                self._held = self._server.sample(timeout)
            except WaitTimeout:
                return False
        return self._held is not None

    def take(self) -> tuple[Report, int]:
        """A copy of the report that was waited for, and the version of the weights that made it."""
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
    learner: SacLearner
    _algorithm = "sac"
    _settings_class = SacSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        s, env = self.settings, self.env
        self.learner = SacLearner(env, s, self.device)
        self.updates = 0
        self._steps = 0
        self._owed = 0.0
        self._share_weights()
        fields = {"obs": env.row, "next_obs": env.row}
        self.replay = self.own(TransitionBuffer(s.capacity, env.obs_dim, env.action_dim, self.device, fields=fields))
        self.batches = self.own(ReplayPipeline(self.replay, sample_count=s.batch_size, base_seed=s.seed))
        self.chunks = self.own(Chunks(blank_report(self.envs_of(0), s), room=self.num_collectors + 1))

    @classmethod
    def check_placement(cls, placement: Placement | None) -> None:
        """Refuses any: a replay buffer takes nothing from other machines yet."""
        if placement is not None:
            raise InvalidArgument(
                "the collectors of SAC run on the learner's machine, because they add to its replay buffer: leave out "
                "placement= (on the command line --ray), or train with APPO"
            )

    def _start(self) -> None:
        arguments = self.env, self.settings, self.envs_of(0)
        self.start_collectors(collect, *arguments, self.replay, self.chunks.name, self.weights, self.iteration)

    @property
    def queue_depth(self) -> int:
        """How many chunks wait for the learner."""
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

    def checkpoint(self, log_dir: str | os.PathLike[str]) -> None:
        """As `AlgorithmRunner.checkpoint`, and the transitions in ``replay.npz``."""
        super().checkpoint(log_dir)
        checkpoints.save_replay(Path(log_dir), self.replay)

    def resume(self, log_dir: str | os.PathLike[str]) -> None:
        """As `AlgorithmRunner.resume`. Without a ``replay.npz`` the buffer is filled again before the next update."""
        super().resume(log_dir)
        checkpoints.load_replay(Path(log_dir), self.replay)
        self._steps = min(self._steps, len(self.replay))

    def _state_dict(self) -> dict[str, Any]:
        counts = {"updates": self.updates, "steps": self._steps, "owed": self._owed}
        return super()._state_dict() | counts

    def _load_state_dict(self, state: Mapping[str, Any]) -> None:
        super()._load_state_dict(state)
        self.updates, self._steps, self._owed = state["updates"], state["steps"], state["owed"]

    def _take(self) -> int:
        """Waits for the next chunk, counts it, and returns the number of its steps."""
        self._wait_for(self.chunks)
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
