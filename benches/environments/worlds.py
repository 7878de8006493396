"""The environments of `vector_env.py`. Only Gymnasium and numpy, so that other interpreters can import them too."""

from __future__ import annotations

import time
from collections.abc import Callable

import gymnasium as gym
import numpy as np


class Image(gym.Env):
    """Nothing to compute, 84 × 84 bytes to move."""

    observation_space = gym.spaces.Box(0, 255, (84, 84), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def __init__(self) -> None:
        self._picture = np.random.default_rng(0).integers(0, 255, (84, 84), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._picture, {}

    def step(self, action):
        return self._picture, 1.0, False, False, {}


class Sleeper(gym.Env):
    """Waits for something else: a simulator, a game, a network."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, least_s: float, most_s: float, mostly_short: bool = False) -> None:
        self._least, self._most, self._mostly_short = least_s, most_s, mostly_short
        self._observation = np.zeros(4, np.float32)

    def draw(self) -> float:
        """How long the next step takes."""
        if self._mostly_short:  # as many between 0.1 and 0.7 as between 0.7 and 5
            return self._least * (self._most / self._least) ** self.np_random.random()
        return self.np_random.uniform(self._least, self._most)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action):
        time.sleep(self.draw())
        return self._observation, 1.0, False, False, {}


WORLDS: dict[str, Callable[[], gym.Env]] = {
    "cartpole": lambda: gym.make("CartPole-v1"),
    "image": Image,
    "1 ms": lambda: Sleeper(0.001, 0.001),
    "0.1-5 ms": lambda: Sleeper(0.0001, 0.005),
    "0.1-5 ms, mostly short": lambda: Sleeper(0.0001, 0.005, mostly_short=True),
}
