"""Rollway: the data plane for reinforcement learning.

Experience goes from many worker processes to the learner, through shared memory on one machine and over TCP between
machines: no serialisation, no lost sample.
"""

from importlib.metadata import version as _version

from rollway._core import HistSnapshot, Sample, SampleInfo, Slot
from rollway.errors import (
    AddressUnavailable,
    BatchesHeld,
    ConnectionClosedError,
    GeometryMismatch,
    HugePagesUnavailable,
    InvalidArgument,
    LayoutMismatch,
    LearnerUnreachable,
    NoSeatLeft,
    NotAuthorized,
    NotEnoughMemory,
    NotInThisProcess,
    PeerDied,
    ProtocolMismatch,
    RingFull,
    RollwayError,
    SchemaMismatch,
    SegmentDamaged,
    SegmentExists,
    SegmentInUse,
    SegmentNotFound,
    SegmentNotOurs,
    SystemCallFailed,
    TlsFailed,
    TokenRequired,
    WaitTimeout,
)
from rollway.segments import SegmentInfo, gc, segments
from rollway.server import Server
from rollway.shm_client import ShmClient
from rollway.shm_transport import ShmTransport
from rollway.tcp_client import TcpClient
from rollway.tcp_transport import TcpTransport, Tls
from rollway.trajectory_accumulator import TrajectoryAccumulator
from rollway.transport import Endpoint, Intake, Transport

__version__ = _version("rollway")

__all__ = [
    "AddressUnavailable",
    "BatchesHeld",
    "ConnectionClosedError",
    "Endpoint",
    "GeometryMismatch",
    "HistSnapshot",
    "HugePagesUnavailable",
    "Intake",
    "InvalidArgument",
    "LayoutMismatch",
    "LearnerUnreachable",
    "NoSeatLeft",
    "NotAuthorized",
    "NotEnoughMemory",
    "NotInThisProcess",
    "PeerDied",
    "ProtocolMismatch",
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
    "TcpClient",
    "TcpTransport",
    "Tls",
    "TlsFailed",
    "TokenRequired",
    "TrajectoryAccumulator",
    "Transport",
    "WaitTimeout",
    "__version__",
    "gc",
    "segments",
]
