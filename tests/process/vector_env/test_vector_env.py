"""make_vec: part of the environments at a time, ways to start processes, and the life of the workers."""

import copy
import math
import os
import pickle
import select
import threading
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import rollway
from rollway import _core
from rollway.vector_env import FaultPolicy
from tests.support.processes import until
from tests.support.vector_env_toys import LOOSE, Counter, Sampler, counters

CALM, RAISE, KILL, HANG, EXIT, BIG, SLOW = range(7)


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert not list(Path(_core.shm_directory()).glob(f"rollway.auto-{os.getpid()}-*"))


def test_a_batch_is_whoever_is_done_first(tmp_path):
    gate = tmp_path / "gate"
    with rollway.make_vec(counters(4, gate=gate), num_workers=4, batch_size=2) as envs:
        envs.async_reset(seed=3)
        first, second = envs.recv(), envs.recv()
        assert sorted([*first[4]["env_id"], *second[4]["env_id"]]) == [0, 1, 2, 3]
        envs.send([SLOW, CALM, SLOW, CALM], [0, 1, 2, 3])
        observations, rewards, _, _, infos = envs.recv()
        assert sorted(infos["env_id"]) == [1, 3]
        assert sorted(observations.tolist()) == [[1, 1], [3, 1]] and rewards.tolist() == [1, 1]
        envs.send([CALM, CALM])  # those of the last recv
        assert sorted(envs.recv()[4]["env_id"]) == [1, 3]
        gate.touch()
        assert sorted(envs.recv()[4]["env_id"]) == [0, 2]


def test_every_step_of_every_environment_arrives_once_and_in_order():
    with rollway.make_vec(counters(7, length=9), num_workers=3, batch_size=3, autoreset_mode="SameStep") as envs:
        envs.async_reset()
        seen = {env: [] for env in range(7)}
        while min(map(len, seen.values())) < 20:  # who is slow comes too
            observations, _, _, truncations, infos = envs.recv()
            for row, env in enumerate(infos["env_id"].tolist()):
                assert observations[row, 0] == env
                count = infos["final_obs"][env][1] if truncations[row] else observations[row, 1]
                seen[env].append(int(count))
            envs.send(np.zeros(3, int))
        for counts in seen.values():
            assert counts == [0, *((n % 9) + 1 for n in range(len(counts) - 1))]


def test_an_environment_with_an_action_under_way_takes_no_other():
    with rollway.make_vec(counters(3), num_workers=1, batch_size=1) as envs:
        envs.async_reset()
        with pytest.raises(rollway.InvalidArgument, match="environment 0 is still busy"):
            envs.send([CALM], [0])
        for _ in range(3):
            envs.recv()
        mask, halves = np.array([True, False, True]), [0.5, 1.5]
        for wrong, words in [
            ([9], "there are 3"),
            ([-1], "there are 3"),
            ([1, 1], "twice"),
            (mask, "numbers of environments"),
            (halves, "numbers of environments"),
            (np.zeros((1, 1), int), "numbers of environments"),
        ]:
            with pytest.raises(rollway.InvalidArgument, match=words):
                envs.send([CALM] * len(wrong), wrong)
        with pytest.raises(rollway.InvalidArgument, match="nothing was sent"):
            envs.recv()


def test_send_means_those_whose_results_were_given_last():
    with rollway.make_vec(counters(4), num_workers=2, batch_size=2) as envs:
        with pytest.raises(rollway.InvalidArgument, match="nothing was received yet"):
            envs.send([CALM] * 4)
        envs.async_reset()
        received = envs.recv()[4]["env_id"].tolist()
        envs.send([CALM] * 2)
        envs.reset()
        for before in (lambda: None, lambda: envs.step([CALM] * 4)):
            before()
            with pytest.raises(rollway.InvalidArgument, match="4 environments"):
                envs.send([CALM] * len(received))
            envs.send([CALM] * 4)
            assert sorted(np.concatenate([envs.recv()[4]["env_id"] for _ in range(2)])) == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", ["x", FaultPolicy, rollway.RestartPolicy, 3], ids=str)
def test_a_policy_of_another_kind_is_refused_before_anything_is_started(policy):
    with pytest.raises(rollway.InvalidArgument, match="restart must be a RestartPolicy, or None"):
        rollway.make_vec(counters(2), num_workers=2, restart=policy)


