"""The names of unilab.ipc: its signatures, over classes with plain names; and the places where they were before."""

import inspect
import pickle
import threading
import warnings
from importlib import import_module

import numpy as np
import pytest

import rollway
from rollway.replay import TransitionBuffer
from rollway.ring import RolloutRing
from rollway.runner import Runner
from rollway.weights import ObsNormStats, WeightSync
from tests.support.processes import until


class Unilab:
    """The signatures that unilab.ipc documents."""

    def SharedWeightSync(self, param_shapes, *, create=True, shm_name=None, lock=None): ...

    def SharedObsNormStats(self, ctx): ...

    def RolloutRingBuffer(
        self,
        num_envs,
        num_steps,
        obs_dim,
        action_dim,
        *,
        critic_dim=0,
        num_slots=4,
        create=True,
        shm_name_prefix=None,
    ): ...

    def ReplayBuffer(
        self, capacity, obs_dim, action_dim, device, defer_gpu=False, critic_dim=0, packed_cpu_storage=False
    ): ...

    def AsyncRunner(
        self,
        env_name,
        env_cfg_overrides,
        rl_cfg,
        *,
        device=None,
        collector_device=None,
        sim_backend="mujoco",
        num_envs=4096,
    ): ...


STANDS_ON = {
    "SharedWeightSync": WeightSync,
    "SharedObsNormStats": ObsNormStats,
    "RolloutRingBuffer": RolloutRing,
    "ReplayBuffer": TransitionBuffer,
    "AsyncRunner": Runner,
}
FORMER_PLACES = {
    "SharedWeightSync": "rollway.weights",
    "SharedObsNormStats": "rollway.weights",
    "RolloutRingBuffer": "rollway.ring",
    "ReplayBuffer": "rollway.replay",
    "AsyncRunner": "rollway.runner",
}
DIMS = (2, 3, 4, 1)
SHAPES = {"w": (2,)}


class Learner(rollway.AsyncRunner):
    def learn(self, max_iterations, save_interval=50, log_dir="logs"):
        pass


class PlainLearner(Runner):
    learn = Learner.learn


def required(parameter):
    return parameter.default is parameter.empty


@pytest.mark.parametrize("name", STANDS_ON)
def test_the_signature_begins_as_that_of_unilab(name):
    theirs = list(inspect.signature(getattr(Unilab(), name)).parameters.values())
    ours = list(inspect.signature(getattr(rollway, name)).parameters.values())
    for their, our in zip(theirs, ours, strict=False):
        assert (our.name, our.kind) == (their.name, their.kind)
        assert our.default == their.default or required(their)  # ours may have a default where theirs has none
    assert len(ours) >= len(theirs) and not any(
        required(our) for our in ours[len(theirs) :] if our.kind != our.VAR_KEYWORD
    )


@pytest.mark.parametrize("name", STANDS_ON)
def test_the_class_below_has_no_argument_that_only_unilab_has(name):
    below = STANDS_ON[name]
    assert issubclass(getattr(rollway, name), below)
    accepted = {
        "lock",
        "ctx",
        "create",
        "shm_name",
        "shm_name_prefix",
        "defer_gpu",
        "packed_cpu_storage",
        "sim_backend",
    }
    assert not accepted & inspect.signature(below).parameters.keys()


@pytest.mark.parametrize("name", FORMER_PLACES)
def test_the_former_place_gives_the_class_with_a_warning(name):
    module = import_module(FORMER_PLACES[name])
    with pytest.warns(
        DeprecationWarning, match=f"^{module.__name__}.{name} is deprecated: use rollway.{name}$"
    ) as seen:
        assert getattr(module, name) is getattr(rollway, name)
    assert seen[0].filename == __file__ and name not in module.__all__


@pytest.mark.parametrize("module", sorted({*FORMER_PLACES.values()}))
def test_a_folder_gives_its_own_names_without_a_warning_and_refuses_unknown_ones(module):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(f"from {module} import *", {})
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Nothing'"):
        import_module(module).Nothing


