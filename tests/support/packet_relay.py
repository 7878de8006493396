"""A run of workers and a learner over a network that loses, delays, reorders and doubles packets, and is cut in two for a while.

A script, for `test_packet_faults`: ``unshare --net python packet_relay.py SAMPLES RECORDS PARTITION_S SEED``. Its network namespace
holds nothing but its loopback and one TUN device. What is sent to `FAR` leaves through the device, and the relay thread puts it back in
with the two addresses exchanged: so it comes from `FAR`, and goes to `NEAR`. That leaves every checksum as it was, because the
checksum is a sum over both addresses. The kernel's own TCP is at both ends.

Exits with `UNAVAILABLE` and says why, where the machine has no TUN device, or does not let us have one.
"""

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import threading
import time

import numpy as np

import rollway
from rollway.transport import Forwarder

NEAR, FAR = "10.77.0.1", "10.77.0.2"
UNAVAILABLE = 77
TOKEN = "a token for a network of packets"

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000


def open_tun():
    """A TUN device with the address `NEAR`, and a route to `FAR` through it."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", b"packets0", _IFF_TUN | _IFF_NO_PI))
    for command in (f"addr add {NEAR}/24 dev packets0", "link set packets0 up", "link set lo up"):
        subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)
    return tun


class Relay:
    """Puts back what leaves, with faults. Counts what it did to the packets."""

    def __init__(self, tun, seed):
        self._tun = tun
        self._random = random.Random(seed)
        self._partitioned_until = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.counts = dict.fromkeys(("carried", "lost", "late", "doubled", "partitioned"), 0)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def partition(self, seconds):
        """Loses everything from now on, for so long."""
        self._partitioned_until = time.monotonic() + seconds

    def _run(self):
        waiting, number = [], 0  # a heap of (when it is due, a number that orders equal times, packet)
        while not self._ended.is_set():
            until_due = waiting[0][0] - time.monotonic() if waiting else 0.1
            if select.select([self._tun], [], [], max(0.0, min(until_due, 0.1)))[0]:
                packet = os.read(self._tun, 1 << 16)
                for delay_s in self._fate(packet):
                    number += 1
                    turned = packet[:12] + packet[16:20] + packet[12:16] + packet[20:]
                    heapq.heappush(waiting, (time.monotonic() + delay_s, number, turned))
            while waiting and waiting[0][0] <= time.monotonic():
                os.write(self._tun, heapq.heappop(waiting)[2])
                self.counts["carried"] += 1

    def _fate(self, packet):
        """After how long a packet arrives, once for each time that it does."""
        if packet[0] >> 4 != 4:
            return []  # The kernel's own words about IPv6.
        if time.monotonic() < self._partitioned_until:
            self.counts["partitioned"] += 1
            return []
        chance = self._random.random()
        if chance < 0.02:
            self.counts["lost"] += 1
            return []
        if chance < 0.07:
            self.counts["late"] += 1  # Others overtake it.
            return [0.001 + 0.02 * self._random.random()]
        if chance < 0.08:
            self.counts["doubled"] += 1
            return [0.001, 0.003]
        return [0.001]


def transport():
    return rollway.TcpTransport(0, NEAR, token=TOKEN, keepalive_s=0.5, frame_timeout_s=2.0)


def in_threads(work, workers):
    """Calls ``work(worker)`` for each of them, all at once; the threads, and a list of what they raise."""
    failures = []

    def run(worker):
        try:
            work(worker)
        except BaseException as error:  # noqa: BLE001  raised by the main thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in range(workers)]
    for thread in threads:
        thread.start()
    return threads, failures


def must_not_have_failed(failures):
    if failures:
        raise failures[0]


def finish(threads, failures):
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a worker hangs"
    must_not_have_failed(failures)


def run_samples(count, halfway):
    """Three workers send ``count`` samples each; every one arrives whole, and once."""
    example = {"id": np.zeros(2, np.int64), "payload": np.zeros(64, np.int64)}
    with rollway.Server(example, 30, transport()) as server:

        def work(worker):
            with rollway.TcpClient(
                FAR, server.port, example, token=TOKEN, producer_id=worker, keepalive_s=0.5
            ) as client:
                for counter in range(count):
                    client.send({"id": np.array([worker, counter]), "payload": np.arange(64) * worker + counter})
                client.wait(timeout=60)

        workers, failures = in_threads(work, 3)
        seen = set()
        while len(seen) < 3 * count:
            must_not_have_failed(failures)
            if len(seen) >= 3 * count // 2:
                halfway()
            with server.sample(timeout=60, at_least=1) as taken:
                ids, payload = taken.batch["id"], taken.batch["payload"]
                assert (payload == np.arange(64) * ids[:, :1] + ids[:, 1:]).all(), "a torn sample"
                for worker, counter in ids.tolist():
                    assert (worker, counter) not in seen, f"sample {counter} of worker {worker} came twice"
                    seen.add((worker, counter))
        finish(workers, failures)
        assert seen == {(worker, counter) for worker in range(3) for counter in range(count)}
        return server.stats()


def run_forwarded(count, halfway, workers=3):
    """As `run_samples`, but the workers write into the ring of a node, which a forwarder sends on."""
    example = {"id": np.zeros(2, np.int64), "payload": np.zeros(64, np.int64)}
    name = f"packets-{os.getpid()}"
    assert count % 20 == 0, "only whole batches are taken"
    with rollway.Server(example, 20, transport()) as server:
        options = {"token": TOKEN, "rows": 16, "num_buffers": 4, "keepalive_s": 0.5}
        with Forwarder(name, example, FAR, server.port, **options) as forwarder:

            def work(worker):
                with rollway.ShmClient(name, example, producer_id=worker) as client:
                    for counter in range(count):
                        client.send({"id": np.array([worker, counter]), "payload": np.arange(64) * worker + counter})

            threads, failures = in_threads(work, workers)
            seen = []
            while len(seen) < workers * count:
                must_not_have_failed(failures)
                if len(seen) >= workers * count // 2:
                    halfway()
                with server.sample(timeout=60) as taken:
                    ids, payload = taken.batch["id"], taken.batch["payload"]
                    assert (payload == np.arange(64) * ids[:, :1] + ids[:, 1:]).all(), "a torn sample"
                    seen += map(tuple, ids.tolist())
            finish(threads, failures)
            forwarder.wait(timeout=60)
        assert server.try_sample() is None
        expected = [(worker, counter) for worker in range(workers) for counter in range(count)]
        assert sorted(seen) == expected, "lost, or came twice"
        assert workers > 1 or seen == expected, "out of order"
        return server.stats()


def run_forwarded_in_order(count, halfway):
    """One worker: with several, a batch whose writer has no core for 4 ms is overtaken, with the others' samples in it."""
    return run_forwarded(count, halfway, workers=1)


