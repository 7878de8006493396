"""APPO: asynchronous proximal policy optimisation. Collectors act while the learner learns.

```text
 collector 0 ── steps its environments, writes in place ──▶ RolloutRing ──▶ learner: V-trace, clipped update
 collector 1 ── … ───────────────────────────────────────▶                      │
       ▲                                                                        │
       └────────────── the newest weights, before each rollout ◀── WeightSync ◀─┘
```

A rollout carries the version of the weights that made it. The ring holds a few of them and collectors wait for room, so
the number of slots limits their age. `AppoLearner` does the arithmetic; `appo_collector` runs in the collectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rollway.algorithms.appo_collector import collect, make_ring
from rollway.algorithms.appo_learner import AppoLearner, Rollout
from rollway.algorithms.runner import AlgorithmRunner
from rollway.algorithms.settings import AppoSettings


class AppoRunner(AlgorithmRunner):
    """Trains by APPO: discrete actions or a box. The arguments are those of `AlgorithmRunner`; see `AppoSettings`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as logs:
    ...     with AppoRunner("CartPole-v1", num_envs=2, num_collectors=1, rl_cfg={"rollout_steps": 8}) as runner:
    ...         for progress in runner.train(max_iterations=2, log_dir=logs):
    ...             pass
    >>> progress.env_steps, progress.version
    (64, 3)
    """

    settings: AppoSettings
    learner: AppoLearner
    _algorithm = "appo"
    _settings_class = AppoSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        s, env, num_envs = self.settings, self.env, self.envs_of(0)
        self.learner = AppoLearner(env, s, self.device)
        self._share_weights()
        num_slots = max(s.num_slots or self.num_collectors, 2)
        self.rollouts = self.own(make_ring(env, s, num_envs, num_slots))

    def _start(self) -> None:
        self.start_collectors(collect, self.env, self.settings, self.rollouts, self.weights, self.iteration)

    @property
    def queue_depth(self) -> int:
        """How many rollouts wait for the learner."""
        return self.rollouts.available()

    def _iterate(self) -> Mapping[str, float]:
        taken = [self._take() for _ in range(self.settings.rollouts_per_update)]
        losses = self.learner.update({field: torch.cat([one[field] for one in taken]) for field in taken[0]})
        self._publish()
        return losses

    def _take(self) -> Rollout:
        """Waits for the next rollout, counts it, and returns copies of its arrays."""
        self._wait_for(self.rollouts)
        rollout: Rollout = self.rollouts.read_torch(self.device)
        waited_s, spent_s = rollout.pop("seconds").tolist()
        self.board.arrived(
            steps=rollout["rewards"].numel(),
            returns=rollout["episode_return"][rollout["dones"] > 0].tolist(),
            staleness=self.version - self.rollouts.read_info().version,
            waited_s=waited_s,
            spent_s=spent_s,
        )
        self.rollouts.advance_read()
        return rollout
