"""Soft actor-critic from Python: collectors fill a replay buffer, this process learns. Try ``--steps 10000``."""

import argparse
import tempfile
from pathlib import Path

from rollway.algorithms import Policy, SacRunner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--log-dir", type=Path, default=Path(tempfile.gettempdir()) / "rollway-sac")
    options = parser.parse_args()

    settings = {"warmup_steps": min(1_000, options.steps // 2), "seed": 1}
    with SacRunner(options.env, rl_cfg=settings, num_envs=4, num_collectors=2) as runner:
        for progress in runner.train(log_dir=options.log_dir):
            if progress.iteration % 10 == 0:
                print(
                    f"{progress.env_steps:>7,} steps  return {progress.mean_return:8.1f}  "
                    f"{runner.updates:,} updates  {len(runner.replay):,} transitions"
                )
            if progress.env_steps >= options.steps:
                break
        runner.save(options.log_dir / "policy.pt")

    policy = Policy.load(options.log_dir / "policy.pt")
    print(f"greedy, over 10 episodes: {policy.evaluate(episodes=10):.1f}")


if __name__ == "__main__":
    main()
