"""make_vec beside Gymnasium's own vector environments: the same spaces, the same trajectories, the same infos."""

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import env_checker
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.utils.performance import benchmark_vector_step
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics as Statistics
from gymnasium.wrappers import vector as wrappers

import rollway
from tests.support.vector_env_toys import LOOSE, NESTED, ONE_OF_EACH, Counter, Sampler, counters

CLASSIC_CONTROL = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]
MODES = list(AutoresetMode)


def assert_same_walk(ours, theirs, steps, seed=5):
    """Both go the same way, step by step, in every bit."""
    assert isinstance(ours, VectorEnv)
    for space in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(ours, space) == getattr(theirs, space)
    assert ours.metadata == theirs.metadata and ours.render_mode == theirs.render_mode
    theirs.action_space.seed(seed)
    mine, yours = ours.reset(seed=seed), theirs.reset(seed=seed)
    assert data_equivalence(mine, yours, exact=True)
    assert mine[0] in ours.observation_space
    ended = 0
    for _ in range(steps):
        actions = theirs.action_space.sample()
        mine, yours = ours.step(actions), theirs.step(actions)
        assert data_equivalence(mine, yours, exact=True), (mine, yours)
        assert mine[0] in ours.observation_space
        over = yours[2] | yours[3]
        ended += over.sum()
        if ours.metadata["autoreset_mode"] is AutoresetMode.DISABLED and over.any():
            mine = ours.reset(seed=seed, options={"reset_mask": over})
            yours = theirs.reset(seed=seed, options={"reset_mask": over})
            assert data_equivalence(mine, yours, exact=True)
    return ended


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", CLASSIC_CONTROL)
def test_classic_control_goes_the_same_way_as_with_sync_vector_env(name, mode):
    make = lambda: gym.make(name, max_episode_steps=25)  # noqa: E731
    theirs = SyncVectorEnv([make] * 3, autoreset_mode=mode)
    with rollway.make_vec(name, num_envs=3, num_workers=2, autoreset_mode=mode, max_episode_steps=25) as ours:
        assert assert_same_walk(ours, theirs, 60) >= 6


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("space", [NESTED, LOOSE], ids=["nested", "loose"])
def test_nested_spaces_go_the_same_way(space, mode):
    make = lambda: Sampler(space)  # noqa: E731
    with rollway.make_vec([make] * 3, num_workers=2, autoreset_mode=mode) as ours:
        assert assert_same_walk(ours, SyncVectorEnv([make] * 3, autoreset_mode=mode), 15) > 0


@pytest.mark.parametrize("space", ONE_OF_EACH.values(), ids=ONE_OF_EACH)
def test_every_space_goes_the_same_way(space):
    make = lambda: Sampler(space)  # noqa: E731
    with rollway.make_vec([make] * 3, num_workers=2) as ours:
        assert assert_same_walk(ours, SyncVectorEnv([make] * 3), 12) > 0


def test_a_space_of_ones_own_travels_in_messages():
    class Word(gym.Space):
        def __init__(self):
            super().__init__((), None)

        def sample(self, mask=None, probability=None):
            return "hello"

        def contains(self, x):
            return isinstance(x, str)

        def __eq__(self, other):
            return isinstance(other, Word)

    class Parrot(gym.Env):
        observation_space = action_space = Word()

        def reset(self, *, seed=None, options=None):
            return "reset", {}

        def step(self, action):
            return f"step({action})", 0.0, False, False, {}

    with rollway.make_vec(Parrot, 3, num_workers=2) as envs:
        assert envs.reset()[0] == ("reset",) * 3
        assert envs.step(("a", "b", "c"))[0] == ("step(a)", "step(b)", "step(c)")


