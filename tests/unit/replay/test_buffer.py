"""ReplayBuffer in one process: what goes in comes out, whole; what does not fit is refused and changes nothing."""

import copy
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollway
from rollway import ConnectionClosedError, InvalidArgument, ReplayBuffer, SchemaMismatch
from rollway.errors import BufferEmpty, SegmentDamaged
from tests.support.segments import overwrite

OBS, ACT = 3, 2


def transitions(values, dtype=np.float32):
    """Every number of transition i is values[i], but for next_obs, which is one more."""
    column = np.asarray(values, dtype)
    obs = np.repeat(column[:, None], OBS, 1)
    return obs, obs[:, :ACT].copy(), column, obs + 1, column % 2, np.zeros(len(column), dtype)


@pytest.fixture
def buffer():
    with ReplayBuffer(100, OBS, ACT, "cpu", seed=1) as made:
        yield made


def seen(buffer, batch_size=2000):
    """The values in the buffer, each sampled row checked."""
    batch = {name: np.asarray(tensor) for name, tensor in buffer.sample(batch_size).items()}
    values = batch["rewards"]
    for name, expected in zip(("obs", "actions", "rewards", "next_obs", "dones"), transitions(values), strict=False):
        assert np.array_equal(batch[name], expected), name
    return sorted(set(values.tolist()))


def test_what_was_added_is_sampled_field_by_field(buffer, torch):
    buffer.add(*transitions(range(10)))
    assert seen(buffer) == list(range(10))
    batch = buffer.sample(7)
    shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in batch.items()}
    assert shapes == {
        "obs": ((7, OBS), torch.float32),
        "actions": ((7, ACT), torch.float32),
        "rewards": ((7,), torch.float32),
        "next_obs": ((7, OBS), torch.float32),
        "dones": ((7,), torch.float32),
        "truncated": ((7,), torch.float32),
    }


def test_a_full_buffer_overwrites_the_oldest(buffer):
    for first in range(0, 250, 50):
        buffer.add(*transitions(range(first, first + 50)))
    assert len(buffer) == 100 and seen(buffer) == list(range(150, 250))
    assert buffer.size.tolist() == [100] and buffer.ptr.tolist() == [250]
    stats = buffer.stats()
    assert (stats["added"], stats["overwritten"], stats["rows"], stats["writing"]) == (250, 150, 100, 0)


def test_more_rows_than_it_holds_leave_the_last_of_them(buffer):
    buffer.add(*transitions(range(1234)))
    assert seen(buffer) == list(range(1134, 1234))


def test_terminal_observations_replace_those_of_the_next_episode(buffer, torch):
    mask = np.array([False, True, False])
    obs, actions, rewards, next_obs, dones, truncated = transitions([1, 2, 3])
    buffer.add(obs, actions, rewards, next_obs, dones, truncated, mask, next_obs + 100)
    batch = buffer.sample(100)
    assert set(map(tuple, torch.stack([batch["rewards"], batch["next_obs"][:, 0]], 1).tolist())) == {
        (1, 2),
        (2, 103),
        (3, 4),
    }


def test_a_mask_of_torch_and_terminal_critics_work_too(torch):
    with ReplayBuffer(10, OBS, ACT, "cpu", critic_dim=2) as buffer:
        obs, actions, rewards, next_obs, dones, truncated = map(torch.from_numpy, transitions([1, 2]))
        critic = torch.ones(2, 2)
        mask = torch.tensor([0.0, 1.0])
        buffer.add(
            obs, actions, rewards, next_obs, dones, truncated, mask, next_obs * 10,
            critic=critic, next_critic=critic * 2, terminal_next_critic=critic * 20,
        )  # fmt: skip
        batch = buffer.sample(50)
        rows = set(
            zip(
                batch["rewards"].tolist(),
                batch["next_obs"][:, 0].tolist(),
                batch["next_critic"][:, 1].tolist(),
                strict=True,
            )
        )
        assert rows == {(1.0, 2.0, 2.0), (2.0, 30.0, 20.0)}
        assert batch["critic"].eq(1).all()
        with pytest.raises(SchemaMismatch, match="missing here: critic, next_critic"):
            buffer.add(obs, actions, rewards, next_obs, dones, truncated)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.uint8])
def test_other_real_dtypes_are_converted(buffer, dtype):
    buffer.add(*transitions(range(5), dtype))
    assert seen(buffer) == list(range(5))


