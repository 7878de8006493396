"""Rollouts collected straight into the slots of a ring: what arrives is what the environments said."""

import itertools
import multiprocessing
import os
import signal
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import rollway
from rollway import _core
from rollway.vector_env import FaultPolicy, worker
from tests.support.processes import Ledger, forked, is_gone, until
from tests.support.vector_env_toys import LOOSE, NESTED, Counter, Sampler, counters

STEPS, ENVS = 5, 3


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert not list(Path(_core.shm_directory()).glob(f"rollway.auto-{os.getpid()}-*"))


def example(rows=STEPS + 1, dtype=np.float64):
    return {
        "obs": np.zeros((rows, ENVS, 2)),
        "actions": np.zeros((STEPS, ENVS), np.int64),
        "rewards": np.zeros((STEPS, ENVS), dtype),
        "dones": np.zeros((STEPS, ENVS), dtype),
        "truncated": np.zeros((STEPS, ENVS), bool),
    }


def places(slot):
    return {
        "observations": slot["obs"],
        "rewards": slot["rewards"],
        "terminations": slot["dones"],
        "truncations": slot["truncated"],
    }


@pytest.mark.parametrize("rows", [STEPS, STEPS + 1])
def test_rollouts_follow_one_another_and_are_what_the_environments_said(rows):
    sample = example(rows, np.float32)
    with (
        rollway.Server(sample, 2, rollway.ShmTransport(), num_buffers=2) as server,
        rollway.ShmClient(server.name, sample) as client,
        rollway.make_vec(counters(ENVS, length=7), num_workers=2) as envs,
    ):
        newest = envs.reset()[0]
        expected = SyncVectorEnv(counters(ENVS, length=7))
        expected.reset()
        calm = np.zeros(ENVS, int)
        for _ in range(6):
            for _ in range(2):
                with client.reserve() as slot, envs.collect_into(client, **places(slot)) as observations:
                    assert np.array_equal(observations, newest) and np.shares_memory(observations, slot["obs"])
                    for step in range(STEPS):
                        newest, rewards, _, truncations, infos = envs.step(calm)
                        theirs = expected.step(calm)
                        assert np.array_equal(newest, theirs[0]) and np.array_equal(rewards, theirs[1])
                        assert np.array_equal(truncations, theirs[3]) and infos.keys() == theirs[4].keys()
                        assert np.shares_memory(rewards, slot["rewards"])
                        assert np.shares_memory(newest, slot["obs"]) == (step + 1 < rows)
                    newest = newest.copy()
            batch = server.sample().batch
            for rollout in range(2):
                counts = batch["obs"][rollout, :, 0, 1]
                rewards = batch["rewards"][rollout, :, 0]
                assert all(after == before + 1 or after == 0 for before, after in itertools.pairwise(counts))
                assert np.array_equal(rewards[: rows - 1], counts[1:])
        assert np.array_equal(envs.step(calm)[0], expected.step(calm)[0])  # and on its own again


@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.uint8, np.int8, ">f4"], ids=str)
def test_rewards_and_endings_may_be_of_any_number_type(dtype):
    class Numpy(Counter):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, np.float32(reward), np.bool_(terminated), np.bool_(truncated), info

    sample = {**example(dtype=dtype), "truncated": np.zeros((STEPS, ENVS), dtype)}
    with (
        rollway.Server(sample, 1, rollway.ShmTransport()) as server,
        rollway.ShmClient(server.name, sample) as client,
        rollway.make_vec(lambda: Numpy(length=STEPS), ENVS, num_workers=1) as envs,
    ):
        envs.reset()
        with client.reserve() as slot, envs.collect_into(client, **places(slot)):
            for _ in range(STEPS):
                envs.step([0] * ENVS)
        batch = server.sample().batch
        assert batch["rewards"][0, :, 0].tolist() == [1, 2, 3, 4, 5]
        assert batch["truncated"][0, :, 0].tolist() == [0, 0, 0, 0, 1] and not batch["dones"].any()


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool])
@pytest.mark.parametrize("reward", [0.5, -1, 300.5])
def test_a_reward_that_its_array_cannot_hold_is_an_error_and_not_cut(dtype, reward):
    class Paying(Counter):
        def step(self, action):
            return (*super().step(action)[:1], reward, False, False, {})

    sample = example(dtype=dtype)
    with (
        rollway.Server(sample, 1, rollway.ShmTransport()) as server,
        rollway.ShmClient(server.name, sample) as client,
        rollway.make_vec([lambda: Paying(0), *counters(ENVS)[1:]]) as envs,
    ):
        envs.reset()
        with client.reserve() as slot:
            with envs.collect_into(client, **places(slot)):
                if dtype is np.int32 and reward == -1:
                    assert envs.step(np.zeros(ENVS, int))[1][0] == -1
                else:
                    with pytest.raises(rollway.errors.EnvRaised, match=f"environment 0 raised.*the reward is {reward}"):
                        envs.step(np.zeros(ENVS, int))
            slot.abort()