@pytest.mark.parametrize("copy", [True, False])
def test_statistics_of_episodes_arrive_as_with_sync_vector_env(copy):
    make = lambda: Statistics(gym.make("CartPole-v1"))  # noqa: E731
    with rollway.make_vec([make] * 4, num_workers=2, copy=copy, autoreset_mode="SameStep") as ours:
        theirs = SyncVectorEnv([make] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
        ours.reset(seed=1), theirs.reset(seed=1)
        episodes = 0
        for _ in range(80):
            actions = theirs.action_space.sample()
            mine, yours = ours.step(actions), theirs.step(actions)
            assert data_equivalence(mine[:4], yours[:4], exact=True)
            assert mine[4].keys() == yours[4].keys()
            if "final_info" in yours[4]:
                episode, expected = mine[4]["final_info"]["episode"], yours[4]["final_info"]["episode"]
                assert np.array_equal(episode["r"], expected["r"]) and np.array_equal(episode["l"], expected["l"])
                episodes += 1
        assert episodes > 3


def test_gymnasiums_vector_wrappers_work_on_it():
    envs = rollway.make_vec("CartPole-v1", num_envs=3, num_workers=2)
    wrapped = wrappers.DictInfoToList(wrappers.RecordEpisodeStatistics(wrappers.NormalizeObservation(envs)))
    wrapped.reset(seed=1)
    finished = []
    for _ in range(60):
        _, _, terminations, _, infos = wrapped.step(wrapped.action_space.sample())
        finished += [info["episode"]["r"] for info, over in zip(infos, terminations, strict=True) if over]
    assert finished and all(length > 5 for length in finished)
    wrapped.close()
    assert envs.closed


def test_statistics_of_those_that_a_mask_leaves_out_go_on():
    """A wrapper looks at the mask after the environments: it must still be there."""
    makers = [lambda length=length: Counter(length=length) for length in (2, 3)]
    with rollway.make_vec(makers, num_workers=1, autoreset_mode="Disabled") as envs:
        wrapped = wrappers.RecordEpisodeStatistics(envs)
        wrapped.reset(seed=1)
        lengths = []
        for _ in range(3):
            *_, truncations, infos = wrapped.step([0, 0])
            if truncations.any():
                lengths += infos["episode"]["l"][truncations].tolist()
                wrapped.reset(options={"reset_mask": truncations})
        assert lengths == [2, 3]


def test_different_observation_spaces_of_one_shape_can_be_batched():
    lows = [-1.0, -2.0, -3.0]
    makes = [lambda low=low: Sampler(spaces.Box(low, 1, (2,)), spaces.Discrete(2)) for low in lows]
    with pytest.raises(rollway.InvalidArgument, match="environment 1 has the observation space"):
        rollway.make_vec(makes, num_workers=2)
    with rollway.make_vec(makes, num_workers=2, observation_mode="different") as ours:
        theirs = SyncVectorEnv(makes, observation_mode="different")
        assert_same_walk(ours, theirs, 12)
        with pytest.raises(rollway.InvalidArgument, match="shape and dtype"):
            rollway.make_vec(
                [*makes, lambda: Sampler(spaces.Box(0, 1, (5,)), spaces.Discrete(2))], observation_mode="different"
            )
    pair = (spaces.Box(-9, 9, (3, 2)), spaces.Box(-9, 9, (2,)))
    with rollway.make_vec(makes, num_workers=1, observation_mode=pair) as ours:
        assert ours.observation_space == pair[0] and ours.single_observation_space == pair[1]


def test_gymnasiums_own_checks_pass_as_far_as_they_take_vector_environments():
    with rollway.make_vec("CartPole-v1", 3, num_workers=2) as envs:
        env_checker.check_reset_options(envs)
        env_checker.check_reset_return_type(envs)
        env_checker.check_seed_deprecation(envs)
        env_checker.check_reset_return_info_deprecation(envs)
        assert benchmark_vector_step(envs, target_duration=0.1, seed=1) > 0


def test_different_action_spaces_are_an_error_that_says_which():
    makes = [lambda n=n: Sampler(spaces.Discrete(3), spaces.Discrete(n)) for n in (2, 2, 4)]
    with pytest.raises(rollway.InvalidArgument, match="environment 2 has the action space"):
        rollway.make_vec(makes, num_workers=3)


def test_seeds_and_options_reach_the_environments():
    with rollway.make_vec(counters(3), num_workers=2) as envs:
        assert envs.reset(seed=10)[1]["seed"].tolist() == [10, 11, 12]
        assert envs.np_random_seed == (10, 11, 12)
        assert envs.reset(seed=[5, None, 7])[1]["seed"].tolist() == [5, -1, 7]
        assert envs.reset(seed=np.array([5, 6, 7]))[1]["seed"].tolist() == [5, 6, 7]
        with pytest.raises(rollway.InvalidArgument, match="2 seeds for 3"):
            envs.reset(seed=[1, 2])
    with rollway.make_vec(lambda: Sampler(spaces.Discrete(2)), 2) as envs:
        assert envs.reset(options={"a": 1})[1]["options"].tolist() == ["{'a': 1}"] * 2


@pytest.mark.parametrize("mask", [[True, False, True], np.array([1, 0, 1]), np.array([True]), np.zeros(3, bool)])
def test_a_reset_mask_must_be_a_bool_for_each_and_at_least_one(mask):
    with rollway.make_vec(counters(3), num_workers=1) as envs:
        envs.reset()
        with pytest.raises(rollway.InvalidArgument, match="reset_mask"):
            envs.reset(options={"reset_mask": mask})


def test_call_get_attr_set_attr_and_render():
    with rollway.make_vec(counters(3), num_workers=2) as envs:
        envs.reset()
        assert envs.call("add", 10, b=5) == (15, 16, 17)
        assert envs.get_attr("number") == (0, 1, 2)
        envs.set_attr("number", [7, 8, 9])
        assert envs.get_attr("number") == (7, 8, 9)
        envs.set_attr("number", 4)
        assert envs.get_attr("number") == (4, 4, 4)
        with pytest.raises(rollway.InvalidArgument, match="2 values for 3"):
            envs.set_attr("number", [1, 2])
        with pytest.raises(rollway.InvalidArgument, match="use reset"):
            envs.call("reset")
        with pytest.raises(rollway.errors.EnvRaised, match="no_such_thing"):
            envs.call("no_such_thing")
        assert envs.get_attr("length") == (1000,) * 3  # and goes on afterwards
        frames = envs.render()
        assert envs.render_mode == "rgb_array" and [frame[0, 0, 0] for frame in frames] == [4, 4, 4]


def test_views_stay_as_they_are_until_the_step_after_the_next():
    with rollway.make_vec(counters(3), num_workers=2, copy=False) as envs:
        calm = np.zeros(3, int)
        envs.reset()
        first = envs.step(calm)[0]
        second, rewards = envs.step(calm)[:2]
        assert (
            first[:, 1].tolist() == [1, 1, 1] and second[:, 1].tolist() == [2, 2, 2] and rewards.tolist() == [2, 2, 2]
        )
        envs.step(calm)
        assert first[:, 1].tolist() == [3, 3, 3] and second[:, 1].tolist() == [2, 2, 2]


def test_copies_stay_for_ever_and_views_outlive_the_environment():
    envs = rollway.make_vec(counters(3), num_workers=2)
    views = rollway.make_vec(counters(3), num_workers=2, copy=False)
    calm = np.zeros(3, int)
    kept = [envs.reset()[0], *(envs.step(calm)[0] for _ in range(3))]
    views.reset()
    last = views.step(calm)[0]
    envs.close()
    views.close()
    assert [one[0, 1] for one in kept] == [0, 1, 2, 3] and last[:, 1].tolist() == [1, 1, 1]


def test_an_observation_of_another_shape_is_an_error_and_not_broadcast():
    class Liar(Counter):
        def reset(self, *, seed=None, options=None):
            return np.float64(3.0), {}

    with (
        rollway.make_vec(Liar, 2, num_workers=1) as envs,
        pytest.raises(rollway.errors.EnvRaised, match=r"shape \(\), but its space says \(2,\)"),
    ):
        envs.reset()


@pytest.mark.parametrize(
    ("actions", "words"),
    [(np.zeros(2, int), r"shape \(2,\)"), (np.zeros((3, 1), int), r"shape \(3, 1\)"), (np.zeros(3), "are float64")],
)
def test_actions_that_do_not_fit_are_refused(actions, words):
    with rollway.make_vec(counters(3), num_workers=1) as envs:
        envs.reset()
        with pytest.raises(rollway.InvalidArgument, match=words):
            envs.step(actions)
        assert envs.step([0, 0, 0])[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Box(0, 255, (2,), np.uint8), [[1, 2], [3, 255]]),
        (spaces.Discrete(200, dtype=np.uint8), np.array([199, 0])),
        (spaces.MultiBinary(2), [[True, False], [1, 0]]),
        (spaces.Box(-1, 1, (1,), np.float32), [[0.5], [1]]),
    ],
    ids=str,
)
def test_numbers_of_another_width_are_actions_if_they_fit(space, actions):
    with rollway.make_vec(lambda: Sampler(spaces.Discrete(2), space), 2, num_workers=1) as envs:
        envs.reset()
        envs.step(actions)


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Box(0, 255, (2,), np.uint8), [[1, 2], [3, 256]]),
        (spaces.Box(0, 255, (2,), np.uint8), [[1, 2], [3, -1]]),
        (spaces.MultiBinary(2), [[0, 1], [0, 257]]),
        (spaces.Discrete(3, dtype=np.int32), [0, 2**32]),
        (spaces.Box(-1, 1, (1,), np.float32), [[0.0], [1e300]]),
    ],
    ids=str,
)
def test_numbers_that_the_action_space_cannot_hold_are_refused_and_not_wrapped(space, actions):
    with rollway.make_vec(lambda: Sampler(spaces.Discrete(2), space), 2, num_workers=1) as envs:
        envs.reset()
        with pytest.raises(rollway.InvalidArgument, match="cannot hold"):
            envs.step(actions)
        envs.step(envs.action_space.sample())