def test_lists_bools_tensors_and_strided_arrays_are_converted(buffer, torch):
    obs, actions, rewards, next_obs, _, truncated = transitions(range(6))
    wide = np.zeros((6, 2 * OBS), np.float32)
    wide[:, ::2] = obs
    fortran = np.asfortranarray(next_obs)
    buffer.add(
        wide[:, ::2], torch.from_numpy(actions).double(), rewards.tolist(), fortran, np.arange(6) % 2 == 1, truncated
    )
    every_second = [column[::2] for column in transitions(range(6, 12))]
    buffer.add(*every_second)
    reversed_rows = [column[::-1] for column in transitions(range(12, 15))]
    buffer.add(*reversed_rows)
    buffer.add(*(torch.from_numpy(column).bfloat16().requires_grad_() for column in transitions([15])))
    assert seen(buffer) == [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 13, 14, 15]


def test_what_does_not_fit_is_refused_and_changes_nothing(buffer):
    good = transitions([1, 2])
    obs, actions, rewards, next_obs = good[:4]
    for bad, words in [
        ((obs[:, :2], *good[1:]), r"'obs' is float32\[2, 2\]; it must be float32\[n,3\]"),
        ((obs[0], *good[1:]), r"Add a first dimension"),
        ((obs, actions, rewards[:1], *good[3:]), "different numbers of transitions"),
        ((obs, actions, ["a", "b"], *good[3:]), "'rewards' is <U1"),
        ((obs, actions, rewards * 1j, *good[3:]), "'rewards' is complex64"),
        ((obs, actions, object(), *good[3:]), "'rewards'"),
    ]:
        with pytest.raises(SchemaMismatch, match=words):
            buffer.add(*bad)
    with pytest.raises(SchemaMismatch, match="different numbers"):
        buffer.add(*good, np.array([True]), next_obs)
    with pytest.raises(SchemaMismatch, match="'terminal_next_obs' is"):
        buffer.add(*good, np.array([True, False]), next_obs[:, :1])
    with pytest.raises(SchemaMismatch, match="unknown: step"):
        buffer.add(*good, step=np.zeros(2))
    with pytest.raises(SchemaMismatch, match="unknown: critic"):
        buffer.add(*good, critic=obs)
    assert len(buffer) == 0 and buffer.ptr.tolist() == [0]


def test_no_rows_are_no_rows(buffer):
    buffer.add(*transitions([]))
    assert len(buffer) == 0


def test_bad_sizes_are_refused(buffer):
    with pytest.raises(BufferEmpty, match="there is no whole row"):
        buffer.sample(1)
    buffer.add(*transitions([1]))
    for bad in (0, -1, 1.5, "x", None):
        with pytest.raises(InvalidArgument, match="batch_size"):
            buffer.sample(bad)
    for arguments in ((0, 1, 1), (10, 0, 1), (10, 1, -1)):
        with pytest.raises(InvalidArgument):
            ReplayBuffer(*arguments, "cpu")
    with pytest.raises(InvalidArgument, match="seed"):
        ReplayBuffer(1, 1, 1, "cpu", seed=-1)
    with pytest.raises(SchemaMismatch, match="all have one size"):
        ReplayBuffer(1, 1, 1, "cpu", fields={"tokens": "int32[*]"})
    with pytest.raises(SchemaMismatch, match="argument of add"):
        ReplayBuffer(1, 1, 1, "cpu", fields={"terminal_mask": "bool[]"})


def test_the_same_seed_and_content_give_the_same_batches(buffer, torch):
    with ReplayBuffer(100, OBS, ACT, "cpu", seed=1) as other:
        for one in (buffer, other):
            one.add(*transitions(range(40)))
        first, second = buffer.sample(64)["rewards"].clone(), buffer.sample(64)["rewards"]
        assert torch.equal(first, other.sample(64)["rewards"]) and torch.equal(second, other.sample(64)["rewards"])
        assert not torch.equal(first, second)
        buffer.reseed(1)
        assert torch.equal(first, buffer.sample(64)["rewards"])
        other.reseed(None)
        assert not torch.equal(first, other.sample(64)["rewards"])


