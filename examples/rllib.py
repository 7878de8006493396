"""RLlib's env runners and RLlib's learner, with Rollway between them: episodes up, weights down. Needs ``ray[rllib]``.

The env runners are Ray actors on any node; they send whole episodes as records. The learner gives them to RLlib's
`LearnerGroup.update`, as RLlib's own algorithms do. PPO of RLlib learns CartPole.
"""

import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

import rollway
import rollway.weights
from rollway.integrations.ray import connect, publish

ENV = "CartPole-v1"
STEPS = 2_000  # of each update
CONFIG = (
    PPOConfig()
    .environment(ENV)
    .env_runners(num_env_runners=0)
    .learners(num_learners=0)
    .training(train_batch_size_per_learner=STEPS)
)
EPISODE = {
    "obs": "float32[*,4]",  # one more than there are steps
    "actions": "int64[*]",
    "rewards": "float32[*]",
    "action_dist_inputs": "float32[*,2]",
    "action_logp": "float32[*]",
    "terminated": "bool[]",
    "truncated": "bool[]",
}
OUTPUTS = ("action_dist_inputs", "action_logp")


def to_record(episode: SingleAgentEpisode) -> dict[str, Any]:
    outputs = {name: episode.get_extra_model_outputs(name) for name in OUTPUTS}
    return outputs | {
        "obs": episode.get_observations(),
        "actions": np.asarray(episode.get_actions(), np.int64),
        "rewards": np.asarray(episode.get_rewards(), np.float32),
        "terminated": episode.is_terminated,
        "truncated": episode.is_truncated,
    }


def to_episode(record: rollway.records.Record, env: gymnasium.Env[Any, Any]) -> SingleAgentEpisode:
    """RLlib's episodes keep their arrays, so these are copies."""
    fields = {name: np.array(array) for name, array in record.fields.items()}
    episode = SingleAgentEpisode(
        observations=list(fields["obs"]),
        observation_space=env.observation_space,
        actions=list(fields["actions"]),
        action_space=env.action_space,
        rewards=list(fields["rewards"]),
        terminated=bool(fields["terminated"]),
        truncated=bool(fields["truncated"]),
        extra_model_outputs={name: list(fields[name]) for name in OUTPUTS},
        len_lookback_buffer=0,
    )
    episode.to_numpy()
    return episode


@ray.remote(num_cpus=0.5, max_restarts=-1)
class Runner:
    def run(self) -> None:
        runner = SingleAgentEnvRunner(config=CONFIG)
        plane = connect("rllib")
        with plane.client() as client, plane.weights() as weights:
            while True:
                policy = weights.read_weights()
                runner.set_state({"rl_module": {"default_policy": policy}, "weights_seq_no": weights.version})
                for episode in runner.sample(num_timesteps=200):
                    client.send(to_record(episode), version=weights.version)


def policy_of(learners: Any) -> dict[str, Any]:
    state = learners.get_state(components="learner/rl_module", inference_only=True)
    policy: dict[str, Any] = state["learner"]["rl_module"]["default_policy"]
    return policy


def train(updates: int, runners: int = 2) -> Iterator[float]:
    """Gives the mean return of the episodes of each update."""
    env = gymnasium.make(ENV)
    learners = CONFIG.build_learner_group(env=env)
    with (
        rollway.weights.WeightSync.from_state_dict(policy_of(learners)) as weights,
        rollway.RecordServer(EPISODE, rollway.ShmTransport()) as server,
        publish("rllib", server, weights=weights),
    ):
        actors = [Runner.remote() for _ in range(runners)]
        running = [actor.run.remote() for actor in actors]
        for update in range(updates):
            episodes: list[SingleAgentEpisode] = []
            while sum(map(len, episodes)) < STEPS:
                with server.read(timeout=120) as record:
                    episodes.append(to_episode(record, env))
            learners.update(
                episodes=episodes,
                timesteps={"num_env_steps_sampled_lifetime": update * STEPS},
                minibatch_size=250,
                num_epochs=6,
                shuffle_batch_per_epoch=True,
            )
            weights.write_weights(policy_of(learners))
            yield float(np.mean([episode.get_return() for episode in episodes if episode.is_done]))
        for actor in actors:
            ray.kill(actor)
        ray.wait(running, num_returns=len(running), timeout=30)  # until they have ended


def main() -> None:
    ray.init(log_to_driver=False, namespace="rllib")
    updates = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    for update, mean in enumerate(train(updates)):
        print(f"update {update}: mean return {mean:.0f}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