@pytest.mark.parametrize("said", [spaces.Discrete(2), spaces.Text(3)], ids=["fixed", "loose"])
@pytest.mark.parametrize("wrong", [{}, None, [{"to": (0, 0), "said": 0}] * 2, np.zeros(2)], ids=str)
def test_actions_of_another_structure_are_refused_with_what_it_is(wrong, said):
    space = spaces.Dict({"to": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))), "said": said})
    with rollway.make_vec(lambda: Sampler(spaces.Discrete(2), space), 2, num_workers=1) as envs:
        envs.reset()
        for actions in (wrong, {**envs.action_space.sample(), "to": None}):
            with pytest.raises(rollway.InvalidArgument, match=r"structure of Dict\('said': .*'to': Tuple\("):
                envs.step(actions)
        envs.step(envs.action_space.sample())


def test_an_action_may_be_kept_by_its_environment():
    class Keeper(Sampler):
        kept = ()

        def step(self, action):
            self.kept = (*self.kept, action)
            return super().step(action)

        def sum(self):
            return float(sum(action.sum() for action in self.kept))

    box = spaces.Box(-10, 10, (2,))
    with rollway.make_vec(lambda: Keeper(box), 2, num_workers=1) as envs:
        envs.reset()
        for number in (1, 2, 3):
            envs.step(np.full((2, 2), number, np.float32))
        assert envs.call("sum") == (12.0, 12.0)


