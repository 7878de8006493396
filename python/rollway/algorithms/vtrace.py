"""V-trace: value targets and advantages from data of an older policy. The APPO learner calls it.

The targets are those of Espeholt et al. 2018 (IMPALA), with a decay λ on the traces. On data of the same policy, λ = 1
gives the plain discounted return, and any λ gives ``targets - values`` equal to GAE(λ).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class VTrace(NamedTuple):
    """The two results, both ``[envs, steps]`` and without gradient."""

    targets: Tensor
    """The targets of the critic."""
    advantages: Tensor
    """How much better the action was than expected. Not weighted by the ratio of the policies."""


@torch.no_grad()
def vtrace(
    *,
    log_rhos: Tensor,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    ended: Tensor,
    gamma: float,
    lam: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> VTrace:
    """Targets and advantages of a rollout.

    The state after a *terminated* episode has the value 0. The state after a *truncated* one keeps its value:
    ``next_values`` must be that of its final observation there, not of the first observation of the next episode. No
    trace crosses the end of an episode.

    Args:
        log_rhos: log π(a|s) - log μ(a|s): the learner's policy over the one that acted.
        rewards: Of each step.
        values: The critic's values of the states before each step.
        next_values: Its values of the states after each step, before any reset.
        terminated: 1 where the step ended the episode for good.
        ended: 1 where the step ended the episode, for good or by truncation.
        gamma: Discount per step.
        lam: Decay of the traces.
        rho_clip: Largest importance weight of a step's own error; it decides which policy the targets belong to.
        c_clip: Largest importance weight in a trace; it decides how far errors travel back.

    >>> row = lambda *numbers: torch.tensor([numbers])
    >>> zeros = torch.zeros(1, 3)
    >>> vtrace(log_rhos=zeros, rewards=row(1.0, 1.0, 1.0), values=zeros, next_values=zeros,
    ...        terminated=row(0.0, 0.0, 1.0), ended=row(0.0, 0.0, 1.0), gamma=0.5).targets
    tensor([[1.7500, 1.5000, 1.0000]])
    """
    importance = log_rhos.exp()
    rhos = importance.clamp(max=rho_clip)
    traces = gamma * lam * importance.clamp(max=c_clip) * (1 - ended)
    after = gamma * (1 - terminated)
    errors = rhos * (rewards + after * next_values - values)

    corrections = torch.empty_like(values)
    following = torch.zeros_like(values[:, 0])
    for step in reversed(range(values.shape[1])):
        following = errors[:, step] + traces[:, step] * following
        corrections[:, step] = following

    # The value of the state after a step is its own target, if both the rollout and the episode continue.
    next_targets = next_values.clone()
    next_targets[:, :-1] += (1 - ended[:, :-1]) * corrections[:, 1:]
    return VTrace(values + corrections, rewards + after * next_targets - values)
