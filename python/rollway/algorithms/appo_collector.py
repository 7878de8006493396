"""The APPO collector: steps its environments by the newest weights and writes rollouts in place. No torch.

`AppoRunner` makes the ring and the weights, and starts `collect` in processes of their own.
"""

from __future__ import annotations

import time

import numpy as np

from rollway.algorithms import acting
from rollway.algorithms.environment import Environment
from rollway.algorithms.settings import AppoSettings
from rollway.ring.rollout_ring import RolloutRing
from rollway.runner.collector import Collector
from rollway.weights.weight_sync import WeightSync


def make_ring(env: Environment, settings: AppoSettings, num_envs: int, num_slots: int) -> RolloutRing:
    """The ring of rollouts, with the additional fields that `collect` writes.

    ``next_obs`` is written only where an episode ended: its final observation.
    """
    steps = settings.rollout_steps
    shape, dtype = env.row
    return RolloutRing(
        num_envs,
        steps,
        env.obs_dim,
        env.action_dim,
        num_slots=num_slots,
        on_full="block",
        peer_timeout_s=None,  # the runner handles dead collectors
        fields={
            "obs": ((num_envs, steps, *shape), dtype),
            "last_obs": ((num_envs, *shape), dtype),
            "next_obs": ((num_envs, steps, *shape), dtype),
            "episode_return": ((num_envs, steps), np.float32),
            "seconds": ((2,), np.float64),
        },
    )


def collect(
    collector: Collector,
    env: Environment,
    settings: AppoSettings,
    rollouts: RolloutRing,
    weights: WeightSync,
    begun_at: int = 0,
) -> None:
    """Main function of a collector: reads the newest weights, writes a rollout, again.

    ``begun_at``: the iteration from which the run goes on, so that it does not meet the same episodes again.
    """
    act = acting.categorical if env.kind == "discrete" else acting.gaussian
    actor = weights.read_weights()
    entropy = [settings.seed, collector.index, collector.life, begun_at]
    env_seed, action_seed = np.random.SeedSequence(entropy).generate_state(2)
    random = np.random.default_rng(action_seed)
    with env.vector(rollouts.num_envs, settings.env_workers) as envs:
        obs = envs.reset(int(env_seed))
        while not collector.stop.is_set():
            began = time.monotonic()
            rollouts.wait_for_slot()
            waited = time.monotonic() - began
            if weights.version > weights.read_version:
                weights.read_weights_into(actor)
            with (
                rollouts.writing(version=weights.read_version) as rollout,
                envs.into(rollouts, rollout) as in_place,
            ):
                for t in range(rollouts.num_steps):
                    actions, log_probs = act(actor, obs, random)
                    step = envs.step(actions)
                    if not in_place:
                        rollout["obs"][:, t] = obs
                        rollout["rewards"][:, t] = step.rewards
                    rollout["actions"][:, t] = actions
                    rollout["log_probs"][:, t] = log_probs
                    ended = step.terminated | step.truncated
                    rollout["dones"][:, t] = ended
                    rollout["truncated"][:, t] = step.truncated
                    rollout["next_obs"][ended, t] = step.next_obs[ended]
                    rollout["episode_return"][:, t] = step.episode_return
                    obs = step.obs
                rollout["last_obs"][:] = obs
                rollout["seconds"][:] = waited, time.monotonic() - began
