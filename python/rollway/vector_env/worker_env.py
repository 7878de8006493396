"""Member: one environment in a worker, and what happens to it at the end of an episode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Env
from gymnasium.vector import AutoresetMode

from rollway._core import EnvSink
from rollway.vector_env.layout import Array, Buffer, SpaceLayout
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

    def remake(self) -> None:
        """Closes the environment, which is broken, and makes it again."""
        with contextlib.suppress(Exception):  # that a broken one cannot be closed either is no news
            self.env.close()
        self.open()

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


class Sink:
    """Writes the results of environments into one buffer."""

    def __init__(self, layout: SpaceLayout, buffer: Buffer) -> None:
        self._layout, self._arrays = layout, buffer.observations
        self.rewards = _numbers(buffer.rewards)
        self.whole = buffer.rewards.dtype if buffer.rewards.dtype.kind in "biu" else None
        """The dtype of rewards, where it is one of whole numbers, as in a slot: it does not hold every reward."""
        self.terminations, self.truncations = _numbers(buffer.terminations), _numbers(buffer.truncations)
        rows = buffer.observations[0] if layout.single else None
        numbers = (buffer.rewards, buffer.terminations, buffer.truncations)
        self.plain = None if rows is None else EnvSink.over(rows, *numbers)
        """The same, natively: it takes what needs no conversion. ``None``: every result is for Python."""
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
    """A memoryview is faster than its array for single numbers. Most kinds of them it does not take from NumPy."""
    return array.data if array.dtype in (np.float64, np.float32, np.bool_) else array


def _row_writer(array: Array, path: str) -> Callable[[int, Any], None]:
    """Writes one row of an array. A value of another shape is an error, not broadcast; of another kind, too."""
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


class Source:
    """Reads the actions of this worker's environments."""

    def __init__(self, layout: SpaceLayout, arrays: list[Array | None], envs: range) -> None:
        self._layout, self._first = layout, envs.start
        self._arrays = [None if array is None else array[envs.start : envs.stop] for array in arrays]
        self.loose = bool(layout.loose)
        """Whether actions come by the pipe, whole."""

    def take(self, envs: list[int] | None) -> Sequence[Any] | Array:
        """One action for each. Copies: an environment may keep its action for longer than the shared memory does."""
        parts: list[Array] = []
        for array in self._arrays:
            assert array is not None  # no loose parts
            parts.append(array.copy() if envs is None else array[[env - self._first for env in envs]])
        if self._layout.single:
            return parts[0]
        return [self._layout.build(row) for row in zip(*parts, strict=True)]
