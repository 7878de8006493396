"""shared_memory_rl_pipeline: one step of many environments through shared memory, and statistics of what came out.

The small, self-contained case, for learning and for checking a machine: one process plays workers and learner. It keeps
nothing and starts nobody. Real environments go through `rollway.make_vec`.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from rollway._core import Block
from rollway.errors import InvalidArgument
from rollway.segment.naming import auto_name

Step = tuple[int, Sequence[float], float, bool]
"""What one environment did: its number, observation, reward, and whether it is done."""

_DTYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.float64), np.dtype(np.float64), np.dtype(np.int8))


def shared_memory_rl_pipeline(num_envs: int, obs_dim: int, step_data: Iterable[Step]) -> dict[str, Any]:
    """Writes one step of every environment into shared memory, attaches to it by name, and sums up what is there.

    Three blocks are made (observations and rewards in float64, dones in int8), zeroed, written, opened again by their
    names, copied out and removed. They are removed also when something is wrong with the data; nothing is left behind.

    Args:
        num_envs: How many environments there is room for; at least 1.
        obs_dim: Numbers in one observation; at least 1.
        step_data: ``(env_id, observation, reward, done)`` for as many environments as there are news of. Later entries
            for the same environment overwrite earlier ones; an environment without any stays zero. A NaN is data: it
            is passed on, and so are the means it makes.

    Returns:
        ``observations``, ``rewards``, ``dones``, ``mean_obs`` (by dimension), ``mean_reward``, ``num_done``,
        ``active_mean_reward`` (of those not done; 0.0 when all are) and ``total_shared_bytes``. Floats are rounded to
        four decimal places.

    Raises:
        InvalidArgument: A size below 1, an ``env_id`` that is none of ``0 … num_envs - 1``, an observation of another
            length, something that is no number (text and None are none), or a ``done`` that is neither true nor false.
            It says which entry.

    >>> result = shared_memory_rl_pipeline(2, 2, [(0, [1.0, 2.0], 0.5, False), (1, [3.0, 4.0], 1.5, True)])
    >>> result["mean_obs"], result["mean_reward"], result["num_done"], result["active_mean_reward"]
    ([2.0, 3.0], 1.0, 1, 0.5)
    >>> result["total_shared_bytes"]
    50
    """
    num_envs, obs_dim = _size("num_envs", num_envs), _size("obs_dim", obs_dim)
    shapes = ((num_envs, obs_dim), (num_envs,), (num_envs,))
    if _bytes(shapes[0], _DTYPES[0]) > sys.maxsize:
        raise InvalidArgument(f"num_envs = {num_envs} times obs_dim = {obs_dim} are more numbers than any memory holds")
    with ExitStack() as cleanup:
        blocks = [_made(shape, dtype, cleanup) for shape, dtype in zip(shapes, _DTYPES, strict=True)]
        _write(_arrays(blocks, shapes), step_data)
        observations, rewards, dones = (array.copy() for array in _attached([b.name for b in blocks], shapes))
    active = rewards[dones == 0]
    return {
        "observations": [[round(x, 4) for x in row] for row in observations.tolist()],
        "rewards": [round(x, 4) for x in rewards.tolist()],
        "dones": dones.tolist(),
        "mean_obs": [round(x, 4) for x in observations.mean(axis=0).tolist()],
        "mean_reward": round(float(rewards.mean()), 4),
        "num_done": int(np.count_nonzero(dones)),
        "active_mean_reward": round(float(active.mean()), 4) if active.size else 0.0,
        "total_shared_bytes": sum(_bytes(shape, dtype) for shape, dtype in zip(shapes, _DTYPES, strict=True)),
    }


def _size(what: str, value: int) -> int:
    try:
        size = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{what} is {value!r}; it must be a whole number, at least 1") from None
    if size < 1:
        raise InvalidArgument(f"{what} is {size}; it must be at least 1")
    return size


def _bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return math.prod(shape) * dtype.itemsize


def _made(shape: tuple[int, ...], dtype: np.dtype[Any], cleanup: ExitStack) -> Block:
    block = Block.create(auto_name(), _bytes(shape, dtype))
    cleanup.callback(block.close)
    cleanup.callback(block.unlink)
    _array(block, shape, dtype).fill(0)
    return block


def _array(block: Block, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(block.memory, dtype, math.prod(shape)).reshape(shape)


def _arrays(blocks: Sequence[Block], shapes: Sequence[tuple[int, ...]]) -> list[npt.NDArray[Any]]:
    return [_array(block, shape, dtype) for block, shape, dtype in zip(blocks, shapes, _DTYPES, strict=True)]


def _attached(names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> list[npt.NDArray[Any]]:
    """What another process would see. The arrays keep their memory after the handles are closed."""
    blocks = [Block.attach(name) for name in names]
    try:
        return _arrays(blocks, shapes)
    finally:
        for block in blocks:
            block.close()


def _write(arrays: Sequence[npt.NDArray[Any]], step_data: Iterable[Step]) -> None:
    observations, rewards, dones = arrays
    num_envs, obs_dim = observations.shape
    for number, entry in enumerate(step_data):
        where = f"entry {number} of step_data"
        try:
            env_id, observation, reward, done = entry
        except (TypeError, ValueError):
            raise InvalidArgument(f"{where} is {entry!r}; it must be (env_id, observation, reward, done)") from None
        try:
            index, row, value, is_flag = operator.index(env_id), _row(observation), _number(reward), done in (0, 1)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(f"{where}, for environment {env_id!r}, is not made of numbers: {error}") from None
        if not 0 <= index < num_envs:
            raise InvalidArgument(f"{where} is for environment {index}; there are {num_envs}, numbered from 0")
        if row.shape != (obs_dim,):
            raise InvalidArgument(f"{where}: the observation has shape {row.shape}; obs_dim says ({obs_dim},)")
        if not is_flag:
            raise InvalidArgument(f"{where}: done is {done!r}; it must be True or False")
        observations[index], rewards[index], dones[index] = row, value, bool(done)


def _row(observation: Sequence[float]) -> npt.NDArray[Any]:
    row = np.asarray(observation)
    if row.dtype.kind == "O":  # Python's own numbers, as fractions; NumPy would take None for NaN
        return np.array([_number(value) for value in row.flat]).reshape(row.shape)
    if row.dtype.kind not in "biuf":
        raise TypeError(f"the observation is {row.dtype}")
    return row


def _number(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError(f"{value!r} is text")
    return float(value)
