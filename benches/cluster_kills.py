"""Random SIGKILLs among workers, forwarders and nodes of a Ray cluster under load: what is lost or repeated.

    python benches/cluster_kills.py [--kills 100] [--every 1.0] [--workers 6] [--seed 0] [--out DIR]

Three raylets on this machine: the learner is on the first, workers on the two others, behind forwarders. One kill in
ten is a raylet, with all that runs under it; another one takes its place. A worker notes in a file how many of its
sends have returned. The learner notes what comes, by worker, life and place. At the end every send that returned must
have arrived, once, also what was in the ring of a node that was killed: the machine lives on, and another forwarder
takes the ring over. After the run no segment of it may be left.

A kill counts when it hit a living process. The program ends by itself, with status 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
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
from rollway.machine import segments

EXAMPLE = {"payload": np.zeros(1024, np.float32), "worker": np.int64(0), "life": np.int64(0), "place": np.int64(0)}
RUN = "kills"
START_WAIT_S, STUCK_S, END_WAIT_S = 300.0, 120.0, 300.0
QUICK = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
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
        self._thread = threading.Thread(target=self._read, daemon=True)
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


def kill(pids: list[int], title: str, chance: random.Random) -> bool:
    """Kills one of them. A number may belong to another process by now, so Ray's title of the process must fit."""
    alive = [pid for pid in pids if title in read_title(pid)]
    if not alive:
        return False
    os.kill(chance.choice(alive), signal.SIGKILL)
    return True


def read_title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def missing_samples(folder: Path, arrivals: Arrivals) -> Counter[int]:
    """How many sends returned whose samples have not arrived, by node."""
    missing = Counter[int]()
    for life, (_, place, count) in noted(folder).items():
        missing[place] += max(0, count - arrivals.next[life]) + len(arrivals.missing.get(life, ()))
    return missing


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def segments_left() -> list[str]:
    return [segment.name for segment in segments() if segment.name.startswith(f"ray-{RUN}-")]


class Kills:
    """Kills one process after another, and counts what was hit."""

    def __init__(self, cluster: Cluster, folder: Path, chance: random.Random) -> None:
        self.count: Counter[str] = Counter()
        self.killed_nodes: set[int] = set()
        self._cluster, self._folder, self._chance = cluster, folder, chance
        self._node = {"num_cpus": 1, "resources": {"workers": 1}}
        self._nodes = [self._add_node() for _ in range(2)]

    @property
    def total(self) -> int:
        return sum(self.count.values())

    def kill_one(self) -> bool:
        what = "node" if self.total % 10 == 9 else self._chance.choice(["worker", "forwarder"])
        self.count[what] += (hit := self._hit(what))
        return hit

    def _hit(self, what: str) -> bool:
        if what == "worker":
            return kill([pid for pid, _, _ in noted(self._folder).values()], "ray::Worker", self._chance)
        if what == "forwarder":
            return kill(forwarders(), "ray::NodeForwarder", self._chance)
        gone = self._nodes.pop(self._chance.randrange(len(self._nodes)))
        self.killed_nodes.add(node_number(gone.node_id))
        self._cluster.remove_node(gone, allow_graceful=False)
        self._nodes.append(self._add_node())
        return True

    def _add_node(self) -> Any:
        for _ in range(4):
            with contextlib.suppress(Exception):  # Ray gives a node 30 s to start, which a busy machine may need
                return self._cluster.add_node(**self._node)
        return self._cluster.add_node(**self._node)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between kills")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=machine.ROOT / "docs" / "bench")
    options = parser.parse_args()
    console = Console()
    with contextlib.ExitStack() as ends:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": QUICK})
        ends.callback(cluster.shutdown)
        ray.init(address=cluster.address, namespace="kills", log_to_driver=False, logging_level="ERROR")
        ends.callback(ray.shutdown)
        name = ends.enter_context(tempfile.TemporaryDirectory())
        folder = Path(name)
        kills = Kills(cluster, folder, random.Random(options.seed))
        with rollway.Server(EXAMPLE, 64, rollway.ShmTransport(), num_buffers=8) as server, publish(RUN, server):
            arrivals = Arrivals(server)
            workers = [Worker.remote() for _ in range(options.workers)]
            calls = [worker.run.remote(number, name) for number, worker in enumerate(workers)]
            if not wait_until(lambda: len(arrivals.next) >= options.workers, START_WAIT_S):
                sys.exit(f"of {options.workers} workers only {len(arrivals.next)} have sent after {START_WAIT_S:.0f} s")
            while kills.total < options.kills:
                time.sleep(options.every)
                if not wait_until(kills.kill_one, STUCK_S):
                    sys.exit(f"nothing to kill was found for {STUCK_S:.0f} s")
                console.print(f"{kills.total} kills: {dict(kills.count)}, {sum(arrivals.next.values()):,} samples")
            (folder / "stop").touch()
            console.print("the workers are told to stop")
            _, hang = ray.wait(calls, num_returns=len(calls), timeout=END_WAIT_S)
            wait_until(lambda: not missing_samples(folder, arrivals).total(), END_WAIT_S)
            missing = missing_samples(folder, arrivals)
            sent = sum(count for _, _, count in noted(folder).values())
            arrivals.end()
        wait_until(lambda: not segments_left(), END_WAIT_S)
        left = segments_left()
    lost, late, twice = missing.total(), arrivals.late, arrivals.repeated
    with_nodes = sum(count for node, count in missing.items() if node in kills.killed_nodes)
    console.print(f"{dict(kills.count)}: {sent:,} sends returned; {lost:,} are lost, {twice:,} came twice")
    console.print(f"{with_nodes:,} of these were lost with nodes; {late:,} were overtaken by later ones")
    console.print(f"{len(hang)} workers hang; {len(left)} segments are left {left}")
    record = {
        "command": machine.command(),
        "commit": machine.commit(),
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(("numpy", "rollway", "ray")),
        "kills": dict(kills.count),
        "sends": sent,
        "lost": lost,
        "lost_with_nodes": with_nodes,
        "repeated": twice,
        "overtaken": late,
        "hanging": len(hang),
        "segments_left": len(left),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(record, options.out / "cluster_kills.json")
    sys.exit(1 if lost or twice or hang or left else 0)


if __name__ == "__main__":
    main()
