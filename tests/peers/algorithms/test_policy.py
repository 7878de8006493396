"""What was learnt, as a file: it comes back the same, whole, and without running anything."""

import dataclasses
import pickle
import resource

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TransformAction

import rollway
from rollway.algorithms import appo_learner, sac_learner
from rollway.algorithms.environment import Environment
from rollway.algorithms.policy import Policy
from rollway.algorithms.settings import AppoSettings, SacSettings

CART, PENDULUM = "CartPole-v1", "Pendulum-v1"


def made(algorithm, env_name):
    env = Environment.inspect(env_name)
    if algorithm == "appo":
        return Policy("appo", env, AppoSettings(hidden=(8,)), appo_learner.make_actor(env, AppoSettings(hidden=(8,))))
    return Policy("sac", env, SacSettings(hidden=(8,)), sac_learner.make_actor(env, SacSettings(hidden=(8,))))


@pytest.mark.parametrize("algorithm, env", [("appo", CART), ("appo", PENDULUM), ("sac", PENDULUM)])
def test_a_saved_policy_acts_as_before(tmp_path, algorithm, env):
    policy = made(algorithm, env)
    policy.save(tmp_path / "policy.pt", {"env_steps": 5})
    again = Policy.load(tmp_path / "policy.pt")
    obs = np.random.default_rng(0).normal(size=(20, policy.env.obs_dim)).astype(np.float32)
    np.testing.assert_array_equal(again.act(obs), policy.act(obs))
    assert again.settings == policy.settings
    assert [file.name for file in tmp_path.iterdir()] == ["policy.pt"]


def test_a_file_that_is_no_policy_is_refused(tmp_path):
    torch.save({"weights": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(rollway.InvalidArgument, match="not a policy"):
        Policy.load(tmp_path / "other.pt")


def test_a_failed_save_leaves_the_last_one(tmp_path):
    policy = made("appo", CART)
    policy.save(tmp_path / "policy.pt")
    before = (tmp_path / "policy.pt").read_bytes()
    with pytest.raises((AttributeError, pickle.PicklingError)):
        policy.save(tmp_path / "policy.pt", {"cannot": lambda: None})
    assert (tmp_path / "policy.pt").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_save_without_room_on_the_disk_names_the_file_and_leaves_the_last_one(tmp_path):
    policy = made("appo", CART)
    policy.save(tmp_path / "policy.pt")
    before = (tmp_path / "policy.pt").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(rollway.errors.SystemCallFailed, match=r"policy\.pt: File too large.*is unchanged"):
            policy.save(tmp_path / "policy.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "policy.pt").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_an_evaluation_counts_the_first_episode_of_each_start():
    policy = made("appo", CART)
    for parameter in policy.actor.parameters():
        parameter.data.zero_()  # pushes the cart to the left until the pole falls
    value = policy.evaluate(episodes=5, seed=3)
    assert value == policy.evaluate(episodes=5, seed=3)
    assert 8 <= value <= 11
    assert policy.evaluate(episodes=3, max_steps=2) == 2.0


def test_overrides_come_back_whatever_kind_of_number_they_are(tmp_path):
    policy = made("sac", PENDULUM)
    given = {"g": np.float64(9.0), "limits": [np.int32(3), (True, None)], "goal": np.arange(3.0), "more": {"a": "b"}}
    storing = dataclasses.replace(policy, env=dataclasses.replace(policy.env, overrides=given))
    storing.save(tmp_path / "policy.pt")
    held = torch.load(tmp_path / "policy.pt", weights_only=True)["overrides"]
    assert held.pop("goal").tolist() == [0, 1, 2]
    assert held == {"g": 9.0, "limits": [3, (True, None)], "more": {"a": "b"}}
    env = dataclasses.replace(policy.env, overrides={"g": np.float64(9.0)})
    dataclasses.replace(policy, env=env).save(tmp_path / "policy.pt")
    assert Policy.load(tmp_path / "policy.pt").env.overrides == {"g": 9.0}


def test_what_a_file_cannot_hold_is_refused_before_anything_is_trained():
    with pytest.raises(rollway.InvalidArgument, match=r"env_cfg_overrides\['g'\] is .*complex"):
        rollway.algorithms.SacRunner(PENDULUM, {"g": 9j})


def shifted_cart():
    """CartPole whose actions are 4 and 5."""
    return TransformAction(gymnasium.make(CART), lambda action: action - 4, Discrete(2, start=4))


class Beyond(gymnasium.ActionWrapper):
    """Pendulum that takes actions of its space only, as a column."""

    def __init__(self, env):
        super().__init__(env)
        self.action_space = Box(-2.0, 2.0, (1, 1))

    def action(self, action):
        assert action in self.action_space
        return action[0]


gymnasium.register("RollwayShiftedCart-v0", shifted_cart)
gymnasium.register("RollwayBeyond-v0", lambda: Beyond(gymnasium.make(PENDULUM)))


@pytest.mark.parametrize("env_name", [CART, "RollwayShiftedCart-v0", PENDULUM, "RollwayBeyond-v0"])
def test_an_environment_takes_what_a_policy_does(env_name):
    policy = made("appo", env_name)
    with torch.no_grad():
        for parameter in policy.actor.parameters():
            parameter.mul_(100)  # far beyond the bounds of a box
    env = gymnasium.make(env_name)
    obs, _ = env.reset(seed=1)
    actions = []
    for _ in range(5):
        actions.append(policy.act(obs))
        assert actions[-1] in env.action_space
        obs, *_ = env.step(actions[-1])
    env.close()
    envs = gymnasium.make_vec(env_name, num_envs=3)
    many, _ = envs.reset(seed=1)
    assert policy.act(many) in envs.action_space
    assert policy.act(many)[0] == actions[0]
    envs.step(policy.act(many))
    envs.close()


def test_what_is_no_observation_is_refused():
    with pytest.raises(rollway.InvalidArgument, match=r"shape \[3\].*'CartPole-v1' has \[4\]"):
        made("appo", CART).act(np.zeros(3))
