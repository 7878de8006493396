"""The SAC learner: soft actor-critic on batches of transitions, with an entropy that tunes itself.

`SacRunner` calls it. After Haarnoja et al. 2018: twin critics, slow target critics, a squashed Gaussian actor, and a
temperature α that keeps the entropy near its target.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rollway.algorithms.environment import Environment
from rollway.algorithms.learner import Learner
from rollway.algorithms.networks import SquashedGaussianActor, TwinCritic, make_encoder
from rollway.algorithms.settings import SacSettings
from rollway.errors import UnusableEnvironment


def make_actor(env: Environment, settings: SacSettings) -> SquashedGaussianActor:
    """The policy network for an environment."""
    low, high = torch.as_tensor(env.low), torch.as_tensor(env.high)
    if env.kind != "box":
        raise UnusableEnvironment(f"{env.name!r} has discrete actions: SAC takes Box. Use `appo` for it.")
    if not (torch.isfinite(low).all() and torch.isfinite(high).all()):
        raise UnusableEnvironment(
            f"{env.name!r} has actions without bounds: SAC needs a bounded Box. Use `appo` for it."
        )
    inputs, encoder = make_encoder(env, settings)
    return SquashedGaussianActor(inputs, low, high, settings.hidden, encoder)


class Optimisers(NamedTuple):
    """One for each thing that is learnt."""

    actor: torch.optim.Optimizer
    critic: torch.optim.Optimizer
    alpha: torch.optim.Optimizer


class SacLearner(Learner):
    """An actor, twin critics with their slow copies, a temperature, and their optimisers."""

    settings: SacSettings
    actor: SquashedGaussianActor
    critic: TwinCritic

    def __init__(self, env: Environment, settings: SacSettings, device: str = "cpu") -> None:
        super().__init__(env, settings, device)
        self.slow_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.zeros((), device=self.device, requires_grad=True)
        self.target_entropy = float(-env.action_dim) if settings.target_entropy is None else settings.target_entropy
        self._generator = torch.Generator(self.device).manual_seed(settings.seed)

    def _make_networks(self, env: Environment) -> tuple[SquashedGaussianActor, TwinCritic]:
        actor = make_actor(env, self.settings)
        inputs, encoder = make_encoder(env, self.settings)
        return actor, TwinCritic(inputs, env.action_dim, self.settings.hidden, encoder)

    @property
    def alpha(self) -> float:
        """The temperature: how much one nat of entropy is worth."""
        return math.exp(float(self.log_alpha.detach()))

    @cached_property
    def optimisers(self) -> Optimisers:
        """Made at the first update, because torch takes seconds for them and collectors can start meanwhile."""
        rate = self.settings.learning_rate
        return Optimisers(
            actor=torch.optim.Adam(self.actor.parameters(), rate, fused=True),
            critic=torch.optim.Adam(self.critic.parameters(), rate, fused=True),
            alpha=torch.optim.Adam([self.log_alpha], rate, fused=True),
        )

    def state_dict(self) -> dict[str, Any]:
        """As `Learner.state_dict`, with the slow critics, the temperature and the optimisers."""
        return super().state_dict() | {
            "slow_critic": self.slow_critic.state_dict(),
            "log_alpha": self.log_alpha.detach().clone(),
            "optimisers": {name: one.state_dict() for name, one in self.optimisers._asdict().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `Learner.load_state_dict`, with what `state_dict` adds."""
        super().load_state_dict(state)
        self.slow_critic.load_state_dict(state["slow_critic"])
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
        for name, one in self.optimisers._asdict().items():
            one.load_state_dict(state["optimisers"][name])

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One step on a batch: obs, actions, rewards, next_obs, dones, truncated. Returns the losses as tensors."""
        obs, actions = batch["obs"], batch["actions"]
        alpha = self.log_alpha.detach().exp()

        opinions = self.critic(obs, actions)
        critic_loss = functional.mse_loss(opinions, self.targets(batch).expand_as(opinions)) * 2
        self.optimisers.critic.zero_grad()
        torch.autograd.backward(critic_loss)
        self.optimisers.critic.step()

        proposed, log_probs = self.actor.sample(obs, self._generator)
        self.critic.requires_grad_(False)
        actor_loss = (alpha * log_probs - self.critic(obs, proposed).amin(0)).mean()
        self.optimisers.actor.zero_grad()
        torch.autograd.backward(actor_loss)
        self.optimisers.actor.step()
        self.critic.requires_grad_(True)

        surplus = -log_probs.detach().mean() - self.target_entropy
        alpha_loss = self.log_alpha * surplus
        self.optimisers.alpha.zero_grad()
        torch.autograd.backward(alpha_loss)
        self.optimisers.alpha.step()

        with torch.no_grad():
            torch._foreach_lerp_(list(self.slow_critic.parameters()), list(self.critic.parameters()), self.settings.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "entropy": -log_probs.mean().detach(),
        }

    @torch.no_grad()
    def targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The targets of the critics: the reward, and the value of what follows, unless the episode terminated.

        After a truncated episode, the value of what would have followed counts.
        """
        terminated = batch["dones"] * (1 - batch["truncated"])
        next_obs = batch["next_obs"]
        next_actions, log_probs = self.actor.sample(next_obs, self._generator)
        following = self.slow_critic(next_obs, next_actions).amin(0) - self.log_alpha.exp() * log_probs
        targets: Tensor = batch["rewards"] + self.settings.gamma * (1 - terminated) * following
        return targets
