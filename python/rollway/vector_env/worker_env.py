"""Member: one environment in a worker, and what happens to it at the end of an episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium import Env
from gymnasium.vector import AutoresetMode

from rollway.vector_env.protocol import CallersMistake

Notes = list[dict[str, Any]]
"""What there is to tell beside the arrays: infos, in the order in which they are to be merged."""
Step = Callable[[Any], Any]
Outcome = tuple[Any, Any, Any, Any, Notes]
"""Observation, reward, terminated, truncated, notes."""


class Member:
    """One environment. Its steps are its own; the worker asks `special` when it is due, and `finish` at the end."""

    __slots__ = ("_mode", "_reset", "_step", "due", "env", "fresh", "make", "seed")

    def __init__(self, make: Callable[[], Env[Any, Any]], mode: AutoresetMode, fresh: bool) -> None:
        self.make, self._mode = make, mode
        self.fresh = fresh
        """Made in place of one that was lost: nobody has reset it yet."""
        self.due = fresh
        """Whether the next step is none: the episode is over, or there has been none yet."""
        self.seed: int | None = None
        """For the reset after a fault."""
        self.open()

    def open(self) -> None:
        """Makes the environment."""
        self.env = self.make()
        self._step, self._reset = self.env.step, self.env.reset

    @property
    def next_step(self) -> Step | None:
        """``None`` when it is due."""
        return None if self.due else self._step

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Notes]:
        """Resets because the user says so."""
        observation, info = self._reset(seed=seed, options=options)
        self.due = self.fresh = False
        return observation, [info] if info else []

    def begin(self) -> tuple[Any, Notes]:
        """Resets because an episode is over."""
        seed, self.seed = self.seed, None
        observation, info = self._reset() if seed is None else self._reset(seed=seed)
        self.due = self.fresh = False
        return observation, [info] if info else []

    def finish(self, observation: Any, info: dict[str, Any]) -> tuple[Any, Notes]:
        """After the last step of an episode: the observation to show, and what there is to tell."""
        if self._mode is AutoresetMode.SAME_STEP:
            last = {"final_obs": observation, "final_info": info}
            observation, notes = self.begin()
            return observation, [last, *notes]
        self.due = True
        return observation, [info] if info else []

    def special(self) -> Outcome:
        """In place of a step, when the episode is over."""
        if self._mode is AutoresetMode.DISABLED:
            raise CallersMistake(
                "the episode is over, and autoreset is disabled: call "
                "reset(options={'reset_mask': terminated | truncated}) first"
            )
        observation, notes = self.begin()
        return observation, 0.0, False, False, notes
