"""Inspection: a segment of this user, mapped read-only; and what it shows at one moment."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollway import _core
from rollway._core import HistSnapshot
from rollway.inspect.process import process_state

GIVERS = frozenset({"producer", "own producer", "network", "writer", "worker"})
"""The roles that bring something: the others take it."""


@dataclass(frozen=True)
class Participant:
    """One handle that is attached to a segment, or that died without leaving. Times are in nanoseconds."""

    seat: int
    pid: int
    """As the process sees its own id."""
    role: str
    """``producer``, ``learner``, ``own producer`` (the learner's `submit`), ``network`` (for remote workers, in
    the learner's process), ``forwarder`` (in place of a learner, in the ring of a node); of weights ``writer``,
    ``reader`` or ``network``; of a vector environment ``caller`` or ``worker``; of a block ``user``."""
    state: str
    """``alive``, ``leaving``, or ``dead``, by the locks that the kernel knows. A stopped process is alive."""
    joined_unix_ns: int
    wall_ns: int
    """How long it has been attached. The next four add up to it."""
    wait_data_ns: int
    wait_room_ns: int
    hold_ns: int
    """With batches or records in its hands, and not waiting."""
    work_ns: int
    """All the rest."""
    copy_ns: int
    """How much of its work is copying into shared memory, as far as that is timed: an estimate."""
    activity: str
    """What it does now: ``wait_data``, ``wait_room``, ``hold`` or ``work``."""
    activity_ns: int
    """For how long."""
    committed: int
    """Samples, records, rows or answers."""
    last_commit_ns: int | None
    """How long ago."""
    version: int
    """Of the weights: that a reader has, or that the last commit of a producer was made with."""
    writing: int
    """Slots, records or rows that it has reserved; requests that a worker has not answered."""
    holding: int
    """Batches or records that it has taken and not released; buffers of weights that it is reading."""
    oldest_held_ns: int | None
    """For how long it has held the oldest of its batches; of rings only."""
    unread: int
    """What it committed and no learner has taken; of records only."""
    remote_connected: int
    """Workers on other hosts that are connected; of ``network`` only, like the next three."""
    remote_lost: int
    """Connections that ended without a goodbye: the worker or its host died, or the network was cut."""
    remote_lost_ns: int | None
    """How long ago the last of these was."""
    remote_lost_address: str | None
    """From where it came, if that is an IPv4 address."""

    @property
    def gives(self) -> bool:
        """Whether it is a producer, writer or worker: the others take what these bring."""
        return self.role in GIVERS

    @functools.cached_property
    def process(self) -> str | None:
        """``running``, ``stopped``, ``traced``, ``zombie``, ``dead``, ``in the kernel``; ``None``: unknown."""
        return process_state(self.pid, self.joined_unix_ns) if self.state != "dead" else "dead"

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self.process in ("stopped", "traced")


@dataclass(frozen=True)
class Look:
    """What a segment showed at one moment."""

    name: str
    kind: str
    at_ns: int
    """By the clock that all processes of the machine share (CLOCK_MONOTONIC)."""
    used_bytes: int
    numbers: Mapping[str, int]
    """Contents and counters, under the names of `stats`; see `docs/numbers/`."""
    histograms: Mapping[str, HistSnapshot] = field(repr=False)
    participants: tuple[Participant, ...]
    closed: bool
    """Whether it was shut down."""
    unlinked: bool
    """Whether it has lost its name."""

    @property
    def givers(self) -> list[Participant]:
        """The producers, writers or workers that live."""
        return [one for one in self.participants if one.gives and one.state != "dead"]

    @property
    def takers(self) -> list[Participant]:
        """The learners, readers or callers that live."""
        return [one for one in self.participants if not one.gives and one.state != "dead"]

    @property
    def dead(self) -> list[Participant]:
        """Those that died without leaving, and whose seat no other process has taken since."""
        return [one for one in self.participants if one.state == "dead"]


class Inspection:
    """A segment of this user, seen from outside. It takes no seat and no lock, and its mapping is read-only.

    It works while the processes of the segment run, hang, are stopped or are dead. `SegmentNotFound` when there is no
    such segment, `SegmentDamaged` when its bytes make no sense. The mapping ends with the object.

    >>> import numpy as np, rollway
    >>> with rollway.Server({"x": np.zeros(1)}, batch_size=2, transport=rollway.ShmTransport()) as server:
    ...     _ = server.submit({"x": np.ones(1)})
    ...     look = Inspection(server.name).look()
    >>> look.kind, look.numbers["ready_samples"], [one.role for one in look.participants]
    ('ring', 1, ['learner', 'own producer'])
    """

    def __init__(self, name: str) -> None:
        self.native = _core.Inspection(name)

    @property
    def name(self) -> str:
        """The name of the segment."""
        return self.native.name

    @property
    def kind(self) -> str:
        """``ring``, ``records``, ``weights``, ``replay``, ``tables``, ``vector env``, ``block`` or ``unknown``."""
        return self.native.kind

    def look(self) -> Look:
        """Reads all numbers once."""
        seen: dict[str, Any] = self.native.look()
        participants = tuple(Participant(**one) for one in seen.pop("participants"))
        native = self.native
        return Look(native.name, native.kind, used_bytes=native.used_bytes, participants=participants, **seen)

    def __repr__(self) -> str:
        return f"<rollway.inspect.Inspection {self.name} ({self.kind})>"
