"""Rollway: the data plane for reinforcement learning.

Experience goes from many worker processes to the learner, through shared memory on one machine and over TCP between
machines: no serialisation, no lost sample.
"""

from importlib.metadata import version as _version

from rollway import _interpreter as _interpreter  # first: it refuses where the others would hang

# isort: split
from rollway._core import Group, HistSnapshot, Record, RecordSlot, Sample, SampleInfo, Slot
from rollway.async_runner import AsyncRunner
from rollway.batches import PackedBatch, PaddedBatch, pack, pad, token_batches
from rollway.collector import Collector, StopFlag
from rollway.collector_supervisor import CollectorSupervisor
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
from rollway.groups import GroupAssembler
from rollway.record_key import GroupKey, RecordKey
from rollway.record_schema import RecordSchema
from rollway.record_server import RecordServer
from rollway.replay_buffer import ReplayBuffer
from rollway.replay_pipelines import ReplayPipeline
from rollway.restart_policy import RestartPolicy
from rollway.rl_pipeline import shared_memory_rl_pipeline
from rollway.rollout_ring_buffer import RolloutInfo, RolloutRingBuffer
from rollway.running_obs_stats import RunningObsStats
from rollway.segments import SegmentInfo, gc, segments
from rollway.server import Server
from rollway.shared_obs_norm_stats import SharedObsNormStats
from rollway.shared_weight_sync import SharedWeightSync
from rollway.shm_client import ShmClient
from rollway.shm_record_client import ShmRecordClient
from rollway.shm_transport import ShmTransport
from rollway.tcp_client import TcpClient
from rollway.tcp_record_client import TcpRecordClient
from rollway.tcp_transport import TcpTransport, Tls
from rollway.tcp_weights import TcpWeights
from rollway.trajectory_accumulator import TrajectoryAccumulator
from rollway.transport import Endpoint, Intake, RecordIntake, RecordTransport, Transport, WeightOutlet
from rollway.vector_env import FaultPolicy, make_vec
from rollway.zero_copy_shm_buffer import ZeroCopySHMBuffer

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
