"""Environments as the algorithms see them: ends of episodes, seeds, and what cannot be used."""

import re

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.wrappers import TransformReward

import rollway
from rollway.algorithms.environment import Environment


class Counter(gymnasium.Env):
    """Counts its steps. Terminates at step 3 for action 1; otherwise its time limit truncates it at step 5."""

    observation_space = Box(-10, 10, (2, 1))
    action_space = Discrete(2, start=4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        self.first = float(self.np_random.random())
        return self.seen(), {}

    def seen(self):
        return np.array([[self.at], [self.first]], np.float32)

    def step(self, action):
        assert action in self.action_space
        self.at += 1
        return self.seen(), float(self.at), action == 5 and self.at == 3, False, {}


class Reach(gymnasium.Env):
    """Gives back the action that it was given."""

    observation_space = Box(-10, 10, (4,))
    action_space = Box(np.array([[-1.0, -2.0], [0.0, -1.0]]), np.array([[1.0, 2.0], [3.0, 1.0]]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}

    def step(self, action):
        return action.astype(np.float32).reshape(-1), 0.0, False, False, {}


class Odd(gymnasium.Env):
    """Has whatever spaces it is told to have."""

    def __init__(self, seen, done):
        self.observation_space, self.action_space = seen, done


class Scarce(Counter):
    """There are only so many of them."""

    left = 0

    def __init__(self):
        if Scarce.left == 0:
            raise OSError("no licence\n  for the simulator")
        Scarce.left -= 1


gymnasium.register("RollwayCounter-v0", Counter, max_episode_steps=5)
gymnasium.register("RollwayScarce-v0", Scarce)
gymnasium.register("RollwayReach-v0", Reach)
gymnasium.register("RollwayOdd-v0", Odd)


def walk(actions, steps):
    with Environment.inspect("RollwayCounter-v0").vector(len(actions)) as envs:
        seen = [envs.reset(1)]
        out = []
        for _ in range(steps):
            out.append(envs.step(np.array(actions, np.float32)[:, None]))
            seen.append(out[-1].obs)
        return seen, out


def test_a_truncated_episode_shows_its_final_observation_and_the_first_of_the_next():
    seen, out = walk([0], 6)
    assert [bool(step.truncated[0]) for step in out] == [False] * 4 + [True, False]
    assert not any(step.terminated[0] for step in out)
    assert out[4].next_obs[0, 0] == 5 and out[4].obs[0, 0] == 0
    assert out[3].next_obs[0, 0] == out[3].obs[0, 0] == 4
    assert out[4].next_obs[0, 1] == seen[0][0, 1] != out[4].obs[0, 1]


def test_a_terminated_episode_is_not_truncated_and_returns_are_summed_per_episode():
    _, out = walk([1, 0], 7)
    assert [bool(step.terminated[0]) for step in out] == [False, False, True, False, False, True, False]
    assert [float(step.episode_return[0]) for step in out] == [1, 3, 6, 1, 3, 6, 1]
    assert [float(step.episode_return[1]) for step in out] == [1, 3, 6, 10, 15, 1, 3]


def test_the_same_seed_starts_the_same_and_each_environment_differently():
    kind = Environment.inspect("RollwayCounter-v0")
    with kind.vector(3) as envs:
        one, again, other = envs.reset(5), envs.reset(5), envs.reset(6)
    assert (one == again).all() and (one[:, 1] != other[:, 1]).all()
    assert len(set(one[:, 1])) == 3


def test_box_actions_are_clipped_and_shaped():
    kind = Environment.inspect("RollwayReach-v0")
    assert (kind.kind, kind.action_dim) == ("box", 4)
    with kind.vector(2) as envs:
        envs.reset(0)
        step = envs.step(np.array([[5, 5, 5, 5], [-5, -0.5, -5, 0.5]], np.float32))
    assert step.obs.tolist() == [[1, 2, 3, 1], [-1, -0.5, 0, 0.5]]


def test_overrides_reach_the_environment():
    with Environment.inspect("RollwayCounter-v0", {"max_episode_steps": 2}).vector(1) as envs:
        envs.reset(0)
        assert [bool(envs.step(np.zeros((1, 1), np.float32)).truncated[0]) for _ in range(4)] == [False, True] * 2


@pytest.mark.parametrize(
    "shape, dtype, is_image",
    [
        ((84, 84, 3), np.uint8, True),
        ((4, 84, 84), np.uint8, True),
        ((84, 84), np.uint8, True),
        ((3, 2, 2), np.uint8, False),
        ((128,), np.uint8, False),
        ((84, 84, 3), np.float32, False),
    ],
)
def test_images_are_arrays_of_bytes_with_sides(shape, dtype, is_image):
    kind = Environment.inspect("RollwayOdd-v0", {"seen": Box(0, 255, shape, dtype), "done": Discrete(2)})
    assert kind.is_image == is_image
    assert kind.rows(np.zeros((5, *shape), dtype)).shape == ((5, *shape) if is_image else (5, np.prod(shape)))


class Twice(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


def thrice(env):
    return TransformReward(env, lambda reward: 3 * reward)


def test_wrappers_are_put_on_in_their_order():
    wrappers = (f"{__name__}:Twice", f"{__name__}:thrice", "gymnasium.wrappers:FlattenObservation")
    kind = Environment.inspect("RollwayCounter-v0", None, wrappers)
    assert kind.obs_shape == (2,) and kind.wrappers == wrappers
    with kind.vector(1) as envs:
        envs.reset(0)
        assert [float(envs.step(np.zeros((1, 1), np.float32)).rewards[0]) for _ in range(2)] == [6, 12]


@pytest.mark.parametrize(
    "wrapper, says",
    [
        ("nowhere:Twice", "No module named 'nowhere'"),
        ("gymnasium.wrappers:Nope", "has no attribute 'Nope'"),
        ("Twice", "module:name"),
        ("gymnasium.wrappers:TimeLimit", "max_episode_steps"),
    ],
)
def test_a_wrapper_that_cannot_be_put_on_is_one_clear_line(wrapper, says):
    with pytest.raises(
        rollway.errors.UnusableEnvironment, match=f"cannot wrap 'RollwayCounter-v0' in .*{says}"
    ) as caught:
        Environment.inspect("RollwayCounter-v0", None, (wrapper,))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "seen, done, says",
    [
        (Discrete(3), Discrete(2), "observations of Discrete"),
        (Dict({"a": Box(0, 1, (2,))}), Discrete(2), "FlattenObservation"),
        (Box(0, 1, (2,)), MultiDiscrete([2, 2]), "actions of MultiDiscrete"),
        (Box(0, 1, (2,)), Box(0, 5, (2,), np.int64), "actions of Box of int64"),
    ],
)
def test_spaces_that_no_algorithm_takes_are_refused(seen, done, says):
    with pytest.raises(rollway.errors.UnusableEnvironment, match=says):
        Environment.inspect("RollwayOdd-v0", {"seen": seen, "done": done})


@pytest.mark.parametrize("name", ["NoSuchThing-v1", "CartPole-v77", "no module:Thing-v0"])
def test_an_unknown_environment_is_one_clear_line(name):
    with pytest.raises(rollway.errors.UnusableEnvironment, match="cannot make the environment") as caught:
        Environment.inspect(name)
    assert "\n" not in str(caught.value)


def test_a_wrong_override_is_one_clear_line():
    with pytest.raises(rollway.errors.UnusableEnvironment, match="sauce"):
        Environment.inspect("CartPole-v1", {"sauce": 1})


def test_an_environment_that_raises_when_it_is_made_is_one_clear_line_that_says_where(monkeypatch):
    monkeypatch.setattr(Scarce, "left", 0)
    with pytest.raises(rollway.errors.UnusableEnvironment) as caught:
        Environment.inspect("RollwayScarce-v0")
    says = r"cannot make the environment 'RollwayScarce-v0': OSError: no licence for the simulator \(.*test_environment\.py, line \d+\)"
    assert re.match(says, str(caught.value)) and "\n" not in str(caught.value)
    assert "gymnasium.make('RollwayScarce-v0')" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("workers", [None, 1])
def test_an_environment_that_can_be_made_once_only_is_one_clear_line(monkeypatch, workers):
    monkeypatch.setattr(Scarce, "left", 2)
    scarce = Environment.inspect("RollwayScarce-v0")
    with pytest.raises(rollway.errors.UnusableEnvironment) as caught:
        scarce.vector(2, workers)
    says = "cannot make the environment 'RollwayScarce-v0' again: OSError: no licence for the simulator"
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)