class Outcome(NamedTuple):
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: dict[str, Any]


class Dresser(gym.Env):
    """Says the same in another way at every step, plain ones in between."""

    observation_space = spaces.Box(-np.inf, np.inf, (2, 3), np.float32)
    action_space = spaces.Discrete(2)
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    outcomes = (
        (plain, 1.5, False, False, {}),
        (plain[::-1], np.float64(2.5), np.False_, np.bool_(False), {}),
        (plain.T.copy().T + 1, np.float32(0.1), False, np.False_, {}),
        (plain.astype(np.float64) * 3, 7, 0, False, {}),
        (plain.tolist(), True, False, False, {}),
        (plain - 1, np.int64(-3), False, False, {}),
        (plain + 2, np.array(4.5), False, np.array(False), {}),
        [plain + 3, 2**60 + 1, False, False, {}],
        Outcome(plain + 4, -1.0, False, False, {}),
        (plain + 5, float("inf"), False, False, {"seen": 1}),
        (plain.astype(">f4") + 6, np.longdouble(0.25), False, False, {}),
        (plain + 7, 1.0, np.True_, False, {}),
        (plain + 8, 1.0, False, 1, {}),
    )

    def reset(self, *, seed=None, options=None):
        self.at = getattr(self, "at", -1)
        return self.plain + 0.5, {}

    def step(self, action):
        self.at += 1
        return self.outcomes[self.at % len(self.outcomes)]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_same_results_in_any_dress(mode):
    with rollway.make_vec([Dresser] * 3, num_workers=2, autoreset_mode=mode) as ours:
        assert assert_same_walk(ours, SyncVectorEnv([Dresser] * 3, autoreset_mode=mode), 40) > 6