def run_records(count, halfway):
    """Two workers send ``count`` records each, of any size up to 64 KiB; every one arrives whole, once, and in order."""
    schema = {"tokens": "int32[*]"}
    with rollway.RecordServer(schema, transport(), lane_bytes=1 << 20) as server:

        def work(worker):
            sizes = random.Random(worker)
            options = {"token": TOKEN, "producer_id": worker, "keepalive_s": 0.5}
            with rollway.TcpRecordClient(FAR, server.port, schema, **options) as client:
                for counter in range(count):
                    size = sizes.choice((0, 1, 100, 1000, 16_000))
                    client.send({"tokens": np.full(size, counter, np.int32)}, version=size)
                client.wait(timeout=60)

        workers, failures = in_threads(work, 2)
        following = [0, 0]
        while sum(following) < 2 * count:
            must_not_have_failed(failures)
            if sum(following) >= count:
                halfway()
            with server.read(timeout=60) as record:
                worker, counter, tokens = record.producer_id, record.sequence, record["tokens"]
                assert counter == following[worker], f"record {counter} of worker {worker}, not {following[worker]}"
                assert len(tokens) == record.version and (tokens == counter).all(), "a torn record"
                following[worker] += 1
        finish(workers, failures)
        assert following == [count, count] and server.try_read() is None
        return server.stats()


def main():
    samples, records, seed = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4])
    partition_s = float(sys.argv[3])
    try:
        tun = open_tun()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no TUN device: {error} {getattr(error, 'stderr', '')}".strip())
        sys.exit(UNAVAILABLE)
    with Relay(tun, seed) as relay:
        for run, count in (
            (run_samples, samples),
            (run_forwarded, samples),
            (run_forwarded_in_order, samples),
            (run_records, records),
        ):
            partitions = iter((partition_s,))  # once in each run

            def halfway(partitions=partitions):
                for seconds in partitions:
                    relay.partition(seconds)

            stats = run(count, halfway)
            print(run.__name__, {name: stats[f"tcp_{name}"] for name in ("samples", "resumed", "duplicates", "staged")})
    print(relay.counts)
    assert all(relay.counts.values()), "the network was not bad enough to tell anything"


if __name__ == "__main__":
    main()
