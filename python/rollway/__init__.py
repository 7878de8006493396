"""Rollway: the data plane for reinforcement learning.

Experience goes from many worker processes to the learner through shared memory: no serialisation, no lost sample.
"""

from importlib.metadata import version as _version

from rollway._core import HistSnapshot, Sample, SampleInfo, Slot
from rollway.errors import (
    BatchesHeld,
    ConnectionClosedError,
    GeometryMismatch,
    HugePagesUnavailable,
    InvalidArgument,
    LayoutMismatch,
    NoSeatLeft,
    NotEnoughMemory,
    PeerDied,
    RingFull,
    RollwayError,
    SchemaMismatch,
    SegmentDamaged,
    SegmentExists,
    SegmentInUse,
    SegmentNotFound,
    SegmentNotOurs,
    SystemCallFailed,
    WaitTimeout,
)
from rollway.segments import SegmentInfo, gc, segments
from rollway.server import Server
from rollway.shm_client import ShmClient
from rollway.shm_transport import ShmTransport
from rollway.trajectory_accumulator import TrajectoryAccumulator

__version__ = _version("rollway")

__all__ = [
    "BatchesHeld",
    "ConnectionClosedError",
    "GeometryMismatch",
    "HistSnapshot",
    "HugePagesUnavailable",
    "InvalidArgument",
    "LayoutMismatch",
    "NoSeatLeft",
    "NotEnoughMemory",
    "PeerDied",
    "RingFull",
    "RollwayError",
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
    "ShmClient",
    "ShmTransport",
    "Slot",
    "SystemCallFailed",
    "TrajectoryAccumulator",
    "WaitTimeout",
    "__version__",
    "gc",
    "segments",
]
