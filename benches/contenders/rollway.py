"""rollway's ring: a `Server` in the consumer, a `ShmClient` in each producer, three ways of sending.

`send` is one sample per call, `send_many` is a run of one batch per call, `reserve` writes the worker's
arrays into the slot's views by `np.copyto` and commits. Steps of an environment are also sent in the other
forms of `harness.forms`. The consumer takes whole batches and releases each after touching it.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contenders.base import Consumer, Contender, Producer, touch_batch
from harness import forms
from harness.workloads import ENV_STEP, Item, Workload

_SHM = Path("/dev/shm")
Way = Literal["send", "send_many", "reserve"]


class Sender(Producer):
    """Sends one sample per call, through any client of rollway's, as arrays or in another form."""

    def __init__(self, client: Any, workload: Workload, index: int, form: str = forms.PLAIN) -> None:
        super().__init__(workload, index)
        self._client = client
        self._data = [forms.STEPS[form](item) for item in self.items]

    def burst(self) -> None:
        send = self._client.send
        for data in self._data:
            send(data)

    def send_one(self, item: Item) -> None:
        self._client.send(item)

    def close(self) -> None:
        self._client.close()


class ManySender(Sender):
    """Sends a run of one batch per call, through any client of rollway's."""

    def __init__(self, client: Any, workload: Workload, index: int, form: str = forms.PLAIN) -> None:
        super().__init__(client, workload, index, form)
        starts = range(0, len(self.items), workload.batch)
        self._runs = [workload.stacked(self.items[at : at + workload.batch]) for at in starts]

    def burst(self) -> None:
        send_many = self._client.send_many
        for run in self._runs:
            send_many(run)


class _ReserveSender(Sender):
    def burst(self) -> None:
        reserve, copyto = self._client.reserve, np.copyto
        for item in self.items:
            slot = reserve()
            for name, array in item.items():
                copyto(slot[name], array)
            slot.commit()


class Learner(Consumer):
    """Takes whole batches from a `Server`, whatever its transport."""

    def __init__(self, transport: Any, workload: Workload, form: str = forms.PLAIN) -> None:
        from rollway import Server

        self._server: Any = Server(
            example(workload, form), workload.batch, transport=transport, num_buffers=workload.buffers
        )
        self._server.start()
        self._held: Any = None
        self._plain = form == forms.PLAIN

    def receive(self) -> int:
        sample = self._server.sample()
        batch = sample.batch if self._plain else dict(enumerate(forms.leaves(sample.batch)))
        self.touched += touch_batch(batch)
        count = len(next(iter(batch.values())))
        sample.release()
        return count

    def receive_one(self) -> np.ndarray:
        if self._held is not None:
            self._held.release()
        self._held = self._server.sample()  # the caller reads the view, so it is released one call later
        tokens: np.ndarray = self._held.batch["tokens"][0]
        return tokens

    def wait_idle(self, seconds: float) -> None:
        """Wait in `sample` for data that does not come."""
        from rollway.errors import WaitTimeout

        try:
            self._server.sample(timeout=seconds)
        except WaitTimeout:
            return
        raise RuntimeError("a sample arrived though nobody sends")

    def close(self) -> None:
        self._held = None
        self._server.close()


def example(workload: Workload, form: str) -> Any:
    """What both ends start with: arrays, in the structure of the form."""
    return forms.STEPS[form].arrange(workload.example())


class InForms(Contender):
    """A contender that sends arrays, or steps of an environment in another form, for one workload only."""

    key = "rollway"
    package = "rollway"
    module = "rollway"

    def __init__(self, label: str, form: str) -> None:
        self.form = form
        self.label = label if form == forms.PLAIN else f"{label}, {form}"

    def missing(self) -> str | None:
        return super().missing() or forms.STEPS[self.form].missing()

    def suits(self, workload: Workload) -> bool:
        return self.form == forms.PLAIN or workload is ENV_STEP


class Rollway(InForms):
    def __init__(self, way: Way = "send", form: str = forms.PLAIN) -> None:
        super().__init__(f"rollway {way}", form)
        self.way = way

    def link(self, workload: Workload, producers: int) -> str:
        return f"bench-{os.getpid()}-{secrets.token_hex(4)}"

    def producer(self, link: str, workload: Workload, index: int) -> Producer:
        from rollway import ShmClient

        kinds = {"send": Sender, "send_many": ManySender, "reserve": _ReserveSender}
        return kinds[self.way](ShmClient(link, example(workload, self.form)), workload, index, self.form)

    def consumer(self, link: str, workload: Workload, producers: int) -> Learner:
        from rollway import ShmTransport

        return Learner(ShmTransport(link), workload, self.form)

    def discard(self, link: str) -> None:
        for left in _SHM.glob(f"rollway.{link}*"):  # only a killed cell leaves one
            left.unlink()