def test_recv_with_a_timeout_loses_nothing(tmp_path):
    gate = tmp_path / "gate"
    with rollway.make_vec(counters(2, gate=gate), num_workers=2, batch_size=2) as envs:
        envs.async_reset()
        envs.recv()
        envs.send([SLOW, CALM])
        with pytest.raises(rollway.WaitTimeout, match=r"fewer than 2 environments .* within 0.01 s. Nothing is lost"):
            envs.recv(timeout=0.01)
        gate.touch()
        assert envs.recv()[0][:, 1].tolist() == [1, 1]
        gate.unlink()
        envs.step_async([SLOW, CALM])
        with pytest.raises(TimeoutError):
            envs.step_wait(timeout=0.01)
        gate.touch()
        assert envs.step_wait()[0][:, 1].tolist() == [2, 2]


def test_a_reset_that_was_broken_off_can_be_received_or_done_again(tmp_path):
    class Late(Counter):
        def reset(self, *, seed=None, options=None):
            until((tmp_path / "gate").exists, 60) if options else None
            return super().reset()

    with rollway.make_vec(Late, 2, num_workers=2, batch_size=2) as envs:
        for end in (envs.recv, envs.reset):
            envs.reset()
            envs.step([CALM, CALM])
            envs._pool.deadlines.timeout_s = 0.1
            with pytest.raises(rollway.errors.EnvHung):
                envs.reset(options={"slowly": True})
            with pytest.raises(rollway.InvalidArgument, match=r"reset is under way.* recv\(\) first, or reset\(\)"):
                envs.step([CALM, CALM])
            (tmp_path / "gate").touch()
            envs._pool.deadlines.timeout_s = None
            observations, *rest = end()
            assert observations[:, 1].tolist() == [0, 0]
            if end == envs.recv:
                assert rest[0].tolist() == [0, 0] and not rest[1].any() and not rest[2].any()
            assert envs.step([CALM, CALM])[1].tolist() == [1, 1]
            (tmp_path / "gate").unlink()


def test_whole_and_partial_steps_may_take_turns():
    with rollway.make_vec(counters(4), num_workers=2, batch_size=2) as envs:
        envs.reset()
        envs.step([0] * 4)
        envs.send([CALM, CALM], [0, 3])
        with pytest.raises(rollway.InvalidArgument, match="under way"):
            envs.step([0] * 4)
        assert envs.recv()[0].tolist() == [[0, 2], [3, 2]]
        assert envs.step([0] * 4)[0][:, 1].tolist() == [3, 2, 2, 3]
        mask = np.array([False, True, False, False])
        assert envs.reset(options={"reset_mask": mask})[0][:, 1].tolist() == [3, 0, 2, 3]


def test_large_infos_and_loose_observations_arrive_in_any_order():
    with rollway.make_vec(counters(4), num_workers=2, batch_size=1) as envs:
        envs.async_reset()
        for _ in range(4):
            envs.recv()
        envs.send([BIG] * 4, [3, 1, 0, 2])
        for _ in range(4):
            infos = envs.recv()[4]
            (env,) = infos["env_id"]
            assert (infos["big"][env] == env).all() and infos["big"].shape == (4, 300_000)
        assert envs.step([BIG] * 4)[4]["big"][:, 0].tolist() == [0, 1, 2, 3]
    with rollway.make_vec(lambda: Sampler(LOOSE), 3, num_workers=2, batch_size=2) as envs:
        envs.async_reset(seed=1)
        observations, *_ = envs.recv()
        assert len(observations["said"]) == 2 and observations["here"].shape == (2, 2)
        actions = [envs.single_action_space.sample() for _ in range(2)]
        envs.send({key: tuple(one[key] for one in actions) for key in LOOSE.spaces})
        assert all(isinstance(said, str) for said in envs.recv()[0]["said"])


def test_large_infos_of_one_worker_do_not_wait_for_the_caller_to_read_them():
    with rollway.make_vec(counters(3), num_workers=1, batch_size=3) as envs:
        envs.async_reset()
        envs.recv()
        envs.send([BIG, BIG], [0, 1])  # a batch is there when the third has answered, too
        envs.send([BIG], [2])
        infos = envs.recv()[4]
        assert infos["big"][:, 0].tolist() == [0, 1, 2]
        assert envs.call("add", 1) == (1, 2, 3)


def test_a_large_call_and_a_large_info_pass_one_another():
    with rollway.make_vec(counters(1)) as envs:
        envs.reset()
        envs.step_async([BIG])
        until(lambda: select.select([envs._pool._workers._pipes[0]._connection], [], [], 0)[0])  # it is sending
        assert envs.call("add", np.ones(300_000))[0].shape == (300_000,)
        assert envs.step_wait()[4]["big"].shape == (1, 300_000)


