"""Results: knows the buffer of each environment's newest results, and reads them.

Results are arrays in shared memory: two buffers that are written in turn, or the rows of a ring's slot while a rollout
is collected. Parts of observations that have no fixed size are kept beside them. Nothing here makes requests or waits.
"""

from __future__ import annotations

from typing import Any

from rollway.errors import InvalidArgument
from rollway.vector_env.layout import Array, Buffer, SharedArrays, SharedLayout


class Results:
    """Observations, rewards and endings of all environments."""

    def __init__(self, shared_layout: SharedLayout, arrays: SharedArrays) -> None:
        self._layout, self._buffers, self._num_envs = shared_layout.observation, arrays.buffers, shared_layout.num_envs
        self.buffer = 0
        """The number of the current buffer, to which workers write."""
        self.rollout: list[Buffer] | None = None
        """The rows of a slot, while they are filled; their buffer numbers start at `_first`."""
        self._first = len(self._buffers)
        self._newest_in = [0] * self._num_envs
        """By environment: the buffer of its newest results."""
        self._variable_values: dict[int, list[Any]] = {
            part: [None] * self._num_envs for part in self._layout.variable_parts
        }
        """By part of variable size: the newest value of each environment."""

    def view(self, buffer: int) -> Buffer:
        """The arrays of a buffer."""
        if buffer < len(self._buffers) or self.rollout is None:
            return self._buffers[buffer]
        return self.rollout[buffer - self._first]

    # ── for the caller ────────────────────────────────────────────────────────────────────────────────────────────────

    def newest(self, copy: bool) -> tuple[Any, Array, Array, Array]:
        """The newest observations, rewards, terminations and truncations of all. In a slot they are always views."""
        copy = copy and self.rollout is None
        now, observations = self.view(self.buffer), self.observations(copy)
        if copy:
            return observations, now.rewards.copy(), now.terminations.copy(), now.truncations.copy()
        return observations, now.rewards, now.terminations, now.truncations

    def observations(self, copy: bool) -> Any:
        """The newest observations of all environments."""
        arrays = self.view(self.buffer).observations
        if self._layout.single and (only := arrays[0]) is not None:
            return only.copy() if copy else only
        parts = [
            tuple(self._variable_values[index]) if array is None else array.copy() if copy else array
            for index, array in enumerate(arrays)
        ]
        return self._layout.build(parts)

    def observations_of(self, envs: list[int]) -> Any:
        """Copies of the newest observations of some environments."""
        parts = [
            tuple(self._variable_values[index][env] for env in envs) if array is None else array[envs]
            for index, array in enumerate(self.view(self.buffer).observations)
        ]
        return self._layout.build(parts)

    def last_observation(self, env: int) -> Any:
        """A copy of the newest observation of one environment."""
        parts = [
            self._variable_values[index][env] if array is None else array[env].copy()
            for index, array in enumerate(self.view(self._newest_in[env]).observations)
        ]
        return self._layout.build(parts)

    # ── which buffer is newest ────────────────────────────────────────────────────────────────────────────────────────

    def all_arrived(self) -> None:
        """All environments have written into the current buffer."""
        self._newest_in = [self.buffer] * self._num_envs

    def arrived(self, envs: list[int]) -> None:
        """These environments have written into the current buffer."""
        if len(envs) == self._num_envs:
            self.all_arrived()
        else:
            for env in envs:
                self._newest_in[env] = self.buffer

    def keep_variable_parts(self, env: int, values: list[Any]) -> None:
        """Keeps the newest values of the parts that have no fixed size."""
        for part, value in zip(self._layout.variable_parts, values, strict=True):
            self._variable_values[part][env] = value

    def next_buffer(self) -> None:
        """Goes to the next buffer: the other one, or the next row of a slot."""
        if self.rollout is None:
            self.buffer = 1 - self.buffer
        elif self.buffer + 1 - self._first < len(self.rollout):
            self.buffer += 1
        else:
            raise InvalidArgument(f"the slot has room for {len(self.rollout)} steps, and all are made: commit it")

    def copy_to_current(self, env: int) -> None:
        """Copies the newest results of an environment into the current buffer, and counts them as the newest there."""
        source, target = self.view(self._newest_in[env]), self.view(self.buffer)
        if source is not target:
            _copy(source, target, env)
            self._newest_in[env] = self.buffer

    def copy_last_observation(self, env: int) -> None:
        """Copies the last results of an environment into the current buffer, before its worker writes there."""
        _copy(self.view(self._newest_in[env]), self.view(self.buffer), env)

    def back_up(self, envs: list[int]) -> None:
        """Copies results that workers are about to overwrite, for recovery from a fault."""
        current = [env for env in envs if self._newest_in[env] == 0]
        _copy(self._buffers[0], self._buffers[1], current)
        for env in current:
            self._newest_in[env] = 1

    def collect_in_first_buffer(self) -> None:
        """Copies all newest results into the first buffer: before partial steps, and at the end of a rollout."""
        self.buffer = 0
        if self._newest_in == self._newest_in[:1] * self._num_envs:
            source, target = self.view(self._newest_in[0]), self._buffers[0]
            if source is not target:
                _copy(source, target, slice(None))
            self._newest_in = [0] * self._num_envs
        for env in range(self._num_envs):
            self.copy_to_current(env)

    # ── in the slot of a ring ─────────────────────────────────────────────────────────────────────────────────────────

    def begin_rollout(self, rows: list[Buffer], first: int) -> None:
        """The results of each step go to the next of these rows from now on."""
        self.rollout, self._first, self.buffer = rows, first, first - 1

    def end_rollout(self) -> None:
        """The results of later steps go to the two buffers again, even if this raises."""
        try:
            if self.buffer >= self._first:
                self.collect_in_first_buffer()
        finally:
            self.rollout, self.buffer, self._newest_in = None, 0, [0] * self._num_envs


def _copy(source: Buffer, target: Buffer, rows: Any) -> None:
    olds = (*source.observations, source.rewards, source.terminations, source.truncations)
    news = (*target.observations, target.rewards, target.terminations, target.truncations)
    for old, new in zip(olds, news, strict=True):
        if old is not None and new is not None and old is not new:
            new[rows] = old[rows]
