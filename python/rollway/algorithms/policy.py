"""Policy: what a run has learnt, as a file and as something that acts.

`AppoRunner.save` and `SacRunner.save` write it, `Policy.load` reads it back, `Policy.evaluate` plays. A file holds
tensors and plain values only, and is read without unpickling anything else. No training here.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch

from rollway.algorithms import appo_learner, sac_learner
from rollway.algorithms.environment import Environment, Floats
from rollway.algorithms.networks import CategoricalActor, GaussianActor, SquashedGaussianActor
from rollway.algorithms.settings import AppoSettings, SacSettings
from rollway.errors import InvalidArgument, SystemCallFailed

Actor = CategoricalActor | GaussianActor | SquashedGaussianActor
Algorithm = Literal["appo", "sac"]


@dataclass(frozen=True)
class Policy:
    """An actor and the environment that it was trained in.

    >>> from rollway.algorithms.appo_learner import AppoLearner
    >>> env, settings = Environment.inspect("CartPole-v1"), AppoSettings()
    >>> policy = Policy("appo", env, settings, AppoLearner(env, settings).actor)
    >>> policy.act(np.zeros((2, 4), np.float32)).shape
    (2, 1)
    """

    algorithm: Algorithm
    env: Environment
    settings: AppoSettings | SacSettings
    actor: Actor

    def act(self, obs: Floats) -> Floats:
        """The best action for each row of observations, in the form that `EnvironmentVector.step` takes."""
        device = next(self.actor.parameters()).device
        with torch.no_grad():
            actions: Floats = self.actor.greedy(torch.from_numpy(obs).to(device)).cpu().numpy()
        return actions

    def evaluate(self, episodes: int = 20, seed: int = 1_000_003, max_steps: int = 10_000) -> float:
        """The mean return of so many episodes, played greedily, each from a start of its own.

        They are played side by side, and the first episode of each environment counts, so that short episodes do not
        crowd out long ones. One that has not ended after ``max_steps`` counts as it is then.
        """
        returns = np.full(episodes, math.nan)
        with self.env.vector(episodes) as envs:
            obs = envs.reset(seed)
            for _ in range(max_steps):
                step = envs.step(self.act(obs))
                obs = step.obs
                first = np.isnan(returns) & (step.terminated | step.truncated)
                returns[first] = step.episode_return[first]
                if not np.isnan(returns).any():
                    break
            else:
                returns = np.where(np.isnan(returns), step.episode_return, returns)
        return fmean(returns)

    def save(self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> None:
        """Writes the file whole or not at all: a run that is killed while it saves leaves the last one.

        `SystemCallFailed` names the file when it cannot be written, on a full disk for instance.
        """
        path = Path(path)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        held = {
            "rollway_policy": 1,
            "algorithm": self.algorithm,
            "env": self.env.name,
            "overrides": storable(self.env.overrides, "env_cfg_overrides"),
            "settings": asdict(self.settings),
            "actor": self.actor.state_dict(),
            "extra": dict(extra or {}),
        }
        content = io.BytesIO()
        torch.save(held, content)  # not into the file: where that is full, torch does not say so
        try:
            with unfinished.open("wb") as file:
                file.write(content.getbuffer())
                file.flush()
                os.fsync(file.fileno())  # before it takes the place of the last one, also after a power failure
            unfinished.replace(path)
        except OSError as error:
            raise SystemCallFailed(
                f"cannot write the policy to {path}: {error.strerror}. What was saved there before is whole. Free some "
                "space, or save to another directory"
            ) from error
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Reads a saved policy. Makes the environment once, to look at it."""
        held = torch.load(path, weights_only=True, map_location="cpu")
        if not isinstance(held, dict) or held.get("rollway_policy") != 1:
            raise InvalidArgument(f"{os.fspath(path)} is not a policy that this version of Rollway has saved.")
        env = Environment.inspect(held["env"], _restored(held["overrides"]))
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


def storable(value: Any, what: str) -> Any:
    """The same in types that a file may hold: plain ones, and tensors in place of arrays. `InvalidArgument` if not."""
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
        f"{what} is {value!r} ({type(value).__name__}), which the file of a policy cannot hold: numbers, text, arrays, "
        f"lists and dicts of them can be. Or make it the default of an environment that you register."
    )


def _restored(value: Any) -> Any:
    """What `storable` was given, with arrays again."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return {key: _restored(one) for key, one in value.items()}
    return type(value)(map(_restored, value)) if isinstance(value, list | tuple) else value