def test_nested_observations_and_transposed_arrays_are_written_in_place():
    make = lambda: Sampler(NESTED, spaces.Discrete(2))  # noqa: E731
    sample = {
        "eye": np.zeros((ENVS, STEPS + 1, 3, 2), np.uint8),
        "die": np.zeros((ENVS, STEPS + 1), np.int64),
        "bits": np.zeros((ENVS, STEPS + 1, 3), np.int8),
        "limbs": np.zeros((ENVS, STEPS + 1, 2), np.int64),
        "x": np.zeros((ENVS, STEPS + 1), np.float64),
        "rewards": np.zeros((ENVS, STEPS), np.float32),
        "ends": np.zeros((2, ENVS, STEPS), bool),
    }
    with (
        rollway.Server(sample, 1, rollway.ShmTransport()) as server,
        rollway.ShmClient(server.name, sample) as client,
        rollway.make_vec(make, ENVS, num_workers=2) as envs,
    ):
        expected = SyncVectorEnv([make] * ENVS)
        said = [envs.reset(seed=1)[0]]
        assert np.array_equal(said[0]["eye"], expected.reset(seed=1)[0]["eye"])
        with client.reserve() as slot:
            turned = {name: array.swapaxes(0, 1) for name, array in slot.tree.items() if name != "ends"}
            observations = {
                "eye": turned["eye"],
                "pair": (turned["die"], turned["bits"]),
                "inner": {"limbs": turned["limbs"], "x": turned["x"]},
            }
            ends = slot["ends"].transpose(0, 2, 1)
            with envs.collect_into(
                client, observations=observations, rewards=turned["rewards"], terminations=ends[0], truncations=ends[1]
            ):
                for _ in range(STEPS):
                    envs.step([0] * ENVS)
                    said.append(expected.step([0] * ENVS)[0])
        batch = server.sample().batch
        for step, one in enumerate(said):
            assert np.array_equal(batch["eye"][0, :, step], one["eye"])
            assert np.array_equal(batch["bits"][0, :, step], one["pair"][1])
            assert np.array_equal(batch["x"][0, :, step], one["inner"]["x"])


def test_a_killed_worker_is_replaced_by_one_that_knows_the_slots():
    sample = example()
    with (
        rollway.Server(sample, 1, rollway.ShmTransport()) as server,
        rollway.ShmClient(server.name, sample) as client,
        rollway.make_vec(counters(ENVS), num_workers=ENVS, restart=FaultPolicy()) as envs,
    ):
        envs.reset()
        with client.reserve() as slot, envs.collect_into(client, **places(slot)):
            for step in range(STEPS):
                envs.step([Counter.KILL if step == 2 else Counter.CALM, 0, 0])
        batch = server.sample().batch
        assert batch["obs"][0, :, 0, 1].tolist() == [0, 1, 2, 2, 0, 1]
        assert batch["truncated"][0, :, 0].tolist() == [False, False, True, False, False]
        assert batch["obs"][0, :, 1, 1].tolist() == [0, 1, 2, 3, 4, 5]


def test_nobody_writes_into_a_slot_that_was_given_back():
    sample = example()
    with (
        rollway.Server(sample, 1, rollway.ShmTransport()) as server,
        rollway.ShmClient(server.name, sample) as client,
        rollway.make_vec(counters(ENVS), num_workers=ENVS, step_timeout_s=4.0) as envs,
    ):
        envs.reset()
        pid = envs.call("pid")[1]
        with pytest.raises(rollway.errors.EnvHung), client.reserve() as slot, envs.collect_into(client, **places(slot)):
            envs.step([0, Counter.HANG, 0])
        assert not Path(f"/proc/{pid}").exists()
        assert server.stats()["claimed_slots"] == 0


def test_a_raising_environment_ends_the_block_and_the_next_one_works():
    sample = example()
    with (
        rollway.Server(sample, 1, rollway.ShmTransport()) as server,
        rollway.ShmClient(server.name, sample) as client,
        rollway.make_vec(counters(ENVS), num_workers=2) as envs,
    ):
        envs.reset()
        with (
            pytest.raises(rollway.errors.EnvRaised),
            client.reserve() as slot,
            envs.collect_into(client, **places(slot)),
        ):
            envs.step([0, Counter.RAISE, 0])
        with client.reserve() as slot, envs.collect_into(client, **places(slot)):
            for _ in range(STEPS):
                envs.step([0, 0, 0])
        assert server.sample().batch["obs"][0, -1, :, 1].tolist() == [6, 6, 6]


