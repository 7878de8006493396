"""Environments for the tests of vector environments: each does one thing that real ones do."""

import os
import signal
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces

NESTED = spaces.Dict(
    {
        "eye": spaces.Box(0, 255, (3, 2), np.uint8),
        "pair": spaces.Tuple((spaces.Discrete(5, start=-2), spaces.MultiBinary(3))),
        "inner": spaces.Dict({"limbs": spaces.MultiDiscrete([3, 4]), "x": spaces.Box(-1, 1, (), np.float64)}),
    }
)
LOOSE = spaces.Dict(
    {
        "said": spaces.Text(12),
        "seen": spaces.Sequence(spaces.Box(0, 1, (2,))),
        "web": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
        "here": spaces.Box(0, 1, (2,), np.float32),
    }
)
ONE_OF_EACH = {
    "box": spaces.Box(-1, 1, (2, 3), np.float32),
    "float16": spaces.Box(-1, 1, (3,), np.float16),
    "image": spaces.Box(0, 255, (4, 4), np.uint8),
    "scalar": spaces.Box(-1, 1, ()),
    "discrete": spaces.Discrete(7, start=-3),
    "multi_discrete": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,)))),
    "nested": NESTED,
    "text": spaces.Text(8),
    "sequence": spaces.Sequence(spaces.Discrete(4)),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), None),
    "one_of": spaces.OneOf((spaces.Discrete(3), spaces.Box(0, 1, (2,)))),
    "loose": LOOSE,
}


class Sampler(gym.Env):
    """Observations are samples of its space, and say whether the action belonged to the action space."""

    def __init__(self, space, action_space=None, length=7):
        self.observation_space = space
        self.action_space = space if action_space is None else action_space
        self._length = length

    def _look(self):
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = self._length + int(self.np_random.integers(3))
        return self._look(), {"options": str(options)} if options else {}

    def step(self, action):
        self._left -= 1
        assert action in self.action_space, (action, self.action_space)
        info = {"left": self._left, "nested": {"half": self._left / 2}} if self._left % 2 else {}
        return self._look(), float(self._left), self._left == 0, self._left == 1, info


class Counter(gym.Env):
    """Counts its steps, and does what its action says: the tests decide when it fails."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"
    CALM, RAISE, KILL, HANG, EXIT, BIG, SLOW = range(7)
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(7)

    def __init__(self, number=0, length=1000, gate=None):
        self.number, self.length, self.count = number, length, 0
        self.gate = gate  # a path: SLOW waits until it exists

    def _observation(self):
        return np.array([self.number, self.count], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._observation(), {"seed": -1 if seed is None else seed}

    def step(self, action):
        self.count += 1
        info = {}
        if action == self.RAISE:
            raise ZeroDivisionError(f"environment {self.number} at step {self.count}")
        if action == self.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == self.HANG:
            while True:
                time.sleep(60)
        if action == self.EXIT:
            os._exit(7)
        if action == self.BIG:
            info = {"big": np.full(300_000, self.number)}
        while action == self.SLOW and not self.gate.exists():
            time.sleep(0.001)
        return self._observation(), float(self.count), False, self.count >= self.length, info

    def render(self):
        return np.full((8, 8, 3), self.number, np.uint8)

    def pid(self):
        """Of its process."""
        return os.getpid()

    def leave(self, number):
        """Ends the process of this one."""
        if self.number == number:
            os._exit(7)

    def add(self, a, b=0):
        """For `call`."""
        return self.number + a + b


def counters(count, **kwargs):
    """Functions that make so many, numbered."""
    return [lambda number=number: Counter(number, **kwargs) for number in range(count)]
