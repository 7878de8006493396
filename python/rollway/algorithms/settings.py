"""Settings of each algorithm, with defaults and checks: what ``rl_cfg`` may hold.

The defaults are tuned for small control tasks on a few CPU cores: few environment steps rather than many per second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, get_args, get_origin, get_type_hints

from rollway.errors import InvalidArgument


@dataclass(frozen=True)
class Settings:
    """What both algorithms have in common."""

    seed: int = 0
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers of every network."""
    channels: tuple[int, ...] = (16, 32, 32)
    """Sizes of the convolutional layers before them, where observations are images."""
    learning_rate: float = 1e-3
    gamma: float = 0.99
    """Discount per step."""
    return_window: int = 100
    """The mean return is that of the last episodes, this many."""
    torch_threads: int = 1
    """Threads of the learner. Small networks gain nothing from more."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Settings from a plain dict, as ``rl_cfg`` has them; numbers may come as text, from a command line.

        >>> AppoSettings.of({"gamma": "0.98", "hidden": "32,32"}).hidden
        (32, 32)
        >>> AppoSettings.of({"gama": 0.98})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        rollway.errors.InvalidArgument: AppoSettings has no 'gama'. It has: ...
        """
        hints = get_type_hints(cls)
        known = [field.name for field in fields(cls)]
        for key in given:
            if key not in known:
                raise InvalidArgument(f"{cls.__name__} has no {key!r}. It has: {', '.join(known)}.")
        return cls(**{key: _convert(key, value, hints[key]) for key, value in given.items()})

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "seed" and isinstance(value, int) and value < 1:
                raise InvalidArgument(f"{field.name} is {value}: at least 1 is needed.")
            if isinstance(value, float) and math.isnan(value):
                raise InvalidArgument(f"{field.name} is {value}: a number is needed.")
        if any(size < 1 for size in self.hidden):
            raise InvalidArgument(f"hidden is {self.hidden}: a layer has at least 1 unit.")
        if not self.channels or any(size < 1 for size in self.channels):
            raise InvalidArgument(f"channels is {self.channels}: there is at least 1 layer, of at least 1 channel.")
        if not 0 <= self.seed < 2**64:
            raise InvalidArgument(f"seed is {self.seed}: it must be from 0 to 2**64 - 1.")
        if not 0 <= self.gamma <= 1:
            raise InvalidArgument(f"gamma is {self.gamma}: it must be from 0 to 1.")
        self._check_positive("learning_rate")

    def _check_positive(self, name: str) -> None:
        value = getattr(self, name)
        if not 0 < value < math.inf:
            raise InvalidArgument(f"{name} is {value}: it must be positive, and finite.")


@dataclass(frozen=True)
class AppoSettings(Settings):
    """Asynchronous PPO with V-trace."""

    rollout_steps: int = 64
    """Steps of each environment in one rollout."""
    rollouts_per_update: int = 2
    """Rollouts that one iteration of the learner takes, from any collectors."""
    num_slots: int | None = None
    """Room for rollouts; by default one for each collector. Collectors wait for room, which limits the staleness."""
    env_workers: int | None = None
    """Processes that step a collector's environments, and write their results into the ring. By default none: the
    collector steps them."""
    epochs: int = 4
    minibatches: int = 4
    lam: float = 0.95
    """Decay of the traces."""
    rho_clip: float = 1.0
    c_clip: float = 1.0
    ratio_clip: float = 0.2
    """PPO's clip: how much an iteration may change the probability of an action, as a factor."""
    entropy_weight: float = 0.005
    value_weight: float = 0.5
    gradient_clip: float = 0.5


@dataclass(frozen=True)
class SacSettings(Settings):
    """Soft actor-critic with an entropy that tunes itself."""

    return_window: int = 20
    batch_size: int = 256
    capacity: int = 200_000
    """Transitions in the replay buffer."""
    warmup_steps: int = 1_000
    """Steps of all environments with random actions, before the first update."""
    chunk_steps: int = 8
    """Steps of each environment that a collector adds at once. It may be one chunk ahead of the learner."""
    updates_per_step: float = 1.0
    """Updates of the networks per environment step."""
    tau: float = 0.01
    """How fast the target critics follow: the weight of the new parameters in each update."""
    target_entropy: float | None = None
    """In nats, of the action scaled to [-1, 1]; by default minus the number of action dimensions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("updates_per_step")
        if not 0 < self.tau <= 1:
            raise InvalidArgument(f"tau is {self.tau}: it must be above 0, and at most 1.")
        if self.warmup_steps > self.capacity:
            raise InvalidArgument(f"warmup_steps = {self.warmup_steps} is more than the capacity of {self.capacity}.")


def _convert(key: str, value: Any, kind: Any) -> Any:
    optional = type(None) in get_args(kind) and get_origin(kind) is not tuple
    if optional:
        if value is None:
            return None
        kind = next(one for one in get_args(kind) if one is not type(None))
    try:
        if get_origin(kind) is tuple:
            parts = value.split(",") if isinstance(value, str) else value
            return tuple(int(part) for part in parts)
        if kind is int and isinstance(value, float) and not value.is_integer():
            raise ValueError(value)
        return kind(value)
    except (TypeError, ValueError):
        wanted = "whole numbers, such as 64,64" if get_origin(kind) is tuple else f"{kind.__name__}"
        raise InvalidArgument(f"{key} is {value!r}: it takes {wanted}.") from None
