"""The forms in which a user has a step or a trajectory, beside a dict of exact arrays. No measurement.

A form arranges the leaves of a sample (a flat dict, a nested one, a named tuple, …) and says what each leaf is (a
float, a numpy scalar, a tensor, …). `forms.py` and the contenders of the ring, of TCP and of records use them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from harness.workloads import Item

PLAIN = "dict of exact arrays"


class StepTuple(NamedTuple):
    """A step as a named tuple."""

    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    lives: Any


@dataclasses.dataclass
class StepData:
    """A step as a dataclass."""

    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    lives: Any


@dataclasses.dataclass(slots=True)
class SlottedStep:
    """A step as a dataclass with slots."""

    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    lives: Any


class Form(NamedTuple):
    """How a sample of exact arrays becomes what a user has."""

    values: Callable[[Item], dict[str, Any]]  #: the leaves, by name
    arrange: Callable[[dict[str, Any]], Any] = dict  #: the leaves in their structure
    package: str | None = None  #: what it needs

    def __call__(self, item: Item) -> Any:
        """A sample in this form."""
        return self.arrange(self.values(item))

    def missing(self) -> str | None:
        """Why this form cannot be made here, or None."""
        return None if self.package is None or find_spec(self.package) else f"{self.package} is not installed"


def _changed(**leaves: Callable[[np.ndarray], Any]) -> Callable[[Item], dict[str, Any]]:
    """Some leaves converted, the others as they are."""
    return lambda item: {**item, **{name: convert(item[name]) for name, convert in leaves.items() if name in item}}


def _strided(array: np.ndarray) -> np.ndarray:
    wide = np.empty((*array.shape, 2), array.dtype)
    wide[..., 0] = array
    return wide[..., 0]


def _nested(step: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in step.items() if name != "lives"} | {"info": {"lives": step["lives"]}}


def _torch(item: Item) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(array) for name, array in item.items()}


def _jax(item: Item) -> dict[str, Any]:
    import jax

    return {name: jax.numpy.asarray(array) for name, array in item.items()}


_numbers = _changed(reward=float, terminated=bool, truncated=bool, lives=int)

STEPS: dict[str, Form] = {
    PLAIN: Form(dict),
    "as env.step gives it": Form(_numbers, _nested),
    "float, bool and int": Form(_numbers),
    "int for a float": Form(_changed(reward=int)),
    "numpy scalars": Form(_changed(reward=np.float32, terminated=np.bool_, truncated=np.bool_, lives=np.int32)),
    "np.float64 for float32": Form(_changed(reward=np.float64)),
    "0-d array of float64": Form(_changed(reward=lambda reward: reward.astype(np.float64))),
    "strided array": Form(_changed(obs=_strided)),
    "list of numbers": Form(_changed(obs=np.ndarray.tolist)),
    "tuple": Form(_numbers, lambda step: tuple(step.values())),
    "named tuple": Form(_numbers, lambda step: StepTuple(**step)),
    "dataclass": Form(_numbers, lambda step: StepData(**step)),
    "dataclass with slots": Form(_numbers, lambda step: SlottedStep(**step)),
    "torch tensors": Form(_torch, package="torch"),
    "JAX arrays": Form(_jax, package="jax"),
}
"""Forms of a step of an environment: the workload `env_step`."""

TRAJECTORIES: dict[str, Form] = {
    PLAIN: Form(dict),
    "float score": Form(_changed(score=float)),
    "int score": Form(_changed(score=int)),
    "numpy scalar as score": Form(_changed(score=lambda score: score[()])),
    "strided tokens": Form(_changed(tokens=_strided)),
    "torch tensors": Form(_torch, package="torch"),
    "JAX arrays": Form(
        lambda item: {**_jax({name: array for name, array in item.items() if array.ndim}), "score": item["score"]},
        package="jax",
    ),
}
"""Forms of a trajectory of an LLM. JAX has no float64 unless it is told to, so the score stays what it is."""


def leaves(batch: Any) -> list[np.ndarray]:
    """The arrays of a batch in any of these structures."""
    if isinstance(batch, np.ndarray):
        return [batch]
    if isinstance(batch, dict):
        parts = list(batch.values())
    elif dataclasses.is_dataclass(batch):
        parts = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    else:
        parts = list(batch)
    return [array for part in parts for array in leaves(part)]
