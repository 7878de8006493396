"""Samples from workers on another Ray node to one learner: Rollway by `connect`, beside what people do with Ray today.

    python benches/cluster.py [--quick] [--seconds 3] [--rounds 3] [--workers 1,8] [--out DIR]

Two raylets on this machine; the learner is on the first, all workers are actors on the second. They share /dev/shm, so
Rollway is told to go through the node's forwarder. All ways have their turns, round after round:

- rollway, forwarder: `connect(name, route="forwarder").client().send(sample)`
- rollway, forwarder, stacks: the same with `send_many` of stacked samples of 4 MiB
- rollway, direct: each worker has a `TcpClient` of its own
- ray.put + refs: `ray.put(sample)`, references in runs of 32 through an actor, `ray.get` by the learner
- ray.put of stacks: one object for stacked samples of 4 MiB, which cost the worker nothing here
- actor calls: a call of the learner's actor for each sample, or for 32 of them
- Queue: `ray.util.queue.Queue` with `put_nowait_batch` of 32
- aggregator: workers put runs of 32, an actor makes one batch of them, the learner gets that, as RLlib's do

Rates are those of the learner, after a second of warm-up. Every way lets each worker have 4 runs under way.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster
from rich.console import Console
from rich.table import Table

import rollway
from harness import machine
from harness.report import write_json
from harness.workloads import TRAJECTORY, WORKLOADS, Item, Workload
from rollway.integrations.ray import connect, publish

RUN = 32
UNDER_WAY = 4
STACK_BYTES = 4 << 20
TRANSITION = WORKLOADS["transition"]
WARM_UP_S = 1.0

Take = Callable[[], int]
"""Waits for samples, and gives their number."""


@ray.remote(num_cpus=0, resources={"workers": 0.001})
class Worker:
    """Sends as fast as it can until it is killed."""

    def __init__(self, workload: Workload, number: int) -> None:
        self._samples = workload.samples(number)
        self._runs = [self._samples[at : at + RUN] for at in range(0, len(self._samples), RUN)]

    def forwarder(self) -> None:
        with connect("bench", route="forwarder").client() as client:
            self._send(client.send)

    def forwarder_stacks(self) -> None:
        stack = self._stack()
        with connect("bench", route="forwarder").client() as client:
            while True:
                client.send_many(stack)

    def _stack(self) -> Item:
        """Samples as people have them who collect many before they send."""
        rows = max(1, STACK_BYTES // sum(leaf.nbytes for leaf in self._samples[0].values()))
        samples = [self._samples[row % len(self._samples)] for row in range(rows)]
        return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}

    def direct(self, port: int, token: str, example: Item) -> None:
        with rollway.TcpClient("127.0.0.1", port, example, token=token) as client:
            self._send(client.send)

    def _send(self, send: Callable[[Item], object]) -> None:
        while True:
            for sample in self._samples:
                send(sample)

    def refs(self, target: Any) -> None:
        self._calls(lambda run: target.put.remote([ray.put(sample) for sample in run]))

    def batches(self, target: Any) -> None:
        self._calls(lambda run: target.put.remote([ray.put(run)]))

    def stacks(self, target: Any) -> None:
        stack = self._stack()
        self._calls(lambda run: target.put.remote([ray.put(stack)]))

    def calls(self, target: Any, of: int) -> None:
        if of == 1:
            self._calls(lambda run: [target.put.remote([sample]) for sample in run][-1])
        else:
            self._calls(lambda run: target.put.remote(run))

    def queue(self, queue: Any) -> None:
        while True:
            for run in self._runs:
                ray.get(queue.actor.put_nowait_batch.remote(run)) if queue.size() < UNDER_WAY * RUN else time.sleep(0)

    def _calls(self, call: Callable[[list[Item]], Any]) -> None:
        under_way: list[Any] = []
        while True:
            for run in self._runs:
                under_way.append(call(run))
                if len(under_way) > UNDER_WAY:
                    ray.get(under_way.pop(0))


@ray.remote(num_cpus=0, resources={"learner": 0.001})
class Inbox:
    """The learner's end of calls: keeps what came until it is taken."""

    def __init__(self, merges: bool = False) -> None:
        self._items: list[Any] = []
        self._merges = merges

    def put(self, items: list[Any]) -> None:
        self._items += items

    def take(self) -> Any:
        items, self._items = self._items, []
        if not self._merges or not items:
            return items
        samples = [sample for run in ray.get(items) for sample in run]
        return len(samples), {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def by_forwarder(
    start: Callable[[Any], Any],
) -> Callable[[Workload, list[Any]], contextlib.AbstractContextManager[Take]]:
    @contextlib.contextmanager
    def way(workload: Workload, workers: list[Any]) -> Iterator[Take]:
        with server_of(workload, rollway.ShmTransport()) as server, publish("bench", server):
            for worker in workers:
                start(worker)
            yield batches_of(server)

    return way


def rollway_direct(workload: Workload, workers: list[Any]) -> contextlib.AbstractContextManager[Take]:
    @contextlib.contextmanager
    def way() -> Iterator[Take]:
        token = "a token of a benchmark"
        with server_of(workload, rollway.TcpTransport(token=token)) as server:
            for worker in workers:
                worker.direct.remote(server.port, token, workload.example())
            yield batches_of(server)

    return way()


def server_of(workload: Workload, transport: Any) -> rollway.Server:
    return rollway.Server(workload.example(), workload.batch, transport, num_buffers=workload.buffers)


def batches_of(server: rollway.Server) -> Take:
    def take() -> int:
        with server.sample(timeout=60) as sample:  # type: ignore[union-attr]
            return len(sample)

    return take


def by_inbox(
    start: Callable[[Any, Any], Any], count: Callable[[Any], int], *, merges: bool = False
) -> Callable[[Workload, list[Any]], contextlib.AbstractContextManager[Take]]:
    """A way whose workers call an actor on the learner's node. ``count`` gives the samples of what the actor gave."""

    @contextlib.contextmanager
    def way(workload: Workload, workers: list[Any]) -> Iterator[Take]:
        inbox = Inbox.remote(merges)
        for worker in workers:
            start(worker, inbox)
        yield lambda: count(ray.get(inbox.take.remote()))
        ray.kill(inbox)

    return way


@contextlib.contextmanager
def ray_queue(workload: Workload, workers: list[Any]) -> Iterator[Take]:
    from ray.util.queue import Queue

    queue = Queue(actor_options={"num_cpus": 0, "resources": {"learner": 0.001}})
    for worker in workers:
        worker.queue.remote(queue)

    def take() -> int:
        return len(queue.get_nowait_batch(size)) if (size := queue.size()) else 0

    yield take
    queue.shutdown()


def of_runs(found: Any) -> int:
    return sum(len(run) for run in ray.get(found))


def of_stacks(found: Any) -> int:
    return sum(len(next(iter(stack.values()))) for stack in ray.get(found))


WAYS: dict[str, Callable[[Workload, list[Any]], contextlib.AbstractContextManager[Take]]] = {
    "rollway, forwarder": by_forwarder(lambda worker: worker.forwarder.remote()),
    "rollway, forwarder, stacks": by_forwarder(lambda worker: worker.forwarder_stacks.remote()),
    "rollway, direct": rollway_direct,
    "ray.put + refs": by_inbox(lambda worker, inbox: worker.refs.remote(inbox), lambda refs: len(ray.get(refs))),
    "ray.put of 32 + refs": by_inbox(lambda worker, inbox: worker.batches.remote(inbox), of_runs),
    "ray.put of stacks": by_inbox(lambda worker, inbox: worker.stacks.remote(inbox), of_stacks),
    "actor calls": by_inbox(lambda worker, inbox: worker.calls.remote(inbox, 1), len),
    "actor calls of 32": by_inbox(lambda worker, inbox: worker.calls.remote(inbox, RUN), len),
    "Queue, runs of 32": ray_queue,
    "aggregator": by_inbox(
        lambda worker, inbox: worker.batches.remote(inbox), lambda found: found[0] if found else 0, merges=True
    ),
}


def measure(way: str, workload: Workload, workers: int, seconds: float) -> tuple[float, float]:
    """Samples per second, and microseconds of the learner's process per sample."""
    actors = [Worker.remote(workload, number) for number in range(workers)]
    try:
        with WAYS[way](workload, actors) as take:
            while take() == 0:
                pass
            end = time.perf_counter() + WARM_UP_S
            while time.perf_counter() < end:
                take()
            begin, cpu, found = time.perf_counter(), time.process_time(), 0
            while (now := time.perf_counter()) < begin + seconds:
                found += take()
            cpu = time.process_time() - cpu
            for actor in actors:
                ray.kill(actor)
            time.sleep(0.5)  # they have ended
            return found / (now - begin), cpu / max(found, 1) * 1e6
    finally:
        for actor in actors:
            ray.kill(actor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it runs")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", default="1,8")
    parser.add_argument("--only", default="", help="part of the name of a way")
    parser.add_argument("--out", type=Path, default=machine.ROOT / "docs" / "bench")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 0.5
    console = Console()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"learner": 1}})
    cluster.add_node(num_cpus=8, resources={"workers": 1})
    ray.init(address=cluster.address, namespace="bench", log_to_driver=False)
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    try:
        for number in range(options.rounds):
            for workload in (TRAJECTORY, TRANSITION):
                for workers in map(int, options.workers.split(",")):
                    for way in WAYS:
                        if options.only not in way:
                            continue
                        rate, cost = measure(way, workload, workers, options.seconds)
                        what = f"{workload.name}, {workers} workers, {way}"
                        rates.setdefault(what, []).append(rate)
                        costs.setdefault(what, []).append(cost)
                        console.print(f"round {number + 1}: {what}: {rate:,.0f}/s, {cost:.2f} us of the learner each")
    finally:
        ray.shutdown()
        cluster.shutdown()
    table = Table("workload", "workers", "way", "samples/s", "learner's us", "of rollway, forwarder")
    for what, found in rates.items():
        workload_name, workers_text, way = what.split(", ", 2)
        ours = rates.get(f"{workload_name}, {workers_text}, rollway, forwarder", found)
        share = [one / our for one, our in zip(found, ours, strict=True)]
        spread = f"{statistics.median(share):.3f} [{min(share):.3f}, {max(share):.3f}]"
        cost = f"{statistics.median(costs[what]):.2f}"
        table.add_row(workload_name, workers_text, way, f"{statistics.median(found):,.0f}", cost, spread)
    console.print(table)
    record = {
        "command": machine.command(),
        "commit": machine.commit(),
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(("numpy", "rollway", "ray")),
        "samples_per_s": rates,
        "learner_us_per_sample": costs,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(record, options.out / "cluster.json")


if __name__ == "__main__":
    main()
