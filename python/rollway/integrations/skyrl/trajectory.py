"""Trajectory: one Atropos record in SkyRL's terms.

Atropos has one sequence with a mask (−100 where nothing is trained); SkyRL has a prompt and a response. The response
begins at the first trained token, so a tool's answer in the middle is part of it, masked. A trajectory is a copy: its
record can be released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rollway.integrations.atropos.encoding import group_size
from rollway.integrations.skyrl.errors import TrajectoryUnusable
from rollway.records import Record

UNTRAINED = -100
"""The mask of a token that is not trained."""

UNTRAINED_MASK = np.int32(UNTRAINED).tobytes()
"""The same, as it stands in a record."""


@dataclass(frozen=True)
class Trajectory:
    """One row of SkyRL's ``GeneratorOutput``."""

    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float] | None
    reward: float
    stop_reason: str
    version: int


def trajectory_of(record: Record) -> Trajectory:
    """Converts a record of an Atropos environment. `TrajectoryUnusable` says what SkyRL's format cannot hold."""
    if group_size(record) is None:
        raise TrajectoryUnusable(f"{_name(record)} does not come from an Atropos environment")
    tokens, masks, logprobs = record["tokens"], record["masks"], record["inference_logprobs"]
    if len(masks) != len(tokens):
        raise TrajectoryUnusable(f"{_name(record)} has {len(tokens)} tokens but {len(masks)} masks")
    trained = masks != UNTRAINED
    if not trained.any():
        raise TrajectoryUnusable(f"{_name(record)} has nothing to train on: all its masks are {UNTRAINED}")
    if len(logprobs) not in (0, len(tokens)):
        raise TrajectoryUnusable(f"{_name(record)} has {len(tokens)} tokens but {len(logprobs)} inference_logprobs")
    own, whole = record.metadata["own"], record.metadata["whole"]
    if own.get("images") is not None or whole.get("images") is not None:
        raise TrajectoryUnusable(f"{_name(record)} has images, and SkyRL wants pixel values: train it on text only")
    reward = float(record["score"])
    if math.isnan(reward):
        raise TrajectoryUnusable(f"{_name(record)} has no score that is one number: {own.get('scores')!r}")
    begin = int(trained.argmax())
    trained = trained[begin:]
    overrides = own.get("overrides")
    overrides = overrides if isinstance(overrides, dict) else {}  # an environment may send anything here
    return Trajectory(
        prompt_ids=tokens[:begin].tolist(),
        response_ids=tokens[begin:].tolist(),
        loss_mask=trained.astype(np.int8).tolist(),
        logprobs=np.where(trained, logprobs[begin:], 0.0).tolist() if len(logprobs) else None,
        reward=reward,
        stop_reason=str(overrides.get("stop_reason") or overrides.get("finish_reason") or "stop"),
        version=record.version,
    )


def _name(record: Record) -> str:
    return f"the trajectory {tuple(record.key)}" if record.key is not None else "a trajectory without a key"
