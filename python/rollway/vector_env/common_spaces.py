"""CommonSpaces: the spaces of a vector environment, made from those of its environments, which have to fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from rollway.errors import InvalidArgument
from rollway.vector_env.protocol import EnvDescriptions

ObservationMode = str | tuple[Space[Any], Space[Any]]
"""``"same"``, ``"different"``, or the batched space and the single one."""


@dataclass(frozen=True)
class CommonSpaces:
    """What all environments have in common."""

    single_observation_space: Space[Any]
    single_action_space: Space[Any]
    observation_space: Space[Any]
    action_space: Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None

    @classmethod
    def of(cls, descriptions: Sequence[EnvDescriptions], mode: ObservationMode) -> CommonSpaces:
        """Compares what the workers report about their environments."""
        observations = [space for description in descriptions for space in description.observation_spaces]
        actions = [space for description in descriptions for space in description.action_spaces]
        is_pair = isinstance(mode, tuple) and len(mode) == 2 and all(isinstance(space, Space) for space in mode)
        if not is_pair and mode not in ("same", "different"):
            raise InvalidArgument(f"observation_mode is {mode!r}; it must be 'same', 'different' or a pair of spaces")
        single = mode[1] if isinstance(mode, tuple) else observations[0]
        for env, (observation, action) in enumerate(zip(observations, actions, strict=True)):
            if mode == "same" and observation != single:
                raise InvalidArgument(
                    f"environment {env} has the observation space {observation}, environment 0 has {single}. If that "
                    "is meant, use observation_mode='different'"
                )
            if mode != "same" and not is_space_dtype_shape_equiv(observation, single):
                raise InvalidArgument(
                    f"the observations of environment {env}, {observation}, do not have the shape and dtype of {single}"
                )
            if action != actions[0]:
                raise InvalidArgument(
                    f"environment {env} has the action space {action}, environment 0 has {actions[0]}"
                )
        if isinstance(mode, tuple):
            batched: Space[Any] = mode[0]
        elif mode == "same":
            batched = batch_space(single, len(observations))
        else:
            batched = batch_differing_spaces(observations)
        first = descriptions[0]
        action_space = batch_space(actions[0], len(actions))
        return cls(single, actions[0], batched, action_space, first.metadata, first.render_mode)
