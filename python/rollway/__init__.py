"""Rollway: the data plane for reinforcement learning.

Experience goes from many worker processes to the learner, through shared memory on one machine and over TCP between
machines: no serialisation, no lost sample.
"""

import typing as _typing
from importlib import import_module as _import_module


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

from rollway._core import __version__
from rollway.compat import (
    AsyncRunner,
    ReplayBuffer,
    RolloutRingBuffer,
    SharedObsNormStats,
    SharedWeightSync,
    ZeroCopySHMBuffer,
    shared_memory_rl_pipeline,
)
from rollway.deprecation import moved_names as _moved_names
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
from rollway.replay import ReplayPipeline
from rollway.ring import (
    HistSnapshot,
    Sample,
    SampleInfo,
    Server,
    ShmClient,
    TcpClient,
    TrajectoryAccumulator,
)
from rollway.runner import RestartPolicy
from rollway.transport import ShmTransport, TcpTransport, Tls
from rollway.vector_env import make_vec
from rollway.weights import RunningObsStats, TcpWeights

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
    "rollway.errors": (
        "AddressUnavailable BatchesHeld BufferEmpty EnvDied EnvHung EnvRaised GeometryMismatch "
        "HugePagesUnavailable LayoutMismatch MissingExtra NoLaneLeft NoSeatLeft NotInThisProcess NothingPublished "
        "ProtocolMismatch RecordTooLarge RowsOverrun SegmentDamaged SegmentExists SegmentInUse SegmentNotOurs "
        "SystemCallFailed TlsFailed TokenRequired UnusableEnvironment"
    ),
    "rollway.machine": "SegmentInfo",
    "rollway.records": "Group GroupKey PackedBatch PaddedBatch Record RecordSlot",
    "rollway.ring": "RolloutInfo Slot",
    "rollway.runner": "Collector CollectorSupervisor StopFlag",
    "rollway.transport": "Endpoint Intake RecordIntake RecordTransport Transport WeightOutlet",
    "rollway.vector_env": "FaultPolicy",
}

if not _typing.TYPE_CHECKING:
    __getattr__ = _moved_names(__name__, _MOVED)