@pytest.mark.parametrize("device", ["cpu", "cpu:0", "torch.device"])
def test_a_batch_stays_as_it_is_however_the_cpu_is_called(device, torch):
    device = torch.device("cpu") if device == "torch.device" else device
    with ReplayBuffer(4, OBS, ACT, device) as buffer, ReplayBuffer.attach(buffer.name, device) as other:
        buffer.add(*transitions([1] * 4))
        batches = [one.sample(2) for one in (buffer, other)]
        buffer.add(*transitions([2] * 4))
        assert all(one.sample(2)["rewards"].tolist() == [2, 2] for one in (buffer, other))
        assert all(batch["rewards"].tolist() == [1, 1] for batch in batches)


def test_out_is_filled_in_place(buffer, torch):
    buffer.add(*transitions(range(10)))
    batch = buffer.sample(16)
    address = batch["obs"].data_ptr()
    assert buffer.sample(16, out=batch) is batch and batch["obs"].data_ptr() == address
    assert torch.equal(batch["obs"][:, 0] + 1, batch["next_obs"][:, 2])
    own = {name: np.zeros(tensor.shape, np.float32) for name, tensor in batch.items()}
    buffer.sample(16, out=own)
    assert np.array_equal(own["obs"][:, 0], own["rewards"])
    tensors = {name: torch.zeros(16, *tensor.shape[1:]) for name, tensor in batch.items()}
    buffer.sample(16, out=tensors)
    assert torch.equal(tensors["obs"][:, 0], tensors["rewards"])
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for bad in (
        {name: own[name] for name in list(own)[1:]},
        own | {"obs": np.zeros((15, OBS), np.float32)},
        own | {"obs": np.zeros((16, OBS))},
        own | {"obs": np.zeros((16, 2 * OBS), np.float32)[:, ::2]},
    ):
        with pytest.raises(InvalidArgument, match="out"):
            buffer.sample(16, out=bad)
    with pytest.raises(InvalidArgument, match="out"):
        buffer.sample(17, out=tensors)
    assert all(torch.equal(before[name], tensors[name]) for name in before)


def test_out_is_filled_also_where_the_caller_has_put_other_arrays(buffer, torch):
    buffer.add(*transitions([1] * 100))
    replaced, grown, grad = buffer.sample(4), buffer.sample(4), buffer.sample(4)
    replaced["obs"] = replaced["obs"] * 10
    grown["weights"] = torch.ones(4)
    grad["obs"] = grad["obs"].clone().requires_grad_()
    copies = [made(buffer.sample(4)) for made in (copy.deepcopy, copy.copy, lambda it: pickle.loads(pickle.dumps(it)))]
    buffer.add(*transitions([2] * 100))
    for batch in (replaced, grown, grad, *copies):
        assert buffer.sample(4, out=batch) is batch
        assert {batch[name].unique().item() for name in ("obs", "actions", "rewards")} == {2}
        assert batch["next_obs"].unique().tolist() == [3]
    for broken in ({"obs": np.zeros((4, OBS))}, {"obs": torch.zeros(3, OBS)}, {"obs": None}):
        replaced.update(broken)
        with pytest.raises(InvalidArgument, match="obs"):
            buffer.sample(4, out=replaced)


def test_a_batch_of_another_buffer_is_not_filled_as_if_it_were_ones_own(buffer, torch):
    buffer.add(*transitions([1]))
    with ReplayBuffer(10, OBS - 1, ACT + 2, "cpu") as other, ReplayBuffer.attach(buffer.name) as same:
        numbers = np.zeros((1, 8), np.float32)
        other.add(numbers[:, : OBS - 1], numbers[:, : ACT + 2], [0.0], numbers[:, : OBS - 1], [0.0], [0.0])
        assert other.layout.row_bytes == buffer.layout.row_bytes
        with pytest.raises(InvalidArgument, match="obs"):
            buffer.sample(2, out=other.sample(2))
        assert buffer.sample(2, out=same.sample(2))["next_obs"].unique().tolist() == [2]


