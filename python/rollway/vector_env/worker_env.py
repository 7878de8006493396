"""One environment in a worker: `WorkerEnv` resets it at the end of an episode; `ResultWriter` and `ActionReader` access
shared memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Env
from gymnasium.vector import AutoresetMode

from rollway._core import EnvSink
from rollway.vector_env.layout import Array, Buffer, SpaceLayout
from rollway.vector_env.protocol import CallerError

Infos = list[dict[str, Any]]
"""The infos of one step or reset, in the order in which they are to be merged."""
Step = Callable[[Any], Any]
Outcome = tuple[Any, Any, Any, Any, Infos]
"""Observation, reward, terminated, truncated, infos."""


class WorkerEnv:
    """One environment, and its autoreset. The worker calls its steps directly.

    After the last step of an episode the worker calls `end_episode`, and in place of the next step `step_after_end`.
    """

    __slots__ = ("_mode", "_reset", "_step", "env", "is_replacement", "make", "needs_reset", "seed")

    def __init__(self, make: Callable[[], Env[Any, Any]], mode: AutoresetMode, is_replacement: bool) -> None:
        self.make, self._mode = make, mode
        self.is_replacement = is_replacement
        """Whether it was made in place of a lost one, and was not reset yet."""
        self.needs_reset = is_replacement
        """Whether no step may come next: the episode is over, or none has begun yet."""
        self.seed: int | None = None
        """The seed for the reset after a fault."""
        self.open()

    def open(self) -> None:
        """Makes the environment."""
        self.env = self.make()
        self._step, self._reset = self.env.step, self.env.reset

    def remake(self) -> None:
        """Closes the environment, which is broken, and makes it again."""
        with contextlib.suppress(Exception):  # a broken environment may fail to close
            self.env.close()
        self.open()

    @property
    def next_step(self) -> Step | None:
        """The environment's own `step`; ``None`` when it needs a reset."""
        return None if self.needs_reset else self._step

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Infos]:
        """Resets at the user's request."""
        return self._begin(seed=seed, options=options)

    def start_episode(self) -> tuple[Any, Infos]:
        """Resets because an episode is over."""
        seed, self.seed = self.seed, None
        return self._begin() if seed is None else self._begin(seed=seed)

    def _begin(self, **arguments: Any) -> tuple[Any, Infos]:
        observation, info = self._reset(**arguments)
        self.needs_reset = self.is_replacement = False
        return observation, [info] if info else []

    def end_episode(self, observation: Any, info: dict[str, Any]) -> tuple[Any, Infos]:
        """Handles the last step of an episode. Returns the observation to show, and the infos."""
        if self._mode is AutoresetMode.SAME_STEP:
            last = {"final_obs": observation, "final_info": info}
            observation, infos = self.start_episode()
            return observation, [last, *infos]
        self.needs_reset = True
        return observation, [info] if info else []

    def step_after_end(self) -> Outcome:
        """What a step returns when the episode is over: the first observation of the next one."""
        if self._mode is AutoresetMode.DISABLED:
            raise CallerError(
                "the episode is over, and autoreset is disabled: call "
                "reset(options={'reset_mask': terminated | truncated}) first"
            )
        observation, infos = self.start_episode()
        return observation, 0.0, False, False, infos


class ResultWriter:
    """Writes the results of environments into one buffer."""

    def __init__(self, layout: SpaceLayout, buffer: Buffer) -> None:
        self._layout, self._arrays = layout, buffer.observations
        self.rewards = _numbers(buffer.rewards)
        self.whole = buffer.rewards.dtype if buffer.rewards.dtype.kind in "biu" else None
        """The dtype of rewards if it is an integer or bool, which cannot hold every reward; otherwise ``None``."""
        self.terminations, self.truncations = _numbers(buffer.terminations), _numbers(buffer.truncations)
        rows = buffer.observations[0] if layout.single else None
        numbers = (buffer.rewards, buffer.terminations, buffer.truncations)
        self.native = None if rows is None else EnvSink.over(rows, *numbers)
        """The native writer, for results that need no conversion; ``None`` when Python writes every result."""
        self.write: Callable[[int, Any], None] = self._write_parts if rows is None else _row_writer(rows, "")
        self._writers = [
            None if array is None else _row_writer(array, part.path)
            for array, part in zip(self._arrays, layout.parts, strict=True)
        ]

    def _write_parts(self, env: int, observation: Any) -> None:
        for writer, value in zip(self._writers, self._layout.split(observation), strict=True):
            if writer is not None:
                writer(env, value)


def _numbers(array: Array) -> Any:
    """Something to write single numbers to: a memoryview, which is faster than its array, where its dtype allows it."""
    return array.data if array.dtype in (np.float64, np.float32, np.bool_) else array


def _row_writer(array: Array, path: str) -> Callable[[int, Any], None]:
    """A function that writes one row of an array. It refuses values of another shape or kind, and never broadcasts."""
    shape, dtype = array.shape[1:], array.dtype
    known = {dtype}

    def write(env: int, value: Any) -> None:
        if not (type(value) is np.ndarray and value.shape == shape):
            value = np.asarray(value)
            if value.shape != shape:
                raise ValueError(
                    f"the observation{path} has shape {value.shape}, but its space says {shape} of {dtype}"
                )
        if value.dtype not in known:
            if not np.can_cast(value.dtype, dtype, "same_kind"):
                raise TypeError(f"the observation{path} is {value.dtype}, which {dtype} of its space cannot hold")
            known.add(value.dtype)
        array[env] = value

    return write


class ActionReader:
    """Reads the actions of this worker's environments."""

    def __init__(self, layout: SpaceLayout, arrays: list[Array | None], envs: range) -> None:
        self._layout, self._first = layout, envs.start
        self._arrays = [None if array is None else array[envs.start : envs.stop] for array in arrays]
        self.is_by_pipe = bool(layout.variable_parts)
        """Whether whole actions come by the pipe, because a part of them has no fixed size."""

    def read(self, envs: list[int] | None) -> Sequence[Any] | Array:
        """Copies one action for each environment, because an environment may keep its action."""
        parts: list[Array] = []
        for array in self._arrays:
            assert array is not None  # no part of variable size
            parts.append(array.copy() if envs is None else array[[env - self._first for env in envs]])
        if self._layout.single:
            return parts[0]
        return [self._layout.build(row) for row in zip(*parts, strict=True)]
