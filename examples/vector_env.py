"""Environments in worker processes: a batch has the environments that finish first, and one that dies is restarted."""

import os
import signal
import time

import gymnasium as gym
import numpy as np

import rollway


class Simulator(gym.Env):
    """Some steps take longer than others, and one step in a thousand ends the process."""

    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        time.sleep(self.np_random.exponential(0.002))
        if self.np_random.random() < 0.001:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.np_random.random(3, np.float32), 1.0, False, False, {}


if __name__ == "__main__":
    policy = rollway.RestartPolicy.up_to(100)
    with rollway.make_vec(Simulator, 8, num_workers=8, batch_size=4, restart=policy) as envs:
        envs.async_reset(seed=1)
        steps = np.zeros(8, int)
        for _ in range(250):
            observations, rewards, terminations, truncations, infos = envs.recv()
            steps[infos["env_id"]] += 1
            envs.send(np.zeros(4, int))  # a policy would look at the observations
    print(f"{steps.sum()} steps, {steps.min()} to {steps.max()} of each environment")
