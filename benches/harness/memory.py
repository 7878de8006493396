"""Memory for 1,000 trajectories in flight: blocks that the kernel has allocated to the segment, over the arrays' bytes.

Everything of the segment counts: header, tables, padding, keys, metadata, and pages that were reserved and not yet
used. The server is told how many records a lane may hold, and has four lanes, or is left at its defaults. Lengths are
fixed, or spread evenly up to a maximum. The proposal's buffer is filled to the same number; it has slots
for 4,096 tokens, as by default, and carries tokens and the score only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from contenders.base import Contender
from contenders.proposal import ProposedBuffer
from contenders.rollway_records import schema
from harness import summary
from harness.cell import Outcome, Report, run_alone
from harness.summary import Record
from harness.tables import TableText, figure_text, labels
from harness.trajectories import BUFFER, TRAJECTORIES, Trajectories
from harness.workloads import Item

IN_FLIGHT = 1000
_SHM = Path("/dev/shm")
_SLOT_TOKENS = 4096
_SPREAD = "100 to 4,096 tokens"


class InFlight(Contender):
    """One row: what holds the trajectories, their lengths, the number of producers, the settings of the server."""

    def __init__(self, key: str, label: str, lengths: str, producers: int = 1, **geometry: int) -> None:
        self.key, self.label, self.lengths, self.producers, self.geometry = key, label, lengths, producers, geometry
        self.module = None if key == "proposal" else "rollway"

    def trajectories(self) -> list[Item]:
        if self.lengths == _SPREAD:
            spread = np.linspace(100, 4096, IN_FLIGHT).astype(int)
            (longest,) = Trajectories("", self.workload.leaves, 1, 1, 4096).samples(0, 1)
            rng = np.random.default_rng(0)
            return [{k: v[:n] if v.ndim else v for k, v in longest.items()} for n in rng.permutation(spread)]
        (item,) = self.workload.samples(0, 1)
        return [item] * IN_FLIGHT

    @property
    def workload(self) -> Trajectories:
        return BUFFER if self.lengths == BUFFER.name else TRAJECTORIES.get(self.lengths, TRAJECTORIES["2048-token"])


def _ours(lengths: str, producers: int, **geometry: int) -> InFlight:
    shown = f"{lengths.replace('-token', ' tokens')}, {producers} producer{'s' * (producers > 1)}"
    if not geometry:
        shown += ", all settings at their defaults"
    return InFlight("rollway", f"rollway records, {shown}", lengths, producers, **geometry)


_SAID = {"lanes": 4, "max_records": IN_FLIGHT, "lane_bytes": 256 << 20}
CONTENDERS = (
    *(_ours(lengths, 1, **_SAID) for lengths in ("512-token", "2048-token", "16384-token", _SPREAD)),
    *(_ours(lengths, 4, **_SAID) for lengths in ("512-token", "2048-token", "16384-token", _SPREAD)),
    _ours("2048-token", 1),
    _ours("2048-token", 4),
    InFlight("rollway", "rollway ZeroCopySHMBuffer, 512 tokens", BUFFER.name),
    InFlight("proposal", "the proposal's buffer, 512 tokens", BUFFER.name),
)


def measure(contender: InFlight, seconds: float) -> Outcome:
    """Bytes, in `values["allocated_bytes"]` and `values["array_bytes"]`. Takes no time by the clock."""
    return run_alone(contender, (hold, contender))


def hold(report: Report, contender: InFlight) -> None:
    trajectories = contender.trajectories()
    name = f"bench-{os.getpid()}"
    if contender.workload is BUFFER:
        allocated = _fill_buffer(contender, name, trajectories)
    else:
        allocated = _fill_records(contender, name, trajectories)
    arrays = sum(leaf.nbytes for item in trajectories for leaf in item.values())
    note = f"{allocated / arrays:.3f} x the bytes of the arrays"
    report({"allocated_bytes": allocated, "array_bytes": arrays, "note": note})


def _fill_records(contender: InFlight, name: str, trajectories: list[Item]) -> int:
    import rollway

    workload = contender.workload
    with rollway.RecordServer(schema(workload), rollway.ShmTransport(name), **contender.geometry):
        clients = [rollway.ShmRecordClient(name, schema(workload)) for _ in range(contender.producers)]
        (note,) = workload.notes(0, 1)
        for number, item in enumerate(trajectories):
            key = rollway.RecordKey("bench", "train", 0, f"{note.instance_id}-{number // 8}", number % 8)
            clients[number % len(clients)].send(item, key=key, metadata=note.metadata)
        allocated = _allocated(f"rollway.{name}")
        for client in clients:
            client.close()
    return allocated


def _fill_buffer(contender: InFlight, name: str, trajectories: list[Item]) -> int:
    buffer: Any
    if contender.key == "proposal":
        buffer = ProposedBuffer(name, IN_FLIGHT + 1, _SLOT_TOKENS, create=True)
        pattern = name
    else:
        import rollway

        buffer = rollway.ZeroCopySHMBuffer(name, IN_FLIGHT + 1, _SLOT_TOKENS, create=True)
        pattern = f"rollway.{name}"
    (note,) = contender.workload.notes(0, 1)
    try:
        for number, item in enumerate(trajectories):
            if not buffer.write_trajectory(item["tokens"], float(number), note.instance_id, number % 8, note.metadata):
                raise RuntimeError(f"the buffer is full with {number} of {IN_FLIGHT} trajectories in it")
        return _allocated(pattern)
    finally:
        buffer.close(unlink=True)


def _allocated(pattern: str) -> int:
    found = list(_SHM.glob(f"{pattern}*"))
    if not found:
        raise RuntimeError(f"there is no segment {pattern!r}")
    return sum(path.stat().st_blocks * 512 for path in found)


def ratio(values: dict[str, Any]) -> float | None:
    """Allocated, over the bytes of the arrays."""
    return values["allocated_bytes"] / values["array_bytes"] if "array_bytes" in values else None


def tabulate(record: Record) -> TableText:
    rows = []
    for label in labels(record["memory"]):
        columns = [
            (ratio, "{:.3f}".format),
            (lambda values: values.get("allocated_bytes"), lambda value: f"{value / 1e6:.2f} MB"),
            (lambda values: values.get("array_bytes"), lambda value: f"{value / 1e6:.2f} MB"),
        ]
        rows.append(
            [label, *(figure_text(summary.extra(record, "memory", label, pick), text) for pick, text in columns)]
        )
    return "Memory for 1,000 trajectories in flight", ["", "allocated / arrays", "allocated", "arrays"], rows
