"""rollway over TCP on loopback: a `Server` with a `TcpTransport` in the consumer, a `TcpClient` in each producer.

Batches, buffers and the two ways of sending are those of the ring's contender, all else is left at its defaults. A
producer closes its client, which waits for what is not acknowledged, when the consumer has received everything: outside
the measured time.
"""

from __future__ import annotations

from typing import Literal

from contenders.base import Contender, Producer, free_port
from contenders.rollway import Learner, ManySender, Sender
from harness.workloads import Workload

Way = Literal["send", "send_many"]


class RollwayTcp(Contender):
    key = "rollway"
    package = "rollway"
    module = "rollway"

    def __init__(self, way: Way = "send") -> None:
        self.way = way
        self.label = f"rollway TCP {way}"

    def link(self, workload: Workload, producers: int) -> int:
        return free_port()

    def producer(self, link: int, workload: Workload, index: int) -> Producer:
        from rollway import TcpClient

        kinds = {"send": Sender, "send_many": ManySender}
        return kinds[self.way](TcpClient("127.0.0.1", link, workload.example()), workload, index)

    def consumer(self, link: int, workload: Workload, producers: int) -> Learner:
        from rollway import TcpTransport

        return Learner(TcpTransport(link), workload)
