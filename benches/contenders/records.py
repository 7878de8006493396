"""What the contenders for records share: a producer that numbers its trajectories, a consumer that keeps what it saw.

Inside the measured time a consumer reads the score, the first and last token and the first element of every other array
of each record. In the warm-up, and after the measured time, it compares every word with the source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contenders.base import Consumer, Producer
from harness.trajectories import Arrivals, Note, Trajectories, renumber
from harness.workloads import Item


def document(item: Item, note: Note) -> dict[str, Any]:
    """A trajectory as one dict, for those that carry any object."""
    return {**item, "instance_id": note.instance_id, "metadata": note.metadata}


class RecordProducer(Producer):
    """A worker's end. A subclass calls `renumber` once per burst, and then sends `items` with `notes`."""

    def __init__(self, workload: Trajectories, index: int) -> None:
        super().__init__(workload, index)
        self.notes: list[Note] = workload.notes(index)

    def renumber(self) -> None:
        """Numbers for the next burst."""
        renumber(self.items)


class RecordConsumer(Consumer):
    """The learner's end. A subclass calls `see` for every record."""

    def __init__(self, workload: Trajectories) -> None:
        self.arrivals = Arrivals(workload)
        self._number = self.arrivals.numbers.append
        self._first = self.arrivals.firsts.append
        self._last = self.arrivals.lasts.append

    def see(self, got: Item, note: Callable[[], tuple[str, Any] | None]) -> None:
        """Reads a little of every array; where there is time, every word, and the id and the metadata of `note`."""
        tokens = got["tokens"]
        number = got["score"].item()
        self._number(number)
        self._first(tokens.item(0))
        self._last(tokens.item(-1))
        if "masks" in got:
            self.touched += got["logprobs"].item(0) + got["masks"].item(0)
        if self.careful:
            self.arrivals.compare(number, got, note())

    def see_document(self, got: dict[str, Any]) -> None:
        """`see`, of what `document` made."""
        self.see(got, lambda: (got["instance_id"], got["metadata"]))

    def verdict(self, received: int, announced: int, workload: Any) -> dict[str, Any]:
        faults = self.arrivals.faults(announced)
        bad = [f"{count} {name}" for name, count in faults.items() if count and name != "compared"]
        if not bad:
            return faults
        return {**faults, "lossy" if self.lossy else "miscounted": f"of {announced:,} sent: {', '.join(bad)}"}
