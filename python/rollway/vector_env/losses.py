"""Losses: episodes and resets that a fault has cost, and what the learner is told about them.

To the learner a lost episode is a truncated one. A lost reset is done again. Only what is known is here; `Mender` acts
on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from rollway.vector_env.protocol import RESTORED

Reset = tuple[int | None, dict[str, Any] | None]
"""Seed and options."""


class Losses:
    """What was lost of each environment, until it is told."""

    def __init__(self, num_envs: int, mode: AutoresetMode) -> None:
        self._same_step = mode is AutoresetMode.SAME_STEP
        self.seeds: list[int | None] = [None] * num_envs
        """Of the last reset with one."""
        self._restarts = [0] * num_envs
        self._why: dict[int, str] = {}  # by environment that is, or will be, begun anew
        self._last: dict[int, Any] = {}  # its last observation, where that is told
        self._ends: dict[int, dict[str, Any]] = {}  # what to tell of episodes that have ended so
        self._resets: dict[int, Reset] = {}  # those under way
        self.repeated: dict[int, str] = {}
        """Those that were lost, and why: still to be told."""

    def __bool__(self) -> bool:
        """Whether anything is lost and not told, or would be with a fault: a reset that is under way."""
        return bool(self._why or self._ends or self._resets or self.repeated)

    def begin(self, resets: dict[int, Reset]) -> None:
        """These resets are under way, and what was lost before them is of no interest any more."""
        self._resets, self.repeated = resets, {}
        for env in resets:
            self._why.pop(env, None)

    def arrived(self, envs: Iterable[int]) -> None:
        """These have answered: if it was a reset, it is done, or has failed for good."""
        if self._resets:
            for env in envs:
                self._resets.pop(env, None)

    def reset_again(self, env: int, why: str) -> Reset | None:
        """The reset that was lost and has to be done again; ``None``: it was a step, or nothing."""
        reset = self._resets.get(env)
        if reset is not None:
            self.repeated[env] = why
        return reset

    def mourn(self, env: int, why: str) -> None:
        """An episode is lost."""
        self._why[env] = why

    def keep_last(self, env: int, last: Any) -> None:
        """The observation after which it was lost. Not known before the caller was given all of it."""
        if self._same_step:
            self._last[env] = last

    def mourned(self) -> Iterable[int]:
        """Those that are being begun anew, or will be with their next step."""
        return self._why.keys()

    def next_seed(self, env: int) -> int | None:
        """For the next episode: follows from the one that it had."""
        seed = self.seeds[env]
        self._restarts[env] += 1
        if isinstance(seed, int) and seed >= 0:  # an environment may take others, which no sequence follows from
            seed = int(np.random.SeedSequence([seed, self._restarts[env]]).generate_state(1)[0])
        return seed

    def accept(self, env: int, flag: int) -> None:
        """An answer is taken. How an episode was lost is noted at once: another may be before the answer is given."""
        if flag & RESTORED:
            fault = {"fault": self._why.pop(env, "its worker was started anew")}
            last = self._last.pop(env, None)
            self._ends[env] = {"final_obs": last, "final_info": fault} if self._same_step else fault

    def notes(self, env: int, flag: int) -> list[dict[str, Any]]:
        """What the learner is told with an answer."""
        notes: list[dict[str, Any]] = []
        if env in self.repeated:
            notes.append({"fault": self.repeated.pop(env)})
        if flag & RESTORED:
            notes.append(self._ends.pop(env))
        return notes
