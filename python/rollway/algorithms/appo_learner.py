"""The APPO learner: PPO's clipped update on rollouts that older policies made, corrected by V-trace.

Arithmetic only: no process, no shared memory, no environment. `AppoRunner` feeds it.

A rollout was made by a policy μ that is a few versions old. At the start of an update the learner's own policy π is
fixed as the anchor: V-trace turns the rollout into targets and advantages for π, with importance weights π/μ clipped.
The epochs that follow then move the policy, at most by PPO's clip away from π.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rollway.algorithms.environment import Environment
from rollway.algorithms.networks import CategoricalActor, Critic, GaussianActor
from rollway.algorithms.settings import AppoSettings
from rollway.algorithms.vtrace import vtrace

Rollout = dict[str, Tensor]
"""``[envs, steps, …]``: obs, actions, log_probs, rewards, dones, truncated, next_obs; ``[envs, obs_dim]``: last_obs."""


def make_actor(env: Environment, settings: AppoSettings) -> CategoricalActor | GaussianActor:
    """The policy network that fits the environment. Learner and collectors both make theirs here."""
    if env.kind == "discrete":
        return CategoricalActor(env.obs_dim, env.choices, settings.hidden)
    return GaussianActor(env.obs_dim, env.action_dim, settings.hidden)


class AppoLearner:
    """An actor, a critic and their optimiser. `update` changes them by one iteration."""

    def __init__(self, env: Environment, settings: AppoSettings, device: str = "cpu") -> None:
        self.settings = settings
        self.device = torch.device(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.actor = make_actor(env, settings).to(self.device)
            self.critic = Critic(env.obs_dim, settings.hidden).to(self.device)
        self._parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimiser = torch.optim.Adam(self._parameters, settings.learning_rate, eps=1e-5)
        self._generator = torch.Generator().manual_seed(settings.seed)

    def update(self, rollout: Rollout) -> dict[str, float]:
        """One iteration on a rollout. Gives its losses, and how far the policy had moved from the one that acted."""
        s = self.settings
        obs = rollout["obs"].flatten(0, 1)
        actions = rollout["actions"].flatten(0, 1)
        anchor, targets, advantages, clipped = self._correct(rollout)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        sums = torch.zeros(3)
        for _ in range(s.epochs):
            order = torch.randperm(len(obs), generator=self._generator).to(self.device)
            for rows in order.chunk(s.minibatches):
                log_probs, entropy = self.actor.judge(obs[rows], actions[rows])
                ratio = (log_probs - anchor[rows]).exp()
                bounded = ratio.clamp(1 - s.ratio_clip, 1 + s.ratio_clip)
                policy_loss = -torch.min(ratio * advantages[rows], bounded * advantages[rows]).mean()
                value_loss = functional.mse_loss(self.critic(obs[rows]), targets[rows])
                loss = policy_loss + s.value_weight * value_loss - s.entropy_weight * entropy.mean()
                self.optimiser.zero_grad()
                torch.autograd.backward(loss)
                torch.nn.utils.clip_grad_norm_(self._parameters, s.gradient_clip)
                self.optimiser.step()
                sums += torch.stack([policy_loss, value_loss, entropy.mean()]).detach().cpu()
        policy, value, entropy_mean = (sums / (s.epochs * s.minibatches)).tolist()
        return {"policy_loss": policy, "value_loss": value, "entropy": entropy_mean, "clipped_importance": clipped}

    @torch.no_grad()
    def _correct(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor, float]:
        """The anchor's log-probabilities, the targets, the advantages, all flat; and the share of clipped weights."""
        s = self.settings
        envs, steps = rollout["rewards"].shape
        anchor, _ = self.actor.judge(rollout["obs"].flatten(0, 1), rollout["actions"].flatten(0, 1))
        log_rhos = anchor.view(envs, steps) - rollout["log_probs"]
        states = torch.cat([rollout["obs"], rollout["last_obs"].unsqueeze(1)], 1)
        values = self.critic(states.flatten(0, 1)).view(envs, steps + 1)
        next_values = values[:, 1:].clone()
        truncated = rollout["truncated"] > 0
        if truncated.any():  # the value of where the episode was cut, not of where the next one starts
            next_values[truncated] = self.critic(rollout["next_obs"][truncated])
        ended = rollout["dones"]
        targets, advantages = vtrace(
            log_rhos=log_rhos,
            rewards=rollout["rewards"],
            values=values[:, :-1],
            next_values=next_values,
            terminated=ended * (1 - rollout["truncated"]),
            ended=ended,
            gamma=s.gamma,
            lam=s.lam,
            rho_clip=s.rho_clip,
            c_clip=s.c_clip,
        )
        clipped = float((log_rhos.exp() > s.rho_clip).float().mean())
        return anchor, targets.flatten(), advantages.flatten(), clipped
