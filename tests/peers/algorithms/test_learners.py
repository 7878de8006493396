"""The updates of APPO and SAC beside plain forms of what they compute, and on problems with known answers."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

import rollway
from rollway.algorithms.appo_learner import AppoLearner
from rollway.algorithms.environment import Environment
from rollway.algorithms.sac_learner import SacLearner
from rollway.algorithms.settings import AppoSettings, SacSettings

NONE = np.zeros(0, np.float32)
ONE = np.ones(1, np.float32)
DISCRETE = Environment("bandit", {}, (2,), "discrete", 3, 0, NONE, NONE, (), None)
BOX = Environment("target", {}, (2,), "box", 0, 0, -ONE, ONE, (1,), None)


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks are slower on several, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rollout(learner, envs=16, steps=8, reward=lambda actions: actions[..., 0] * 0):
    """What a collector would have brought from a problem without states."""
    draw = torch.Generator().manual_seed(0)
    obs = torch.ones(envs, steps, 2)
    with torch.no_grad():
        actions, log_probs = learner.actor.sample(obs.flatten(0, 1), draw)
    actions = actions.view(envs, steps, -1)
    zeros = torch.zeros(envs, steps)
    return {
        "obs": obs,
        "actions": actions,
        "log_probs": log_probs.view(envs, steps),
        "rewards": reward(actions),
        "dones": zeros + 1,
        "truncated": zeros.clone(),
        "next_obs": obs * 0,
        "last_obs": torch.ones(envs, 2),
    }


@pytest.mark.parametrize("env, best", [(DISCRETE, 2.0), (BOX, 0.7)], ids=["discrete", "box"])
def test_appo_finds_the_best_arm(env, best):
    learner = AppoLearner(env, AppoSettings(learning_rate=1e-2, entropy_weight=0.0))
    for _ in range(25):
        learner.update(rollout(learner, reward=lambda actions: -(actions[..., 0] - best).abs()))
    with torch.no_grad():
        assert learner.actor.greedy(torch.ones(1, 2)).item() == pytest.approx(best, abs=0.2)


def corrected(learner, **changes):
    data = rollout(learner, envs=2, steps=3)
    return learner._correct({**data, **changes})


def test_appo_bootstraps_a_truncated_episode_from_its_final_observation():
    learner = AppoLearner(DISCRETE, AppoSettings(gamma=0.9))
    with torch.no_grad():
        value, final = learner.critic(torch.tensor([[1.0, 1.0], [3.0, -2.0]])).tolist()
    truncated = torch.tensor([[0.0, 1.0, 0.0]] * 2)
    dones = torch.tensor([[0.0, 1.0, 0.0]] * 2)
    next_obs = torch.tensor([3.0, -2.0]).expand(2, 3, 2)
    targets, _, _ = corrected(learner, truncated=truncated, dones=dones, next_obs=next_obs)
    targets = targets.view(2, 3)
    assert targets[0, 1].item() == pytest.approx(0.9 * final, abs=1e-5)  # not the value of the next episode's start
    assert targets[0, 2].item() == pytest.approx(0.9 * value, abs=1e-5)  # cut by the end of the rollout: last_obs


def test_appo_expects_nothing_after_a_termination():
    learner = AppoLearner(DISCRETE, AppoSettings(gamma=0.9))
    targets, _, _ = corrected(learner)
    assert targets.abs().max().item() < 1e-6


def test_appo_learns_less_about_states_from_actions_it_would_not_take():
    learner = AppoLearner(DISCRETE, AppoSettings())
    data = rollout(learner, reward=lambda actions: actions[..., 0])
    with torch.no_grad():
        values = learner.critic(data["obs"].flatten(0, 1))
    fresh, _, _ = learner._correct(data)
    stale, _, _ = learner._correct({**data, "log_probs": data["log_probs"] + np.log(2)})
    torch.testing.assert_close(stale - values, (fresh - values) / 2, atol=1e-5, rtol=1e-4)


def test_appo_is_pushed_no_further_by_data_from_which_it_has_moved_away_already():
    learner = AppoLearner(DISCRETE, AppoSettings(entropy_weight=0.0))
    data = rollout(learner, reward=lambda actions: (actions[..., 0] == 2).float())
    since = torch.where(data["actions"][..., 0] == 2, np.log(1.3), np.log(0.7))  # towards what paid, as it should
    before = [p.clone() for p in learner.actor.parameters()]
    learner.update({**data, "log_probs": data["log_probs"] - since})
    assert all(torch.equal(a, b) for a, b in zip(before, learner.actor.parameters(), strict=True))
    learner.update(data)
    assert not all(torch.equal(a, b) for a, b in zip(before, learner.actor.parameters(), strict=True))


def batch(size=64, **changes):
    draw = torch.Generator().manual_seed(1)
    obs, following = (torch.randn(size, 2, generator=draw) for _ in range(2))
    actions = torch.rand(size, 1, generator=draw) * 2 - 1
    ends = torch.zeros(size)
    data = {"obs": obs, "actions": actions, "rewards": torch.randn(size, generator=draw), "next_obs": following}
    return {**data, "dones": ends, "truncated": ends, **changes}


def test_sac_expects_only_the_reward_of_a_step_that_terminates():
    learner = SacLearner(BOX, SacSettings())
    data = batch(dones=torch.ones(64))
    torch.testing.assert_close(learner.targets(data), data["rewards"])


def test_sac_looks_beyond_a_truncation_as_if_there_were_none():
    truncated = {"dones": torch.ones(64), "truncated": torch.ones(64)}
    cut, whole = (SacLearner(BOX, SacSettings()).targets(batch(**ends)) for ends in (truncated, {}))
    torch.testing.assert_close(cut, whole)
    assert not torch.allclose(cut, batch()["rewards"])


def test_sac_targets_take_the_gloomier_slow_critic_less_the_price_of_certainty():
    settings = SacSettings(gamma=0.9)
    learner, twin = SacLearner(BOX, settings), SacLearner(BOX, settings)
    data = batch()
    actions, log_probs = twin.actor.sample(data["next_obs"], twin._generator)
    both = twin.slow_critic(data["next_obs"], actions)
    want = data["rewards"] + 0.9 * (torch.minimum(both[0], both[1]) - 1.0 * log_probs)
    torch.testing.assert_close(learner.targets(data), want.detach())


def test_sac_finds_the_best_action_and_holds_its_entropy():
    learner = SacLearner(BOX, SacSettings(learning_rate=3e-3))
    draw = torch.Generator().manual_seed(2)
    for _ in range(500):
        actions = torch.rand(64, 1, generator=draw) * 2 - 1
        rewards = -10 * (actions[:, 0] - 0.5) ** 2
        losses = learner.update(batch(actions=actions, rewards=rewards, dones=torch.ones(64)))
    with torch.no_grad():
        assert learner.actor.greedy(torch.randn(100, 2)).mean().item() == pytest.approx(0.5, abs=0.15)
    assert losses["entropy"].item() == pytest.approx(-1.0, abs=0.5)
    assert 0 < learner.alpha < 1


def test_sac_slow_critics_follow_by_tau():
    learner = SacLearner(BOX, SacSettings(tau=0.25))
    before = [p.clone() for p in learner.slow_critic.parameters()]
    learner.update(batch())
    for old, new, goal in zip(before, learner.slow_critic.parameters(), learner.critic.parameters(), strict=True):
        torch.testing.assert_close(new, (0.75 * old + 0.25 * goal).detach())


def updated(learner, data, times=2):
    for _ in range(times):
        learner.update(data)
    return [parameter.detach().clone() for parameter in learner.actor.parameters()]


def test_a_learner_goes_on_from_its_state_as_if_it_had_never_ended():
    for make, data in (
        (lambda: AppoLearner(BOX, AppoSettings()), rollout(AppoLearner(BOX, AppoSettings()))),
        (lambda: SacLearner(BOX, SacSettings()), batch()),
    ):
        one, other = make(), make()
        updated(one, data)
        other.load_state_dict(copy.deepcopy(one.state_dict()))
        torch.testing.assert_close(updated(one, data), updated(other, data), rtol=0, atol=0)


def test_both_learn_from_images():
    seen = {"obs_shape": (12, 12, 3), "is_image": True}
    images = torch.randint(0, 256, (16, 9, 12, 12, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    appo, sac = (
        AppoLearner(dataclasses.replace(BOX, **seen), AppoSettings()),
        SacLearner(dataclasses.replace(BOX, **seen), SacSettings()),
    )
    before = [learner.actor.encoder[0].weight.clone() for learner in (appo, sac)]
    data = rollout(AppoLearner(BOX, AppoSettings()), reward=lambda actions: actions[..., 0])
    updated(appo, {**data, "obs": images[:, :-1], "next_obs": images[:, 1:], "last_obs": images[:, -1]})
    updated(sac, batch(size=16, obs=images[:, 0], next_obs=images[:, 1]))
    for learner, old in zip((appo, sac), before, strict=True):
        assert not torch.equal(learner.actor.encoder[0].weight, old)


def test_sac_refuses_what_it_cannot_act_in():
    with pytest.raises(rollway.errors.UnusableEnvironment, match="discrete"):
        SacLearner(DISCRETE, SacSettings())
    with pytest.raises(rollway.errors.UnusableEnvironment, match="without bounds"):
        SacLearner(dataclasses.replace(BOX, high=ONE * np.inf), SacSettings())


def test_the_same_seed_gives_the_same_networks_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two = (AppoLearner(DISCRETE, AppoSettings(seed=3)) for _ in range(2))
    assert (torch.get_rng_state() == before).all()
    for a, b in zip(one.actor.parameters(), two.actor.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "given, says",
    [
        ({"epoks": 3}, "no 'epoks'"),
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": "many"}, "takes int"),
        ({"epochs": 2.5}, "takes int"),
        ({"gamma": 1.5}, "from 0 to 1"),
        ({"hidden": "big"}, "64,64"),
        ({"learning_rate": -1}, "positive"),
        ({"learning_rate": "inf"}, "positive"),
        ({"lam": "nan"}, "lam is nan"),
        ({"hidden": "64,0"}, "at least 1 unit"),
        ({"channels": "16,0"}, "at least 1 channel"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(given, says):
    with pytest.raises(rollway.InvalidArgument, match=says):
        AppoSettings.of(given)


@pytest.mark.parametrize("given", [{"updates_per_step": "inf"}, {"updates_per_step": -1}, {"tau": 0}, {"tau": 1.5}])
def test_a_soft_actor_critic_that_would_never_learn_or_never_stop_is_refused(given):
    with pytest.raises(rollway.InvalidArgument, match=next(iter(given))):
        SacSettings.of(given)
