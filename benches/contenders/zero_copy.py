"""rollway's `ZeroCopySHMBuffer`: the proposal's constructor and methods on records, used just as the proposal's is."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from contenders.base import Contender
from contenders.proposal import SLOTS, BufferReader, BufferWriter, Form
from contenders.records import RecordConsumer, RecordProducer
from harness.trajectories import BUFFER, Trajectories

_SHM = Path("/dev/shm")


class ZeroCopy(Contender):
    key = "rollway"
    package = "rollway"
    module = "rollway"

    def __init__(self, form: Form) -> None:
        self.form = form
        self.label = f"rollway ZeroCopySHMBuffer, {form}"

    def suits(self, workload: Trajectories) -> bool:
        return workload is BUFFER

    def link(self, workload: Trajectories, producers: int) -> str:
        return f"bench-{os.getpid()}-{secrets.token_hex(4)}"

    def producer(self, link: str, workload: Trajectories, index: int) -> RecordProducer:
        from rollway import ZeroCopySHMBuffer

        return BufferWriter(ZeroCopySHMBuffer(link, SLOTS, workload.length), workload, index, self.form)

    def consumer(self, link: str, workload: Trajectories, producers: int) -> RecordConsumer:
        from rollway import ZeroCopySHMBuffer

        return BufferReader(ZeroCopySHMBuffer(link, SLOTS, workload.length, create=True), workload, lossy=False)

    def discard(self, link: str) -> None:
        for left in _SHM.glob(f"rollway.{link}*"):  # only a killed cell leaves one
            left.unlink()
