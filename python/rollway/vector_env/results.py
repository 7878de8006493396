"""Results: where the newest results of each environment lie, and what is made of them for the caller.

They are arrays in shared memory: two buffers that are written in turn, or the rows of somebody else's slot while a
rollout is collected. Parts of observations that have no fixed size are kept beside them. Nothing here asks or waits:
`Troupe` says who has written, and `ShmVectorEnv` which buffer comes next.
"""

from __future__ import annotations

from typing import Any

from rollway.errors import InvalidArgument
from rollway.vector_env.layout import Array, Blueprint, Buffer, Floor


class Results:
    """Observations, rewards and endings of all environments."""

    def __init__(self, blueprint: Blueprint, floor: Floor) -> None:
        self._layout, self._buffers, self._num_envs = blueprint.observation, floor.buffers, blueprint.num_envs
        self.buffer = 0
        """Where results are written now."""
        self.rollout: list[Buffer] | None = None
        """The rows of somebody else's slot, while they are filled; their buffer numbers start at `_first`."""
        self._first = len(self._buffers)
        self._at = [0] * self._num_envs  # the buffer of the newest results of each
        self._loose: dict[int, list[Any]] = {part: [None] * self._num_envs for part in self._layout.loose}

    def view(self, buffer: int) -> Buffer:
        """The arrays of a buffer."""
        if buffer < len(self._buffers) or self.rollout is None:
            return self._buffers[buffer]
        return self.rollout[buffer - self._first]

    # ── for the caller ────────────────────────────────────────────────────────────────────────────────────────────────

    def given(self, copy: bool) -> tuple[Any, Array, Array, Array]:
        """The newest of all environments: observations, rewards, terminations, truncations. Views, in a slot."""
        copy = copy and self.rollout is None
        now, observations = self.view(self.buffer), self.observations(copy)
        if copy:
            return observations, now.rewards.copy(), now.terminations.copy(), now.truncations.copy()
        return observations, now.rewards, now.terminations, now.truncations

    def observations(self, copy: bool) -> Any:
        """The newest ones of all environments."""
        arrays = self.view(self.buffer).observations
        if self._layout.single and (only := arrays[0]) is not None:
            return only.copy() if copy else only
        parts: list[Any] = []
        for index, array in enumerate(arrays):
            if array is None:
                parts.append(tuple(self._loose[index]))
            else:
                parts.append(array.copy() if copy else array)
        return self._layout.build(parts)

    def observations_of(self, envs: list[int]) -> Any:
        """The newest ones of some, copied."""
        parts = [
            tuple(self._loose[index][env] for env in envs) if array is None else array[envs]
            for index, array in enumerate(self.view(self.buffer).observations)
        ]
        return self._layout.build(parts)

    def last_observation(self, env: int) -> Any:
        """The newest one of one that is lost, copied."""
        arrays = self.view(self._at[env]).observations
        parts = [self._loose[index][env] if array is None else array[env].copy() for index, array in enumerate(arrays)]
        return self._layout.build(parts)

    # ── who has written where ─────────────────────────────────────────────────────────────────────────────────────────

    def all_arrived(self) -> None:
        """All have written into the buffer of now."""
        self._at = [self.buffer] * self._num_envs

    def arrived(self, envs: list[int]) -> None:
        """These have written into the buffer of now."""
        if len(envs) == self._num_envs:
            self.all_arrived()
        else:
            for env in envs:
                self._at[env] = self.buffer

    def keep_loose(self, env: int, values: list[Any]) -> None:
        """What is new of parts that have no fixed size."""
        for part, value in zip(self._layout.loose, values, strict=True):
            self._loose[part][env] = value

    def turn_over(self) -> None:
        """The next buffer: the other one, or the next row of a slot."""
        if self.rollout is None:
            self.buffer = 1 - self.buffer
        elif self.buffer + 1 - self._first < len(self.rollout):
            self.buffer += 1
        else:
            raise InvalidArgument(f"the slot has room for {len(self.rollout)} steps, and they are made: commit it")

    def carry(self, env: int) -> None:
        """Brings an environment's newest results into the buffer of now."""
        source, target = self.view(self._at[env]), self.view(self.buffer)
        if source is not target:
            _copy(source, target, env)
            self._at[env] = self.buffer

    def show(self, env: int) -> None:
        """One that will be begun anew shows its last observation: it goes where its worker writes the rest."""
        _copy(self.view(self._at[env]), self.view(self.buffer), env)

    def keep(self, envs: list[int]) -> None:
        """Before workers write over results in their place: copies, to begin anew from after a fault."""
        newest = [env for env in envs if self._at[env] == 0]
        _copy(self._buffers[0], self._buffers[1], newest)
        for env in newest:
            self._at[env] = 1

    def settle(self) -> None:
        """Brings everything into the first buffer: before partial steps, and when a slot is done."""
        self.buffer = 0
        if self._at == self._at[:1] * self._num_envs:
            source, target = self.view(self._at[0]), self._buffers[0]
            if source is not target:
                _copy(source, target, slice(None))
            self._at = [0] * self._num_envs
        for env in range(self._num_envs):
            self.carry(env)

    # ── in somebody else's slot ───────────────────────────────────────────────────────────────────────────────────────

    def enter(self, rows: list[Buffer], first: int) -> None:
        """From now on the results of each step go to the next of these rows."""
        self.rollout, self._first, self.buffer = rows, first, first - 1

    def leave(self) -> None:
        """The rows are somebody else's again, whatever happens here."""
        try:
            if self.buffer >= self._first:
                self.settle()
        finally:
            self.rollout, self.buffer, self._at = None, 0, [0] * self._num_envs


def _copy(source: Buffer, target: Buffer, rows: Any) -> None:
    def copy(old: Array | None, new: Array | None) -> None:
        if old is not None and new is not None and old is not new:
            new[rows] = old[rows]

    for old, new in zip(source.observations, target.observations, strict=True):
        copy(old, new)
    copy(source.rewards, target.rewards)
    copy(source.terminations, target.terminations)
    copy(source.truncations, target.truncations)