def test_fields_of_any_dtype_and_shape(torch):
    fields = {"obs": "uint8[2,4]", "next_obs": "uint8[2,4]", "step": "int64[]", "half": "bfloat16[3]", "flag": "bool[]"}
    with ReplayBuffer(10, 8, 1, "cpu", fields=fields) as buffer:
        obs = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
        zeros = np.zeros(3, np.float32)
        half = torch.tensor([[1.5, 2.5, 3.5]] * 3, dtype=torch.bfloat16)
        buffer.add(obs, zeros[:, None], zeros, obs, zeros, zeros, step=np.arange(3) + 2**40, half=half, flag=[True] * 3)
        with pytest.raises(SchemaMismatch, match="does not become int64"):
            buffer.add(obs, zeros[:, None], zeros, obs, zeros, zeros, step=zeros, half=half, flag=[True] * 3)
        batch = buffer.sample(30)
        assert torch.equal(batch["obs"], torch.from_numpy(obs)[batch["step"] - 2**40])
        assert batch["half"].dtype == torch.bfloat16 and batch["half"][0].tolist() == [1.5, 2.5, 3.5]
        assert batch["flag"].dtype == torch.bool and batch["flag"].all()
        own = {name: torch.zeros_like(tensor).contiguous() for name, tensor in batch.items()}
        assert torch.equal(buffer.sample(30, out=own)["half"], batch["half"])


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    "column",
    [
        {"step": [2**31]},
        {"step": np.array([2**31])},
        {"dist": [1e300]},
        {"dist": np.array([1e300])},
        {"half": [70_000]},
    ],
)
def test_a_number_that_its_field_cannot_hold_is_refused_not_wrapped(column):
    fields = {"step": "int32[]", "dist": "float32[]", "half": "float16[]"}
    column = {name: np.array(value) if name == "half" else value for name, value in column.items()}
    with ReplayBuffer(10, OBS, ACT, "cpu", fields=fields) as buffer:
        buffer.add(*transitions([1]), step=np.array([2**31 - 1]), dist=np.array([np.inf]), half=np.array([np.nan]))
        with pytest.raises(SchemaMismatch, match=f"'{next(iter(column))}' has values of (int|float)64 that do not fit"):
            buffer.add(*transitions([2]), **{"step": np.array([3]), "dist": np.zeros(1), "half": np.zeros(1), **column})
        assert seen(buffer) == [1] and buffer.sample(1)["step"].item() == 2**31 - 1


@pytest.mark.parametrize("warnings_are", ["ignore", "error"])
def test_an_infinity_passes_and_what_would_become_one_does_not(buffer, warnings_are):
    obs, actions, *rest = (np.asarray(column, np.float64) for column in transitions([7, 8]))
    obs[0, 0], obs[0, 1], obs[1, 0] = np.inf, np.nan, 3e38
    with warnings.catch_warnings():
        warnings.simplefilter(warnings_are)
        buffer.add(obs, actions, *rest)
        obs[1, 1] = -4e38
        with pytest.raises(SchemaMismatch, match="'obs' has values of float64 that do not fit float32"):
            buffer.add(obs, actions, *rest)
    assert len(buffer) == 2 and np.isposinf(np.asarray(buffer.sample(50)["obs"])).any()


def test_a_pickled_buffer_is_the_same_memory(name):
    with ReplayBuffer(10, OBS, ACT, "cpu", name=name) as buffer:
        with pickle.loads(pickle.dumps(buffer)) as twin, ReplayBuffer.attach(name) as other:
            twin.add(*transitions([5]))
            assert seen(buffer) == seen(other) == [5] and twin.capacity == 10 and twin.schema.text == buffer.schema.text
        buffer.add(*transitions([6]))
        assert seen(copy.copy(buffer)) == [5, 6]


def test_a_name_that_is_taken_is_resumed_or_refused(name):
    with ReplayBuffer(10, OBS, ACT, "cpu", name=name) as buffer:
        buffer.add(*transitions([1]))
        with ReplayBuffer(10, OBS, ACT, "cpu", name=name) as again:
            assert again.resumed and not buffer.resumed and seen(again) == [1]
        assert len(buffer) == 1, "the first one is still there"
        with pytest.raises(rollway.errors.SegmentExists):
            ReplayBuffer(10, OBS, ACT, "cpu", name=name, if_exists="error")
        with pytest.raises(rollway.errors.GeometryMismatch, match="capacity = 10"):
            ReplayBuffer(11, OBS, ACT, "cpu", name=name)
        with pytest.raises(SchemaMismatch, match="obs"):
            ReplayBuffer(10, OBS + 1, ACT, "cpu", name=name)
    with pytest.raises(rollway.SegmentNotFound):
        ReplayBuffer.attach(name, connect_timeout_s=0)


