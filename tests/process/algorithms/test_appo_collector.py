"""The APPO collector: environments in workers, which write into the ring themselves, give what its own loop gives."""

from types import SimpleNamespace

import numpy as np
import pytest

from rollway import SharedWeightSync
from rollway.algorithms.appo_collector import collect, make_ring
from rollway.algorithms.appo_learner import make_actor
from rollway.algorithms.environment import Environment
from rollway.algorithms.settings import AppoSettings

ENVS, STEPS, ROLLOUTS = 3, 40, 2


class Stop:
    """Set after so many looks."""

    def __init__(self, looks):
        self.left = looks

    def is_set(self):
        self.left -= 1
        return self.left < 0


def rollouts(kind, workers):
    env = Environment.inspect(kind)
    settings = AppoSettings(rollout_steps=STEPS, env_workers=workers, hidden=(8,))
    with (
        make_ring(env, settings, ENVS, ROLLOUTS + 1) as ring,
        SharedWeightSync.from_state_dict(make_actor(env, settings).state_dict()) as weights,
    ):
        weights.write_weights({name: np.full_like(leaf, 0.1) for name, leaf in weights.read_weights().items()})
        collect(SimpleNamespace(index=0, life=0, stop=Stop(ROLLOUTS)), env, settings, ring, weights)
        found = []
        for _ in range(ROLLOUTS):
            assert ring.wait_for_data(0.0)
            found.append({field: view.copy() for field, view in ring.read_numpy_views().items()})
            ring.advance_read()
        return found


@pytest.mark.parametrize("workers", [None, 2])
def test_what_terminates_at_its_time_limit_is_not_truncated(workers):
    for found in rollouts("tests.support.reach_env:Both-v0", workers):
        assert (found["dones"][:, 3::4] == 1).all() and found["dones"].sum() == ENVS * STEPS / 4
        assert not found["truncated"].any()


@pytest.mark.parametrize("kind", ["CartPole-v1", "Pendulum-v1", "tests.support.reach_env:Look-v0"])
def test_workers_write_the_rollouts_that_the_collector_would_have_written(kind):
    for own, theirs in zip(rollouts(kind, None), rollouts(kind, 2), strict=True):
        ended = own["dones"] > 0
        for field in own.keys() - {"seconds", "next_obs"}:
            assert np.array_equal(own[field], theirs[field]), field
        assert np.array_equal(own["next_obs"][ended], theirs["next_obs"][ended])
        assert ended.any() or kind != "CartPole-v1"
