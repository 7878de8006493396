"""Kills random producers under full load, and measures what the others notice: samples lost, repeated, torn; pauses.

`python benches/kills.py` runs eight producers of 32 KB samples against one learner twice in one go: undisturbed, and
with 100 SIGKILLs by a third party, which also replaces each victim. A pause is the time between two commits of the same
producer; the undisturbed run shows what the scheduler alone costs on this machine. Every word of every sample is
checked. Writes docs/bench/kills.json and prints a table. It asserts nothing about time.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import random
import signal
import struct
import time
from pathlib import Path

import numpy as np
from rich.console import Console

import rollway
from faults.numbered import Numbered
from harness import report

SAMPLES = Numbered(words=4096)
LIVES = 1 << 10  # of one worker, at most


def produce(name: str, worker: int, life: int, ledger: mmap.mmap) -> None:
    """Sends for ever, by turns copied and written in place, and notes after each commit how many there are."""
    client = rollway.ShmClient(name, SAMPLES.example(), producer_id=worker, peer_timeout_s=None)
    sample = SAMPLES.example()
    for counter in itertools.count():
        if counter % 2:
            client.send(SAMPLES.write(sample, worker, life, counter))
        else:
            with client.reserve() as slot:
                SAMPLES.write(slot, worker, life, counter)
        struct.pack_into("q", ledger, (worker * LIVES + life) * 8, counter + 1)


def forked(target, *args) -> int:
    """Runs a function in a child; forking is fast enough to replace a victim at once."""
    pid = os.fork()
    if pid == 0:
        try:
            target(*args)
        finally:
            os._exit(0)
    return pid


def supervise(name: str, producers: int, kills: int, seconds: float, ledger: mmap.mmap) -> None:
    """Starts the producers, kills at random moments, replaces the victims, and ends them all in the end."""
    rng = random.Random(1)
    alive = [(worker, 0, forked(produce, name, worker, 0, ledger)) for worker in range(producers)]
    started = time.monotonic()
    for due in sorted(rng.uniform(0.1, 1.0) * seconds for _ in range(kills)):
        time.sleep(max(0.0, due - (time.monotonic() - started)))
        worker, life, pid = alive.pop(rng.randrange(len(alive)))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        alive.append((worker, life + 1, forked(produce, name, worker, life + 1, ledger)))
    time.sleep(max(0.0, seconds - (time.monotonic() - started)))
    for _, _, pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


class Watch:
    """What arrived, and when it was committed."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], set[int]] = {}
        self.last: dict[tuple[int, int], tuple[int, int]] = {}
        self.pauses: list[int] = []
        self.torn = self.repeated = self.out_of_order = 0

    def add(self, sample: rollway.Sample) -> None:
        """Checks every word of every sample, and notes the pauses."""
        self.torn += SAMPLES.torn(sample.batch)
        ids = sample.batch["id"]
        for (worker, life, counter), when in zip(ids.tolist(), sample.info.committed_ns.tolist(), strict=True):
            who = (worker, life)
            seen = self.seen.setdefault(who, set())
            self.repeated += counter in seen
            seen.add(counter)
            before, at = self.last.get(who, (-1, when))
            self.out_of_order += counter < before
            if counter == before + 1:
                self.pauses.append(when - at)
            if counter > before:
                self.last[who] = (counter, when)


def run(producers: int, kills: int, seconds: float) -> dict[str, object]:
    """One run."""
    ledger = mmap.mmap(-1, producers * LIVES * 8)
    watch = Watch()
    with rollway.Server(SAMPLES.example(), 32, rollway.ShmTransport(), num_buffers=4, peer_timeout_s=None) as server:
        started = time.monotonic()
        supervisor = forked(supervise, server.name, producers, kills, seconds, ledger)
        while os.waitpid(supervisor, os.WNOHANG) == (0, 0):
            try:
                watch.add(server.sample(timeout=0.1))
            except rollway.WaitTimeout:
                continue
        took = time.monotonic() - started
        while server.stats()["ready_samples"]:
            server.flush()
            watch.add(server.sample(timeout=5))
        stats = server.stats()
    lost = 0
    for worker, life in itertools.product(range(producers), range(LIVES)):
        (committed,) = struct.unpack_from("q", ledger, (worker * LIVES + life) * 8)
        lost += len(set(range(committed)) - watch.seen.get((worker, life), set()))
    pauses_ms = np.array(watch.pauses) / 1e6
    samples = sum(map(len, watch.seen.values()))
    return {
        "producers": producers,
        "kills": kills,
        "samples": samples,
        "samples_per_s": samples / took,
        "lost": lost,
        "repeated": watch.repeated,
        "torn": watch.torn,
        "out_of_order": watch.out_of_order,
        "slots_taken_back": stats["recovered_slots"],
        "pause_p99_ms": float(np.percentile(pauses_ms, 99)),
        "pause_p99.99_ms": float(np.percentile(pauses_ms, 99.99)),
        "pause_max_ms": float(pauses_ms.max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--producers", type=int, default=8)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "bench")
    options = parser.parse_args()
    rows = [run(options.producers, kills, options.seconds) for kills in (0, options.kills)]
    title = "Random SIGKILLs among producers under full load"
    report.show_runs(title, ["undisturbed", f"{options.kills} kills"], rows, Console())
    options.out.mkdir(parents=True, exist_ok=True)
    report.write_runs(rows, options.out / "kills.json")


if __name__ == "__main__":
    main()