def test_closing_says_so_to_everybody(name):
    buffer = ReplayBuffer(10, OBS, ACT, "cpu", name=name)
    worker = ReplayBuffer.attach(name)
    worker.add(*transitions([1]))
    buffer.close()
    buffer.close()
    with pytest.raises(ConnectionClosedError, match="this handle on"):
        buffer.add(*transitions([1]))
    with pytest.raises(ConnectionClosedError, match="its last learner has left"):
        worker.add(*transitions([1]))
    assert "closed" in repr(buffer) and "1 of 10" in repr(worker)
    worker.close()


def test_cleanup_takes_the_name_away_from_a_worker_too(name):
    with ReplayBuffer(10, OBS, ACT, "cpu", name=name):
        ReplayBuffer.attach(name).cleanup()
        assert not [info for info in rollway.segments() if info.name == name]


def test_a_buffer_that_nobody_closes_leaves_nothing_behind():
    code = "import rollway, sys; b = rollway.ReplayBuffer(10, 1, 1, 'cpu'); print(b.name)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() not in {info.name for info in rollway.segments()}


def test_without_torch_it_gives_numpy_arrays():
    code = """
    import sys
    sys.modules["torch"] = None
    import importlib.util, numpy as np
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
    import rollway
    with rollway.ReplayBuffer(10, 2, 1, "cpu") as buffer:
        ones = np.ones((3, 2), np.float32)
        buffer.add(ones, ones[:, :1], ones[:, 0], ones, ones[:, 0], ones[:, 0])
        batch = buffer.sample(4)
        assert type(batch["obs"]) is np.ndarray and batch["obs"].sum() == 8
        with rollway.ReplayPipeline(buffer, sample_count=4) as pipeline:
            assert pipeline.next()["obs"].sum() == 8
        try:
            rollway.ReplayBuffer(10, 2, 1, "cuda")
        except rollway.InvalidArgument as error:
            print(error)
    """
    import textwrap

    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "needs torch" in result.stdout


def test_waiting_for_rows(buffer):
    assert not buffer.wait_for(1, timeout=0.01)
    buffer.add(*transitions([1, 2]))
    assert buffer.wait_for(2, timeout=10)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.lists(st.integers(0, 20), max_size=8), st.integers(0, 2**64 - 1))
def test_any_sequence_of_adds_keeps_the_last_ones(capacity, adds, seed):
    with ReplayBuffer(capacity, OBS, ACT, "cpu", seed=seed) as buffer:
        total = 0
        for count in adds:
            buffer.add(*transitions(range(total, total + count)))
            total += count
            assert len(buffer) == min(total, capacity)
            if total:
                assert set(seen(buffer, 50)) <= set(range(max(0, total - capacity), total))


@pytest.mark.parametrize("dtype", ["V3", "float8_e5m2"])
def test_a_field_of_any_dtype_is_attached_to_by_name(dtype):
    with ReplayBuffer(4, OBS, ACT, "cpu", fields={"x": f"{dtype}[2]"}) as buffer:
        with ReplayBuffer.attach(buffer.name, "cpu") as other:
            assert other.schema["x"] == buffer.schema["x"]


def test_attaching_to_a_schema_that_nobody_writes_so_is_damage(name):
    with ReplayBuffer(10, 2, 1, name=name):
        overwrite(name, b'"obs","<f4"', b'"obs","=f4"')
        with pytest.raises(SegmentDamaged, match="a dtype is not known"):
            ReplayBuffer.attach(name)


@pytest.mark.parametrize("added", [0, 5, 8, 13])
def test_the_contents_are_all_transitions_with_the_oldest_first(added, name):
    fields = {"obs": "uint8[2,2]", "step": "int64[]"}
    with (
        ReplayBuffer(8, obs_dim=4, action_dim=1, fields=fields, name=name) as buffer,
        ReplayBuffer.attach(name) as other,
    ):
        for step in range(added):
            images, one = np.full((1, 2, 2), step, np.uint8), np.full(1, step, np.float32)
            other.add(images, one[:, None], one, one.repeat(4)[None], one, one, step=[step])
        for handle in (buffer, other):
            found = handle.contents()
            steps = list(range(max(0, added - 8), added))
            assert found["step"].tolist() == found["rewards"].tolist() == steps
            assert found["obs"].dtype == np.uint8 and found["obs"][:, 1, 1].tolist() == steps
    with pytest.raises(rollway.ConnectionClosedError):
        buffer.contents()
