"""The networks: densities that integrate to one, bounds that hold, twins that are two."""

import math

import pytest
import torch
from torch import nn

from rollway.algorithms.networks import CategoricalActor, GaussianActor, SquashedGaussianActor, TwinCritic, mlp


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        yield


def generator():
    return torch.Generator().manual_seed(7)


def test_categorical_actions_are_as_frequent_as_their_probabilities_say():
    actor = CategoricalActor(2, 3, [8])
    nn.init.normal_(actor.body[-1].weight)
    obs = torch.randn(1, 2).expand(20_000, -1)
    actions, log_probs = actor.sample(obs, generator())
    for choice in range(3):
        picked = actions[:, 0] == choice
        assert picked.float().mean().item() == pytest.approx(log_probs[picked][0].exp().item(), abs=0.02)


@pytest.mark.parametrize("actor", [CategoricalActor(4, 3, [8]), GaussianActor(4, 2, [8])], ids=["discrete", "box"])
def test_judging_a_sampled_action_gives_the_probability_it_was_sampled_with(actor):
    obs = torch.randn(50, 4)
    actions, log_probs = actor.sample(obs, generator())
    judged, entropy = actor.evaluate_actions(obs, actions)
    torch.testing.assert_close(judged, log_probs)
    assert entropy.shape == (50,)


def test_gaussian_density_and_entropy_are_those_of_the_textbook():
    actor = GaussianActor(4, 2, [8])
    actor.log_std.data[:] = torch.tensor([-0.5, 0.3])
    obs = torch.randn(10, 4)
    actions, log_probs = actor.sample(obs, generator())
    book = torch.distributions.Normal(actor.body(obs), actor.log_std.exp())
    torch.testing.assert_close(log_probs, book.log_prob(actions).sum(-1))
    torch.testing.assert_close(actor.evaluate_actions(obs, actions)[1], book.entropy().sum(-1))


def test_squashed_actions_stay_within_the_bounds_and_their_density_integrates_to_one():
    low, high = torch.tensor([-2.0]), torch.tensor([6.0])
    actor = SquashedGaussianActor(3, low, high, [16])
    nn.init.normal_(actor.body[-1].weight, std=0.3)
    obs = torch.randn(1, 3).expand(200_000, -1)
    actions, log_probs = actor.sample(obs, generator())
    assert actions.min() >= low and actions.max() <= high
    # E[1 / p] over samples of p is the length of the interval that p lives on: 2, in units scaled to [-1, 1]
    inner = ((actions[:, 0] - 2) / 4).abs() < 0.9
    assert (inner / log_probs.exp()).mean().item() == pytest.approx(1.8, rel=0.03)


def test_squashed_density_is_finite_far_out():
    actor = SquashedGaussianActor(1, torch.tensor([-1.0]), torch.tensor([1.0]), [4])
    actor.body[-1].bias.data[:] = torch.tensor([50.0, 0.0])
    actions, log_probs = actor.sample(torch.zeros(1, 1), generator())
    assert actions.item() == 1.0 and math.isfinite(log_probs.item())


def test_the_bounds_do_not_travel_with_the_weights():
    actor = SquashedGaussianActor(1, torch.tensor([-1.0]), torch.tensor([1.0]), [4])
    assert all(key.startswith("body.") for key in actor.state_dict())


def test_twin_critics_are_two_plain_networks():
    twin = TwinCritic(3, 2, [8, 8])
    obs, actions = torch.randn(6, 3), torch.randn(6, 2)
    both = twin(obs, actions)
    for which in range(2):
        plain = mlp([5, 8, 8, 1], nn.ReLU)
        linears = [layer for layer in plain if isinstance(layer, nn.Linear)]
        for layer, weight, bias in zip(linears, twin.weights, twin.biases, strict=True):
            layer.weight.data, layer.bias.data = weight[which].T.detach(), bias[which, 0].detach()
        torch.testing.assert_close(both[which], plain(torch.cat([obs, actions], -1)).squeeze(-1))
    assert not torch.allclose(both[0], both[1])
