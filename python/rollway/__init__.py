"""Rollway: the data plane for reinforcement learning.

Experience goes from many worker processes to the learner, through shared memory on one machine and over TCP between
machines: no serialisation, no lost sample.
"""

from importlib import import_module as _import_module
from importlib.metadata import version as _version


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
    AddressUnavailable,
    BatchesHeld,
    BufferEmpty,
    CollectorError,
    ConnectionClosedError,
    EnvDied,
    EnvError,
    EnvHung,
    EnvRaised,
    GeometryMismatch,
    HugePagesUnavailable,
    InvalidArgument,
    LayoutMismatch,
    LearnerUnreachable,
    MissingExtra,
    NoLaneLeft,
    NoSeatLeft,
    NotAuthorized,
    NotEnoughMemory,
    NothingPublished,
    NotInThisProcess,
    PeerDied,
    ProtocolMismatch,
    RecordTooLarge,
    RingFull,
    RollwayError,
    RowsOverrun,
    SchemaMismatch,
    SegmentDamaged,
    SegmentExists,
    SegmentInUse,
    SegmentNotFound,
    SegmentNotOurs,
    SystemCallFailed,
    TlsFailed,
    TokenRequired,
    UnusableEnvironment,
    WaitTimeout,
)
from rollway.machine import SegmentInfo, gc, segments
from rollway.records import (
    Group,
    GroupAssembler,
    GroupKey,
    PackedBatch,
    PaddedBatch,
    Record,
    RecordKey,
    RecordSchema,
    RecordServer,
    RecordSlot,
    ShmRecordClient,
    TcpRecordClient,
    pack,
    pad,
    token_batches,
)
from rollway.replay import ReplayBuffer, ReplayPipeline
from rollway.ring import (
    HistSnapshot,
    RolloutInfo,
    RolloutRingBuffer,
    Sample,
    SampleInfo,
    Server,
    ShmClient,
    Slot,
    TcpClient,
    TrajectoryAccumulator,
)
from rollway.runner import AsyncRunner, Collector, CollectorSupervisor, RestartPolicy, StopFlag
from rollway.transport import (
    Endpoint,
    Intake,
    RecordIntake,
    RecordTransport,
    ShmTransport,
    TcpTransport,
    Tls,
    Transport,
    WeightOutlet,
)
from rollway.vector_env import FaultPolicy, make_vec
from rollway.weights import RunningObsStats, SharedObsNormStats, SharedWeightSync, TcpWeights

__version__ = _version("rollway")

__all__ = [
    "AddressUnavailable",
    "AsyncRunner",
    "BatchesHeld",
    "BufferEmpty",
    "Collector",
    "CollectorError",
    "CollectorSupervisor",
    "ConnectionClosedError",
    "Endpoint",
    "EnvDied",
    "EnvError",
    "EnvHung",
    "EnvRaised",
    "FaultPolicy",
    "GeometryMismatch",
    "Group",
    "GroupAssembler",
    "GroupKey",
    "HistSnapshot",
    "HugePagesUnavailable",
    "Intake",
    "InvalidArgument",
    "LayoutMismatch",
    "LearnerUnreachable",
    "MissingExtra",
    "NoLaneLeft",
    "NoSeatLeft",
    "NotAuthorized",
    "NotEnoughMemory",
    "NotInThisProcess",
    "NothingPublished",
    "PackedBatch",
    "PaddedBatch",
    "PeerDied",
    "ProtocolMismatch",
    "Record",
    "RecordIntake",
    "RecordKey",
    "RecordSchema",
    "RecordServer",
    "RecordSlot",
    "RecordTooLarge",
    "RecordTransport",
    "ReplayBuffer",
    "ReplayPipeline",
    "RestartPolicy",
    "RingFull",
    "RolloutInfo",
    "RolloutRingBuffer",
    "RollwayError",
    "RowsOverrun",
    "RunningObsStats",
    "Sample",
    "SampleInfo",
    "SchemaMismatch",
    "SegmentDamaged",
    "SegmentExists",
    "SegmentInUse",
    "SegmentInfo",
    "SegmentNotFound",
    "SegmentNotOurs",
    "Server",
    "SharedObsNormStats",
    "SharedWeightSync",
    "ShmClient",
    "ShmRecordClient",
    "ShmTransport",
    "Slot",
    "StopFlag",
    "SystemCallFailed",
    "TcpClient",
    "TcpRecordClient",
    "TcpTransport",
    "TcpWeights",
    "Tls",
    "TlsFailed",
    "TokenRequired",
    "TrajectoryAccumulator",
    "Transport",
    "UnusableEnvironment",
    "WaitTimeout",
    "WeightOutlet",
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