def test_a_reward_that_is_no_number_is_an_error_of_its_environment():
    class Wordy(Dresser):
        outcomes = ((Dresser.plain, "much", False, False, {}), (Dresser.plain, 10**400, False, False, {}))

    with rollway.make_vec([Wordy, Dresser]) as envs:
        envs.reset()
        for reward in ("'much'", "1000"):
            with pytest.raises(rollway.errors.EnvRaised, match=f"environment 0 raised.*the reward is {reward}"):
                envs.step([0, 0])


def test_an_id_takes_arguments_and_wrappers():
    with rollway.make_vec("CartPole-v1", 2, wrappers=[gym.wrappers.TimeAwareObservation], max_episode_steps=3) as envs:
        envs.reset()
        assert envs.observation_space.shape == (2, 5) and "CartPole-v1" in repr(envs) and envs.spec.id == "CartPole-v1"
        assert [envs.step([0, 1])[3].tolist() for _ in range(3)][-1] == [True, True]
    with pytest.raises(rollway.InvalidArgument, match="need an id"):
        rollway.make_vec(counters(2), wrappers=[gym.wrappers.TimeAwareObservation])


@pytest.mark.parametrize("name", ["CartPole", "vector_env_late:Late-v0"])
def test_an_id_without_a_version_or_with_a_module_is_found_as_gymnasium_finds_it(name, tmp_path, monkeypatch):
    (tmp_path / "vector_env_late.py").write_text(
        "import gymnasium; from gymnasium.envs.classic_control import CartPoleEnv as Late\n"
        "gymnasium.register('Late-v0', 'vector_env_late:Late')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with rollway.make_vec(name, 2) as envs:
        assert np.array_equal(envs.reset(seed=1)[0], gym.make_vec(name, 2, "sync").reset(seed=1)[0])
        assert envs.spec.id == gym.make(name).spec.id


def test_an_environment_registered_since_the_start_is_known_to_workers_that_are_spawned(monkeypatch):
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    gym.register("Late-v3", lambda: gym.make("CartPole-v1").unwrapped, max_episode_steps=3)
    with rollway.make_vec("Late-v3", 2, context="spawn") as envs:
        envs.reset(seed=1)
        assert [envs.step([0, 1])[3].tolist() for _ in range(3)][-1] == [True, True]


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_envs": 0},
        {"num_envs": 2, "num_workers": 0},
        {"num_envs": 2, "num_workers": 3},
        {"num_envs": 2, "batch_size": 3},
        {"num_envs": 2.0},
        {"num_envs": 2, "num_workers": 2.0},
        {"num_envs": 2, "batch_size": 1.5},
        {"num_envs": 2, "step_timeout_s": 0},
        {"num_envs": 2, "step_timeout_s": float("nan")},
        {"num_envs": 2, "observation_mode": "odd"},
        {"num_envs": 2, "observation_mode": (spaces.Discrete(2),)},
        {"num_envs": 2, "observation_mode": (2, 2)},
        {"num_envs": 2, "autoreset_mode": "odd"},
    ],
)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError):
        rollway.make_vec("CartPole-v1", **arguments)
