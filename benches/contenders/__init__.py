"""The contenders, in the order of the tables: the limit first, then ours, then the peers.

To add one, write a module with a `Contender` and name it here. Peer packages are imported in the processes
that use them, so a missing one costs its rows and nothing else.
"""

from __future__ import annotations

from contenders.base import Contender
from contenders.echo import Echo
from contenders.fasterfifo import FasterFifo
from contenders.futex import Futex
from contenders.iceoryx import Iceoryx
from contenders.memcpy import Memcpy
from contenders.mpqueue import MpQueue
from contenders.naive import Naive
from contenders.pipe import Pipe
from contenders.rollway import Rollway
from contenders.zmq import Zmq

THROUGHPUT: tuple[Contender, ...] = (
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
)
LATENCY: tuple[Contender, ...] = (
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
)
KEYS = tuple(dict.fromkeys(contender.key for contender in (*THROUGHPUT, *LATENCY)))
PACKAGES = tuple(dict.fromkeys(c.package for c in (*THROUGHPUT, *LATENCY) if c.package is not None))

__all__ = ["KEYS", "LATENCY", "PACKAGES", "THROUGHPUT", "Contender"]
