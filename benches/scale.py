"""Many producers behind many forwarders, with real frames, on one machine: what a learner of 100 nodes would see.

    python benches/scale.py [--forwarders 100] [--producers 10] [--rate 20] [--seconds 10] [--quick] [--out DIR]

A learner in a process of its own; forwarders, each with a ring, threads and a connection, and ``--producers`` clients
each, in a few processes. Producers send at a low rate; every sample has the number of its producer and its place in
the row. Printed: how long it took until a sample of every producer had come, what is lost, repeated or out of order,
and the learner's memory per forwarder, beside the ring.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import rollway
from harness import machine
from harness.report import write_json
from rollway.transport import Forwarder

EXAMPLE = {"obs": np.zeros(16, np.float32), "producer": np.zeros((), np.int64), "place": np.zeros((), np.int64)}
TOKEN = "a token of a simulation"
PROCESSES = 4


def resident() -> int:
    """Bytes of memory of this process that no other process shares."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no Pss_Anon")


def learn(producers: int, pipe: Connection) -> None:
    """Counts what comes until it is told how much that should be."""
    with rollway.Server(EXAMPLE, 64, rollway.TcpTransport(token=TOKEN), num_buffers=8) as server:
        before = resident()
        pipe.send(server.port)
        begin, gathered = time.perf_counter(), 0.0
        following = np.zeros(producers, np.int64)
        wrong = 0
        expected = None
        while expected is None or following.sum() < expected:
            if pipe.poll():
                expected = pipe.recv()
            try:
                sample = server.sample(timeout=2.0, at_least=1)
            except rollway.WaitTimeout:
                if expected is not None:
                    break
                continue
            with sample:  # type: ignore[union-attr]
                batch = sample.batch  # type: ignore[union-attr]
                for producer, place in zip(batch["producer"].tolist(), batch["place"].tolist(), strict=True):
                    wrong += int(place != following[producer])
                    following[producer] = place + 1
            if not gathered and following.all():
                gathered = time.perf_counter() - begin
                pipe.send((gathered, resident() - before, server.stats()["tcp_connections"]))
        pipe.send((int(following.sum()), wrong, resident() - before))


def produce(first: int, options: argparse.Namespace, port: int, pipe: Connection) -> None:
    """Forwarders from number ``first`` on, and their producers, in this process."""
    forwarders = [
        Forwarder(
            f"scale-{os.getpid()}-{number}",
            EXAMPLE,
            "127.0.0.1",
            port,
            token=TOKEN,
            rows=32,
            num_buffers=8,
            max_peers=64,
        )
        for number in range(options.forwarders // PROCESSES)
    ]
    clients = [rollway.ShmClient(one.name, EXAMPLE) for one in forwarders for _ in range(options.producers)]
    sample: dict[str, Any] = {"obs": np.ones(16, np.float32), "producer": 0, "place": 0}
    end, place = time.monotonic() + options.seconds, 0
    while time.monotonic() < end or not pipe.poll():
        for number, client in enumerate(clients):
            client.send(sample | {"producer": first * options.producers + number, "place": place})
        place += 1
        time.sleep(1 / options.rate)
    for client in clients:
        client.close()
    for one in forwarders:
        one.close(timeout=60)
    pipe.send(place * len(clients))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forwarders", type=int, default=100, help=f"a multiple of {PROCESSES}")
    parser.add_argument("--producers", type=int, default=10, help="of each forwarder")
    parser.add_argument("--rate", type=float, default=20.0, help="samples of each producer per second, at most")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true", help="8 forwarders for a second, to see that it runs")
    parser.add_argument("--out", type=Path, default=machine.ROOT / "docs" / "bench")
    options = parser.parse_args()
    if options.quick:
        options.forwarders, options.seconds = 8, 1.0
    console, context = Console(), multiprocessing.get_context("spawn")
    producers = options.forwarders * options.producers
    ours, theirs = context.Pipe()
    learner = context.Process(target=learn, args=(producers, theirs))
    learner.start()
    port = ours.recv()
    pipes, processes = [], []
    for number in range(PROCESSES):
        here, there = context.Pipe()
        first = number * (options.forwarders // PROCESSES)
        process = context.Process(target=produce, args=(first, options, port, there))
        process.start()
        pipes.append(here)
        processes.append(process)
    if not ours.poll(120):
        raise SystemExit("not every producer was heard within 120 s")
    gathered, memory, connections = ours.recv()
    console.print(f"{producers:,} producers behind {options.forwarders} forwarders: all heard after {gathered:.1f} s")
    for pipe in pipes:
        pipe.send("every producer was heard")
    sent = sum(pipe.recv() for pipe in pipes)
    ours.send(sent)
    arrived, wrong, memory_at_end = ours.recv()
    for process in [*processes, learner]:
        process.join()
    per_forwarder = max(memory, memory_at_end) / options.forwarders / 1024
    console.print(f"{sent:,} samples sent, {arrived:,} arrived, {wrong} out of their order")
    console.print(f"the learner's memory per forwarder: {per_forwarder:.1f} KiB beside the ring")
    record = {
        "command": machine.command(),
        "commit": machine.commit(),
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(("numpy", "rollway")),
        "forwarders": options.forwarders,
        "producers": producers,
        "gathered_s": gathered,
        "connections": connections,
        "sent": sent,
        "arrived": arrived,
        "out_of_order": wrong,
        "learner_kib_per_forwarder": per_forwarder,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(record, options.out / "scale.json")


if __name__ == "__main__":
    main()
