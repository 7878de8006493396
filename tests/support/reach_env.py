"""A tiny environment for training tests: say back the number that you see. Also some that fail: when they are made, or in the middle."""

import multiprocessing
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Reach(gymnasium.Env):
    """The best return is 0; random actions earn about -16/3 in the eight steps of an episode."""

    observation_space = Box(-1, 1, (1,))
    action_space = Box(-1, 1, (1,))

    def __init__(self, fails_at=None):
        self.steps, self.fails_at = 0, fails_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}

    def seen(self):
        self.goal = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.goal

    def step(self, action):
        self.steps += 1
        if self.steps == self.fails_at:
            raise RuntimeError("the simulator has lost its arm")
        reward = -float((action - self.goal)[0] ** 2)
        return self.seen(), reward, False, False, {}


class Look(gymnasium.Env):
    """Says on which half of a picture it is bright. Random actions earn 4 in the eight steps of an episode."""

    observation_space = Box(0, 255, (12, 16, 3), np.uint8)
    action_space = Discrete(2, start=1)
    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}

    def seen(self):
        self.side = int(self.np_random.integers(2))
        self.picture = np.zeros((12, 16, 3), np.uint8)
        self.picture[:, 8 * self.side : 8 * self.side + 8] = 255
        return self.picture

    def step(self, action):
        assert action in self.action_space
        reward = float(action - 1 == self.side)
        return self.seen(), reward, False, False, {}

    def render(self):
        return self.picture


class Both(Reach):
    """Every fourth step terminates the episode and reaches its time limit."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self.steps % 4 == 0, self.steps % 4 == 0, info


class Unmade(Reach):
    def __init__(self):
        raise RuntimeError("the simulator has no arm")


class Single(Reach):
    """The process that looks at it first can make it, and no other."""

    def __init__(self):
        if multiprocessing.parent_process() is not None:
            raise RuntimeError("there is one arm only")
        super().__init__()


class Breaking(Reach):
    def __init__(self):
        super().__init__(fails_at=20)


gymnasium.register("Reach-v0", Reach, max_episode_steps=8)
gymnasium.register("Look-v0", Look, max_episode_steps=8)
gymnasium.register("Both-v0", Both)
gymnasium.register("Unmade-v0", Unmade)
gymnasium.register("Single-v0", Single, max_episode_steps=8)
gymnasium.register("Breaking-v0", Breaking, max_episode_steps=8)
