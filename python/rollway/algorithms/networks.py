"""Networks of APPO and SAC: actors choose actions, critics estimate values.

Every actor has ``sample(obs, generator)`` for training and ``greedy(obs)`` for evaluation. Observations are flat,
``[n, obs_dim]`` float32, or images, which an `ImageEncoder` of each network turns into features first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from rollway.algorithms.acting import LOG_STD_MAX, LOG_STD_MIN, channels_first
from rollway.algorithms.environment import Environment
from rollway.algorithms.settings import Settings

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def mlp(sizes: Sequence[int], activation: type[nn.Module], last_gain: float = 1.0) -> nn.Sequential:
    """Linear layers with an activation between them; orthogonal at first, the last scaled by its gain."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        linear = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(linear.weight, math.sqrt(2))
        nn.init.zeros_(linear.bias)
        layers += [linear, activation()]
    layers.pop()
    nn.init.orthogonal_(linear.weight, last_gain)
    return nn.Sequential(*layers)


class ImageEncoder(nn.Sequential):
    """Features of images, which come as uint8: convolutions by 3 x 3, each of which halves the sides."""

    def __init__(self, shape: Sequence[int], channels: Sequence[int]) -> None:
        first, *sides = channels_first(torch.empty(1, *shape)).shape[1:]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([first, *channels]):
            layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
            sides = [-(-side // 2) for side in sides]
        super().__init__(*layers)
        self.size = channels[-1] * math.prod(sides)
        """How many features there are."""

    def forward(self, obs: Tensor) -> Tensor:
        """``[n, …]`` uint8 to ``[n, size]``."""
        features: Tensor = super().forward(channels_first(obs).float() / 255)
        return features.flatten(1)


def make_encoder(env: Environment, settings: Settings) -> tuple[int, nn.Module]:
    """How many features a network gets for an observation, and what makes them."""
    if not env.is_image:
        return env.obs_dim, nn.Identity()
    encoder = ImageEncoder(env.obs_shape, settings.channels)
    return encoder.size, encoder


class CategoricalActor(nn.Module):
    """A distribution over a fixed number of choices. Actions are indices, as float32 in a column: ``[n, 1]``."""

    def __init__(self, inputs: int, choices: int, hidden: Sequence[int], encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder or nn.Identity()
        self.body = mlp([inputs, *hidden, choices], nn.Tanh, last_gain=0.01)

    def sample(self, obs: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """An action for each observation, and its log-probability."""
        log_probs = self._log_probs(obs)
        actions = torch.multinomial(log_probs.exp(), 1, generator=generator)
        return actions.float(), log_probs.gather(-1, actions).squeeze(-1)

    def evaluate_actions(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probability of given actions, and the entropy of each distribution."""
        log_probs = self._log_probs(obs)
        chosen = log_probs.gather(-1, actions.long()).squeeze(-1)
        return chosen, -(log_probs.exp() * log_probs).sum(-1)

    def greedy(self, obs: Tensor) -> Tensor:
        """The likeliest action for each observation."""
        return self._log_probs(obs).argmax(-1, keepdim=True).float()

    def _log_probs(self, obs: Tensor) -> Tensor:
        return functional.log_softmax(self.body(self.encoder(obs)), -1)


class GaussianActor(nn.Module):
    """A Gaussian around a mean that depends on the observation; its width is learnt but the same everywhere.

    Actions are unbounded, ``[n, action_dim]``; `EnvironmentVector` clips them to the bounds.
    """

    def __init__(self, inputs: int, action_dim: int, hidden: Sequence[int], encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder or nn.Identity()
        self.body = mlp([inputs, *hidden, action_dim], nn.Tanh, last_gain=0.01)
        self.log_std = nn.Parameter(torch.zeros(action_dim))

    def sample(self, obs: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """An action for each observation, and its log-density."""
        mean = self.greedy(obs)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return mean + self.log_std.exp() * noise, _gaussian_log_prob(noise, self.log_std)

    def evaluate_actions(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The log-density of given actions, and the entropy of each distribution."""
        noise = (actions - self.greedy(obs)) / self.log_std.exp()
        entropy = (self.log_std + _HALF_LOG_2PI + 0.5).sum()
        return _gaussian_log_prob(noise, self.log_std), entropy.expand(len(obs))

    def greedy(self, obs: Tensor) -> Tensor:
        """The mean for each observation."""
        mean: Tensor = self.body(self.encoder(obs))
        return mean


class SquashedGaussianActor(nn.Module):
    """A Gaussian squashed into the bounds of a box by tanh: SAC's policy.

    Log-densities are those of the action scaled to [-1, 1], so that they, and an entropy target, do not depend on
    the units of the environment.
    """

    centre: Tensor
    reach: Tensor

    def __init__(
        self, inputs: int, low: Tensor, high: Tensor, hidden: Sequence[int], encoder: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder or nn.Identity()
        self.body = mlp([inputs, *hidden, 2 * len(low)], nn.ReLU, last_gain=0.01)
        self.register_buffer("centre", (high + low) / 2, persistent=False)
        self.register_buffer("reach", (high - low) / 2, persistent=False)

    def sample(self, obs: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """An action for each observation, through which gradients flow, and its log-density."""
        mean, log_std = self._mean_and_log_std(obs)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        free = mean + log_std.exp() * noise
        # log(1 - tanh²(x)), in a form that does not round to log(0)
        squeeze = 2 * (math.log(2) - free - functional.softplus(-2 * free))
        return self._squash(free), _gaussian_log_prob(noise, log_std) - squeeze.sum(-1)

    def greedy(self, obs: Tensor) -> Tensor:
        """The centre of each distribution."""
        return self._squash(self._mean_and_log_std(obs)[0])

    def _mean_and_log_std(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.body(self.encoder(obs)).chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def _squash(self, free: Tensor) -> Tensor:
        return self.centre + self.reach * torch.tanh(free)


Actor = CategoricalActor | GaussianActor | SquashedGaussianActor


class Critic(nn.Module):
    """The values of states: ``[n, …]`` to ``[n]``."""

    def __init__(self, inputs: int, hidden: Sequence[int], encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder or nn.Identity()
        self.body = mlp([inputs, *hidden, 1], nn.Tanh)

    def forward(self, obs: Tensor) -> Tensor:
        """One number per state."""
        value: Tensor = self.body(self.encoder(obs)).squeeze(-1)
        return value


class TwinCritic(nn.Module):
    """Two critics of state and action, computed by one matrix product: to ``[2, n]``. Only an encoder is common."""

    def __init__(self, inputs: int, action_dim: int, hidden: Sequence[int], encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder or nn.Identity()
        sizes = [inputs + action_dim, *hidden, 1]
        twins = [mlp(sizes, nn.ReLU), mlp(sizes, nn.ReLU)]
        linears = [[layer for layer in twin if isinstance(layer, nn.Linear)] for twin in twins]
        pairs = list(zip(*linears, strict=True))
        self.weights = nn.ParameterList(torch.stack([a.weight.T, b.weight.T]).detach() for a, b in pairs)
        self.biases = nn.ParameterList(torch.stack([a.bias, b.bias]).unsqueeze(1).detach() for a, b in pairs)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Both values of each pair of state and action."""
        x = torch.cat([self.encoder(obs), actions], -1).expand(2, -1, -1)
        for depth, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x if depth == 0 else functional.relu(x), weight)
        return x.squeeze(-1)


def _gaussian_log_prob(noise: Tensor, log_std: Tensor) -> Tensor:
    return (-0.5 * noise.square() - log_std - _HALF_LOG_2PI).sum(-1)
