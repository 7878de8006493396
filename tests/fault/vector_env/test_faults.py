"""Environments that raise, are killed, exit or hang: who hears of it, who goes on, and what is left."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import rollway
from rollway import _core
from rollway.vector_env import FaultPolicy
from rollway.vector_env.env_pool import EnvPool
from tests import ROOT
from tests.support.processes import forked, is_gone, until
from tests.support.vector_env_toys import Counter, Sampler, counters

CALM, RAISE, KILL, HANG, EXIT, BIG, SLOW = range(7)
MODES = list(AutoresetMode)


def actions(count, **special):
    row = np.zeros(count, int)
    for env, action in special.items():
        row[int(env[1:])] = action
    return row


def segments_of(pid):
    return list(Path(_core.shm_directory()).glob(f"rollway.auto-{pid}-*"))


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert not segments_of(os.getpid())


def test_an_exception_shows_its_own_traceback_and_is_the_cause():
    with rollway.make_vec(counters(4), num_workers=2) as envs:
        envs.reset()
        with pytest.raises(rollway.errors.EnvRaised, match="environment 2 at step 1") as caught:
            envs.step(actions(4, e2=RAISE))
        assert "in step\n" in str(caught.value) and "vector_env_toys.py" in str(caught.value)
        assert isinstance(caught.value.__cause__, ZeroDivisionError) and caught.value.env_ids == [2]
        # The others have gone on, and so can the caller.
        assert envs.step(actions(4))[0][:, 1].tolist() == [2, 2, 2, 2]


def test_an_exception_that_cannot_be_pickled_is_still_told():
    class Odd(Exception):
        def __init__(self, a, b):
            super().__init__(f"{a} and {b}")

    class Picky(Counter):
        def step(self, action):
            raise Odd("this", "that")

    with rollway.make_vec(Picky, 1) as envs:
        envs.reset()
        with pytest.raises(rollway.errors.EnvRaised, match="this and that"):
            envs.step([0])


def test_an_info_that_cannot_be_pickled_is_told_and_the_worker_lives_on():
    class Strange(Counter):
        def step(self, action):
            return *super().step(CALM)[:4], {"f": lambda: 1} if action else {}

    with rollway.make_vec(Strange, 2, num_workers=1) as envs:
        envs.reset()
        with pytest.raises(rollway.errors.EnvRaised, match=r"environment 1 raised.*cannot be pickled"):
            envs.step([0, 1])
        assert envs.step([0, 0])[1].tolist() == [2, 2]


def test_an_info_that_is_no_dict_is_told_with_its_environment():
    class Odd(Counter):
        def step(self, action):
            *rest, _ = super().step(CALM)
            return *rest, ["odd"] if action == BIG else {}

    with rollway.make_vec(Odd, 2, num_workers=1) as envs:
        envs.reset()
        with pytest.raises(rollway.errors.EnvRaised, match=r"environment 1 .*its info is \['odd'\]; it must be a dict"):
            envs.step(actions(2, e1=BIG))
        assert envs.step(actions(2))[1].tolist() == [2, 2]


class Unreadable:
    """Can be pickled, and not unpickled: as something of a module that the other process does not have."""

    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.parametrize("policy", [None, FaultPolicy(max_restarts=1)], ids=["none", "policy"])
def test_what_a_worker_cannot_unpickle_is_told_and_the_worker_lives_on(policy):
    class Listener(Counter):
        action_space = spaces.Sequence(spaces.Discrete(3))

        def step(self, action):
            return super().step(len(action))

    with rollway.make_vec(Listener, 4, num_workers=2, batch_size=4, restart=policy) as envs:
        envs.reset()
        pids = envs.call("pid")
        for send in (
            lambda: envs.call("add", Unreadable()),
            lambda: envs.set_attr("number", [0, 1, 2, Unreadable()]),
            lambda: envs.step(((), (Unreadable(),), (), ())),
            lambda: envs.reset(options={"a": Unreadable()}),
        ):
            with pytest.raises(rollway.errors.EnvRaised, match="no number"):
                send()
        assert envs.call("pid") == pids
        envs.reset()
        envs.send(((), (), (Unreadable(),)), [2, 0, 1])
        with pytest.raises(rollway.errors.EnvRaised, match=r"environment 0 was left as it was.*cannot be unpickled"):
            envs.recv()
        envs.send(((),), [0])
        with pytest.raises(rollway.errors.EnvRaised, match="environment 1 was left"):
            envs.recv()
        envs.send(((),), [1])
        assert envs.recv()[1].tolist() == [1] * 3


@pytest.mark.parametrize("size", [1, 300_000], ids=["inline", "overflow"])
@pytest.mark.parametrize("policy", [None, FaultPolicy(max_restarts=1)], ids=["none", "policy"])
def test_an_info_that_the_caller_cannot_unpickle_is_told_with_its_environment(policy, size):
    class Strange(Counter):
        def step(self, action):
            return *super().step(CALM)[:4], {"odd": Unreadable(), "pad": bytes(size)} if action else {}

    with rollway.make_vec(Strange, 4, num_workers=2, batch_size=4, restart=policy) as envs:
        envs.reset()
        if policy is not None:
            *_, truncations, infos = envs.step([0, 1, 1, 0])
            assert truncations.tolist() == [False, True, True, False] and "no number" in infos["fault"][1]
            envs.step([0] * 4)
        with pytest.raises(
            rollway.errors.EnvRaised, match=r"environment 1 raised.*unpickled here.*no number"
        ) as caught:
            envs.step([0, 1, 1, 0])
        assert caught.value.env_ids == [1]
        assert envs.step([0] * 4)[1].shape == (4,)
        envs.reset()
        assert envs.step([0] * 4)[1].tolist() == [1] * 4


def test_an_exception_of_a_class_that_the_caller_does_not_have_is_told_in_words(tmp_path, monkeypatch):
    (tmp_path / "vector_env_simulator.py").write_text("class Stuck(Exception): pass")

    class Simulator(Counter):
        def step(self, action):
            monkeypatch.syspath_prepend(tmp_path)
            from vector_env_simulator import Stuck

            raise Stuck("the simulator is stuck")

    with rollway.make_vec(Simulator, 1) as envs:
        envs.reset()
        with pytest.raises(
            rollway.errors.EnvRaised, match=r"vector_env_simulator.Stuck: the simulator is stuck"
        ) as caught:
            envs.step([0])
        assert caught.value.__cause__ is None


def test_when_two_raise_both_are_told_and_neither_is_lost():
    with rollway.make_vec(counters(3), num_workers=2, batch_size=3) as envs:
        envs.async_reset()
        envs.recv()
        envs.send([RAISE, CALM, RAISE])
        for env in (0, 2):
            with pytest.raises(rollway.errors.EnvRaised, match=f"environment {env} raised"):
                envs.recv()
        assert envs.recv()[4]["env_id"].tolist() == [1]


@pytest.mark.parametrize("partial", [False, True], ids=["step", "recv"])
def test_one_fault_too_many_does_not_lose_others_that_are_begun_anew(partial):
    with rollway.make_vec(counters(2), num_workers=1, batch_size=2, restart=FaultPolicy(max_restarts=1)) as envs:
        envs.reset()
        envs.step([CALM, RAISE])
        envs.step([CALM, CALM])
        if partial:
            envs.send([RAISE, RAISE], [0, 1])
        with pytest.raises(rollway.errors.EnvRaised, match="environment 1 raised"):
            envs.recv() if partial else envs.step([RAISE, RAISE])
        if partial:
            assert envs.recv()[3].tolist() == [True]
        assert envs.step([CALM, CALM])[1].tolist() == [0, 2]
        assert envs.step([CALM, CALM])[1].tolist() == [1, 3]


def test_an_observation_of_another_kind_is_told_and_not_cast():
    class Painter(Counter):
        observation_space = spaces.Box(0, 255, (2,), np.uint8)

        def _observation(self):
            return np.array([300.7, 1]) if self.count else np.zeros(2, np.uint8)

    class Rounder(Painter):
        observation_space = spaces.Box(0, 255, (2,), np.float32)

    with rollway.make_vec(Painter, 1) as envs:
        envs.reset()
        with pytest.raises(
            rollway.errors.EnvRaised, match="observation is float64, which uint8 of its space cannot hold"
        ):
            envs.step([CALM])
    with rollway.make_vec(Rounder, 1) as envs:
        assert envs.reset()[0].tolist() == [[0, 0]]
        assert envs.step([CALM])[0].tolist() == [[np.float32(300.7), 1]]


@pytest.mark.parametrize("reward", [None, [1.0, 2.0], "much"])
def test_a_reward_that_is_no_number_is_told_as_such(reward):
    class Donor(Counter):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, reward, *rest

    with rollway.make_vec(Donor, 1) as envs:
        envs.reset()
        with pytest.raises(rollway.errors.EnvRaised, match=r"the reward is .*; it must be one number"):
            envs.step([CALM])


def test_an_environment_that_cannot_be_made_says_why():
    class Unborn(Counter):
        def __init__(self):
            raise FileNotFoundError("no such level")

    for workers in (1, 2):
        with pytest.raises(
            rollway.errors.EnvRaised, match=r"environment 3 could not be made: .*: no such level"
        ) as caught:
            rollway.make_vec([*counters(3), Unborn], num_workers=workers)
        assert caught.value.env_ids == [3]

    class Stillborn(Counter):
        def __init__(self):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(rollway.errors.EnvDied, match=r"environment 1 could not be made.*SIGKILL"):
        rollway.make_vec([*counters(1), Stillborn], num_workers=2)


def test_environments_are_closed_when_another_cannot_be_made(tmp_path):
    class Resource(Counter):
        def close(self):
            (tmp_path / f"closed {self.number}").touch()

    def unborn():
        raise FileNotFoundError("no such level")

    makers = [lambda number=number: Resource(number) for number in range(3)]
    with pytest.raises(rollway.errors.EnvRaised, match="environment 3"):
        rollway.make_vec([*makers, unborn], num_workers=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["closed 0", "closed 1", "closed 2"]


@pytest.mark.parametrize(("action", "words"), [(KILL, "SIGKILL.*environment 1$"), (EXIT, "exit with code 7")])
def test_a_worker_that_ends_is_reported_with_its_environment_and_the_reason(action, words):
    with rollway.make_vec(counters(4), num_workers=2) as envs:
        envs.reset()
        with pytest.raises(rollway.errors.EnvDied, match=words.removesuffix("$")) as caught:
            envs.step(actions(4, e1=action))
        assert caught.value.env_ids == [1]


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (40, "signal 40")])
def test_the_signal_that_ended_a_worker_is_named_also_if_it_has_no_name(number, name):
    with rollway.make_vec(counters(2), num_workers=1) as envs:
        envs.reset()
        os.kill(envs.call("pid")[0], number)
        with pytest.raises(rollway.errors.EnvDied, match=f"ended: killed by {name}"):
            envs.step(actions(2))


def test_a_worker_killed_while_it_is_idle_is_reported_with_the_next_step():
    with rollway.make_vec(counters(4), num_workers=2) as envs:
        envs.reset()
        os.kill(envs.call("pid")[3], signal.SIGKILL)
        with pytest.raises(rollway.errors.EnvDied, match="environments 2 to 3"):
            envs.step(actions(4))


def test_a_worker_killed_after_a_call_that_failed_was_not_busy_with_it():
    with rollway.make_vec(counters(2), num_workers=1) as envs:
        envs.reset()
        pid = envs.call("pid")[0]
        with pytest.raises(rollway.errors.EnvRaised, match="no_such_thing"):
            envs.call("no_such_thing")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(rollway.errors.EnvDied) as caught:
            envs.step(actions(2))
        assert caught.value.env_ids == [0, 1] and "busy" not in str(caught.value)


@pytest.mark.parametrize("stopped", [False, True], ids=["hangs", "SIGSTOP"])
def test_an_environment_that_hangs_is_reported_with_its_index_and_can_be_closed(stopped):
    envs = rollway.make_vec(counters(4), num_workers=2, step_timeout_s=4.0)
    envs.reset()
    pids = set(envs.call("pid"))
    if stopped:
        os.kill(envs.call("pid")[0], signal.SIGSTOP)
    with pytest.raises(rollway.errors.EnvHung, match="environment" if stopped else "environment 3 has not") as caught:
        envs.step(actions(4) if stopped else actions(4, e3=HANG))
    assert isinstance(caught.value, TimeoutError) and caught.value.env_ids == ([0, 1] if stopped else [3])
    envs.close(timeout=0.1)
    assert all(is_gone(pid) for pid in pids)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("action", [RAISE, KILL, HANG], ids=["raises", "killed", "hangs"])
def test_a_policy_begins_it_anew_and_the_others_go_on(action, mode):
    timeout = 4.0 if action == HANG else None  # longer than a busy machine keeps a worker waiting
    with rollway.make_vec(
        counters(4), num_workers=4, restart=FaultPolicy(), step_timeout_s=timeout, autoreset_mode=mode
    ) as envs:
        envs.reset(seed=1)
        envs.step(actions(4))
        observations, rewards, terminations, truncations, infos = envs.step(actions(4, e2=action))
        same = mode is AutoresetMode.SAME_STEP
        assert truncations.tolist() == [False, False, True, False] and not terminations.any()
        assert rewards.tolist() == [2, 2, 0, 2]
        assert observations[:, 1].tolist() == [2, 2, 0 if same else 1, 2]
        fault = infos["final_info"]["fault"][2] if same else infos["fault"][2]
        assert {RAISE: "ZeroDivisionError", KILL: "SIGKILL", HANG: "did not answer"}[action] in fault
        if same:
            assert infos["final_obs"][2].tolist() == [2, 1] and infos["seed"][2] > 0
        if mode is AutoresetMode.DISABLED:
            assert envs.reset(options={"reset_mask": truncations})[0][:, 1].tolist() == [2, 2, 0, 2]
        observations, rewards, *_, infos = envs.step(actions(4))
        assert observations[:, 1].tolist() == [3, 3, 0 if mode is AutoresetMode.NEXT_STEP else 1, 3]
        if mode is AutoresetMode.NEXT_STEP:
            assert rewards[2] == 0 and infos["seed"][2] > 0  # a seed that follows from the first one


@pytest.mark.parametrize("restart", [None, FaultPolicy(max_restarts=1)], ids=["none", "policy"])
@pytest.mark.parametrize("way", ["step", "send"])
def test_a_step_of_a_finished_environment_is_the_callers_fault_and_costs_no_restart(way, restart):
    makers = [lambda: Counter(0, length=2), lambda: Counter(1)]
    with rollway.make_vec(makers, num_workers=1, restart=restart, autoreset_mode="Disabled") as envs:
        envs.reset(seed=1)
        envs.set_attr("gate", ["mine", None])  # lost when an environment is made again
        for _ in range(2):
            *_, truncations, _ = envs.step(actions(2))
        assert truncations.tolist() == [True, False]
        for _ in range(3):
            with pytest.raises(
                rollway.errors.EnvRaised, match=r"environment 0 was left as it was: .*reset_mask"
            ) as caught:
                if way == "step":
                    envs.step(actions(2))
                else:
                    envs.send(actions(1), [0])
                    envs.recv()
            assert caught.value.env_ids == [0]
        observations, _ = envs.reset(options={"reset_mask": truncations})
        assert observations[:, 1].tolist() == [0, 5 if way == "step" else 2]  # the other has done its steps
        assert envs.get_attr("gate") == ("mine", None)
        if restart is not None:
            assert "ZeroDivisionError" in envs.step(actions(2, e0=RAISE))[4]["fault"][0]


@pytest.mark.parametrize("seed", [-5, "level 3"])
def test_an_environment_with_a_seed_of_its_own_kind_is_begun_anew_with_it(seed):
    class Level(Counter):
        def reset(self, *, seed=None, options=None):
            self.seed = seed
            return super().reset()

    with rollway.make_vec(Level, 1, restart=FaultPolicy()) as envs:
        envs.reset(seed=[seed])
        assert envs.step([RAISE])[3].tolist() == [True]
        envs.step([CALM])
        assert envs.get_attr("seed") == (seed,)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("action", [RAISE, KILL], ids=["raises", "killed"])
def test_a_reset_that_was_lost_is_done_again(action, mode, tmp_path):
    class Stumbler(Counter):
        def reset(self, *, seed=None, options=None):
            if not (tmp_path / "marker").exists():
                (tmp_path / "marker").touch()
                self.step(action)
            super().reset(seed=seed)
            return np.array([self.np_random.random(), 1]), {"options": options["a"]}

    makers = [Stumbler, *counters(1)]
    with rollway.make_vec(makers, num_workers=2, restart=FaultPolicy(), autoreset_mode=mode) as envs:
        (first, _), infos = envs.reset(seed=5, options={"a": 3})
        assert {RAISE: "ZeroDivisionError", KILL: "SIGKILL"}[action] in infos["fault"][0]
        again, infos = envs.reset(seed=5, options={"a": 3})
        assert first.tolist() == again[0].tolist() and first[1] == 1 and "fault" not in infos
        _, rewards, _, truncations, infos = envs.step(actions(2))
        assert rewards.tolist() == [1, 1] and not truncations.any() and not infos


@pytest.mark.parametrize(
    "policy",
    [None, rollway.RestartPolicy.never(), FaultPolicy(max_restarts=1), rollway.RestartPolicy.up_to(1)],
    ids=["none", "never", "fault policy", "restart policy"],
)
def test_a_worker_that_dies_in_a_call_is_reported_and_replaced_if_there_is_a_policy(policy):
    with rollway.make_vec(counters(4), num_workers=2, restart=policy) as envs:
        envs.reset()
        envs.set_attr("number", [7, 8, 9, 9])
        restarts = 0 if policy is None else policy.max_restarts
        advice = "call again" if restarts else r"Use restart=RestartPolicy\.up_to\(3\)"
        with pytest.raises(rollway.errors.EnvDied, match=advice):
            envs.call("leave", 8)
        if not restarts:
            for again in (lambda: envs.call("pid"), lambda: envs.set_attr("number", 1), envs.render):
                with pytest.raises(rollway.errors.EnvDied, match=r"environments 0 to 1.*exit with code 7"):
                    again()
            return
        assert envs.get_attr("number") == (0, 1, 9, 9)
        assert envs.step(actions(4))[3].tolist() == [True, True, False, False]
        assert envs.step(actions(4))[3].tolist() == [False] * 4
        with pytest.raises(
            rollway.errors.EnvDied, match=r"one fault too many for (Fault|Restart)Policy\(max_restarts=1"
        ):
            envs.call("leave", 1)


def test_environments_that_shared_the_process_of_a_dead_one_are_truncated_too():
    with rollway.make_vec(counters(4), num_workers=2, restart=FaultPolicy()) as envs:
        envs.reset()
        truncations = envs.step(actions(4, e1=KILL))[3]
        assert truncations.tolist() == [True, True, False, False]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_one_that_is_begun_anew_with_its_next_step_shows_its_last_observation(mode):
    with rollway.make_vec(counters(2), num_workers=1, restart=FaultPolicy(), autoreset_mode=mode) as envs:
        envs.reset()
        envs.step([CALM, CALM])
        envs.step([CALM, CALM])
        with pytest.raises(rollway.errors.EnvDied, match="call again"):
            envs.call("leave", 0)
        observations, _, _, truncations, infos = envs.step([CALM, CALM])
        last = np.stack(infos["final_obs"]) if mode is AutoresetMode.SAME_STEP else observations
        assert truncations.all() and last.tolist() == [[0, 2], [1, 2]]


@pytest.mark.parametrize("action", [KILL, HANG], ids=["killed", "hangs"])
def test_what_was_answered_before_its_worker_ended_is_received(action):
    class Talker(Counter):
        def step(self, action):
            *result, _ = super().step(CALM if action == BIG else action)
            return *result, {"big": bytes(20_000)} if action == BIG else {}

    with rollway.make_vec(
        [lambda n=n: Talker(n) for n in range(3)], num_workers=1, batch_size=2, restart=FaultPolicy()
    ) as envs:
        envs.reset()
        envs._pool.deadlines.timeout_s = 4.0 if action == HANG else None
        envs.send([BIG, action, CALM], [0, 1, 2])
        (first, second), rewards, _, truncations, infos = envs.recv()
        assert infos["env_id"].tolist() == [0, 1] and rewards.tolist() == [1, 0]
        assert truncations.tolist() == [False, True] and infos["_big"].tolist() == [True, False, False]
        assert first.tolist() == [0, 1] and second.tolist() == [1, 0]
        assert envs.recv()[4]["env_id"].tolist() == [2]
        envs.send([CALM], [0])
        observations, rewards, _, truncations, infos = envs.recv()
        assert observations.tolist() == [[0, 1]] and rewards.tolist() == [0] and truncations.tolist() == [True]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_last_observation_of_one_whose_answer_outlived_its_worker_is_whole(mode):
    class Talker(Counter):
        observation_space = spaces.Dict({"count": spaces.Discrete(9), "said": spaces.Text(9)})

        def _observation(self):
            return {"count": self.count, "said": str(self.count)}

    with rollway.make_vec(Talker, 2, num_workers=1, restart=FaultPolicy(), autoreset_mode=mode) as envs:
        envs.reset()
        envs.send([CALM, KILL], [0, 1])
        observations, *_, truncations, infos = envs.recv()
        assert dict(zip(infos["env_id"].tolist(), observations["said"], strict=True))[0] == "1"
        assert dict(zip(infos["env_id"].tolist(), truncations.tolist(), strict=True)) == {0: False, 1: True}
        envs.send([CALM], [0])
        observations, *_, truncations, infos = envs.recv()
        last = {name: values[0] for name, values in observations.items()}
        if mode is AutoresetMode.SAME_STEP:
            last = infos["final_obs"][0]
        assert truncations.tolist() == [True] and last == {"count": 1, "said": "1"}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_fault_in_the_middle_of_an_observation_leaves_none_that_is_half_old(mode):
    class Half(Counter):
        observation_space = spaces.Dict({"a": spaces.Box(-9, 99, (1,)), "b": spaces.Box(-9, 99, (2,))})

        def _observation(self):
            return {
                "a": np.full(1, self.count, np.float32),
                "b": np.full(2 + (self.count == 2), self.count, np.float32),
            }

    with rollway.make_vec(Half, 2, num_workers=1, batch_size=2, restart=FaultPolicy(), autoreset_mode=mode) as envs:
        envs.reset()
        for _ in range(2):
            envs.send([CALM, CALM], [0, 1])
            observations, *_, infos = envs.recv()
        if mode is AutoresetMode.SAME_STEP:
            assert [one["a"].tolist() + one["b"].tolist() for one in infos["final_obs"]] == [[1, 1, 1]] * 2
        else:
            assert observations["a"].tolist() == [[1], [1]] and observations["b"].tolist() == [[1, 1], [1, 1]]


def test_a_policy_ends_after_too_many_faults():
    with rollway.make_vec(counters(2), num_workers=2, restart=FaultPolicy(max_restarts=2)) as envs:
        envs.reset()
        for _ in range(2):
            envs.step(actions(2, e0=RAISE))
            envs.step(actions(2))
        with pytest.raises(rollway.errors.EnvRaised):
            envs.step(actions(2, e0=RAISE))


def test_a_worker_that_dies_again_while_it_is_being_restarted_is_counted_and_reported():
    marker = Path(_core.shm_directory()) / f"test-marker-{os.getpid()}"
    marker.touch()

    class Cursed(Counter):
        def __init__(self):
            super().__init__()
            if not marker.exists():
                os.kill(os.getpid(), signal.SIGKILL)

    with rollway.make_vec([Cursed, *counters(1)], num_workers=2, restart=FaultPolicy(max_restarts=2)) as envs:
        envs.reset()
        marker.unlink()
        with pytest.raises(rollway.errors.EnvDied, match="SIGKILL"):
            envs.step(actions(2, e0=KILL))


@pytest.mark.parametrize("first", ["step", "call"])
def test_a_successor_that_cannot_be_made_says_why(first, tmp_path):
    class Licensed(Counter):
        def __init__(self):
            super().__init__()
            if (tmp_path / "taken").exists():
                raise FileNotFoundError("there is no licence left")
            (tmp_path / "taken").touch()

    with rollway.make_vec(Licensed, 1, restart=FaultPolicy(max_restarts=2)) as envs:
        envs.reset()
        if first == "call":
            with pytest.raises(rollway.errors.EnvDied, match="call again"):
                envs.call("leave", 0)
            with pytest.raises(rollway.errors.EnvDied, match="could not be made again: FileNotFoundError"):
                envs.call("add", 1)  # the successor of the first, which is not there yet
        with pytest.raises(rollway.errors.EnvDied, match=r"could not be made again: .*no licence left") as caught:
            envs.step(actions(1, e0=KILL))
        assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize("action", [RAISE, KILL], ids=["raises", "killed"])
def test_an_environment_may_take_longer_to_be_made_again_than_for_a_step(action):
    class Heavy(Counter):
        def __init__(self):
            time.sleep(0.3)
            super().__init__()

    with rollway.make_vec(Heavy, 1, restart=FaultPolicy(max_restarts=1)) as envs:
        envs.reset()
        envs._pool.deadlines.timeout_s = 0.1
        assert envs.step([action])[3].tolist() == [True]
        envs._pool.deadlines.timeout_s = None
        assert [envs.step([CALM])[1].tolist() for _ in range(2)] == [[0], [1]]
        deadlines = envs._pool.deadlines
        assert deadlines.limit() is None and not deadlines.remaking_envs and not deadlines.starting_workers


def test_nested_and_loose_observations_survive_a_restart():
    from tests.support.vector_env_toys import LOOSE

    class Fragile(Sampler):
        def step(self, action):
            if action == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step(action)

    with rollway.make_vec(lambda: Fragile(LOOSE, spaces.Discrete(2)), 2, num_workers=2, restart=FaultPolicy()) as envs:
        before, _ = envs.reset(seed=1)
        after, _, _, truncations, _ = envs.step([1, 0])
        assert truncations.tolist() == [True, False]
        assert after["said"][0] == before["said"][0] and np.array_equal(after["here"][0], before["here"][0])


def test_ctrl_c_ends_a_step_and_the_workers_live_on(child):
    snake = child(
        """
        import sys, numpy as np
        sys.path.insert(0, sys.argv[1])
        from tests.support.vector_env_toys import counters, Counter
        import rollway
        class Talker(Counter):
            def step(self, action):
                print("in the step", flush=True)
                return super().step(action)
        with rollway.make_vec([Talker, *counters(1)], num_workers=2) as envs:
            envs.reset()
            try:
                envs.step([Counter.HANG, 0])
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            try:
                envs.step([0, 0])
            except rollway.InvalidArgument as error:
                print("step_wait" in str(error), flush=True)
            envs.close(timeout=0.1)
        print("closed", flush=True)
        """,
        ROOT,
    )
    snake.says("in the step")
    os.kill(snake.pid, signal.SIGINT)
    snake.says("interrupted")
    snake.says("True")
    snake.says("closed")
    snake.ends()


class Listener(Counter):
    """Takes large actions, and the first of them only when it is let."""

    action_space = spaces.Sequence(spaces.Box(0, 9, (300_000,), np.float64))

    def step(self, action):
        until(lambda: self.number != 0 or self.gate.exists(), 60)
        *rest, _ = super().step(CALM)
        return *rest, {"first": action[0][0]}


def wait_there(told, gate):
    """Unpickled in a worker: tells its process id, and waits to be let on."""
    told.with_suffix(".new").write_text(str(os.getpid()))
    told.with_suffix(".new").rename(told)
    until(gate.exists, 60)
    return Counter


class Tardy:
    """A function that takes its time to be unpickled."""

    def __init__(self, *paths):
        self.paths = paths

    def __reduce__(self):
        return wait_there, self.paths


def test_ctrl_c_while_a_spawned_worker_is_being_started_is_not_its_business(tmp_path):
    told, gate, made = tmp_path / "told", tmp_path / "gate", []
    makers = [Tardy(told, gate)]
    thread = threading.Thread(target=lambda: made.append(rollway.make_vec(makers, context="spawn")))
    thread.start()
    try:
        until(told.exists, 60)
        os.kill(int(told.read_text()), signal.SIGINT)
    finally:
        gate.touch()
        thread.join()
    with made[0] as envs:
        envs.reset()
        mask = int(re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{envs.call('pid')[0]}/status").read_text())[1], 16)
        assert not mask & 1 << (signal.SIGINT - 1)  # children of an environment would inherit it


def interrupt_when(condition):
    """Ctrl-C, as soon as something is so. Join it."""

    def wait():
        until(condition, 60)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.timeout(60)
def test_ctrl_c_while_a_large_action_is_sent_leaves_no_worker_without_its_own(tmp_path):
    makers = [lambda n=n: Listener(n, gate=tmp_path / "gate") for n in range(4)]
    large = [(np.full(300_000, float(n)),) for n in range(4)]
    with rollway.make_vec(makers, num_workers=2, batch_size=4) as envs:
        envs.reset()
        envs.send(large[:1], [0])  # busy from now on: its worker reads no more
        core = envs._pool.core
        thread = interrupt_when(lambda: core.is_busy(3))
        with pytest.raises(KeyboardInterrupt):
            envs.send(large[1:], [1, 2, 3])
        thread.join()
        (tmp_path / "gate").touch()
        assert envs.recv()[4]["first"].tolist() == [0, 1, 2, 3]
        assert envs.call("add", 1) == (1, 2, 3, 4)
        assert envs.step(large[::-1])[4]["first"].tolist() == [3, 2, 1, 0]


@pytest.mark.timeout(100)
@pytest.mark.parametrize("what", ["reset", "call", "step"])
def test_ctrl_c_at_any_time_leaves_caller_and_workers_in_step(what):
    """The same after every interruption, whenever it comes: in the middle of a message, or between two."""

    class Echo(Counter):
        def reset(self, *, seed=None, options=None):
            return super().reset()[0], {"told": options["told"] if options else -1}

        def step(self, action):
            *rest, _ = super().step(CALM)
            return *rest, {"big": np.full(100_000, self.number)}

    large = np.zeros(300_000)

    def interrupt(*_):
        raise KeyboardInterrupt

    def act(envs):
        if what == "reset":
            envs.reset(options={"told": large})
        elif what == "call":
            envs.call("add", large)
        else:
            envs.step([CALM] * 4)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with rollway.make_vec([lambda n=n: Echo(n) for n in range(4)], num_workers=2) as envs:
            for turn in range(60):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 * (1 + turn))
                    while True:
                        act(envs)
                except KeyboardInterrupt:
                    pass
                envs.set_attr("number", [turn, turn + 1, turn + 2, turn + 3])
                observations, infos = envs.reset(options={"told": turn})
                assert observations[:, 1].tolist() == [0] * 4 and infos["told"].tolist() == [turn] * 4
                assert envs.call("add", 1) == (turn + 1, turn + 2, turn + 3, turn + 4)
                assert envs.step([CALM] * 4)[4]["big"][:, -1].tolist() == [turn, turn + 1, turn + 2, turn + 3]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("how", ["killed", "exits", "raises"])
def test_no_worker_outlives_its_caller(child, how):
    snake = child(
        """
        import os, sys, signal
        sys.path.insert(0, sys.argv[1])
        from tests.support.vector_env_toys import counters, Counter
        import rollway
        envs = rollway.make_vec(counters(4), num_workers=2)
        envs.reset()
        print(*envs.call("pid"), flush=True)
        if sys.argv[2] == "killed":
            envs.step([Counter.HANG, 0, 0, 0])
        if sys.argv[2] == "raises":
            raise SystemExit(3)
        """,
        ROOT,
        how,
    )
    pids = set(map(int, snake.line().split()))
    assert len(pids) == 2
    if how == "killed":
        snake.kill()
    else:
        snake.ends(3 if how == "raises" else 0)
        assert not segments_of(snake.pid)
    until(lambda: all(is_gone(pid) for pid in pids), 5)
    until(lambda: rollway.gc() is not None and not segments_of(snake.pid))


def test_workers_that_are_no_daemons_do_not_hold_the_end_of_their_caller(child):
    snake = child(
        """
        import sys, tempfile
        directory = tempfile.TemporaryDirectory()  # is finalized, and was so before multiprocessing was imported
        sys.path.insert(0, sys.argv[1])
        from tests.support.vector_env_toys import counters
        import rollway
        envs = rollway.make_vec(counters(2), num_workers=2, daemon=False)
        envs.reset()
        """,
        ROOT,
    )
    snake.ends()
    assert not segments_of(snake.pid)


def test_no_worker_outlives_a_caller_that_is_killed_while_environments_are_made(child, tmp_path):
    snake = child(
        """
        import os, sys, time
        sys.path.insert(0, sys.argv[1])
        from tests.support.vector_env_toys import Counter
        import rollway
        class Slow(Counter):
            def __init__(self):
                os.write(1, f"{os.getpid()} ".encode().rjust(20))
                while True:
                    time.sleep(60)
        rollway.make_vec(Slow, 2, num_workers=2)
        """,
        ROOT,
    )
    pids = [int(snake.process.stdout.read(20)) for _ in range(2)]
    snake.kill()
    until(lambda: all(is_gone(pid) for pid in pids), 5)


def test_closing_twice_or_in_a_forked_child_is_harmless_and_using_it_there_is_refused():
    envs = rollway.make_vec(counters(2), num_workers=2)
    envs.reset()

    def use():
        for use in (envs.reset, envs.render, lambda: envs.step([0, 0]), lambda: envs.send([0, 0], [0, 1])):
            with pytest.raises(rollway.errors.NotInThisProcess, match="forked child"):
                use()
        envs.close()

    assert os.waitpid(forked(use), 0)[1] == 0
    assert envs.step([0, 0])[1].tolist() == [1, 1]
    envs.close()
    envs.close()
    with pytest.raises(rollway.ConnectionClosedError):
        envs.step([0, 0])


def stay():
    """A process that does nothing, and is not there for ever."""
    signal.alarm(60)
    signal.pause()


class Parent(Counter):
    """Has a child process, which inherits the pipes of the worker and keeps them open."""

    def bear(self):
        """Gives its process id."""
        self.child = os.fork()
        if self.child == 0:
            stay()
        return self.child


@pytest.mark.timeout(30)
@pytest.mark.parametrize("policy", [None, FaultPolicy()], ids=["none", "policy"])
def test_the_death_of_a_worker_is_noticed_although_a_child_of_its_environment_lives_on(policy):
    with rollway.make_vec(Parent, 2, num_workers=2, restart=policy) as envs:
        envs.reset()
        children = envs.call("bear")
        try:
            with pytest.raises(rollway.errors.EnvDied, match="exit with code 7"):
                envs.call("leave", 0)
            assert not any(is_gone(child) for child in children)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)


@pytest.mark.timeout(30)
def test_it_is_closed_although_a_process_that_another_thread_forked_meanwhile_lives_on(monkeypatch):
    """A fork at the wrong moment inherits the pipe by which multiprocessing learns that a process has ended."""
    fork, children = os.fork, []

    def twice():
        children.append(fork())
        if children[-1] == 0:
            stay()
        return fork()

    monkeypatch.setattr(os, "fork", twice)
    envs = rollway.make_vec(counters(2), num_workers=2, context="fork")
    monkeypatch.undo()
    try:
        envs.close(timeout=None)
        assert not any(is_gone(child) for child in children)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_forked_child_that_ends_leaves_its_parents_workers_alone(child):
    snake = child(
        """
        import os, sys
        sys.path.insert(0, sys.argv[1])
        from tests.support.vector_env_toys import counters
        import rollway
        with rollway.make_vec(counters(2), num_workers=2) as envs:
            envs.reset()
            forked = os.fork()
            if forked == 0:
                sys.exit()
            print(os.waitpid(forked, 0)[1], *envs.step([0, 0])[1], flush=True)
        """,
        ROOT,
    )
    snake.says("0 1.0 1.0")
    snake.ends()


def test_a_worker_that_dies_while_environments_are_made_is_told_with_them(monkeypatch):
    describe = EnvPool._describe_spaces

    def describe_and_kill(self, *args):
        spaces = describe(self, *args)
        os.kill(self._workers.pid(0), signal.SIGKILL)
        until(lambda: is_gone(self._workers.pid(0)))
        return spaces

    monkeypatch.setattr(EnvPool, "_describe_spaces", describe_and_kill)
    with pytest.raises(rollway.errors.EnvDied, match=r"environments 0 to 1 could not be made.*SIGKILL") as caught:
        rollway.make_vec(counters(4), num_workers=2)
    assert caught.value.env_ids == [0, 1]
