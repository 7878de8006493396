"""Acting: the actors' forward pass in numpy, with which collectors choose actions.

A collector starts fast because it does not import torch. `networks` has the same actors for the learner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollway.algorithms.environment import Floats

Weights = Mapping[str, Floats]
"""An actor's parameters by name, as in its state dict."""

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def categorical(weights: Weights, obs: NDArray[Any], random: np.random.Generator) -> tuple[Floats, Floats]:
    """An action for each observation, as `CategoricalActor` would choose it, and its log-probability."""
    logits = _body(weights, obs, np.tanh)
    logits -= logits.max(-1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    # The largest of the log-probabilities, each with Gumbel noise, is a sample of the distribution.
    chosen = (log_probs + random.gumbel(size=log_probs.shape)).argmax(-1)[:, None]
    return chosen.astype(np.float32), np.take_along_axis(log_probs, chosen, -1)[:, 0]


def gaussian(weights: Weights, obs: NDArray[Any], random: np.random.Generator) -> tuple[Floats, Floats]:
    """An action for each observation, as `GaussianActor` would choose it, and its log-density."""
    mean, log_std = _body(weights, obs, np.tanh), weights["log_std"]
    noise = random.standard_normal(mean.shape, np.float32)
    log_probs: Floats = (-0.5 * noise**2 - log_std - np.float32(_HALF_LOG_2PI)).sum(-1)
    return (mean + np.exp(log_std) * noise).astype(np.float32, copy=False), log_probs


def squashed(weights: Weights, obs: NDArray[Any], random: np.random.Generator, low: Floats, high: Floats) -> Floats:
    """An action for each observation, as `SquashedGaussianActor` would choose it."""
    mean, log_std = np.split(_body(weights, obs, _relu), 2, -1)
    noise = random.standard_normal(mean.shape, np.float32)
    inner = np.tanh(mean + np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)) * noise)
    return ((high + low) / 2 + (high - low) / 2 * inner).astype(np.float32, copy=False)


LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
"""Bounds on the width of a squashed Gaussian, for numerical stability."""


def _body(weights: Weights, obs: NDArray[Any], activation: Callable[[Floats], Floats]) -> Floats:
    """The layers in turn: 0, 2, 4, … of a torch `Sequential`, with an activation between them."""
    x = _encoded(weights, obs)
    for layer in count(step=2):
        x = x @ weights[f"body.{layer}.weight"].T + weights[f"body.{layer}.bias"]
        if f"body.{layer + 2}.weight" not in weights:
            return x
        x = activation(x)
    raise AssertionError("a network has a last layer")


def _encoded(weights: Weights, obs: NDArray[Any]) -> Floats:
    """The features of images, as `ImageEncoder` gives them; other observations are features already."""
    if "encoder.0.weight" not in weights:
        return obs
    x: Floats = channels_first(obs).astype(np.float32) / np.float32(255)
    for layer in count(step=2):
        if f"encoder.{layer}.weight" not in weights:
            break
        x = _relu(_convolved(x, weights[f"encoder.{layer}.weight"], weights[f"encoder.{layer}.bias"]))
    return x.reshape(len(x), -1)


def _convolved(x: Floats, weight: Floats, bias: Floats) -> Floats:
    """A convolution by 3 x 3, with a stride of 2 and a border of 1."""
    bordered = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(bordered, (3, 3), (2, 3))[:, :, ::2, ::2]
    return np.moveaxis(np.tensordot(windows, weight, ((1, 4, 5), (1, 2, 3))) + bias, -1, 1)


def channels_first(images: Any) -> Any:
    """Images, of numpy or torch, as ``[n, channels, height, width]``.

    >>> [channels_first(np.zeros(shape)).shape for shape in [(5, 84, 64, 3), (5, 4, 84, 84), (5, 84, 84)]]
    [(5, 3, 84, 64), (5, 4, 84, 84), (5, 1, 84, 84)]
    """
    if images.ndim == 3:
        return images[:, None]
    return images if images.shape[1] < images.shape[3] else images.swapaxes(1, 3).swapaxes(2, 3)


def _relu(x: Floats) -> Floats:
    return np.maximum(x, np.float32(0))
