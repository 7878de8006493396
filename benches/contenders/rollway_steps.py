"""rollway's records as steps of an environment, one in each record: arrays, or another form of `harness.forms`.

A record is a flat dict, so the forms are those that are one. The consumer takes what is there, at most `_GULP` at a
time, reads the first element of each leaf through its view, and releases.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from contenders.base import Consumer, Contender, Producer
from harness import forms
from harness.workloads import ENV_STEP, Workload

_SHM = Path("/dev/shm")
_GULP = 256


def schema(workload: Workload) -> dict[str, str]:
    """No leaf is ragged."""
    return {leaf.name: f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in workload.leaves}


class _Sender(Producer):
    def __init__(self, link: str, workload: Workload, index: int, form: str) -> None:
        import rollway

        super().__init__(workload, index)
        self._client: Any = rollway.ShmRecordClient(link, schema(workload))
        self._data = [forms.STEPS[form](item) for item in self.items]

    def burst(self) -> None:
        send = self._client.send
        for data in self._data:
            send(data)

    def close(self) -> None:
        self._client.close()


class _Learner(Consumer):
    def __init__(self, link: str, workload: Workload, producers: int) -> None:
        from rollway import RecordServer, ShmTransport

        self._server: Any = RecordServer(
            schema(workload),
            ShmTransport(link),
            lane_bytes=256 * workload.capacity,
            max_records=workload.capacity,
            lanes=producers,
        )
        self._server.start()

    def receive(self) -> int:
        records, touched = self._server.read_many(_GULP), 0.0
        for record in records:
            for leaf in record.values():
                touched += leaf.item(0)
            record.release()
        self.touched += touched
        return len(records)

    def close(self) -> None:
        self._server.close()


class RollwaySteps(Contender):
    key = "rollway"
    package = "rollway"
    module = "rollway"

    def __init__(self, form: str = forms.PLAIN) -> None:
        self.form = form
        self.label = f"rollway records, a step as {form}"

    def missing(self) -> str | None:
        return super().missing() or forms.STEPS[self.form].missing()

    def suits(self, workload: Workload) -> bool:
        return workload is ENV_STEP

    def link(self, workload: Workload, producers: int) -> str:
        return f"bench-{os.getpid()}-{secrets.token_hex(4)}"

    def producer(self, link: str, workload: Workload, index: int) -> Producer:
        return _Sender(link, workload, index, self.form)

    def consumer(self, link: str, workload: Workload, producers: int) -> Consumer:
        return _Learner(link, workload, producers)

    def discard(self, link: str) -> None:
        for left in _SHM.glob(f"rollway.{link}*"):  # only a killed cell leaves one
            left.unlink()
