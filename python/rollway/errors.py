"""Everything that Rollway raises.

```text
RollwayError
├── SegmentError                              a segment of shared memory cannot be made, found or used
│   ├── SegmentNotFound (FileNotFoundError)   no segment of that name
│   ├── SegmentExists (FileExistsError)       the name is taken
│   │   └── SegmentInUse                      … and a process is attached to it
│   ├── SegmentNotOurs (PermissionError)      it belongs to another user, or others may read it
│   └── SegmentDamaged (ValueError)           the file is not a segment, or is damaged
│       └── LayoutMismatch                    another version of Rollway made it
├── PeerError                                 another process, or an environment in it, failed or has ended
│   ├── ConnectionClosedError (ConnectionError)   the learner, or this handle, has closed the ring
│   ├── PeerDied (ConnectionError)            every peer is gone, at least one died, and none came back
│   ├── CollectorError (RuntimeError)         a collector of this runner raised, or died; has its traceback or signal
│   └── EnvError (RuntimeError)               something is wrong with environments of a vector env; `env_ids` says which
│       ├── EnvRaised                         one raised; has its traceback, and is also of its exception's own type
│       ├── EnvDied                           the process of some ended
│       └── EnvHung (TimeoutError)            some have not answered in time
├── NetworkError                              there is no connection, or it may not be used
│   ├── LearnerUnreachable (ConnectionError)  there is no answer at that address
│   ├── ProtocolMismatch (ConnectionError)    what answers there is not a learner of this version
│   ├── TlsFailed (ConnectionError)           no certificate, or one that is not trusted
│   ├── NotAuthorized (PermissionError)       the token is missing or wrong
│   ├── TokenRequired (ValueError)            an address that others can reach, and no token
│   ├── AddressUnavailable (OSError)          the address cannot be listened on
│   ├── ClusterUnavailable (ConnectionError)  Ray is not initialised here, or does not start or answer what is needed
│   ├── RunNameTaken (ValueError)             another learner has published under that name
│   └── NotInThisProcess (RuntimeError)       a connection that belongs to the parent of this forked process
├── CapacityError                             there is no room, or too little of it
│   ├── RingFull                              no room, and the policy is "error"
│   ├── BatchesHeld                           this learner holds every batch and asks for one more
│   ├── RowsOverrun                           rows are overwritten faster than they can be read
│   ├── RecordTooLarge (ValueError)           a record that no lane has room for, even an empty one
│   ├── NoSeatLeft                            more peers than the ring was made for
│   ├── NoLaneLeft                            more workers than there are lanes for their records
│   ├── NotEnoughMemory (MemoryError)         shared memory cannot hold it; says how much there is
│   └── HugePagesUnavailable (OSError)        huge pages were asked for, and the kernel gives none
├── SchemaError (ValueError)                  two descriptions of the same data differ
│   ├── SchemaMismatch                        a leaf differs in path, dtype or shape; says which
│   └── GeometryMismatch                      the ring has another batch_size or num_buffers
├── DeviceFailed (RuntimeError)               a GPU or its driver refused a copy, or memory to copy from
├── WaitTimeout (TimeoutError)                the time is over; says what was awaited
├── BufferEmpty (ValueError)                  sampling where there is no row yet
├── NothingPublished (LookupError)            weights were asked for before any were written
├── InvalidArgument (ValueError)              a number or a name is out of range
├── UnusableEnvironment (ValueError)          no such environment, or one that the algorithm cannot act in
├── MissingExtra (ImportError)                a package that an optional part needs; says how to install it
└── SystemCallFailed (OSError)                the operating system refused something else
```

`rollway` itself has the five parents, and the errors that a program often catches. All of them are here. Some that a
vector environment raises are also Gymnasium's: `rollway.vector_env.errors` has them, because nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec


class RollwayError(Exception):
    """Root of all errors of this package."""

    sent: int = 0
    """After a failed ``send_many``: how many samples or records of it were committed before the failure."""


class SegmentError(RollwayError):
    """A segment of shared memory cannot be made, found or used."""


class PeerError(RollwayError):
    """Another process, or an environment in it, failed or has ended."""


class NetworkError(RollwayError):
    """There is no connection to a learner, or it may not be used."""


class CapacityError(RollwayError):
    """There is no room, or too little of it: slots, lanes, seats or memory."""


class SchemaError(RollwayError, ValueError):
    """Two descriptions of the same data differ."""


class ConnectionClosedError(PeerError, ConnectionError):
    """The ring was shut down, the connection to it lost for good, or this handle closed."""

    unacknowledged: int = 0
    """Samples sent over a network of which it is unknown whether the learner has them."""


class PeerDied(PeerError, ConnectionError):
    """Every peer is gone, at least one of them died, and none came back in time."""


class CollectorError(PeerError, RuntimeError):
    """A collector raised an exception or died, and the restart policy gave up on it."""

    index: int = -1
    """Which collector."""
    pid: int = 0
    exitcode: int | None = None
    """As Python writes it: minus the number of the signal when it was killed."""
    signal_name: str | None = None
    """``"SIGKILL"`` and the like, when it was killed."""
    kind: str | None = None
    """The name of the exception's class, when it raised."""
    message: str | None = None
    traceback_text: str | None = None


