"""Member: one environment in a worker, and what happens to it at the end of an episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium import Env
from gymnasium.vector import AutoresetMode

Notes = list[dict[str, Any]]
"""What there is to tell beside the arrays: infos, in the order in which they are to be merged."""
Outcome = tuple[Any, Any, Any, Any, Notes]
"""Observation, reward, terminated, truncated, notes."""


class Member:
    """One environment. `advance` is the step that its autoreset mode asks for."""

    __slots__ = ("_disabled", "_reset", "_step", "advance", "ended", "env", "fresh", "make", "seed")

    def __init__(self, make: Callable[[], Env[Any, Any]], mode: AutoresetMode, fresh: bool) -> None:
        self.make = make
        self.ended = False
        """Whether the episode is over: the next step resets, or is refused."""
        self.fresh = fresh
        """Made in place of one that was lost: nobody has reset it yet."""
        self.seed: int | None = None
        """For the reset after a fault."""
        self._disabled = mode is AutoresetMode.DISABLED
        self.advance: Callable[[Any], Outcome] = self._same if mode is AutoresetMode.SAME_STEP else self._next
        self.open()

    def open(self) -> None:
        """Makes the environment."""
        self.env = self.make()
        self._step, self._reset = self.env.step, self.env.reset

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Notes]:
        """Resets because the user says so."""
        observation, info = self._reset(seed=seed, options=options)
        self.ended = self.fresh = False
        return observation, [info] if info else []

    def begin(self) -> tuple[Any, dict[str, Any]]:
        """Resets because an episode is over."""
        seed, self.seed = self.seed, None
        self.ended = self.fresh = False
        return self._reset() if seed is None else self._reset(seed=seed)

    def _next(self, action: Any) -> Outcome:
        if self.ended:
            if self._disabled:
                raise RuntimeError(
                    "the episode is over, and autoreset is disabled: call "
                    "reset(options={'reset_mask': terminated | truncated}) first"
                )
            observation, info = self.begin()
            return observation, 0.0, False, False, [info] if info else []
        observation, reward, terminated, truncated, info = self._step(action)
        if terminated or truncated:
            self.ended = True
        return observation, reward, terminated, truncated, [info] if info else []

    def _same(self, action: Any) -> Outcome:
        observation, reward, terminated, truncated, info = self._step(action)
        if not (terminated or truncated):
            return observation, reward, terminated, truncated, [info] if info else []
        notes: Notes = [{"final_obs": observation, "final_info": info}]
        observation, info = self.begin()
        return observation, reward, terminated, truncated, [*notes, info] if info else notes
