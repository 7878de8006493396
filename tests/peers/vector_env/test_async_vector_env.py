"""What Gymnasium's own tests ask of `AsyncVectorEnv`, asked of it and of `make_vec`: the same arguments, calls and errors.

Not asked of `make_vec`: ``worker=``, a function of Gymnasium's worker processes, and what its logger says about errors.
"""

import multiprocessing
import pickle
import signal
import sys
import threading
import time
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    CustomSpaceError,
    NoAsyncCallError,
)
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import iterate

import rollway
from rollway.errors import EnvDied, EnvError, EnvRaised
from rollway.vector_env.errors import env_raised
from rollway.vector_env.protocol import Fault
from tests.support.processes import until
from tests.support.vector_env_toys import Counter, Sampler, counters

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(Received the following error|Traceback|Raising the last):UserWarning"
)


@pytest.fixture(params=[AsyncVectorEnv, rollway.make_vec], ids=["gymnasium", "rollway"])
def make(request):
    """Makes vector environments, and closes what the test has not closed."""
    made = []

    def make(*args, **kwargs):
        made.append(request.param(*args, **kwargs))
        return made[-1]

    yield make
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for envs in made:
            envs.close(terminate=True)


def cart_poles(count, **kwargs):
    return [lambda: gym.make("CartPole-v1", disable_env_checker=True, **kwargs)] * count


class Late(gym.Env):
    """Takes its time: for a reset as long as it was made to, for a step as long as its action says."""

    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = spaces.Box(0.0, 60.0, (), np.float32)

    def __init__(self, reset_s=0.0):
        self.reset_s = reset_s

    def reset(self, *, seed=None, options=None):
        time.sleep(self.reset_s)
        return self.observation_space.sample(), {}

    def step(self, action):
        time.sleep(float(action))
        return self.observation_space.sample(), 0.0, False, False, {}


class Words(gym.Space):
    """A space that Gymnasium does not know."""

    def sample(self, mask=None, probability=None):
        return "word"

    def contains(self, x):
        return isinstance(x, str)

    def __eq__(self, other):
        return isinstance(other, Words)


class Parrot(gym.Env):
    observation_space = action_space = Words()

    def reset(self, *, seed=None, options=None):
        return "reset", {}

    def step(self, action):
        return f"step({action})", 0.0, False, False, {}


@pytest.mark.parametrize("shared_memory", [True, False])
def test_results_have_the_forms_of_the_spaces(make, shared_memory):
    envs = make(cart_poles(8), shared_memory=shared_memory)
    assert envs.num_envs == 8 and envs.render_mode is None
    assert isinstance(envs.single_action_space, spaces.Discrete)
    assert isinstance(envs.action_space, spaces.MultiDiscrete)
    observations, infos = envs.reset()
    assert isinstance(infos, dict)
    for actions in (envs.action_space.sample(), [envs.single_action_space.sample() for _ in range(8)]):
        assert observations.dtype == envs.observation_space.dtype and observations.shape == (8, 4)
        observations, rewards, terminations, truncations, _ = envs.step(actions)
        assert rewards.shape == terminations.shape == truncations.shape == (8,)
        assert rewards.dtype == np.float64 and terminations.dtype == truncations.dtype == np.bool_
    envs.close()
    assert envs.closed


def test_the_metadata_of_the_environments_stays_as_it_is(make):
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        assert make(cart_poles(1), autoreset_mode=mode).metadata["autoreset_mode"] == mode
    assert "autoreset_mode" not in cart_poles(1)[0]().metadata


@pytest.mark.parametrize("shared_memory", [True, False])
def test_calls_and_attributes_reach_every_environment(make, shared_memory):
    envs = make(counters(3), shared_memory=shared_memory)
    envs.reset()
    assert envs.call("add", 10) == (10, 11, 12) and envs.render_mode == "rgb_array"
    frames = envs.render()
    assert isinstance(frames, tuple) and [frame[0, 0, 0] for frame in frames] == [0, 1, 2]
    envs.set_attr("number", [7, 8, 9])
    assert envs.get_attr("number") == (7, 8, 9) == envs.call("number")


@pytest.mark.parametrize("copy", [True, False])
def test_observations_may_be_written_to(make, copy):
    observations, _ = make(cart_poles(2), copy=copy).reset()
    observations[0] = 0


