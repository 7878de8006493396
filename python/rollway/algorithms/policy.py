"""Policy: a trained actor. It acts, plays episodes, and can be saved to a file and loaded.

A file holds tensors and plain values only, and is read without unpickling anything else.
"""

from __future__ import annotations

import io
import math
import os
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rollway.algorithms import appo_learner, sac_learner
from rollway.algorithms.environment import Environment, Floats
from rollway.algorithms.networks import Actor
from rollway.algorithms.settings import AppoSettings, SacSettings
from rollway.errors import InvalidArgument, SystemCallFailed

Algorithm = Literal["appo", "sac"]


@dataclass(frozen=True)
class Policy:
    """An actor and the environment that it was trained in.

    >>> import gymnasium
    >>> from rollway.algorithms.appo_learner import AppoLearner
    >>> env, settings = Environment.inspect("CartPole-v1"), AppoSettings()
    >>> policy = Policy("appo", env, settings, AppoLearner(env, settings).actor)
    >>> policy.act(np.zeros(4, np.float32)) in gymnasium.make("CartPole-v1").action_space
    True
    >>> policy.act(np.zeros((2, 4), np.float32)).shape
    (2,)
    """

    algorithm: Algorithm
    env: Environment
    settings: AppoSettings | SacSettings
    actor: Actor

    def act(self, obs: Any) -> Any:
        """The best action for an observation, as ``env.step`` takes it; for several observations, as many actions.

        Args:
            obs: One observation as ``env.reset`` returns it, or several in one array as a vector environment returns
                them. Each of several may also be flat.
        """
        obs = np.asarray(obs)
        is_one = obs.shape == self.env.obs_shape
        rows = obs[None] if is_one else obs
        if rows.ndim < 2 or rows.shape[1:] not in (self.env.obs_shape, (self.env.obs_dim,)):
            raise InvalidArgument(
                f"obs has the shape {list(obs.shape)}: an observation of {self.env.name!r} has "
                f"{list(self.env.obs_shape)}. Give one, or several with a first dimension more."
            )
        actions = self.env.native_actions(self._greedy(self.env.rows(rows)))
        return actions[0] if is_one else actions

    def _greedy(self, rows: NDArray[Any]) -> Floats:
        """The best actions in the form that `EnvironmentVector.step` takes."""
        device = next(self.actor.parameters()).device
        with torch.no_grad():
            actions: Floats = self.actor.greedy(torch.from_numpy(rows).to(device)).cpu().numpy()
        return actions

    def evaluate(self, episodes: int = 20, seed: int = 1_000_003, max_steps: int = 10_000) -> float:
        """The mean return of episodes that are played greedily, each with its own seed.

        Each is the first episode of its own environment, so that short episodes do not displace long ones. An episode
        that has not ended after ``max_steps`` counts with its return so far.
        """
        returns = np.full(episodes, math.nan)
        with self.env.vector(episodes) as envs:
            obs = envs.reset(seed)
            for _ in range(max_steps):
                step = envs.step(self._greedy(obs))
                obs = step.obs
                first = np.isnan(returns) & (step.terminated | step.truncated)
                returns[first] = step.episode_return[first]
                if not np.isnan(returns).any():
                    break
            else:
                returns = np.where(np.isnan(returns), step.episode_return, returns)
        return fmean(returns)

    def save(self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> None:
        """Writes the file atomically: a run that is killed while it saves leaves the last one.

        `SystemCallFailed` names the file when it cannot be written, for instance on a full disk.
        """
        path = Path(path)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        held = {
            "rollway_policy": 1,
            "algorithm": self.algorithm,
            "env": self.env.name,
            "overrides": storable(self.env.overrides, "env_cfg_overrides"),
            "wrappers": list(self.env.wrappers),
            "settings": asdict(self.settings),
            "actor": self.actor.state_dict(),
            "extra": dict(extra or {}),
        }
        content = io.BytesIO()
        torch.save(held, content)  # not into the file: torch does not report a full disk
        try:
            with unfinished.open("wb") as file:
                file.write(content.getbuffer())
                file.flush()
                os.fsync(file.fileno())  # before it replaces the last one, in case of a power failure
            unfinished.replace(path)
        except OSError as error:
            raise SystemCallFailed(
                f"cannot write the policy to {path}: {error.strerror}. An earlier file there is unchanged. Free some "
                "space, or save to another directory"
            ) from error
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Reads a saved policy. Makes the environment once, to read its spaces."""
        held = cls.read(path)
        env = Environment.inspect(held["env"], _restored(held["overrides"]), held.get("wrappers", ()))
        settings: AppoSettings | SacSettings
        actor: Actor
        if held["algorithm"] == "appo":
            settings = AppoSettings.of(held["settings"])
            actor = appo_learner.make_actor(env, settings)
        else:
            settings = SacSettings.of(held["settings"])
            actor = sac_learner.make_actor(env, settings)
        actor.load_state_dict(held["actor"])
        return cls(held["algorithm"], env, settings, actor)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> dict[str, Any]:
        """What a file of `save` holds. Makes nothing of it."""
        try:
            held = torch.load(path, weights_only=True, map_location="cpu")
        except (pickle.UnpicklingError, RuntimeError, EOFError):  # as torch says that it is no file of its own
            held = None
        if not isinstance(held, dict) or held.get("rollway_policy") != 1:
            raise InvalidArgument(f"{os.fspath(path)} is not a policy that this version of Rollway has saved.")
        return held


def storable(value: Any, what: str) -> Any:
    """The value in types that a file may hold, with tensors in place of arrays. `InvalidArgument` if it has others."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.tensor(value)
    if isinstance(value, Mapping):
        return {storable(key, what): storable(one, f"{what}[{key!r}]") for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(storable(one, f"{what}[{at}]") for at, one in enumerate(value))
    raise InvalidArgument(
        f"{what} is {value!r} ({type(value).__name__}), which the file of a policy cannot hold. Use numbers, text, "
        "arrays, lists and dicts of them, or make it the default of an environment that you register."
    )


def _restored(value: Any) -> Any:
    """The inverse of `storable`."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return {key: _restored(one) for key, one in value.items()}
    return type(value)(map(_restored, value)) if isinstance(value, list | tuple) else value
