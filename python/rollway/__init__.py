"""Rollway: the data plane for reinforcement learning.

Experience goes from many worker processes to the learner, through shared memory on one machine and over TCP between
machines: no serialisation, no lost sample.
"""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING
from warnings import warn as _warn


def _refuse_a_sub_interpreter() -> None:
    """Raises ImportError in a sub-interpreter.

    The native modules below (optree, numpy, our own) keep state for the whole process, and belong to the first
    interpreter that imported them. In another one, optree waits for ever for a lock.
    """
    for name in ("_interpreters", "_xxsubinterpreters"):  # the name from Python 3.13 on, and the name before
        try:
            interpreters = _import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError(
                "rollway cannot be imported in a sub-interpreter: its native modules work in the main interpreter "
                "only. Import it there, or start a process of its own (multiprocessing, subprocess)"
            )
        return


_refuse_a_sub_interpreter()  # before the imports below, which would hang

from rollway.compat import ZeroCopySHMBuffer, shared_memory_rl_pipeline
from rollway.errors import (
    CapacityError,
    CollectorError,
    ConnectionClosedError,
    EnvError,
    InvalidArgument,
    LearnerUnreachable,
    NetworkError,
    NotAuthorized,
    NotEnoughMemory,
    PeerDied,
    PeerError,
    RingFull,
    RollwayError,
    SchemaError,
    SchemaMismatch,
    SegmentError,
    SegmentNotFound,
    WaitTimeout,
)
from rollway.machine import gc, segments
from rollway.records import (
    GroupAssembler,
    RecordKey,
    RecordSchema,
    RecordServer,
    ShmRecordClient,
    TcpRecordClient,
    pack,
    pad,
    token_batches,
)
from rollway.replay import ReplayBuffer, ReplayPipeline
from rollway.ring import (
    HistSnapshot,
    RolloutRingBuffer,
    Sample,
    SampleInfo,
    Server,
    ShmClient,
    TcpClient,
    TrajectoryAccumulator,
)
from rollway.runner import AsyncRunner, RestartPolicy
from rollway.transport import ShmTransport, TcpTransport, Tls
from rollway.vector_env import make_vec
from rollway.weights import RunningObsStats, SharedObsNormStats, SharedWeightSync, TcpWeights

__version__ = _version("rollway")

__all__ = [
    "AsyncRunner",
    "CapacityError",
    "CollectorError",
    "ConnectionClosedError",
    "EnvError",
    "GroupAssembler",
    "HistSnapshot",
    "InvalidArgument",
    "LearnerUnreachable",
    "NetworkError",
    "NotAuthorized",
    "NotEnoughMemory",
    "PeerDied",
    "PeerError",
    "RecordKey",
    "RecordSchema",
    "RecordServer",
    "ReplayBuffer",
    "ReplayPipeline",
    "RestartPolicy",
    "RingFull",
    "RolloutRingBuffer",
    "RollwayError",
    "RunningObsStats",
    "Sample",
    "SampleInfo",
    "SchemaError",
    "SchemaMismatch",
    "SegmentError",
    "SegmentNotFound",
    "Server",
    "SharedObsNormStats",
    "SharedWeightSync",
    "ShmClient",
    "ShmRecordClient",
    "ShmTransport",
    "TcpClient",
    "TcpRecordClient",
    "TcpTransport",
    "TcpWeights",
    "Tls",
    "TrajectoryAccumulator",
    "WaitTimeout",
    "ZeroCopySHMBuffer",
    "__version__",
    "gc",
    "make_vec",
    "pack",
    "pad",
    "segments",
    "shared_memory_rl_pipeline",
    "token_batches",
]

# Names that were members of `rollway`, by the folder that has them now.
_MOVED = {
    "errors": (
        "AddressUnavailable BatchesHeld BufferEmpty EnvDied EnvHung EnvRaised GeometryMismatch "
        "HugePagesUnavailable LayoutMismatch MissingExtra NoLaneLeft NoSeatLeft NotInThisProcess NothingPublished "
        "ProtocolMismatch RecordTooLarge RowsOverrun SegmentDamaged SegmentExists SegmentInUse SegmentNotOurs "
        "SystemCallFailed TlsFailed TokenRequired UnusableEnvironment"
    ),
    "machine": "SegmentInfo",
    "records": "Group GroupKey PackedBatch PaddedBatch Record RecordSlot",
    "ring": "RolloutInfo Slot",
    "runner": "Collector CollectorSupervisor StopFlag",
    "transport": "Endpoint Intake RecordIntake RecordTransport Transport WeightOutlet",
    "vector_env": "FaultPolicy",
}

if not _TYPE_CHECKING:  # a type checker takes a module's `__getattr__` for a promise that every name exists

    def __getattr__(name: str) -> object:
        """Gives a name that moved into a folder, with a `DeprecationWarning` that says where it is."""
        folder = next((folder for folder, names in _MOVED.items() if name in names.split()), None)
        if folder is None:
            raise AttributeError(f"module 'rollway' has no attribute {name!r}")
        _warn(f"rollway.{name} is deprecated: use rollway.{folder}.{name}", DeprecationWarning, stacklevel=2)
        return getattr(_import_module(f"rollway.{folder}"), name)
