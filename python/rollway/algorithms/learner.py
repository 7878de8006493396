"""Learner: what the learners of APPO and SAC have in common: networks made from a seed, and the state of training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from rollway.algorithms.environment import Environment
from rollway.algorithms.networks import Actor
from rollway.algorithms.settings import Settings


class Learner(ABC):
    """An actor, a critic, and the generator of the random numbers that updates draw."""

    settings: Settings
    actor: Actor
    critic: nn.Module
    _generator: torch.Generator

    def __init__(self, env: Environment, settings: Settings, device: str = "cpu") -> None:
        self.settings = settings
        self.device = torch.device(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            actor, critic = self._make_networks(env)
        self.actor, self.critic = actor.to(self.device), critic.to(self.device)

    @abstractmethod
    def _make_networks(self, env: Environment) -> tuple[Actor, nn.Module]:
        """The actor and the critic for an environment."""

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on from here."""
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` gave."""
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self._generator.set_state(state["generator"])