def test_weights_pickle_and_attach_as_the_class_that_they_are():
    for cls in (WeightSync, rollway.SharedWeightSync):
        with cls(SHAPES) as writer, pickle.loads(pickle.dumps(writer)) as copy, cls.attach(writer.name) as reader:
            writer.write_weights({"w": np.ones(2, np.float32)})
            assert type(copy) is type(reader) is cls and reader.version == copy.version == 1
            assert repr(reader).startswith(f"<{cls.__name__} '{writer.name}'")


def test_weights_that_are_attached_to_refuse_unknown_options_and_take_those_of_creation():
    with rollway.SharedWeightSync(SHAPES, max_buffers=4) as writer:
        there = {"create": False, "shm_name": writer.name}
        with rollway.SharedWeightSync(SHAPES, **there, max_buffers=4, checksum=True, threads=1) as reader:
            assert reader.name == writer.name
        for make in (rollway.SharedWeightSync, rollway.SharedWeightSync.from_state_dict):
            with pytest.raises(TypeError, match="unexpected keyword argument 'max_bufers'"):
                make(SHAPES, **there, max_bufers=4)
            with pytest.raises(TypeError, match="unexpected keyword argument 'max_bufers'"):
                make(SHAPES, max_bufers=4)


def test_from_state_dict_attaches_and_writes_the_next_version(name):
    weights = {"w": np.ones(2, np.float32)}
    writer = rollway.SharedWeightSync.from_state_dict(weights, shm_name=name, lock=object())
    with rollway.SharedWeightSync.attach(name) as reader:
        with rollway.SharedWeightSync.from_state_dict({"w": 2 * weights["w"]}, create=False, shm_name=name) as second:
            assert second.version == 2 and reader.read_weights()["w"].tolist() == [2.0, 2.0]
            writer.write_weights(weights)
            assert second.version == 3
        writer.close()
        with rollway.SharedWeightSync.from_state_dict({"w": 4 * weights["w"]}, create=False, shm_name=name) as third:
            assert third.version == 4 and reader.read_weights()["w"].tolist() == [4.0, 4.0]


def test_observation_statistics_pickle_as_the_class_that_they_are():
    for cls in (ObsNormStats, rollway.SharedObsNormStats):
        with cls(max_obs_dim=4) as stats, pickle.loads(pickle.dumps(stats)) as copy:
            stats.put((np.zeros(4), np.ones(4)))
            assert type(copy) is cls and copy.get()[1].tolist() == [1.0] * 4 and cls.__name__ in repr(copy)


def test_a_ring_pickles_and_attaches_as_the_class_that_it_is():
    for cls in (RolloutRing, rollway.RolloutRingBuffer):
        with cls(*DIMS, critic_dim=2, num_slots=3, on_full="block") as ring:
            segment = ring.name if cls is RolloutRing else ring.name["obs"]
            attached = cls.attach(segment, *DIMS, critic_dim=2, num_slots=3)
            with pickle.loads(pickle.dumps(ring)) as copy, attached:
                assert type(copy) is type(attached) is cls and cls.__name__ in repr(copy)
                for version, writer in ((1, copy), (2, attached)):
                    with writer.writing(version=version) as rollout:
                        rollout["rewards"][:] = version
                    assert ring.wait_for_data(10) and ring.read_info().version == version
                    ring.advance_read()


def test_a_ring_is_attached_to_with_the_arguments_that_it_was_made_with():
    with RolloutRing(*DIMS) as ring:
        with pytest.raises(rollway.SchemaMismatch, match="obs"):
            RolloutRing.attach(ring.name, 2, 3, 5, 1)
        with pytest.raises(rollway.SchemaError, match="num_slots is 9 here but 4"):
            RolloutRing.attach(ring.name, *DIMS, num_slots=9)