def test_what_does_not_fit_is_refused():
    sample = example()
    with (
        rollway.Server(sample, 1, rollway.ShmTransport()) as server,
        rollway.ShmClient(server.name, sample) as client,
        rollway.make_vec(counters(ENVS), num_workers=1) as envs,
        client.reserve() as slot,
    ):
        envs.reset()
        good = places(slot)
        for wrong, words in [
            ({"rewards": slot["rewards"][:, :2]}, "rewards has shape"),
            ({"truncations": slot["truncated"][:2]}, "truncations has shape"),
            ({"observations": slot["obs"][:3]}, "or one row longer"),
            ({"rewards": np.zeros((STEPS, ENVS))}, "is not in the shared memory"),
            ({"rewards": [[0.0] * ENVS] * STEPS}, "rewards is a list; it must be an array of the slot"),
            ({"truncations": None}, "truncations is a NoneType; it must be an array of the slot"),
            ({"observations": None}, "observations is a NoneType; it must be an array of the slot"),
        ]:
            with pytest.raises(rollway.InvalidArgument, match=words), envs.collect_into(client, **{**good, **wrong}):
                pass
        with envs.collect_into(client, **good):
            for _ in range(STEPS):
                envs.step([0] * ENVS)
            with pytest.raises(rollway.InvalidArgument, match="room for 5 steps"):
                envs.step([0] * ENVS)
            with pytest.raises(rollway.InvalidArgument, match="in the middle"):
                envs.reset()
            with pytest.raises(rollway.InvalidArgument, match="in the middle"):
                envs.send([0], [0])
        with rollway.make_vec(lambda: Sampler(LOOSE), ENVS) as loose:
            loose.reset()
            observations = {key: slot["obs"] for key in LOOSE.spaces}
            with (
                pytest.raises(rollway.InvalidArgument, match="no fixed size"),
                loose.collect_into(client, **{**good, "observations": observations}),
            ):
                pass


def test_images_arrive_whole():
    class Painter(gym.Env):
        observation_space = spaces.Box(0, 255, (84, 84), np.uint8)
        action_space = spaces.Discrete(2)
        count = 0

        def reset(self, *, seed=None, options=None):
            return np.zeros((84, 84), np.uint8), {}

        def step(self, action):
            self.count += 1
            return np.full((84, 84), self.count, np.uint8), 0.0, False, False, {}

    sample = {**example(), "obs": np.zeros((STEPS + 1, ENVS, 84, 84), np.uint8)}
    with (
        rollway.Server(sample, 1, rollway.ShmTransport()) as server,
        rollway.ShmClient(server.name, sample) as client,
        rollway.make_vec(Painter, ENVS, num_workers=2) as envs,
    ):
        envs.reset()
        with client.reserve() as slot, envs.collect_into(client, **places(slot)):
            for _ in range(STEPS):
                envs.step([0] * ENVS)
        obs = server.sample().batch["obs"][0]
        assert [np.unique(obs[step]).tolist() for step in range(STEPS + 1)] == [[n] for n in range(STEPS + 1)]


def collect_until_killed(name, sample, workers):
    """Steps once in a slot, and waits there. Its workers do not notice when it dies."""
    worker.end_with = lambda pid: None
    with rollway.ShmClient(name, sample) as client:
        envs = rollway.make_vec(counters(ENVS), num_workers=2, context="fork")
        envs.reset()
        with client.reserve() as slot, envs.collect_into(client, **places(slot)):
            envs.step([0] * ENVS)
            for index, pid in enumerate(multiprocessing.active_children()):
                workers.note(index, pid.pid)
            signal.pause()


def test_the_slot_of_a_killed_collector_is_nobody_elses_before_its_workers_have_ended():
    sample, workers = example(), Ledger(2)
    with rollway.Server(sample, 1, rollway.ShmTransport()) as server:

        def recovered():
            rollway.ShmClient(server.name, sample).close()  # whoever sits down sweeps the seats of the dead
            return server.stats()["recovered_slots"]

        collector = forked(collect_until_killed, server.name, sample, workers)
        until(lambda: workers.read(1))
        os.kill(collector, signal.SIGKILL)
        os.waitpid(collector, 0)
        assert recovered() == 0
        os.kill(workers.read(0), signal.SIGKILL)
        until(lambda: is_gone(workers.read(0)))
        assert recovered() == 0, "the other worker may be writing"
        os.kill(workers.read(1), signal.SIGKILL)
        until(lambda: is_gone(workers.read(1)))
        assert recovered() == 1
    rollway.gc()