def test_a_worker_that_does_not_read_in_time_is_hung_and_hears_the_rest_later(tmp_path):
    class Slow(Counter):
        def step(self, action):
            until((tmp_path / "gate").exists, 60)
            return super().step(CALM)

    class Listener(Slow):
        action_space = spaces.Sequence(spaces.Box(0, 1, (300_000,), np.float64))

    large = (np.ones(300_000),)
    with rollway.make_vec(Slow, 1) as envs:
        envs.reset()
        envs._pool.deadlines.timeout_s = 0.1
        envs.step_async([CALM])
        with pytest.raises(rollway.errors.EnvHung, match="Wait longer with the same call"):
            envs.call("add", large[0])
        (tmp_path / "gate").touch()
        envs._pool.deadlines.timeout_s = None
        assert envs.step_wait()[1].tolist() == [1]
        assert envs.call("add", 5) == (5,)
    (tmp_path / "gate").unlink()
    with rollway.make_vec(Listener, 2, num_workers=1, batch_size=2) as envs:
        envs.reset()
        envs._pool.deadlines.timeout_s = 0.1
        envs.send((large,), [0])
        envs.send((large,), [1])
        with pytest.raises(rollway.WaitTimeout):
            envs.recv(timeout=0.01)
        with pytest.raises(rollway.errors.EnvHung):
            envs.recv()
        (tmp_path / "gate").touch()
        envs._pool.deadlines.timeout_s = None
        assert envs.recv()[1].tolist() == [1, 1]


def test_a_request_that_cannot_travel_asks_nobody():
    with rollway.make_vec(lambda: Sampler(spaces.Text(5)), 2, num_workers=2, batch_size=2) as envs:
        envs.reset(seed=1)
        with pytest.raises((AttributeError, pickle.PicklingError)):
            envs.reset(options={"f": lambda: 1})
        for few in (envs.step, lambda actions: envs.send(actions, [0, 1])):
            with pytest.raises(rollway.InvalidArgument, match="1 actions for 2 environments"):
                few(("a",))
        with pytest.raises((AttributeError, pickle.PicklingError)):
            envs.set_attr("left", [1, lambda: 1])
        assert envs.step(("a", "b"))[1].shape == (2,)
        envs.reset()


def test_a_killed_environment_does_not_hold_the_others(tmp_path):
    made, gate = tmp_path / "made", tmp_path / "gate"

    class Late(Counter):
        def __init__(self):
            super().__init__()
            if made.exists():  # the second time
                until(gate.exists, 60)
            made.touch()

    makers = [Late, *counters(4)[1:]]
    with rollway.make_vec(makers, num_workers=4, batch_size=3, restart=FaultPolicy()) as envs:
        envs.async_reset()
        envs.recv()
        envs.recv()
        envs.send([KILL, CALM, CALM, CALM], [0, 1, 2, 3])
        for last in (False, False, True):
            observations, _, _, truncations, infos = envs.recv()
            assert sorted(infos["env_id"]) == [1, 2, 3] and not truncations.any()
            if not last:
                envs.send([CALM] * 3)
        gate.touch()
        observations, rewards, _, truncations, infos = envs.recv()
        assert infos["env_id"].tolist() == [0] and truncations.tolist() == [True] and rewards.tolist() == [0]
        assert "SIGKILL" in infos["fault"][0] and observations.tolist() == [[0, 0]]


def test_an_exception_in_one_keeps_the_results_of_the_others():
    with rollway.make_vec(counters(3), num_workers=1, batch_size=3) as envs:
        envs.async_reset()
        envs.recv()
        envs.send([CALM, RAISE, CALM])
        with pytest.raises(rollway.errors.EnvRaised, match="environment 1"):
            envs.recv()
        with pytest.raises(rollway.InvalidArgument, match="under way"):
            envs.step([CALM] * 3)
        with pytest.raises(rollway.InvalidArgument, match="environment 0 is still busy"):
            envs.send([CALM], [0])
        envs.send([CALM], [1])
        assert envs.recv()[0][:, 1].tolist() == [1, 2, 1]


