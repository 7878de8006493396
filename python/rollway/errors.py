"""Everything that Rollway raises.

```text
RollwayError
├── ConnectionClosedError (ConnectionError)   the learner, or this handle, has closed the ring
├── PeerDied (ConnectionError)                every peer is gone, at least one died, and none came back
├── CollectorError (RuntimeError)             a collector of this runner raised, or died; has its traceback or signal
├── WaitTimeout (TimeoutError)                the time was over; says what was awaited
├── LearnerUnreachable (ConnectionError)      there is no answer at that address
├── ProtocolMismatch (ConnectionError)        what answers there is not a learner of this version
├── TlsFailed (ConnectionError)               no certificate, or one that is not trusted
├── NotAuthorized (PermissionError)           the token is missing or wrong
├── TokenRequired (ValueError)                an address that others can reach, and no token
├── AddressUnavailable (OSError)              the address cannot be listened on
├── NotInThisProcess (RuntimeError)           a connection that belongs to the parent of this forked process
├── RingFull                                  no room, and the policy is "error"
├── BatchesHeld                               this learner holds every batch and asks for one more
├── BufferEmpty (ValueError)                  sampling where there is no row yet
├── RowsOverrun                               rows are overwritten faster than they can be read
├── SchemaMismatch (ValueError)               a leaf differs in path, dtype or shape; says which
├── GeometryMismatch (ValueError)             the ring has another batch_size or num_buffers
├── InvalidArgument (ValueError)              a number or a name is out of range
├── SegmentNotFound (FileNotFoundError)       no segment of that name
├── SegmentExists (FileExistsError)           the name is taken
│   └── SegmentInUse                          … by the living
├── SegmentNotOurs (PermissionError)          it belongs to another user, or others may read it
├── SegmentDamaged (ValueError)               what lies there is not, or no longer, a segment
│   └── LayoutMismatch                        another version of Rollway made it
├── UnusableEnvironment (ValueError)          no such environment, or one that the algorithm cannot act in
├── MissingExtra (ImportError)                a package that an optional part needs; says how to install it
├── RecordTooLarge (ValueError)               a record that no lane has room for, even an empty one
├── NothingPublished (LookupError)            weights were asked for before any were written
├── NoSeatLeft                                more peers than the ring was made for
├── NoLaneLeft                                more workers than there are lanes for their records
├── NotEnoughMemory (MemoryError)             shared memory cannot hold it; says how much there is
├── EnvError (RuntimeError)                   something is wrong with environments of a vector env; `env_ids` says which
│   ├── EnvRaised                             one raised; its traceback is in the message, the exception is the cause
│   ├── EnvDied                               the process of some ended
│   └── EnvHung (TimeoutError)                some have not answered in time
├── HugePagesUnavailable (OSError)            huge pages were asked for, and the kernel gives none
└── SystemCallFailed (OSError)                the operating system refused something else
```
"""

from __future__ import annotations

from collections.abc import Sequence


class RollwayError(Exception):
    """Root of all errors of this package."""

    sent: int = 0
    """After a failed ``send_many``: how many samples or records of it were committed before the failure."""


class ConnectionClosedError(RollwayError, ConnectionError):
    """The ring was shut down, the connection to it lost for good, or this handle closed."""

    unacknowledged: int = 0
    """Samples sent over a network of which it is unknown whether the learner has them."""


class PeerDied(RollwayError, ConnectionError):
    """Every peer is gone, at least one of them died, and none came back in time."""


class CollectorError(RollwayError, RuntimeError):
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


class WaitTimeout(RollwayError, TimeoutError):
    """The time was over before what was awaited came."""


class LearnerUnreachable(RollwayError, ConnectionError):
    """There is no answer at the address of the learner."""


class ProtocolMismatch(RollwayError, ConnectionError):
    """There is an answer, but not that of a learner of this version."""


class TlsFailed(RollwayError, ConnectionError):
    """A certificate or key cannot be read, does not fit, or is not trusted."""


class NotAuthorized(RollwayError, PermissionError):
    """The token is missing or wrong, or what answers there does not know it."""


class TokenRequired(RollwayError, ValueError):
    """Others could reach the address, and no token was set."""


class AddressUnavailable(RollwayError, OSError):
    """The address is taken, not ours, or not an address; or the token of a learner on it has no place to lie."""


class NotInThisProcess(RollwayError, RuntimeError):
    """The connection belongs to another process: connect in the forked child."""


class RingFull(RollwayError):
    """There is no room, and the policy is not to wait."""


class BatchesHeld(RollwayError):
    """This learner holds every batch of the ring, so no other can ever be filled."""


class BufferEmpty(RollwayError, ValueError):
    """There is no whole row to sample."""


class RowsOverrun(RollwayError):
    """The buffer is so small, and so busy, that no row stays whole while it is copied."""


class SchemaMismatch(RollwayError, ValueError):
    """A sample, or a segment, does not have the leaves that were declared."""


class GeometryMismatch(RollwayError, ValueError):
    """The ring is there, but has another batch size or number of buffers."""


class InvalidArgument(RollwayError, ValueError):
    """A number or a name is out of range."""


class SegmentNotFound(RollwayError, FileNotFoundError):
    """There is no segment of that name."""


class SegmentExists(RollwayError, FileExistsError):
    """There is a segment of that name already."""


class SegmentInUse(SegmentExists):
    """There is a segment of that name already, and a process is attached to it."""


class SegmentNotOurs(RollwayError, PermissionError):
    """The segment belongs to another user, or is open to others."""


class SegmentDamaged(RollwayError, ValueError):
    """The file is not a segment, or its contents were damaged."""


class LayoutMismatch(SegmentDamaged):
    """The segment was made by another version of Rollway."""


class UnusableEnvironment(RollwayError, ValueError):
    """There is no such environment, or the algorithm cannot act in it."""


class MissingExtra(RollwayError, ImportError):
    """An optional part of Rollway was used, and a package that it needs is not installed."""


class RecordTooLarge(RollwayError, ValueError):
    """A record is larger than the lanes were made."""


class NoLaneLeft(RollwayError):
    """Every lane belongs to a living worker."""


class NothingPublished(RollwayError, LookupError):
    """The weights were not written yet."""


class NoSeatLeft(RollwayError):
    """The ring has as many peers as it was made for."""


class NotEnoughMemory(RollwayError, MemoryError):
    """Shared memory is too small."""


class EnvError(RollwayError, RuntimeError):
    """Something is wrong with environments of a vector env."""

    def __init__(self, message: str = "", env_ids: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.env_ids: list[int] = list(env_ids)
        """Which ones."""


class EnvRaised(EnvError):
    """An environment raised an exception, in its worker. The message shows its traceback."""


class EnvDied(EnvError):
    """The worker process of some environments has ended."""


class EnvHung(EnvError, TimeoutError):
    """Some environments have not answered within the time they are given."""


class HugePagesUnavailable(RollwayError, OSError):
    """The kernel gives no huge pages for shared memory."""


class SystemCallFailed(RollwayError, OSError):
    """The operating system refused."""


class ForeignSchema(Exception):
    """Raised by the core, caught by the handles: the schema there is another. Never reaches the user."""

    def __init__(self, place: str, text: bytes) -> None:
        super().__init__(place)
        self.place = place
        self.text = text
