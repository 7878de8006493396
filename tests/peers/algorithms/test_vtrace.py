"""V-trace beside closed forms, and beside the sum of its definition written as plain loops."""

import math

import pytest
import torch

from rollway.algorithms.vtrace import vtrace

ENVS, STEPS = 5, 12


def case(seed, *, off_policy=True):
    """A rollout with terminations, truncations and their final values strewn in."""
    draw = torch.Generator().manual_seed(seed)

    def normal():
        return torch.randn(ENVS, STEPS, generator=draw, dtype=torch.float64)

    terminated = (torch.rand(ENVS, STEPS, generator=draw) < 0.15).double()
    truncated = (torch.rand(ENVS, STEPS, generator=draw) < 0.15).double() * (1 - terminated)
    values, last = normal(), normal()[:, :1]
    next_values = torch.cat([values[:, 1:], last], 1)
    next_values = torch.where(truncated > 0, normal(), next_values)
    return {
        "log_rhos": normal() if off_policy else torch.zeros(ENVS, STEPS, dtype=torch.float64),
        "rewards": normal(),
        "values": values,
        "next_values": next_values,
        "terminated": terminated,
        "ended": terminated + truncated,
    }


def definition(c, env, step, gamma, lam, rho_clip, c_clip):
    """v(s) of the paper for one state: a sum over what followed, each term with its product of traces."""
    total, weight = 0.0, 1.0
    for t in range(step, STEPS):
        rho = math.exp(c["log_rhos"][env, t])
        after = 0.0 if c["terminated"][env, t] else gamma * float(c["next_values"][env, t])
        total += weight * min(rho_clip, rho) * (float(c["rewards"][env, t]) + after - float(c["values"][env, t]))
        if c["ended"][env, t]:
            break
        weight *= gamma * lam * min(c_clip, rho)
    return float(c["values"][env, step]) + total


@pytest.mark.parametrize("lam, rho_clip, c_clip", [(1.0, 1.0, 1.0), (0.9, 1.0, 1.0), (0.95, 2.0, 0.7)])
def test_targets_are_the_sum_of_the_definition(lam, rho_clip, c_clip):
    c = case(1)
    got = vtrace(**c, gamma=0.97, lam=lam, rho_clip=rho_clip, c_clip=c_clip).targets
    want = [[definition(c, e, t, 0.97, lam, rho_clip, c_clip) for t in range(STEPS)] for e in range(ENVS)]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64))


def test_advantages_compare_with_the_target_of_the_next_state():
    c = case(2)
    got = vtrace(**c, gamma=0.97, lam=0.9)
    for e in range(ENVS):
        for t in range(STEPS):
            if c["terminated"][e, t]:
                following = 0.0
            elif c["ended"][e, t] or t == STEPS - 1:
                following = c["next_values"][e, t]
            else:
                following = got.targets[e, t + 1]
            want = c["rewards"][e, t] + 0.97 * following - c["values"][e, t]
            assert float(got.advantages[e, t]) == pytest.approx(float(want))


def test_on_policy_with_full_traces_targets_are_discounted_returns():
    c = case(3, off_policy=False)
    got = vtrace(**c, gamma=0.9).targets
    for e in range(ENVS):
        following = 0.0
        for t in reversed(range(STEPS)):
            if t == STEPS - 1 or c["ended"][e, t]:
                following = 0.0 if c["terminated"][e, t] else float(c["next_values"][e, t])
            following = float(c["rewards"][e, t]) + 0.9 * following
            assert float(got[e, t]) == pytest.approx(following)


def test_on_policy_the_correction_is_gae():
    c = case(4, off_policy=False)
    got = vtrace(**c, gamma=0.98, lam=0.8)
    errors = c["rewards"] + 0.98 * (1 - c["terminated"]) * c["next_values"] - c["values"]
    running = torch.zeros(ENVS, dtype=torch.float64)
    for t in reversed(range(STEPS)):
        running = errors[:, t] + 0.98 * 0.8 * (1 - c["ended"][:, t]) * running
        torch.testing.assert_close(got.targets[:, t] - c["values"][:, t], running)


def test_nothing_flows_back_from_the_next_episode():
    c = case(5)
    cut = 6
    c["ended"][:, cut] = 1
    before = vtrace(**c, gamma=0.99).targets[:, : cut + 1].clone()
    c["rewards"][:, cut + 1 :] += 1000
    torch.testing.assert_close(vtrace(**c, gamma=0.99).targets[:, : cut + 1], before)


def test_an_action_that_the_new_policy_would_not_take_teaches_the_critic_nothing():
    c = case(6)
    c["log_rhos"][:] = -40.0
    got = vtrace(**c, gamma=0.99)
    torch.testing.assert_close(got.targets, c["values"])
