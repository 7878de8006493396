"""The SAC collector: steps its environments by the newest weights and adds transitions to the replay buffer. No torch.

`SacRunner` makes the buffer, the ring of reports and the weights, and starts `collect` in processes of their own.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from rollway.algorithms import acting
from rollway.algorithms.environment import Environment
from rollway.algorithms.settings import SacSettings
from rollway.replay.buffer import TransitionBuffer
from rollway.ring.shm_client import ShmClient
from rollway.runner.collector import Collector
from rollway.weights.weight_sync import WeightSync

Report = dict[str, np.ndarray[Any, Any]]


def blank_report(num_envs: int, settings: SacSettings) -> Report:
    """A report about a chunk: how long the collector waited and worked, and which episodes ended."""
    shape = (settings.chunk_steps, num_envs)
    return {
        "seconds": np.zeros(2, np.float64),
        "ended": np.zeros(shape, np.bool_),
        "episode_return": np.zeros(shape, np.float32),
    }


def collect(
    collector: Collector,
    env: Environment,
    settings: SacSettings,
    num_envs: int,
    replay: TransitionBuffer,
    chunks_name: str,
    weights: WeightSync,
    begun_at: int = 0,
) -> None:
    """Main function of a collector: reads the newest weights, adds a chunk of transitions, sends a report, again.

    ``begun_at``: the iteration from which the run goes on, so that it does not meet the same episodes again.
    """
    actor = weights.read_weights()
    entropy = [settings.seed, collector.index, collector.life, begun_at]
    env_seed, action_seed = np.random.SeedSequence(entropy).generate_state(2)
    random = np.random.default_rng(action_seed)
    report = blank_report(num_envs, settings)
    waited = 0.0
    with ShmClient(chunks_name, report, peer_timeout_s=None) as chunks, env.vector(num_envs) as envs:
        obs = envs.reset(int(env_seed))
        while not collector.stop.is_set():
            began = time.monotonic()
            if weights.version > weights.read_version:
                weights.read_weights_into(actor)
            exploring = len(replay) < settings.warmup_steps
            for t in range(settings.chunk_steps):
                if exploring:
                    actions = random.uniform(env.low, env.high, (num_envs, env.action_dim)).astype(np.float32)
                else:
                    actions = acting.squashed(actor, obs, random, env.low, env.high)
                step = envs.step(actions)
                ended = step.terminated | step.truncated
                replay.add(obs, actions, step.rewards, step.next_obs, ended, step.truncated)
                report["ended"][t], report["episode_return"][t] = ended, step.episode_return
                obs = step.obs
            report["seconds"][:] = waited, waited + time.monotonic() - began
            began = time.monotonic()
            chunks.send(report, version=weights.read_version)
            waited = time.monotonic() - began
