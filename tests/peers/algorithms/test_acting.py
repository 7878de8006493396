"""Collectors act in numpy as the learner's networks would in torch, and without importing it."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from rollway.algorithms import acting
from rollway.algorithms.networks import CategoricalActor, GaussianActor, ImageEncoder, SquashedGaussianActor

OBS = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32)


def lively(actor):
    """An actor that has opinions; and its weights as numpy has them."""
    for parameter in actor.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    return actor, {name: value.numpy() for name, value in actor.state_dict().items()}


@pytest.mark.parametrize(
    "actor, act",
    [(CategoricalActor(3, 4, [16, 16]), acting.categorical), (GaussianActor(3, 2, [16, 16]), acting.gaussian)],
    ids=["discrete", "box"],
)
def test_probabilities_are_those_of_the_network(actor, act):
    actor, weights = lively(actor)
    actions, log_probs = act(weights, OBS, np.random.default_rng(1))
    with torch.no_grad():
        judged, _ = actor.evaluate_actions(torch.from_numpy(OBS), torch.from_numpy(actions))
    assert actions.dtype == log_probs.dtype == np.float32
    np.testing.assert_allclose(log_probs, judged.numpy(), atol=2e-4)


@pytest.mark.parametrize("shape", [(16, 11, 3), (4, 12, 16), (9, 8)], ids=["HWC", "CHW", "HW"])
def test_images_have_the_probabilities_of_the_network(shape):
    encoder = ImageEncoder(shape, (4, 8))
    actor, weights = lively(CategoricalActor(encoder.size, 4, [16], encoder))
    images = np.random.default_rng(0).integers(0, 256, (20, *shape), np.uint8)
    actions, log_probs = acting.categorical(weights, images, np.random.default_rng(1))
    with torch.no_grad():
        judged, _ = actor.evaluate_actions(torch.from_numpy(images), torch.from_numpy(actions))
    assert actions.dtype == log_probs.dtype == np.float32
    np.testing.assert_allclose(log_probs, judged.numpy(), atol=2e-4)


def test_choices_are_as_frequent_as_their_probabilities_say():
    _, weights = lively(CategoricalActor(3, 4, [16]))
    actions, log_probs = acting.categorical(weights, np.repeat(OBS[:1], 20_000, 0), np.random.default_rng(2))
    for choice in np.unique(actions):
        picked = actions[:, 0] == choice
        assert picked.mean() == pytest.approx(np.exp(log_probs[picked][0]), abs=0.02)


def test_squashed_actions_are_distributed_as_those_of_the_network():
    actor, weights = lively(SquashedGaussianActor(3, torch.from_numpy(LOW), torch.from_numpy(HIGH), [16]))
    obs = np.repeat(OBS[:1], 50_000, 0)
    ours = acting.squashed(weights, obs, np.random.default_rng(3), LOW, HIGH)
    with torch.no_grad():
        theirs = actor.sample(torch.from_numpy(obs), torch.Generator().manual_seed(3))[0].numpy()
    assert ours.dtype == np.float32 and (ours >= LOW).all() and (ours <= HIGH).all()
    for share in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(np.quantile(ours, share, 0), np.quantile(theirs, share, 0), atol=0.06)


def test_a_collector_imports_no_torch():
    code = (
        "import sys, rollway.algorithms.appo_collector, rollway.algorithms.sac_collector; print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
