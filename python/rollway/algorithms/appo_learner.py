"""The APPO learner: PPO's clipped update on rollouts that older policies made, corrected by V-trace.

`AppoRunner` calls it. A rollout was made by a policy μ that may be a version or two old. V-trace turns it into targets
and advantages for the learner's own policy π, with clipped importance weights π/μ. The epochs then maximise PPO's
surrogate of the ratio π/μ, clipped too: once π differs from μ by as much as the clip allows, stale data has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rollway.algorithms.environment import Environment
from rollway.algorithms.learner import Learner
from rollway.algorithms.networks import CategoricalActor, Critic, GaussianActor, make_encoder
from rollway.algorithms.settings import AppoSettings
from rollway.algorithms.vtrace import vtrace

Rollout = dict[str, Tensor]
"""``[envs, steps, …]``: obs, actions, log_probs, rewards, dones, truncated, next_obs; ``[envs, …]``: last_obs."""


def make_actor(env: Environment, settings: AppoSettings) -> CategoricalActor | GaussianActor:
    """The policy network for an environment."""
    inputs, encoder = make_encoder(env, settings)
    if env.kind == "discrete":
        return CategoricalActor(inputs, env.choices, settings.hidden, encoder)
    return GaussianActor(inputs, env.action_dim, settings.hidden, encoder)


class AppoLearner(Learner):
    """An actor, a critic and their optimiser. `update` changes them by one iteration."""

    settings: AppoSettings
    actor: CategoricalActor | GaussianActor
    critic: Critic

    def __init__(self, env: Environment, settings: AppoSettings, device: str = "cpu") -> None:
        super().__init__(env, settings, device)
        self._parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self._generator = torch.Generator().manual_seed(settings.seed)

    def _make_networks(self, env: Environment) -> tuple[CategoricalActor | GaussianActor, Critic]:
        actor = make_actor(env, self.settings)
        inputs, encoder = make_encoder(env, self.settings)
        return actor, Critic(inputs, self.settings.hidden, encoder)

    @cached_property
    def optimiser(self) -> torch.optim.Optimizer:
        """Made at the first update, because torch takes seconds for it and collectors can start meanwhile."""
        return torch.optim.Adam(self._parameters, self.settings.learning_rate, eps=1e-5, fused=True)

    def state_dict(self) -> dict[str, Any]:
        """As `Learner.state_dict`, with the optimiser."""
        return super().state_dict() | {"optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `Learner.load_state_dict`, with the optimiser."""
        super().load_state_dict(state)
        self.optimiser.load_state_dict(state["optimiser"])

    def update(self, rollout: Rollout) -> dict[str, float]:
        """One iteration on a rollout. Returns its losses."""
        s = self.settings
        obs = rollout["obs"].flatten(0, 1)
        actions = rollout["actions"].flatten(0, 1)
        made_with = rollout["log_probs"].flatten()
        targets, advantages, clipped = self._correct(rollout)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        sums = torch.zeros(3)
        for _ in range(s.epochs):
            order = torch.randperm(len(obs), generator=self._generator).to(self.device)
            for rows in order.chunk(s.minibatches):
                log_probs, entropy = self.actor.evaluate_actions(obs[rows], actions[rows])
                ratio = (log_probs - made_with[rows]).exp()
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
    def _correct(self, rollout: Rollout) -> tuple[Tensor, Tensor, float]:
        """The targets and the advantages, flat; and the share of steps whose importance weight was clipped."""
        s = self.settings
        envs, steps = rollout["rewards"].shape
        log_probs, _ = self.actor.evaluate_actions(rollout["obs"].flatten(0, 1), rollout["actions"].flatten(0, 1))
        log_rhos = log_probs.view(envs, steps) - rollout["log_probs"]
        states = torch.cat([rollout["obs"], rollout["last_obs"].unsqueeze(1)], 1)
        values = self.critic(states.flatten(0, 1)).view(envs, steps + 1)
        next_values = values[:, 1:].clone()
        truncated = rollout["truncated"] > 0
        if truncated.any():  # the value of the final observation, not of the first one of the next episode
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
        return targets.flatten(), advantages.flatten(), clipped