def test_a_reset_in_two_halves_is_a_reset(make):
    envs, whole = make(counters(3)), make(counters(3))
    envs.reset_async(seed=5)
    observations, infos = envs.reset_wait(timeout=30)
    expected, expected_infos = whole.reset(seed=5)
    assert np.array_equal(observations, expected) and infos["seed"].tolist() == [5, 6, 7] == list(
        expected_infos["seed"]
    )
    envs.step([0, 0, 0])
    envs.reset_async([1, None, 3], {"any": "thing"})
    assert envs.reset_wait()[1]["seed"].tolist() == [1, -1, 3]
    envs.step([0, 0, 0])
    envs.reset_async(options={"reset_mask": np.array([True, False, True])})
    assert envs.reset_wait()[0][:, 1].tolist() == [0, 1, 0]
    assert envs.step([0, 0, 0])[0][:, 1].tolist() == [1, 2, 1]


def test_results_that_do_not_come_in_time_are_a_timeout(make):
    def too_late(wait):
        with pytest.raises(multiprocessing.TimeoutError) as caught:
            wait(timeout=0.1)
        assert isinstance(caught.value, TimeoutError) or isinstance(envs, AsyncVectorEnv), "ours is Python's, too"
        envs.close(terminate=True)

    envs = make([lambda: Late(60.0)] * 2)
    envs.reset_async()
    too_late(envs.reset_wait)
    envs = make([Late] * 2)
    envs.reset()
    envs.step_async(np.array([0.0, 60.0]))
    too_late(envs.step_wait)


def test_waiting_for_what_was_not_asked_for_is_an_error(make):
    envs = make(cart_poles(2))
    with pytest.raises(NoAsyncCallError) as caught:
        envs.reset_wait()
    assert caught.value.name == "reset"
    envs.reset()
    with pytest.raises(NoAsyncCallError) as caught:
        envs.step_wait()
    assert caught.value.name == "step"


@pytest.mark.parametrize("first", ["step", "reset"])
@pytest.mark.parametrize("second", ["step", "reset"])
def test_asking_twice_is_an_error_and_closing_then_a_warning(make, first, second):
    envs = make(cart_poles(2))
    ask = {"step": lambda: envs.step_async([0, 1]), "reset": envs.reset_async}
    envs.reset()
    ask[first]()
    with pytest.raises(AlreadyPendingCallError) as caught:
        ask[second]()
    assert caught.value.name == first
    with pytest.warns(UserWarning, match=rf"{first}.*|.*{first}"):
        envs.close(terminate=True)


def test_closing_after_all_was_awaited_is_no_warning(make):
    envs = make(cart_poles(2))
    envs.reset_async()
    envs.reset_wait()
    envs.step_async([0, 1])
    envs.step_wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs.close()


def test_a_closed_one_says_so(make):
    envs = make(cart_poles(2))
    envs.close()
    for call in (envs.reset, envs.reset_async, envs.reset_wait, lambda: envs.step([0, 1]), envs.step_wait):
        with pytest.raises(ClosedEnvironmentError):
            call()


def test_spaces_that_differ_are_a_runtime_error(make):
    with pytest.raises(RuntimeError):
        make([*cart_poles(2), lambda: gym.make("Acrobot-v1")])
    with pytest.raises(RuntimeError):
        make([lambda n=n: Sampler(spaces.Discrete(3), spaces.Discrete(n)) for n in (2, 4)])
    with pytest.raises(RuntimeError):
        make(
            [lambda n=n: Sampler(spaces.Box(0, 1, (n,)), spaces.Discrete(2)) for n in (2, 4)],
            observation_mode=(spaces.Box(0, 1, (2, 2)), spaces.Box(0, 1, (2,))),
        )


def test_a_custom_space_goes_without_shared_memory_only(make):
    envs = make([Parrot] * 3, shared_memory=False)
    assert envs.reset()[0] == ("reset",) * 3
    assert isinstance(envs.action_space, spaces.Tuple) and isinstance(envs.single_observation_space, Words)
    assert envs.step(("a", "b", "c"))[0] == ("step(a)", "step(b)", "step(c)")
    with pytest.raises(ValueError):
        make([Parrot] * 3, shared_memory=True)


def test_float16_goes_through_shared_memory(make):
    envs = make([lambda: Sampler(spaces.Box(-1, 1, (3,), np.float16), spaces.Discrete(2))] * 2, shared_memory=True)
    for observations in (envs.reset(seed=0)[0], envs.step([0, 1])[0]):
        assert observations.dtype == np.float16 and observations.shape == (2, 3)


class Touchy(Counter):
    """Raises by seed and by action."""

    def reset(self, *, seed=None, options=None):
        if seed == 1:
            raise ValueError("a bad seed")
        return super().reset(seed=seed)

    def step(self, action):
        if action >= 1:
            raise LookupError(f"a bad action: {action}")
        return super().step(action)


