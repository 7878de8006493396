"""Asynchronous PPO from Python. Try ``--iterations 200``.

A collector acts, its two workers step CartPole and write rollouts straight into the ring, and this process learns.
"""

import argparse
import tempfile
from pathlib import Path

from rollway.algorithms import AppoRunner, Policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--log-dir", type=Path, default=Path(tempfile.gettempdir()) / "rollway-appo")
    options = parser.parse_args()

    settings = {"learning_rate": 1e-3, "rollout_steps": 64, "env_workers": 2, "seed": 1}
    with AppoRunner(options.env, rl_cfg=settings, num_envs=16, num_collectors=1) as runner:
        for progress in runner.train(options.iterations, log_dir=options.log_dir):
            print(
                f"{progress.env_steps:>7,} steps  return {progress.mean_return:6.1f}  "
                f"{progress.steps_per_s:6,.0f} steps/s  staleness {progress.staleness:.1f}"
            )
            if progress.window_full and progress.mean_return >= 475:
                break
        runner.save(options.log_dir / "policy.pt")

    policy = Policy.load(options.log_dir / "policy.pt")
    print(f"greedy, over 10 episodes: {policy.evaluate(episodes=10):.1f}")


if __name__ == "__main__":
    main()
