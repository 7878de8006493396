"""A programme: who meets whom, what the run is called, which ratios it is read by. One for the ring, one for TCP.

The contenders are in the order of the tables: the limit first, then ours, then the peers. Plain values; how cells
are run is in `suite`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import bars
from contenders.base import Contender
from contenders.echo import Echo
from contenders.fasterfifo import FasterFifo
from contenders.futex import Futex
from contenders.iceoryx import Iceoryx
from contenders.loopback import Loopback
from contenders.memcpy import Memcpy
from contenders.mpqueue import MpQueue
from contenders.naive import Naive
from contenders.pipe import Pipe
from contenders.rollway import Rollway
from contenders.rollway_tcp import RollwayTcp
from contenders.zmq import Zmq
from idle import Ours
from summary import Ratio, Record


@dataclass(frozen=True)
class Programme:
    """What an entry point hands to `suite.main`."""

    stem: str  #: of the script and of the files that it writes
    title: str  #: of the page
    purpose: str  #: for --help
    throughput: tuple[Contender, ...]
    latency: tuple[Contender, ...]
    idle: Ours  #: whose waiting consumer is watched
    ratios: Callable[[Record], list[Ratio]]

    @property
    def keys(self) -> tuple[str, ...]:
        """What --only takes."""
        return tuple(dict.fromkeys(contender.key for contender in self._all))

    @property
    def packages(self) -> tuple[str, ...]:
        """The distributions whose versions are recorded."""
        return tuple(dict.fromkeys(c.package for c in self._all if c.package is not None))

    @property
    def _all(self) -> tuple[Contender, ...]:
        return (*self.throughput, *self.latency)


RING = Programme(
    stem="ring",
    title="Ring benchmark",
    purpose="Benchmark the ring beside its limits and its peers.",
    throughput=(
        Memcpy(),
        Rollway("send"),
        Rollway("send_many"),
        Rollway("reserve"),
        Naive(),
        Iceoryx("poll"),
        Zmq(),
        Echo(),
        FasterFifo(),
        Pipe(),
        MpQueue(),
    ),
    latency=(
        Futex(),
        Rollway("send"),
        Naive(),
        Iceoryx("spin"),
        Iceoryx("event"),
        Zmq(),
        Echo(),
        FasterFifo(),
        Pipe(),
        MpQueue(),
    ),
    idle=Rollway("send"),
    ratios=bars.ring,
)
NET = Programme(
    stem="net",
    title="Network benchmark",
    purpose="Benchmark rollway over TCP beside its limits and its peers, on loopback.",
    throughput=(
        Loopback("message"),
        Loopback("coalesced"),
        RollwayTcp("send"),
        RollwayTcp("send_many"),
        Zmq("tcp"),
        Echo(),
    ),
    latency=(Loopback("message"), RollwayTcp("send"), Zmq("tcp"), Echo()),
    idle=RollwayTcp("send"),
    ratios=bars.net,
)
