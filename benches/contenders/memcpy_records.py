"""The limit of records: memcpy of the same arrays into prefaulted shared memory of the size of all lanes, looping in C.

As the ring's `memcpy`: nothing is handed over, nobody reads, and each process goes round the whole region. Here the
arrays of one record lie one after the other, as in a lane; keys and metadata are left out.
"""

from __future__ import annotations

from contenders.base import Producer
from contenders.memcpy import CopyingProducer, Link, Memcpy
from harness.trajectories import BUFFER, Trajectories


class MemcpyRecords(Memcpy):
    def suits(self, workload: Trajectories) -> bool:
        return workload is not BUFFER

    def link(self, workload: Trajectories, producers: int) -> Link:
        return self.region(workload, producers, slots=workload.capacity * producers)

    def producer(self, link: Link, workload: Trajectories, index: int) -> Producer:
        return CopyingProducer(link, workload, index, batch=1)