def test_what_was_said_before_an_error_is_not_taken_for_what_is_said_after_it():
    with rollway.make_vec(counters(4), num_workers=2) as envs:
        envs.reset()
        with pytest.raises(rollway.errors.EnvRaised):
            envs.step([BIG, RAISE, BIG, BIG])
        with pytest.raises(rollway.errors.EnvRaised):
            envs.call("no_such_thing")
        assert envs.get_attr("number") == (0, 1, 2, 3)
        envs.set_attr("number", [10, 11, 12, 13])
        assert envs.step([BIG] * 4)[4]["big"][:, 0].tolist() == [10, 11, 12, 13]
        envs.step_async([BIG] * 4)
        assert envs.reset()[0][:, 1].tolist() == [0] * 4  # ends the step first
        envs.set_attr("number", 5)
        assert envs.step([BIG] * 4)[4]["big"][:, 0].tolist() == [5] * 4


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_can_be_started_in_any_way(context):
    with (
        rollway.make_vec("CartPole-v1", 2, num_workers=1, context=context) as envs,
        rollway.make_vec("CartPole-v1", 2) as ours,
    ):
        assert np.array_equal(envs.reset(seed=4)[0], ours.reset(seed=4)[0])
        for _ in range(5):
            assert np.array_equal(envs.step([0, 1])[0], ours.step([0, 1])[0])


def test_workers_outlive_the_thread_that_made_them():
    made = []
    thread = threading.Thread(target=lambda: made.append(rollway.make_vec(counters(2), num_workers=2)))
    thread.start()
    thread.join()
    with made[0] as envs:
        envs.reset()
        assert envs.step([0, 0])[1].tolist() == [1, 1]


def is_waiting(envs):
    """Whether a thread waits for environments."""
    try:
        return envs._pool.core.num_busy() < 0
    except RuntimeError:
        return True


def test_another_thread_that_steps_in_between_is_told_and_one_that_closes_ends_the_step(tmp_path):
    gate = tmp_path / "gate"
    with rollway.make_vec(counters(2, gate=gate), num_workers=2) as envs:
        envs.reset()
        pids = envs.call("pid")

        ended = []

        def step():
            with pytest.raises(rollway.ConnectionClosedError) as raised:
                envs.step([SLOW, CALM])
            ended.append(raised.value)

        thread = threading.Thread(target=step)
        thread.start()
        until(lambda: is_waiting(envs))
        with pytest.raises((RuntimeError, rollway.InvalidArgument)):
            envs.step([0, 0])
        envs.close()
        thread.join(60)
        assert "closed by another thread" in str(ended[0])
        gate.touch()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_another_thread_that_calls_in_between_is_told_and_nothing_is_called(tmp_path):
    class Slow(Counter):
        def slowly(self):
            (tmp_path / "begun").touch()
            until((tmp_path / "gate").exists, 60)
            return self.number

    with rollway.make_vec([lambda n=n: Slow(n) for n in range(2)], num_workers=2) as envs:
        envs.reset()
        answers = []
        for wait in (lambda: answers.append(envs.call("slowly")), lambda: answers.append(envs.step([SLOW, CALM])[1])):
            envs.set_attr("gate", tmp_path / "gate")
            thread = threading.Thread(target=wait)
            thread.start()
            until(lambda: is_waiting(envs) if answers else (tmp_path / "begun").exists())
            with pytest.raises(RuntimeError, match="another thread"):
                envs.set_attr("number", 7)
            (tmp_path / "gate").touch()
            thread.join()
            (tmp_path / "gate").unlink()
            assert envs.get_attr("number") == (0, 1)
        assert answers[0] == (0, 1) and answers[1].tolist() == [1, 1]


@pytest.mark.parametrize("timeout", [None, math.inf])
def test_one_can_wait_for_ever(timeout):
    envs = rollway.make_vec(counters(1), step_timeout_s=math.inf)
    envs.reset()
    assert envs.call("add", 5) == (5,) and envs.step([CALM])[1].tolist() == [1]
    envs.close(timeout=timeout)


def test_environments_are_closed_and_workers_end(tmp_path):
    class Tidy(Counter):
        def close(self):
            (tmp_path / str(self.number)).touch()
            if self.number == 0:
                raise OSError("one that cannot be closed does not keep the others open")

    envs = rollway.make_vec([lambda number=number: Tidy(number) for number in range(2)], num_workers=1)
    envs.reset()
    envs.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_cannot_be_pickled_or_copied_and_says_so(duplicate):
    with rollway.make_vec(counters(1)) as envs, pytest.raises(TypeError, match="cannot be pickled or copied"):
        duplicate(envs)


def test_a_forgotten_vector_environment_ends_its_workers():
    envs = rollway.make_vec(counters(2), num_workers=2)
    envs.reset()
    pids = envs.call("pid")
    del envs
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_workers_that_end_leave_nothing_open_of_which_python_would_warn(child):
    loud = child("""
        import warnings
        import rollway
        warnings.simplefilter("default")
        with rollway.make_vec("CartPole-v1", 2, num_workers=2) as envs:
            envs.reset()
        print("closed", flush=True)
        """)
    loud.says("closed")
    _, errors = loud.ends()
    assert "Warning" not in errors
