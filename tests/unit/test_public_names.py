"""What `import rollway` offers: about fifty names, and those that moved into folders, with a warning."""

import inspect
import subprocess
import sys
import warnings
from importlib import import_module

import pytest

import rollway
from rollway import errors

SEEDS = {
    "AsyncRunner": ["env_name", "env_cfg_overrides", "rl_cfg", "device", "collector_device", "sim_backend", "num_envs"],
    "ReplayBuffer": [
        "capacity",
        "obs_dim",
        "action_dim",
        "device",
        "defer_gpu",
        "critic_dim",
        "packed_cpu_storage",
    ],
    "RolloutRingBuffer": [
        "num_envs",
        "num_steps",
        "obs_dim",
        "action_dim",
        "critic_dim",
        "num_slots",
        "create",
        "shm_name_prefix",
    ],
    "Server": ["example", "batch_size", "transport", "num_buffers"],
    "SharedObsNormStats": ["ctx"],
    "SharedWeightSync": ["param_shapes", "create", "shm_name", "lock"],
    "TcpClient": ["host", "port", "data_sample", "max_inflight_msgs"],
    "TcpTransport": ["port"],
    "TrajectoryAccumulator": [],
    "ZeroCopySHMBuffer": ["name", "size", "entry_size", "instance_id_len", "metadata_len", "create"],
    "shared_memory_rl_pipeline": ["num_envs", "obs_dim", "step_data"],
    "ConnectionClosedError": [],
    "HistSnapshot": [],
    "Sample": [],
    "SampleInfo": [],
}
"""The names and arguments of the projects that Rollway takes the place of."""

MOVED = [(folder, name) for folder, names in rollway._MOVED.items() for name in names.split()]
PARENTS = [errors.SegmentError, errors.PeerError, errors.NetworkError, errors.CapacityError, errors.SchemaError]


@pytest.mark.parametrize("name", SEEDS)
def test_a_name_of_another_project_is_a_real_member_with_its_arguments(name):
    assert name in rollway.__all__ and name in vars(rollway)
    if SEEDS[name]:
        signature = inspect.signature(vars(rollway)[name])
        own = [argument for argument in signature.parameters if argument != "self"]
        assert [argument for argument in own if argument in SEEDS[name]] == SEEDS[name]


def test_the_top_level_has_about_fifty_names():
    assert len(rollway.__all__) <= 55 and len(set(rollway.__all__)) == len(rollway.__all__)
    assert not {name for _, name in MOVED} & set(rollway.__all__)


@pytest.mark.parametrize(("folder", "name"), MOVED)
def test_a_name_that_moved_is_given_with_a_warning_that_says_where_it_is(folder, name):
    with pytest.warns(DeprecationWarning, match=rf"^rollway\.{name} is deprecated: use {folder}\.{name}$") as seen:
        value = getattr(rollway, name)
    assert value is getattr(import_module(folder), name) and seen[0].filename == __file__
    assert isinstance(value, type) and value.__name__ == name


def test_importing_a_name_that_moved_warns_at_the_import():
    with pytest.warns(DeprecationWarning) as seen:
        from rollway import SegmentInUse
    assert SegmentInUse is errors.SegmentInUse and {warning.filename for warning in seen} == {__file__}


def test_a_name_that_never_was_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'SegmentInUze'"):
        rollway.SegmentInUze


def test_importing_everything_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec("from rollway import *", {})


def test_every_error_has_at_most_one_of_the_five_parents():
    tree = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.RollwayError)]
    of = {error: [parent for parent in PARENTS if issubclass(error, parent)] for error in tree}
    assert all(len(parents) <= 1 for parents in of.values())
    without = {error.__name__ for error, parents in of.items() if not parents}
    assert without == {
        "RollwayError",
        "DeviceFailed",
        "WaitTimeout",
        "BufferEmpty",
        "NothingPublished",
        "InvalidArgument",
        "UnusableEnvironment",
        "MissingExtra",
        "SystemCallFailed",
    }
    assert all(parent.__name__ in rollway.__all__ for parent in PARENTS)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.ConnectionClosedError, ConnectionError),
        (errors.PeerDied, ConnectionError),
        (errors.CollectorError, RuntimeError),
        (errors.DeviceFailed, RuntimeError),
        (errors.WaitTimeout, TimeoutError),
        (errors.LearnerUnreachable, ConnectionError),
        (errors.ProtocolMismatch, ConnectionError),
        (errors.TlsFailed, ConnectionError),
        (errors.NotAuthorized, PermissionError),
        (errors.TokenRequired, ValueError),
        (errors.AddressUnavailable, OSError),
        (errors.NotInThisProcess, RuntimeError),
        (errors.BufferEmpty, ValueError),
        (errors.SchemaMismatch, ValueError),
        (errors.GeometryMismatch, ValueError),
        (errors.InvalidArgument, ValueError),
        (errors.SegmentNotFound, FileNotFoundError),
        (errors.SegmentExists, FileExistsError),
        (errors.SegmentInUse, errors.SegmentExists),
        (errors.SegmentNotOurs, PermissionError),
        (errors.SegmentDamaged, ValueError),
        (errors.LayoutMismatch, errors.SegmentDamaged),
        (errors.UnusableEnvironment, ValueError),
        (errors.MissingExtra, ImportError),
        (errors.RecordTooLarge, ValueError),
        (errors.NothingPublished, LookupError),
        (errors.NotEnoughMemory, MemoryError),
        (errors.EnvError, RuntimeError),
        (errors.EnvHung, TimeoutError),
        (errors.HugePagesUnavailable, OSError),
        (errors.SystemCallFailed, OSError),
    ],
)
def test_an_error_is_also_the_builtin_that_people_catch(error, builtin):
    assert issubclass(error, builtin) and issubclass(error, errors.RollwayError)


def test_importing_rollway_imports_no_large_package():
    large = ["asyncio", "importlib.metadata", "gymnasium", "torch", "jax"]
    code = f"import sys, rollway; print([name for name in {large} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