def test_a_replay_buffer_takes_its_arguments_in_the_order_of_unilab():
    with rollway.ReplayBuffer(10, 3, 1, "cpu", True, 2, True, seed=1) as buffer:
        with pickle.loads(pickle.dumps(buffer)) as copy, rollway.ReplayBuffer.attach(buffer.name) as attached:
            assert type(copy) is type(attached) is rollway.ReplayBuffer and "ReplayBuffer" in repr(copy)
            ones = np.ones((4, 3), np.float32)
            copy.add(
                ones, ones[:, :1], ones[:, 0], ones, ones[:, 0], ones[:, 0], critic=ones[:, :2], next_critic=ones[:, :2]
            )
            assert buffer.size.tolist() == buffer.ptr.tolist() == [4] == [attached.rows_reserved]
            assert attached.sample(2)["critic"].shape == (2, 2)


def test_a_runner_says_its_environment_if_it_has_one():
    with Learner("Go2", None, {}, device="cpu") as named, PlainLearner(num_collectors=3) as plain:
        assert repr(named) == "<rollway.Learner Go2 0 collectors>" and named.num_envs == 4096
        assert repr(plain) == "<rollway.PlainLearner 0 collectors>"
        assert [plain.envs_of(index) for index in range(3)] == [1, 1, 1]


def test_advancing_passes_over_rollouts_that_were_not_read():
    with rollway.RolloutRingBuffer(1, 1, 1, 1) as ring:
        for i in range(3):
            ring.write_buffer["obs"][:] = i
            ring.signal_write_done()
        while ring.available() > 1:
            ring.advance_read()
        assert ring.read_numpy_views()["obs"].item() == 2
        ring.advance_read()
        ring.advance_read()  # There is none: nothing happens.
        assert ring.available() == 0


def test_a_slot_is_published_as_it_lies_when_no_buffer_was_asked_for():
    with rollway.RolloutRingBuffer(1, 1, 1, 1, num_slots=2) as ring:
        for i in (1, 2):
            ring.write_buffer["obs"][:] = i
            ring.signal_write_done()
        for i in (1, 2):
            assert ring.read_numpy_views()["obs"].item() == i
            ring.advance_read()
        for version in (7, 8):
            ring.signal_write_done(version=version)
        assert ring.available() == 2
        seen = []
        for version in (7, 8):
            assert ring.wait_for_data(5) and ring.read_info().version == version
            seen.append(ring.read_numpy_views()["obs"].item())
            ring.advance_read()
        assert sorted(seen) == [1, 2], "what earlier rollouts left in the two slots"
        with pytest.raises(rollway.InvalidArgument, match="version"):
            ring.signal_write_done(version=-1)
        assert ring.available() == 0


def test_publishing_a_slot_as_it_lies_waits_for_one_when_the_writer_blocks():
    with rollway.RolloutRingBuffer(1, 1, 1, 1, num_slots=2, on_full="block") as ring:
        published = []

        def publish():
            for number in range(3):
                ring.signal_write_done()
                published.append(number)

        writer = threading.Thread(target=publish)
        writer.start()
        until(lambda: ring.stats()["blocked"] > 0)
        assert published == [0, 1]
        assert ring.wait_for_data(5)
        ring.advance_read()
        writer.join()
        assert published == [0, 1, 2] and ring.available() == 2


def test_attaching_takes_the_names_of_all_fields_and_the_number_of_slots_from_the_ring():
    with rollway.RolloutRingBuffer(2, 3, 4, 1, num_slots=6) as ring:
        with rollway.RolloutRingBuffer.attach(ring.name, 2, 3, 4, 1) as other:
            assert other.num_slots == 6
        with pytest.raises(rollway.errors.GeometryMismatch, match="num_slots is 4 here but 6"):
            rollway.RolloutRingBuffer.attach(ring.name, 2, 3, 4, 1, num_slots=4)


def test_statistics_that_are_no_pair_are_refused_in_words():
    with rollway.SharedObsNormStats() as stats:
        for wrong in ((np.zeros(2),), None, np.zeros(2)):
            with pytest.raises(rollway.InvalidArgument, match=r"put takes a pair, \(mean, std\)"):
                stats.put(wrong)