def test_a_worker_that_is_started_anew_knows_the_slots_that_are_still_used():
    sample = example()
    with (
        rollway.Server(sample, 1, rollway.ShmTransport()) as server,
        rollway.make_vec(counters(ENVS), num_workers=2, restart=FaultPolicy()) as envs,
    ):
        envs.reset()
        with rollway.ShmClient(server.name, sample) as closed:
            with closed.reserve() as slot, envs.collect_into(closed, **places(slot)):
                for _ in range(STEPS):
                    envs.step([0] * ENVS)
        server.sample().release()
        with rollway.ShmClient(server.name, sample) as client:
            with client.reserve() as slot, envs.collect_into(client, **places(slot)):
                for step in range(STEPS):
                    if step == 1:
                        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
                    envs.step([0] * ENVS)
            rewards = server.sample().batch["rewards"][0]
        assert (rewards == 0).any() and (rewards[-1] > 0).all()


@pytest.mark.parametrize("dead", [False, True], ids=["lives", "died"])
def test_workers_let_go_of_the_rings_of_clients_that_are_closed(dead):
    """A learner that is started anew has another ring; a collector may see many of them."""
    make = lambda: Sampler(NESTED, spaces.Discrete(2))  # noqa: E731
    rows = {"eye": (3, 2), "die": (), "bits": (3,), "limbs": (2,), "x": ()}
    sample = {name: np.zeros((STEPS + 1, ENVS, *shape), np.float64) for name, shape in rows.items()} | {
        "rewards": np.zeros((STEPS, ENVS)),
        "ends": np.zeros((2, STEPS, ENVS)),
    }

    def mapped(pid):
        return sum("rollway" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())

    def collect(envs):
        with (
            rollway.Server(sample, 1, rollway.ShmTransport()) as server,
            rollway.ShmClient(server.name, sample) as client,
            client.reserve() as slot,
            envs.collect_into(
                client,
                observations={
                    "eye": slot["eye"],
                    "pair": (slot["die"], slot["bits"]),
                    "inner": {"limbs": slot["limbs"], "x": slot["x"]},
                },
                rewards=slot["rewards"],
                terminations=slot["ends"][0],
                truncations=slot["ends"][1],
            ),
        ):
            for _ in range(STEPS):
                envs.step([0] * ENVS)

    with rollway.make_vec(make, ENVS, num_workers=1, restart=FaultPolicy()) as envs:
        envs.reset()
        counts = []
        for life in range(5):
            collect(envs)
            (worker,) = multiprocessing.active_children()
            counts.append(mapped(worker.pid))
            if dead and life == 1:
                worker.kill()
                worker.join()
        assert counts[2] == counts[3] == counts[4], counts
        assert len(envs._targets) == len(envs._clients) == len(envs._pool._recovery.targets) == 1


def test_a_fault_in_the_only_step_of_a_rollout_leaves_no_observation_that_is_half_old():
    class Half(Counter):
        observation_space = spaces.Dict({"a": spaces.Box(-9, 99, (1,)), "b": spaces.Box(-9, 99, (2,))})

        def _observation(self):
            wide = 2 + (self.count == 2)  # does not fit, the second time
            return {"a": np.full(1, self.count, np.float32), "b": np.full(wide, self.count, np.float32)}

    sample = {name: np.zeros((1, 1), np.float32) for name in ("rewards", "dones", "truncated")}
    sample |= {"a": np.zeros((1, 1, 1), np.float32), "b": np.zeros((1, 1, 2), np.float32)}
    with (
        rollway.Server(sample, 1, rollway.ShmTransport()) as server,
        rollway.ShmClient(server.name, sample) as client,
        rollway.make_vec(Half, 1, restart=FaultPolicy()) as envs,
    ):
        envs.reset()
        for last in ([1, 1, 1], [1, 1, 1], [0, 0, 0]):
            with (
                client.reserve() as slot,
                envs.collect_into(
                    client,
                    observations={"a": slot["a"], "b": slot["b"]},
                    rewards=slot["rewards"],
                    terminations=slot["dones"],
                    truncations=slot["truncated"],
                ),
            ):
                observations, *_ = envs.step([0])
                assert [*observations["a"][0], *observations["b"][0]] == last
            server.sample().release()
