"""Random SIGKILLs among workers, forwarders and nodes of a Ray cluster under load: what is lost or repeated.

    python benches/cluster_kills.py [--kills 100] [--every 1.0] [--workers 6] [--seed 0] [--out DIR]

Three raylets on this machine: the learner is on the first, workers on the two others, behind forwarders. One kill in
ten is a raylet, with all that runs under it; another one takes its place. A worker notes in a file how many of its
sends have returned. The learner notes what comes, by worker, life and place. At the end every send that returned must
have arrived, once. What was still in the ring of a node that was killed is lost with the node, and is
counted by itself.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster
from rich.console import Console

import rollway
from harness import machine
from harness.report import write_json
from rollway.integrations.ray import connect, publish

EXAMPLE = {"payload": np.zeros(1024, np.float32), "worker": np.int64(0), "life": np.int64(0), "place": np.int64(0)}
RUN = "kills"
Life = tuple[int, int]


@ray.remote(num_cpus=0, resources={"workers": 0.01}, max_restarts=-1, max_task_retries=-1)
class Worker:
    """Sends until the file ``stop`` is there. Each life has a file: its pid, its node, how many sends returned."""

    def run(self, worker: int, folder: str) -> None:
        life = 0
        while True:
            try:
                path = Path(folder) / f"{worker}-{life}"
                path.touch(exist_ok=False)
                break
            except FileExistsError:
                life += 1
        notes = np.memmap(path, np.int64, "r+", shape=3)
        notes[:2] = os.getpid(), node_number(ray.get_runtime_context().get_node_id())
        sample: dict[str, Any] = {"payload": np.ones(1024, np.float32), "worker": worker, "life": life}
        with connect(RUN, route="forwarder").client() as client:
            place = 0
            while not (Path(folder) / "stop").exists():
                for _ in range(100):
                    client.send(sample | {"place": place})
                    place += 1
                    notes[2] = place
                time.sleep(0.005)


class Arrivals:
    """What the learner has seen, in a thread of its own."""

    def __init__(self, server: rollway.Server) -> None:
        self.next: Counter[Life] = Counter()
        self.missing: dict[Life, set[int]] = {}
        self.late = 0
        self.repeated = 0
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._over.is_set():
            try:
                sample = self._server.sample(timeout=0.5, at_least=1)
            except rollway.WaitTimeout:
                continue
            if sample is None:
                return
            with sample:
                columns = [sample.batch[name].tolist() for name in ("worker", "life", "place")]
            for worker, life, place in zip(*columns, strict=True):
                self._note((worker, life), place)

    def _note(self, life: Life, place: int) -> None:
        missing, following = self.missing.setdefault(life, set()), self.next[life]
        if place >= following:
            missing.update(range(following, place))
            self.next[life] = place + 1
        elif place in missing:  # a batch whose writer was killed is overtaken
            missing.remove(place)
            self.late += 1
        else:
            self.repeated += 1

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def node_number(node_id: str) -> int:
    return int(node_id[:15], 16)


def noted(folder: Path) -> dict[Life, tuple[int, int, int]]:
    """Of each life: its pid, its node, and how many sends returned."""
    found = {}
    for path in folder.glob("*-*"):
        if path.stat().st_size:
            worker, life = path.name.split("-")
            pid, node, count = np.memmap(path, np.int64, "r", shape=3).tolist()
            found[int(worker), int(life)] = pid, node, count
    return found


def forwarders() -> list[int]:
    """Pids of the nodes' actors."""
    pids = []
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["name"].startswith(f"rollway:{RUN}:"):
            try:
                handle = ray.get_actor(actor["name"], namespace=actor["namespace"])
                pids.append(ray.get(handle.pid.remote(), timeout=5))
            except (ray.exceptions.RayError, TimeoutError, ValueError):  # it has ended, or is being restarted
                continue
    return pids


def kill(pids: list[int], chance: random.Random) -> bool:
    alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    if not alive:
        return False
    os.kill(chance.choice(alive), signal.SIGKILL)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between kills")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=machine.ROOT / "docs" / "bench")
    options = parser.parse_args()
    console, chance, killed = Console(), random.Random(options.seed), Counter[str]()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = {"num_cpus": 1, "resources": {"workers": 1}}
    nodes = [cluster.add_node(**node) for _ in range(2)]
    killed_nodes: set[int] = set()
    ray.init(address=cluster.address, namespace="kills", log_to_driver=False, logging_level="ERROR")
    with (
        tempfile.TemporaryDirectory() as name,
        rollway.Server(EXAMPLE, 64, rollway.ShmTransport(), num_buffers=8) as server,
        publish(RUN, server),
    ):
        folder = Path(name)
        arrivals = Arrivals(server)
        workers = [Worker.remote() for _ in range(options.workers)]
        calls = [worker.run.remote(number, name) for number, worker in enumerate(workers)]
        while len(arrivals.next) < options.workers:
            time.sleep(0.2)
        for number in range(options.kills):
            time.sleep(options.every)
            what = "node" if number % 10 == 9 else chance.choice(["worker", "forwarder"])
            if what == "node":
                gone = nodes.pop(chance.randrange(len(nodes)))
                killed_nodes.add(node_number(gone.node_id))
                cluster.remove_node(gone, allow_graceful=False)
                nodes.append(cluster.add_node(**node))
                killed[what] += 1
            else:
                pids = forwarders() if what == "forwarder" else [pid for pid, _, _ in noted(folder).values()]
                killed[what] += kill(pids, chance)
            console.print(f"{sum(killed.values())} kills: {dict(killed)}, {sum(arrivals.next.values()):,} samples")
        (folder / "stop").touch()
        ray.wait(calls, num_returns=len(calls), timeout=120)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            lost, with_nodes = 0, 0
            for life, (_, place, count) in noted(folder).items():
                missing = max(0, count - arrivals.next[life]) + len(arrivals.missing.get(life, ()))
                with_nodes += missing if place in killed_nodes else 0
                lost += 0 if place in killed_nodes else missing
            if lost == 0:
                break
            time.sleep(0.5)
        arrivals.end()
        sent = sum(count for _, _, count in noted(folder).values())
    ray.shutdown()
    cluster.shutdown()
    console.print(f"{dict(killed)}: {sent:,} sends returned; {lost:,} are lost, {arrivals.repeated:,} came twice")
    console.print(f"{with_nodes:,} were lost with the nodes that were killed; {arrivals.late:,} were overtaken")
    record = {
        "command": machine.command(),
        "commit": machine.commit(),
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(("numpy", "rollway", "ray")),
        "kills": dict(killed),
        "sends": sent,
        "lost": lost,
        "lost_with_nodes": with_nodes,
        "repeated": arrivals.repeated,
        "overtaken": arrivals.late,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(record, options.out / "cluster_kills.json")


if __name__ == "__main__":
    main()
