"""A forwarder and its learner on two hosts: network namespaces that are joined by a veth pair, whose link is cut for a while.

A script, for `test_packet_faults`: ``unshare --net python two_hosts.py SAMPLES CUT_S FAULTS``. The learner is in the namespace of the
script; the forwarder and its workers are in one that it makes. ``FAULTS`` is what netem does to the packets of both directions, as ``tc``
takes it: ``"delay 5ms 3ms loss 2%"``, or empty.

Exits with `UNAVAILABLE` and says why, where the kernel has no veth, or no netem.
"""

import subprocess
import sys
import threading
import time

import numpy as np

import rollway
from rollway.transport import Forwarder

LEARNER, NODE = "10.78.0.1", "10.78.0.2"
UNAVAILABLE = 77
TOKEN = "a token for two hosts"
EXAMPLE = {"id": np.zeros(2, np.int64)}
WORKERS = 2


def run(command):
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


def set_up(interface, address, faults):
    run("ip link set lo up")
    run(f"ip addr add {address}/24 dev {interface}")
    run(f"ip link set {interface} up")
    if faults:
        run(f"tc qdisc add dev {interface} root netem {faults}")


def be_node(samples, faults):
    """The second host: says when its namespace is there, and gets its interface and the learner's port."""
    print("ready", flush=True)
    port = int(sys.stdin.readline())
    set_up("node0", NODE, faults)
    options = {"token": TOKEN, "rows": 16, "num_buffers": 4, "keepalive_s": 0.5, "connect_timeout_s": 60}
    with Forwarder(f"two-hosts-{port}", EXAMPLE, LEARNER, port, **options) as forwarder:

        def work(worker):
            with rollway.ShmClient(forwarder.name, EXAMPLE, producer_id=worker) as client:
                for counter in range(samples):
                    client.send({"id": np.array([worker, counter])})

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        forwarder.wait(timeout=60)


def take_all(server, samples, cut_s):
    """What comes, in its order. Halfway the link is cut."""
    seen, is_cut = [], False
    while len(seen) < WORKERS * samples:
        if len(seen) >= WORKERS * samples // 2 and not is_cut:
            run("ip link set learner0 down")
            time.sleep(cut_s)
            run("ip link set learner0 up")
            is_cut = True
        with server.sample(timeout=60) as taken:
            seen += map(tuple, taken.batch["id"].tolist())
    return seen


def main():
    if sys.argv[1] == "node":
        return be_node(int(sys.argv[2]), sys.argv[3])
    samples, cut_s, faults = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    assert samples % 10 == 0, "only whole batches are taken"
    try:
        run("ip link add name learner0 type veth peer name node0")
        set_up("learner0", LEARNER, faults)
    except subprocess.CalledProcessError as error:
        print(f"no veth or no netem: {error} {error.stderr}".strip())
        sys.exit(UNAVAILABLE)
    way_in = rollway.TcpTransport(0, LEARNER, token=TOKEN, keepalive_s=0.5, frame_timeout_s=2.0)
    with rollway.Server(EXAMPLE, 10 * WORKERS, way_in) as server:
        command = ["unshare", "--net", sys.executable, __file__, "node", str(samples), faults]
        node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert node.stdout.readline() == "ready\n"
            run(f"ip link set node0 netns {node.pid}")
            node.stdin.write(f"{server.port}\n")
            node.stdin.flush()
            seen = take_all(server, samples, cut_s)
            assert node.wait(60) == 0
        finally:
            node.kill()
        assert sorted(seen) == [(worker, counter) for worker in range(WORKERS) for counter in range(samples)]
        assert server.try_sample() is None
        print({name: server.stats()[f"tcp_{name}"] for name in ("samples", "resumed", "duplicates")})


if __name__ == "__main__":
    main()
