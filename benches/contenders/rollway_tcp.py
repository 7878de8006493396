"""rollway over TCP on loopback: a `Server` with a `TcpTransport` in the consumer, a `TcpClient` in each producer.

Batches, buffers and the two ways of sending are those of the ring's contender, all else is left at its defaults. A
producer closes its client, which waits for what is not acknowledged, when the consumer has received everything: outside
the measured time.
"""

from __future__ import annotations

from typing import Literal

from contenders.base import Producer, free_port
from contenders.rollway import InForms, Learner, ManySender, Sender, example
from harness import forms
from harness.workloads import Workload

Way = Literal["send", "send_many"]


class RollwayTcp(InForms):
    def __init__(self, way: Way = "send", form: str = forms.PLAIN) -> None:
        super().__init__(f"rollway TCP {way}", form)
        self.way = way

    def link(self, workload: Workload, producers: int) -> int:
        return free_port()

    def producer(self, link: int, workload: Workload, index: int) -> Producer:
        from rollway import TcpClient

        kinds = {"send": Sender, "send_many": ManySender}
        client = TcpClient("127.0.0.1", link, example(workload, self.form))
        return kinds[self.way](client, workload, index, self.form)

    def consumer(self, link: int, workload: Workload, producers: int) -> Learner:
        from rollway import TcpTransport

        return Learner(TcpTransport(link), workload, self.form)
