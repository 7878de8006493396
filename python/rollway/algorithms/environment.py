"""Environment: a Gymnasium environment as the algorithms use it, and `EnvironmentVector`, several of them.

Vectors reset in the *same step* (`AutoresetMode.SAME_STEP`): the step that ends an episode returns the first
observation of the next one, and ``info["final_obs"]`` has the last of the old one. So every step is a transition.
Observations are flattened to ``[n, obs_dim]`` float32, but images stay as they are.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from operator import attrgetter
from types import TracebackType
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from rollway.errors import EnvRaised, RollwayError, UnusableEnvironment
from rollway.ring.rollout_ring import RolloutRing
from rollway.runner.restart_policy import RestartPolicy
from rollway.vector_env import make_vec
from rollway.vector_env.shm_vector_env import ShmVectorEnv

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]

MIN_IMAGE_SIDE = 8
"""Smaller arrays of uint8 are no images: they are flattened."""

_RESTART = RestartPolicy.up_to(3, within_s=60.0)


@dataclass(frozen=True)
class Environment:
    """The observations and actions of an environment.

    >>> cart = Environment.inspect("CartPole-v1")
    >>> cart.obs_dim, cart.kind, cart.choices, cart.reward_threshold
    (4, 'discrete', 2, 475.0)
    """

    name: str
    overrides: Mapping[str, Any]
    obs_shape: tuple[int, ...]
    kind: Literal["discrete", "box"]
    choices: int
    """How many actions there are; 0 for a box."""
    first_choice: int
    low: Floats
    high: Floats
    action_shape: tuple[int, ...]
    reward_threshold: float | None
    """The return that solves the environment, if its spec has one."""
    wrappers: tuple[str, ...] = ()
    """What it is wrapped in, the first first: ``"module:name"`` of classes or functions that take an environment."""
    is_image: bool = False
    """Whether an observation is an image: uint8, ``[height, width, channels]``, ``[channels, height, width]`` or
    ``[height, width]``."""

    @property
    def obs_dim(self) -> int:
        """Numbers per observation."""
        return math.prod(self.obs_shape)

    @property
    def row(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """The shape and the dtype of an observation as the networks see it: an image, or a row of float32."""
        return (self.obs_shape, np.dtype(np.uint8)) if self.is_image else ((self.obs_dim,), np.dtype(np.float32))

    @property
    def action_dim(self) -> int:
        """Numbers per action, as the networks see it: one index, or the flattened box."""
        return 1 if self.kind == "discrete" else len(self.low)

    @classmethod
    def inspect(
        cls, name: str, overrides: Mapping[str, Any] | None = None, wrappers: Sequence[str] = ()
    ) -> Environment:
        """Makes one, reads its spaces, closes it. `UnusableEnvironment` when no algorithm here can use it."""
        overrides = dict(overrides or {})
        try:
            env = _make(name, overrides, wrappers)
        except UnusableEnvironment:
            raise
        except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
            raise UnusableEnvironment(f"cannot make the environment {name!r}: {_one_line(error)}") from error
        except Exception as error:
            raise UnusableEnvironment(
                f"cannot make the environment {name!r}: {_raised(error)}. Make it alone to see more: "
                f'python -c "import gymnasium; gymnasium.make({name!r})"'
            ) from error
        try:
            return replace(cls._of(name, overrides, env), wrappers=tuple(wrappers))
        finally:
            env.close()

    @classmethod
    def _of(cls, name: str, overrides: Mapping[str, Any], env: gymnasium.Env[Any, Any]) -> Environment:
        seen, done = env.observation_space, env.action_space
        if not isinstance(seen, Box):
            raise UnusableEnvironment(
                f"{name!r} has observations of {_kind(seen)}: the algorithms take Box. "
                "Wrap it, for instance in gymnasium.wrappers.FlattenObservation."
            )
        none = np.zeros(0, np.float32)
        threshold = env.spec.reward_threshold if env.spec else None
        image = _is_image(seen)
        if isinstance(done, Discrete):
            return cls(
                name,
                overrides,
                seen.shape,
                "discrete",
                int(done.n),
                int(done.start),
                none,
                none,
                (),
                threshold,
                is_image=image,
            )
        if isinstance(done, Box) and np.issubdtype(done.dtype, np.floating):
            low, high = (np.asarray(bound, np.float32).reshape(-1) for bound in (done.low, done.high))
            return cls(name, overrides, seen.shape, "box", 0, 0, low, high, done.shape, threshold, is_image=image)
        raise UnusableEnvironment(f"{name!r} has actions of {_kind(done)}: the algorithms take Discrete and float Box.")

    def make(self, **more: Any) -> gymnasium.Env[Any, Any]:
        """One of them, wrapped, with more arguments for `gymnasium.make` such as ``render_mode``."""
        return _make(self.name, {**self.overrides, **more}, self.wrappers)

    def rows(self, obs: Any) -> NDArray[Any]:
        """Observations of several environments, as the networks see them."""
        shape, dtype = self.row
        return np.asarray(obs, dtype).reshape(len(obs), *shape)

    def native_actions(self, actions: Floats) -> NDArray[Any]:
        """The actions of the networks, ``[n, action_dim]`` float32, as `step` of the environment takes them."""
        if self.kind == "discrete":
            return actions[:, 0].astype(np.int64) + self.first_choice
        return np.clip(actions, self.low, self.high).reshape(-1, *self.action_shape)

    def vector(self, num_envs: int, num_workers: int | None = None) -> EnvironmentVector:
        """Several of them, stepped together by this process, or by workers."""
        return EnvironmentVector(self, num_envs, num_workers)


class Step(NamedTuple):
    """The result of a step, one row per environment."""

    obs: NDArray[Any]
    """The next input of the policy: after the end of an episode, the first observation of the next one."""
    next_obs: NDArray[Any]
    """The observation after the step: at the end of an episode, its final observation."""
    rewards: Floats
    terminated: Flags
    truncated: Flags
    """False for a step that terminated as well."""
    episode_return: Floats
    """The sum of the rewards of the episode up to and including this step."""


class EnvironmentVector:
    """Several environments of one kind. A context manager; belongs to one collector."""

    def __init__(self, kind: Environment, num_envs: int, num_workers: int | None = None) -> None:
        self.kind = kind
        makers = [partial(_make, kind.name, kind.overrides, kind.wrappers)] * num_envs
        mode = AutoresetMode.SAME_STEP
        self._envs: SyncVectorEnv | ShmVectorEnv
        try:
            if num_workers is None:
                self._envs = SyncVectorEnv(makers, autoreset_mode=mode)
            else:
                workers = min(num_workers, num_envs)
                self._envs = make_vec(makers, num_workers=workers, autoreset_mode=mode, restart=_RESTART)
        except EnvRaised as error:
            raise _not_again(kind.name, error.__cause__ or error) from error
        except RollwayError:
            raise
        except Exception as error:
            raise _not_again(kind.name, error) from error
        self._return = np.zeros(num_envs, np.float32)

    def __enter__(self) -> EnvironmentVector:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._envs.close()

    def reset(self, seed: int) -> NDArray[Any]:
        """Resets every environment, each with its own seed, and returns the first observations."""
        seeds = np.random.SeedSequence(seed).generate_state(self._envs.num_envs)
        obs, _ = self._envs.reset(seed=[int(one) for one in seeds])
        self._return[:] = 0
        return self.kind.rows(obs)

    @contextmanager
    def into(self, ring: RolloutRing, rollout: Mapping[str, NDArray[Any]]) -> Iterator[bool]:
        """In the block, workers write observations, rewards and endings into the next step of a rollout.

        Yields whether there are workers: without them nothing is written. With them, `Step.obs` is a view of the
        rollout.
        """
        if not isinstance(self._envs, ShmVectorEnv):
            yield False
            return
        shape = self._envs.single_observation_space.shape or ()
        rows, steps = rollout["obs"].shape[:2]
        with self._envs.collect_into(
            ring.writer,
            observations=rollout["obs"].reshape(rows, steps, *shape).swapaxes(0, 1),
            rewards=rollout["rewards"].T,
            terminations=rollout["dones"].T,
            truncations=rollout["truncated"].T,
        ):
            yield True

    def step(self, actions: Floats) -> Step:
        """Steps all environments. Takes the actions of the networks, ``[n, action_dim]`` float32, and clips boxes."""
        after, rewards, terminated, truncated, info = self._envs.step(self.kind.native_actions(actions))
        obs = self.kind.rows(after)
        terminated, truncated = terminated.astype(np.bool_), truncated.astype(np.bool_)  # numbers, in a rollout
        ended = terminated | truncated
        next_obs = obs
        if ended.any():
            next_obs = obs.copy()
            for row in np.flatnonzero(ended):
                next_obs[row] = self.kind.rows(info["final_obs"][row][None])[0]
        returns = self._return + rewards.astype(np.float32)
        self._return = np.where(ended, np.float32(0), returns)
        return Step(obs, next_obs, rewards.astype(np.float32), terminated, truncated & ~terminated, returns)


def _make(name: str, overrides: Mapping[str, Any], wrappers: Sequence[str]) -> gymnasium.Env[Any, Any]:
    env = gymnasium.make(name, **overrides)
    for wrapper in wrappers:
        module, colon, attribute = wrapper.partition(":")
        try:
            if not colon:
                raise ValueError("it must be module:name, as gymnasium.wrappers:FlattenObservation")
            env = attrgetter(attribute)(import_module(module))(env)
        except Exception as error:
            env.close()
            raise UnusableEnvironment(f"cannot wrap {name!r} in {wrapper!r}: {_raised(error)}") from error
    return env


def _is_image(space: Box) -> bool:
    """Whether a convolutional network suits its observations."""
    shape = space.shape
    sides = {2: shape, 3: shape[1:] if shape and shape[0] < shape[-1] else shape[:2]}.get(len(shape), ())
    return space.dtype == np.uint8 and len(sides) == 2 and min(sides) >= MIN_IMAGE_SIDE


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _raised(error: BaseException) -> str:
    """An exception of the environment's code, and where it was raised if that is known."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__qualname__}: {_one_line(error)}{where}"


def _not_again(name: str, error: BaseException) -> UnusableEnvironment:
    return UnusableEnvironment(
        f"cannot make the environment {name!r} again: {_raised(error)}. One could be made before: does each need a "
        "licence, a port or a device of its own? Then use fewer collectors and environments"
    )


def _kind(space: Space[Any]) -> str:
    return f"{type(space).__name__}{f' of {space.dtype}' if isinstance(space, Box) else ''}"