def test_an_exception_of_an_environment_is_caught_by_its_own_type(make):
    envs = make([Touchy] * 2)
    envs.reset(seed=[0, 0])
    with pytest.raises(ValueError, match="a bad seed"):
        envs.reset(seed=[1, 0])
    envs = make([Touchy] * 3)
    with pytest.raises(LookupError, match=r"a bad action: [12]"):
        envs.step([0, 1, 2])
    envs = make([Touchy] * 2)
    with pytest.raises(AttributeError, match="no_such_thing"):
        envs.call("no_such_thing")


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_than_that_many_step_at_a_time(make, most):
    with multiprocessing.Manager() as manager:
        now, seen, lock, together = manager.Value("i", 0), manager.list(), manager.Lock(), manager.Barrier(most)

        class Counted(Counter):
            def step(self, action):
                with lock:
                    now.value += 1
                    seen.append(now.value)
                together.wait(30)  # that many do, too
                with lock:
                    now.value -= 1
                together.wait(30)
                return super().step(action)

        envs = make([Counted] * 4, max_concurrency=most)
        envs.reset()
        envs.step([0] * 4)
        envs.close()
        assert max(seen) == most and len(seen) == 4


@pytest.mark.parametrize("most", [2.5, "2", 2.0, 0, -1])
def test_a_concurrency_that_is_no_number_is_refused(make, most):
    with pytest.raises(ValueError):
        make(counters(2), max_concurrency=most)


def test_a_larger_concurrency_is_no_error(make):
    envs = make(counters(2), max_concurrency=4)
    envs.reset()
    envs.step([0, 0])


# ── ours alone ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("call", "kinds"),
    [
        (lambda envs: envs.reset_wait(), (rollway.InvalidArgument, NoAsyncCallError)),
        (lambda envs: envs.recv(), (rollway.InvalidArgument, NoAsyncCallError)),
        (lambda envs: [envs.step_async([0, 0]), envs.step([0, 0])], (rollway.InvalidArgument, AlreadyPendingCallError)),
        (lambda envs: [envs.close(), envs.reset()], (rollway.ConnectionClosedError, ClosedEnvironmentError)),
    ],
    ids=["reset_wait", "recv", "twice", "closed"],
)
@pytest.mark.filterwarnings("ignore:close")
def test_errors_are_of_both_families_and_can_be_pickled(call, kinds):
    with rollway.make_vec(counters(2)) as envs:
        envs.reset()
        with pytest.raises(rollway.RollwayError) as caught:
            call(envs)
    again = pickle.loads(pickle.dumps(caught.value))
    assert all(isinstance(error, kind) for error in (caught.value, again) for kind in kinds)
    assert str(again) == str(caught.value)


def test_spaces_that_do_not_fit_are_of_both_families():
    with pytest.raises(RuntimeError) as caught:
        rollway.make_vec([*cart_poles(1), lambda: gym.make("Acrobot-v1")])
    assert isinstance(caught.value, rollway.InvalidArgument)
    with pytest.raises(CustomSpaceError, match=r"Words.*leave out shared_memory=True") as caught:
        rollway.make_vec([Parrot], shared_memory=True)
    assert isinstance(caught.value, rollway.InvalidArgument)
    with pytest.raises(CustomSpaceError):
        list(iterate(Words(), "a"))  # where Gymnasium raises it itself


def test_a_timeout_loses_nothing(tmp_path):
    gate = tmp_path / "gate"

    class Gated(Counter):
        def reset(self, *, seed=None, options=None):
            until(gate.exists, 30)
            return super().reset(seed=seed)

    with rollway.make_vec([Gated] * 2) as envs:
        envs.reset_async(seed=3)
        with pytest.raises(rollway.WaitTimeout, match="call again"):
            envs.reset_wait(timeout=0.01)
        gate.touch()
        assert envs.reset_wait(timeout=30)[1]["seed"].tolist() == [3, 4]
        envs.step([0, 0])