class DeviceFailed(RollwayError, RuntimeError):
    """A GPU or its driver refused a copy, or to page-lock memory that it is to copy from."""


class WaitTimeout(RollwayError, TimeoutError):
    """The time was over before what was awaited came."""


class LearnerUnreachable(NetworkError, ConnectionError):
    """There is no answer at the address of the learner."""


class ProtocolMismatch(NetworkError, ConnectionError):
    """There is an answer, but not that of a learner of this version."""


class TlsFailed(NetworkError, ConnectionError):
    """A certificate or key cannot be read, does not match, or is not trusted."""


class NotAuthorized(NetworkError, PermissionError):
    """The token is missing or wrong, or what answers there does not know it."""


class TokenRequired(NetworkError, ValueError):
    """Others could reach the address, and no token was set."""


class AddressUnavailable(NetworkError, OSError):
    """The address is taken, not ours, or not an address; or the file for its token cannot be written."""


class ClusterUnavailable(NetworkError, ConnectionError):
    """Ray is not initialised in this process, or does not start or answer what Rollway needs of it."""


class RunNameTaken(NetworkError, ValueError):
    """Another living learner has published under that name."""


class NotInThisProcess(NetworkError, RuntimeError):
    """The connection belongs to another process: connect in the forked child."""


class RingFull(CapacityError):
    """There is no room, and the policy is not to wait."""


class BatchesHeld(CapacityError):
    """This learner holds every batch of the ring, so no other can ever be filled."""


class BufferEmpty(RollwayError, ValueError):
    """There is no whole row to sample."""


class RowsOverrun(CapacityError):
    """The buffer is so small, and so busy, that no row stays whole while it is copied."""


class SchemaMismatch(SchemaError):
    """A sample, or a segment, does not have the leaves that were declared."""


class GeometryMismatch(SchemaError):
    """The ring is there, but has another batch size or number of buffers."""


class InvalidArgument(RollwayError, ValueError):
    """A number or a name is out of range."""


class SegmentNotFound(SegmentError, FileNotFoundError):
    """There is no segment of that name."""


class SegmentExists(SegmentError, FileExistsError):
    """There is a segment of that name already."""


class SegmentInUse(SegmentExists):
    """There is a segment of that name already, and a process is attached to it."""


class SegmentNotOurs(SegmentError, PermissionError):
    """The segment belongs to another user, or is open to others."""


class SegmentDamaged(SegmentError, ValueError):
    """The file is not a segment, or its contents were damaged."""


class LayoutMismatch(SegmentDamaged):
    """The segment was made by another version of Rollway."""


class UnusableEnvironment(RollwayError, ValueError):
    """There is no such environment, or the algorithm cannot act in it."""


class MissingExtra(RollwayError, ImportError):
    """An optional part of Rollway was used, and a package that it needs is not installed."""


class RecordTooLarge(CapacityError, ValueError):
    """A record is larger than the lanes were made."""


class NoLaneLeft(CapacityError):
    """Every lane belongs to a living worker."""


class NothingPublished(RollwayError, LookupError):
    """The weights were not written yet."""


class NoSeatLeft(CapacityError):
    """The ring has as many peers as it was made for."""


class NotEnoughMemory(CapacityError, MemoryError):
    """Shared memory is too small."""


class EnvError(PeerError, RuntimeError):
    """Something is wrong with environments of a vector env."""

    def __init__(self, message: str = "", env_ids: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.env_ids: list[int] = list(env_ids)
        """Which ones."""


class EnvRaised(EnvError):
    """An environment raised an exception, in its worker. The message shows its traceback.

    What is raised is also an instance of that exception's class: ``except ValueError`` catches an environment's
    `ValueError`. The exception itself is the ``__cause__``. Both hold where this process can unpickle it.
    """


class EnvDied(EnvError):
    """The worker process of some environments has ended."""


class EnvHung(EnvError, TimeoutError):
    """Some environments have not answered within the time they are given."""


class HugePagesUnavailable(CapacityError, OSError):
    """The kernel gives no huge pages for shared memory."""


class SystemCallFailed(RollwayError, OSError):
    """The operating system refused."""


class ForeignSchema(Exception):
    """Raised by the core, caught by the handles: the schema there is another. Never reaches the user."""

    def __init__(self, place: str, text: bytes) -> None:
        super().__init__(place)
        self.place = place
        self.text = text


def need_packages(what: str, extra: str, *packages: str) -> None:
    """Raises `MissingExtra` when a package that ``what`` needs is not installed. Private to Rollway."""
    for package in packages:
        if find_spec(package) is None:
            known_as = package.replace("_", "-")
            raise MissingExtra(
                f"{what} needs {known_as}: pip install '.[{extra}]' in the clone of Rollway", name=package
            )
