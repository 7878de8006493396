"""Trajectories over TCP into a learner, by clients and by threads of its transport; what an idle client costs.

    python benches/tcp_threads.py [--clients 1,2,4,8] [--threads 1,2,4,8,auto] [--seconds 3] [--rounds 3]
    python benches/tcp_threads.py --idle 1000

Loopback, one process per client, trajectories of 24.6 KB by `send_many`, a learner that releases each batch at once.
Every line is printed as soon as it is measured; of several rounds, which go through all cells by turns, the median
counts. Clients, threads and the learner need a core each: on a machine with fewer, the figures say little.

`--idle` connects so many clients, from one other process. Each sends one trajectory and then nothing. It prints what
the learner's process grew by for each of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import rollway

STEPS, BATCH, BUFFERS = 64, 64, 6
EXAMPLE = {"obs": np.zeros((STEPS, 95), np.float32), "reward": np.zeros(STEPS, np.float32)}

SENDER = """
import sys, numpy as np, rollway
port, steps, rows = map(int, sys.argv[1:])
example = {"obs": np.zeros((steps, 95), np.float32), "reward": np.zeros(steps, np.float32)}
many = {key: np.zeros((rows, *leaf.shape), leaf.dtype) for key, leaf in example.items()}
client = rollway.TcpClient("127.0.0.1", port, example)
print("ready", flush=True)
try:
    while True:
        client.send_many(many)
except rollway.ConnectionClosedError:
    pass
"""

IDLER = """
import sys, numpy as np, rollway
port, clients, steps = map(int, sys.argv[1:])
example = {"obs": np.zeros((steps, 95), np.float32), "reward": np.zeros(steps, np.float32)}
connected = [rollway.TcpClient("127.0.0.1", port, example, connect_timeout_s=60) for _ in range(clients)]
for client in connected:
    client.send(example)
    client.wait(60)
print("ready", flush=True)
sys.stdin.read()
"""


def child(code: str, *args: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ready(process: subprocess.Popen[str]) -> None:
    if process.stdout is None or process.stdout.readline() != "ready\n":
        raise SystemExit("a client did not start")


def serve(threads: int | None, batch: int = BATCH) -> rollway.Server:
    transport = rollway.TcpTransport(threads=threads, max_connections=4096)
    return rollway.Server(EXAMPLE, batch, transport, num_buffers=BUFFERS)


def gigabytes_per_second(clients: int, threads: int | None, seconds: float) -> float:
    """One cell: bytes of samples that arrived, after a second to warm up."""
    with serve(threads) as server:
        senders = [child(SENDER, server.port, STEPS, BATCH) for _ in range(clients)]
        try:
            for sender in senders:
                ready(sender)
            begin, before = time.perf_counter() + 1, None
            while (now := time.perf_counter()) < begin + seconds:
                if before is None and now >= begin:
                    begin, before = now, server.stats()["tcp_bytes"]
                with server.sample(timeout=60):
                    pass
            return (server.stats()["tcp_bytes"] - (before or 0)) / (now - begin) / 1e9
        finally:
            for sender in senders:
                sender.kill()
                sender.wait()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def idle(clients: int) -> None:
    with serve(None, batch=1) as server:

        def connect(count: int) -> subprocess.Popen[str]:
            process = child(IDLER, server.port, count, STEPS)
            for _ in range(count):
                with server.sample(timeout=120):
                    pass
            ready(process)
            return process

        warm = connect(2 * BUFFERS)  # touches every slot of the ring
        before, begin = resident_bytes(), time.perf_counter()
        idler = connect(clients)
        try:
            took, grown = time.perf_counter() - begin, resident_bytes() - before
            print(f"{clients} idle clients: {grown / clients / 1024:.1f} KiB each; all had sent in {took:.1f} s")
        finally:
            for process in (idler, warm):
                process.kill()
                process.wait()


def numbers(text: str) -> list[int | None]:
    return [None if item == "auto" else int(item) for item in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--threads", type=numbers, default=[1, 2, 4, 8, None], help="auto: the library's default")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=int, help="measure the memory of so many idle clients, and nothing else")
    args = parser.parse_args()
    if args.idle is not None:
        return idle(args.idle)
    print(f"{len(os.sched_getaffinity(0))} cores; GB/s of trajectories", flush=True)
    cells: dict[tuple[int, int | None], list[float]] = {}
    for turn in range(args.rounds):
        for clients in args.clients:
            for threads in args.threads:
                rate = gigabytes_per_second(clients, threads, args.seconds)
                cells.setdefault((clients, threads), []).append(rate)
                print(f"round {turn + 1}: {clients} clients, threads={threads or 'auto'}: {rate:.2f}", flush=True)
    print("\nmedians\n| clients | " + " | ".join(f"threads={threads or 'auto'}" for threads in args.threads) + " |")
    print("|---" * (len(args.threads) + 1) + "|")
    for clients in args.clients:
        medians = [statistics.median(cells[clients, threads]) for threads in args.threads]
        print(f"| {clients} | " + " | ".join(f"{median:.2f}" for median in medians) + " |", flush=True)


if __name__ == "__main__":
    main()