def test_a_reset_that_was_interrupted_can_be_waited_for(tmp_path):
    gate = tmp_path / "gate"

    class Gated(Counter):
        def reset(self, *, seed=None, options=None):
            (tmp_path / "here").touch()
            until(gate.exists, 30)
            return super().reset(seed=seed)

    with rollway.make_vec(Gated, 1) as envs:
        main = threading.main_thread().ident

        def interrupt():
            until((tmp_path / "here").exists)
            signal.pthread_kill(main, signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            envs.reset(seed=9)
        gate.touch()
        assert envs.reset_wait()[1]["seed"].tolist() == [9]


class NeedsTwo(Exception):
    """Can be pickled, and not unpickled; its class can."""

    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


class Failing(Counter):
    def __init__(self, make_error):
        super().__init__()
        self.make_error = make_error  # also where the environment is pickled, and the error cannot be

    def step(self, action):
        raise self.make_error()


@pytest.mark.parametrize(
    "make_error",
    [
        partial(ValueError, "a value"),
        partial(KeyError, "a key"),
        partial(FileNotFoundError, 2, "no such level", "level.txt"),
        partial(NeedsTwo, "one", "two"),
        partial(UnicodeDecodeError, "utf-8", b"\xff", 0, 1, "bad byte"),
        partial(rollway.WaitTimeout, "inside"),
        partial(gym.error.ResetNeeded, "reset it"),
        partial(AssertionError, "asserted"),
    ],
    ids=lambda make_error: make_error.func.__name__,
)
def test_its_own_type_is_also_env_raised_with_everything_that_has(make_error):
    error = make_error()
    with rollway.make_vec([*counters(1), lambda: Failing(make_error)], num_workers=1) as envs:
        envs.reset()
        with pytest.raises(type(error)) as caught:
            envs.step([0, 0])
        raised = caught.value
        assert isinstance(raised, EnvRaised) and raised.env_ids == [1]
        assert type(raised).__name__ == "EnvRaised" and str(raised).startswith("environment 1 raised: ")
        assert repr(raised).startswith("EnvRaised(") and "In the worker" in str(raised)
        again = pickle.loads(pickle.dumps(raised))
        assert isinstance(again, type(error)) and isinstance(again, EnvRaised) and again.env_ids == [1]
        if isinstance(error, OSError) and error.errno:
            assert (raised.errno, raised.filename) == (2, "level.txt")
        assert envs.call("add", 1) == (1, 1), "and it goes on"


class Fell(Exception):
    def __init__(self, joint, angle):
        super().__init__(f"{joint} is at {angle}")
        self.joint, self.angle = joint, angle


def test_the_attributes_of_an_exception_arrive_also_if_its_class_takes_other_arguments():
    with rollway.make_vec([lambda: Failing(partial(Fell, "knee", 3))], num_workers=1) as envs:
        envs.reset()
        with pytest.raises(Fell) as caught:
            envs.step([0])
        cause = caught.value.__cause__
        assert (caught.value.joint, caught.value.angle) == ("knee", 3)
        assert type(cause) is Fell and cause.args == ("knee is at 3",) and cause.joint == "knee"


def test_an_exception_of_the_main_script_is_known_when_its_workers_were_spawned(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "Fell", Fell, raising=False)
    fault = Fault("Fell: knee is at 3", "", b"c__mp_main__\nFell\n.")  # as pickle writes a class in a spawned worker
    assert fault.raised() is Fell


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), StopIteration(4), RuntimeError("plain"), Exception("plain")], ids=repr
)
def test_what_would_end_more_than_the_step_is_env_raised_alone(error):
    with rollway.make_vec(lambda: Failing(lambda: error), 1) as envs:
        envs.reset()
        with pytest.raises(EnvRaised) as caught:
            envs.step([0])
        assert type(caught.value) is EnvRaised and isinstance(caught.value.__cause__, type(error))


def test_a_class_that_refuses_to_be_inherited_from_is_env_raised_alone():
    class Final(Exception):
        def __init_subclass__(cls):
            raise TypeError("final")

    for raised in (Final(), ExceptionGroup("many", [ValueError()]), None):
        assert type(env_raised("text", [1], raised)) is EnvRaised


def test_attributes_of_an_exception_come_with_it_but_not_over_ours():
    class Coded(Exception):
        code, env_ids = 0, ()

    error = Coded()
    error.code, error.env_ids = 7, "theirs"
    raised = env_raised("text", [1], error)
    assert isinstance(raised, Coded) and raised.code == 7 and raised.env_ids == [1]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_after_a_death_the_next_step_says_who_died_and_what_to_do(num_workers):
    with rollway.make_vec(counters(2), num_workers=num_workers) as envs:
        envs.reset()
        with pytest.raises(EnvDied):
            envs.step([Counter.KILL, Counter.CALM])
        for call in (lambda: envs.step([0, 0]), lambda: envs.step_async([0, 0]), envs.reset_async):
            with pytest.raises(
                EnvDied, match=r"environment 0 died before.*close\(\).*make it again.*SIGKILL"
            ) as caught:
                call()
            assert caught.value.env_ids == [0] and isinstance(caught.value, EnvError)
        for call in (envs.step_wait, envs.reset):
            with pytest.raises(EnvDied, match="SIGKILL"):
                call()


def test_an_environment_that_died_in_a_reset_is_told_by_the_next_step():
    class Doomed(Counter):
        def reset(self, *, seed=None, options=None):
            return super().step(self.KILL) if seed else super().reset()

    with rollway.make_vec([*counters(1), Doomed], num_workers=2) as envs:
        envs.reset()
        with pytest.raises(EnvDied):
            envs.reset(seed=3)
        with pytest.raises(EnvDied, match="environment 1 died before"):
            envs.step([0, 0])
