"""Cuts connections at random bytes under load, and counts what comes of it: samples lost, repeated, torn, misnumbered.

`python benches/cuts.py` puts a proxy between four client processes and one learner. The clients send numbered samples
as fast as they can, by turns one by one and in runs; the proxy cuts 1,000 times, in the handshake, in the middle of
samples and of acknowledgements, then leaves off. The clients close, which waits until everything is acknowledged, and
the learner takes what is left. All this twice: with samples of 32 KB, and with samples of 56 bytes, which share frames.
Every word of every sample is checked. A sample that comes after a later one of its worker is *overtaken*, which is no
fault: batches that wait for a writer do not hold up others. Writes docs/bench/cuts.json and prints a table; the exit
status says whether there was a fault. It asserts nothing about time.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import rollway
from faults.numbered import Numbered
from faults.proxy import Proxy, RandomCuts
from harness import report
from harness.cell import Report, RunProcesses

BUFFERS = 4
STALL_S = 30.0  # nothing arrived for this long: several times the longest pause of a client
CLOSE_S = 60.0
SILENT = {"sent": 0, "in_doubt": 0, "error": "it ended without a word", "resumed": 0, "frames_again": 0}


class Load(NamedTuple):
    """What is sent, and how much of it at most before a cut."""

    words: int
    run: int  #: samples of a `send_many`, and sends between two of them
    batch: int
    most: int  #: bytes of a connection, to the learner
    most_back: int


LOADS = (Load(4096, 16, 64, 4 << 20, 4 << 10), Load(4, 256, 512, 1 << 20, 2 << 10))


def produce(tell: Report, port: int, token: str | bytes | None, worker: int, load: Load, stop: Any) -> None:
    """A client process: sends until told to stop, closes, and tells how many it sent and how many are in doubt."""
    samples = Numbered(load.words)
    one, run = samples.example(), samples.example(load.run)
    client = rollway.TcpClient("127.0.0.1", port, one, token=token, producer_id=worker)
    sent, in_doubt, failure = 0, 0, ""
    try:
        while not stop.value:
            for _ in range(load.run):
                client.send(samples.write(one, worker, 0, sent))
                sent += 1
            client.send_many(samples.write_run(run, worker, 0, sent))
            sent += load.run
        stats = client.stats()
        client.close(CLOSE_S)
    except rollway.ConnectionClosedError as error:
        stats, in_doubt, failure = {}, error.unacknowledged, str(error)
    tell({**SILENT, **stats, "worker": worker, "sent": sent, "in_doubt": in_doubt, "error": failure})


class Watch:
    """What arrived, of each worker."""

    def __init__(self, workers: int, samples: Numbered) -> None:
        self._samples = samples
        self._times = [np.zeros(1 << 16, np.uint8) for _ in range(workers)]  # that each number arrived
        self._highest = [-1] * workers
        self._last_ns = [0] * workers
        self.arrived = self.torn = self.overtaken = self.misnumbered = 0
        self.pause_max_ns = 0

    def add(self, sample: rollway.Sample) -> None:
        """Checks every word of every sample, and that the learner is told whose it is and which."""
        with sample:
            ids, info = sample.batch["id"], sample.info
            self.torn += self._samples.torn(sample.batch)
            whose, numbers = ids[:, 0], ids[:, 2]
            self.misnumbered += int(((info.producer_ids != whose) | (info.sequences != numbers)).sum())
            for worker in np.unique(whose).tolist():
                mine = whose == worker
                self._note(worker, numbers[mine], info.committed_ns[mine])
            self.arrived += len(ids)

    def _note(self, worker: int, numbers: np.ndarray, committed_ns: np.ndarray) -> None:
        while numbers.max() >= len(self._times[worker]):
            self._times[worker] = np.concatenate((self._times[worker], np.zeros_like(self._times[worker])))
        np.add.at(self._times[worker], numbers, 1)
        highest = np.maximum.accumulate(np.concatenate(([self._highest[worker]], numbers)))
        self.overtaken += int((numbers < highest[:-1]).sum())
        before = self._last_ns[worker] or committed_ns[0]
        self.pause_max_ns = max(self.pause_max_ns, int(np.diff(committed_ns.astype(np.int64), prepend=before).max()))
        self._highest[worker], self._last_ns[worker] = int(highest[-1]), int(committed_ns[-1])

    def lost(self, worker: int, acknowledged: int) -> int:
        """Of the first so many of a worker, those that never arrived."""
        times = self._times[worker][:acknowledged]
        return acknowledged - int(np.count_nonzero(times))

    def repeated(self) -> int:
        return sum(int(np.maximum(times, 1).sum(dtype=np.int64)) - len(times) for times in self._times)


def run(load: Load, cuts: int, clients: int, seed: int, progress: Progress) -> dict[str, Any]:
    """One run. Ends early, and says so, when nothing arrives any more or a client fails."""
    samples = Numbered(load.words)
    watch, processes = Watch(clients, samples), RunProcesses()
    stop = RawValue(ctypes.c_bool, False)
    task = progress.add_task(f"samples of {samples.nbytes:,} bytes", total=cuts)
    began, heard, stalled = 0.0, time.monotonic(), False
    with (
        rollway.Server(samples.example(), load.batch, rollway.TcpTransport(), BUFFERS, peer_timeout_s=None) as server,
        Proxy(server.port, RandomCuts(seed, there=load.most, back=load.most_back), most=cuts) as proxy,
    ):
        try:
            for worker in range(clients):
                processes.spawn("client", (produce,), (proxy.port, server.token, worker, load, stop))
            while processes.alive() and not stalled:
                try:
                    watch.add(server.sample(timeout=0.1, at_least=1))
                    heard = time.monotonic()
                    began = began or heard
                except rollway.WaitTimeout:
                    stalled = time.monotonic() - heard > STALL_S
                processes.read()
                # A client that reports before it is told to stop has failed.
                stop.value = len(proxy.cuts) >= cuts or bool(processes.reports)
                progress.update(task, completed=len(proxy.cuts))
            processes.read()
            if stalled:
                progress.console.print(f"stalled: {proxy!r}, {server.stats()}", highlight=False)
        finally:
            processes.kill()
        while server.stats()["ready_samples"]:
            server.flush()
            watch.add(server.sample(timeout=5))
    for told in processes.reports:
        if told["error"]:
            progress.console.print(f"a client failed: {told['error']}", highlight=False)
    by_worker = {told["worker"]: told for told in processes.reports if "worker" in told}
    last = [by_worker.get(worker, SILENT) for worker in range(clients)]
    return {
        "clients": clients,
        "sample_bytes": samples.nbytes,
        "cuts": len(proxy.cuts),
        "cuts_by_reset": sum(cut.by == "reset" for cut in proxy.cuts),
        "cuts_on_the_way_back": sum(cut.way == "back" for cut in proxy.cuts),
        "samples": watch.arrived,
        "samples_per_s": watch.arrived / max(heard - began, 1e-9),
        "lost": sum(watch.lost(worker, one["sent"] - one["in_doubt"]) for worker, one in enumerate(last)),
        "repeated": watch.repeated(),
        "torn": watch.torn,
        "misnumbered": watch.misnumbered,
        "overtaken": watch.overtaken,
        "in_doubt": sum(one["in_doubt"] for one in last),
        "clients_failed": sum(bool(one["error"]) for one in last),
        "stalled": int(stalled),
        "connections": proxy.connections,
        "resumed": sum(one["resumed"] for one in last),
        "frames_sent_again": sum(one["frames_again"] for one in last),
        "pause_max_ms": watch.pause_max_ns / 1e6,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuts", type=int, default=1000, help="of each run (1000)")
    parser.add_argument("--clients", type=int, default=4, help="(4)")
    parser.add_argument("--seed", type=int, default=1, help="of the places to cut (1)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "bench")
    options = parser.parse_args()
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        rows = [run(load, options.cuts, options.clients, options.seed, progress) for load in LOADS]
    names = [f"samples of {row['sample_bytes']:,} bytes" for row in rows]
    report.show_runs("Connections cut at random bytes under load", names, rows, console)
    options.out.mkdir(parents=True, exist_ok=True)
    report.write_runs(rows, options.out / "cuts.json")
    faults = ("lost", "repeated", "torn", "misnumbered", "clients_failed", "stalled")
    return int(any(row[fault] for row in rows for fault in faults))


if __name__ == "__main__":
    sys.exit(main())
