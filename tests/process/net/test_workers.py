"""Samples over TCP between real processes: many workers, deaths, restarts, Ctrl-C, two hosts, and a long run."""

import asyncio
import contextlib
import multiprocessing as mp
import os
import signal
import socket
import subprocess
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway.transport import tcp_lifetime
from tests.support.processes import Ledger, forked, until

WORDS = 64
EXAMPLE = {"id": np.zeros(2, np.int64), "payload": np.zeros(WORDS, np.int64), "sum": np.int64(0)}
PREAMBLE = """
import os, sys, signal, numpy as np, rollway
WORDS = 64
EXAMPLE = {"id": np.zeros(2, np.int64), "payload": np.zeros(WORDS, np.int64), "sum": np.int64(0)}
def sample(worker, counter):
    payload = np.arange(WORDS, dtype=np.int64) * 31 + worker * 1_000_003 + counter
    return {"id": np.array([worker, counter]), "payload": payload, "sum": payload.sum() ^ counter}
port = int(sys.argv[1])
"""


def sample(worker, counter):
    payload = np.arange(WORDS, dtype=np.int64) * 31 + worker * 1_000_003 + counter
    return {"id": np.array([worker, counter]), "payload": payload, "sum": payload.sum() ^ counter}


def stacked(worker, counters):
    rows = [sample(worker, counter) for counter in counters]
    return {key: np.stack([row[key] for row in rows]) for key in EXAMPLE}


def connect(port, **options):
    return rollway.TcpClient("127.0.0.1", port, EXAMPLE, **options)


def work(port, worker, count):
    """Sends by every method in turn."""
    with connect(port, producer_id=worker) as client:
        sent = 0
        while sent < count:
            if sent % 3 == 0:
                client.send(sample(worker, sent))
                sent += 1
            elif sent % 3 == 1:
                many = range(sent, min(sent + 17, count))
                sent += client.send_many(stacked(worker, many))
            elif client.try_send(sample(worker, sent)):
                sent += 1
            else:
                client.wait(timeout=60)


class Tally:
    """What arrived: whole, and once. A batch may overtake another that waits for its writer; the numbers tell."""

    def __init__(self):
        self._next, self._ahead = {}, {}

    def add(self, taken):
        batch, info = taken.batch, taken.info
        payload = np.arange(WORDS) * 31 + batch["id"][:, :1] * 1_000_003 + batch["id"][:, 1:]
        assert (batch["payload"] == payload).all(), "a torn sample"
        assert (batch["sum"] == batch["payload"].sum(1) ^ batch["id"][:, 1]).all(), "a torn sample"
        assert (info.sequences == batch["id"][:, 1]).all(), "a number that is not the sample's"
        for worker, counter in batch["id"].tolist():
            self.note(worker, counter)

    def note(self, worker, counter):
        following, ahead = self._next.get(worker, 0), self._ahead.setdefault(worker, set())
        assert counter >= following and counter not in ahead, f"repeated: sample {counter} of worker {worker}"
        ahead.add(counter)
        while following in ahead:
            ahead.remove(following)
            following += 1
        self._next[worker] = following

    def count(self, worker):
        return self._next.get(worker, 0) + len(self._ahead.get(worker, ()))

    def whole(self):
        """How many came from each worker; none may be missing."""
        assert not any(self._ahead.values()), f"missing before: {self._ahead}"
        return dict(sorted(self._next.items()))

    def take(self, server, count, timeout=30):
        while sum(map(self.count, self._next)) < count:
            with server.sample(timeout=timeout) as taken:
                self.add(taken)

    def rest(self, server):
        """Takes what is there once every connection has ended, short batches too."""
        until(lambda: self._sweep(server) or server.stats()["tcp_connections"] == 0, timeout=20)
        self._sweep(server)

    def _sweep(self, server):
        with contextlib.suppress(rollway.WaitTimeout):
            while True:
                with server.sample(timeout=0.01, at_least=1) as taken:
                    self.add(taken)


def ended_well(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def brood():
    """Forks children, ``brood(target, arg, …)``, and kills those that still live at the end of the test."""
    pids = []

    def start(target, *args):
        pids.append(forked(target, *args))
        return pids[-1]

    yield start
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def serve(batch_size=16, *, example=EXAMPLE, num_buffers=4, port=0, **options):
    """A learner, with the options of its transport and of its server."""
    mine = {key: options.pop(key) for key in ("peer_timeout_s", "on_full") if key in options}
    return rollway.Server(example, batch_size, rollway.TcpTransport(port, **options), num_buffers, **mine)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


# ── many workers ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_four_workers_lose_repeat_and_tear_nothing(method):
    context, each = mp.get_context(method), 3000
    with serve() as server:
        workers = [context.Process(target=work, args=(server.port, i, each)) for i in range(4)]
        [worker.start() for worker in workers]
        tally = Tally()
        tally.take(server, 4 * each)
        [worker.join(30) for worker in workers]
        assert [worker.exitcode for worker in workers] == [0] * 4
        assert tally.whole() == dict.fromkeys(range(4), each)
        until(lambda: server.stats()["tcp_connections"] == 0)
        assert server.stats()["tcp_duplicates"] == 0 and server.stats()["tcp_resumed"] == 0


def produce(port, worker, ledger, limit=10**9):
    """Notes what is acknowledged, and what was handed over."""
    client = connect(port, producer_id=worker)
    for counter in range(limit):
        ledger.note(2 * worker + 1, counter + 1)
        client.send(sample(worker, counter))
        if counter % 50 == 49:
            ledger.note(2 * worker, client.stats()["acknowledged"])
    client.close()
    ledger.note(2 * worker, limit)


def test_killed_workers_lose_nothing_that_was_acknowledged_and_the_others_go_on(brood):
    kills, survivors, each = 6, 2, 4000
    ledger, tally = Ledger(2 * (kills + survivors)), Tally()
    with serve(8) as server:
        alive = [brood(produce, server.port, worker, ledger, each) for worker in range(survivors)]
        for victim in range(survivors, survivors + kills):
            pid = brood(produce, server.port, victim, ledger)
            while ledger.read(2 * victim) < 200:
                tally.add(server.sample(timeout=20))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        while any(ledger.read(2 * worker) < each for worker in range(survivors)):
            with contextlib.suppress(rollway.WaitTimeout):
                tally.add(server.sample(timeout=0.5, at_least=1))
        assert all(map(ended_well, alive))
        tally.rest(server)
        assert [tally.whole()[worker] for worker in range(survivors)] == [each] * survivors
        for victim in range(survivors, survivors + kills):
            assert 200 <= ledger.read(2 * victim) <= tally.whole()[victim] <= ledger.read(2 * victim + 1)
        assert server.stats()["claimed_slots"] == 0, "half a frame was given back"


def test_what_was_waited_for_before_close_is_there_every_time(brood):
    """As a worker that comes, delivers and goes does it, again and again."""

    def deliver(port, rounds):
        for number in range(rounds):
            with connect(port, producer_id=number) as client:
                for counter in range(15):
                    client.send(sample(number, counter))
                client.wait(timeout=20)
                assert client.unacknowledged == 0

    with serve(10) as server:
        pid, tally = brood(deliver, server.port, 100), Tally()
        tally.take(server, 1500)
        assert ended_well(pid) and tally.whole() == dict.fromkeys(range(100), 15)


def test_a_stopped_worker_holds_nobody_up(brood):
    with serve(4, num_buffers=2, frame_timeout_s=0.5) as server:
        ledger, tally = Ledger(4), Tally()

        def take(enough):
            deadline = time.monotonic() + 20
            while not enough():
                assert time.monotonic() < deadline, server.stats()
                with contextlib.suppress(rollway.WaitTimeout), server.sample(timeout=0.1, at_least=1) as taken:
                    tally.add(taken)

        stuck = brood(produce, server.port, 0, ledger)
        take(lambda: ledger.read(0) >= 200)
        os.kill(stuck, signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(stuck, os.WUNTRACED)[1])
        other = brood(produce, server.port, 1, ledger, 3000)
        take(lambda: tally.count(1) == 3000)
        assert ended_well(other)
        before = tally.count(0)
        os.kill(stuck, signal.SIGCONT)
        take(lambda: tally.count(0) >= before + 200)


STILL = """
import resource
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
example = {"row": np.zeros(1024, np.int64)}
server = rollway.Server(example, 8, rollway.TcpTransport(), num_buffers=2)
server.start()
print(server.port, flush=True)
for line in sys.stdin:
    if line.startswith("resident"):
        print(resident(), flush=True)
    elif line.startswith("waiting"):
        print(server.stats()["tcp_connections"], server.stats()["tcp_waited"], flush=True)
    else:
        break
seen = set()
for _ in range(int(line)):
    with server.sample(timeout=30) as taken:
        seen.update(map(tuple, taken.batch["row"][:, :2].tolist()))
print(len(seen), flush=True)
server.close()
"""


def test_a_hundred_clients_of_a_learner_that_stands_still_are_drained(child):
    """At most 32 KiB for each connection, and 12 MiB for the spill buffers and whatever else comes with the first."""
    clients, each = 100, 40
    learner = child(PREAMBLE + STILL, 0)
    port, example = int(learner.line()), {"row": np.zeros(1024, np.int64)}

    def ask(what):
        learner.tell(what)
        return [int(word) for word in learner.line().split()]

    def feed(worker):
        with rollway.TcpClient("127.0.0.1", port, example, 4, producer_id=worker) as client:
            rows = np.zeros((each, 1024), np.int64)
            rows[:, 0], rows[:, 1] = worker, np.arange(each)
            client.send_many({"row": rows})
            client.wait()

    (before,) = ask("resident")
    threads = [threading.Thread(target=feed, args=(worker,)) for worker in range(clients)]
    [thread.start() for thread in threads]
    until(lambda: ask("waiting")[0] == clients, timeout=30)
    until(lambda: ask("waiting")[1] >= clients, timeout=30)
    grown = ask("resident")[0] - before
    assert grown < clients * 32 * 1024 + 12 * 2**20, f"{grown / 2**20:.1f} MiB"
    learner.tell(str(clients * each // 8))
    assert learner.line() == str(each * clients)
    [thread.join() for thread in threads]
    learner.ends()


# ── comings and goings ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_may_come_before_its_learner(child):
    port = free_port()
    worker = child(
        PREAMBLE
        + """
print("waiting", flush=True)
with rollway.TcpClient("127.0.0.1", port, EXAMPLE, connect_timeout_s=30) as client:
    client.send(sample(1, 0))
""",
        port,
    )
    worker.says("waiting")
    with serve(1, port=port) as server:
        Tally().take(server, 1)
        worker.ends()


def test_a_learner_that_closes_tells_its_workers_what_is_not_acknowledged(child):
    server = serve(1, num_buffers=2)
    server.start()
    code = (
        PREAMBLE
        + """
client = rollway.TcpClient("127.0.0.1", port, EXAMPLE, max_inflight_msgs=3)
print("ready", flush=True)
try:
    for counter in range(100): client.send(sample(0, counter))
except rollway.ConnectionClosedError as error:
    stats = client.stats()
    print(error.unacknowledged == stats["sent"] - stats["acknowledged"] > 0, error)
"""
    )
    workers = [child(code, server.port) for _ in range(2)]
    [worker.says("ready") for worker in workers]
    until(lambda: server.stats()["tcp_waited"] >= 2)
    server.close()
    for worker in workers:
        out, _ = worker.ends()
        assert out.startswith("True the connection to 127.0.0.1") and "are not acknowledged" in out


LEARNER = """
server = rollway.Server(EXAMPLE, 4, rollway.TcpTransport(port), num_buffers=2)
server.start()
print(server.port, flush=True)
for line in sys.stdin:
    for _ in range(int(line)): server.sample(timeout=30).release()
    print("taken", flush=True)
"""


def test_a_learner_that_is_killed_is_an_error_in_time_with_the_count(child):
    learner = child(PREAMBLE + LEARNER, 0)
    client = connect(int(learner.line()), reconnect_timeout_s=0.5, max_inflight_msgs=2)
    for counter in range(8):
        client.send(sample(0, counter), timeout=20)
    client.wait(timeout=20)
    with contextlib.suppress(rollway.WaitTimeout):
        for counter in range(8, 100):
            client.send(sample(0, counter), timeout=0.1)
    waiting = client.unacknowledged
    learner.kill()
    started = time.monotonic()
    with pytest.raises(
        rollway.ConnectionClosedError,
        match=rf"the learner has been away for .*refused.*{waiting} samples, from number 8",
    ) as raised:
        client.wait(timeout=30)
    assert raised.value.unacknowledged == waiting > 0
    assert 0.4 < time.monotonic() - started < 10
    with pytest.raises(rollway.ConnectionClosedError):
        client.close()


def test_a_restarted_learner_takes_a_worker_that_owes_nothing(child):
    learner = child(PREAMBLE + LEARNER, 0)
    port = int(learner.line())
    with connect(port, reconnect_timeout_s=30) as client:
        for counter in range(8):
            client.send(sample(0, counter), timeout=20)
        client.wait(timeout=20)
        learner.kill()
        until(lambda: not client.connected)  # what is written to a dead connection would have an unknown fate
        with serve(4, port=port) as server:
            for counter in range(8, 16):
                client.send(sample(0, counter), timeout=20)
            client.wait(timeout=20)
            tally = Tally()
            [tally.note(0, counter) for counter in range(8)]
            tally.take(server, 16)
            assert client.stats()["connects"] == 2


def test_a_restarted_learner_does_not_guess_the_fate_of_samples(child):
    learner = child(PREAMBLE + LEARNER, 0)
    port = int(learner.line())
    client = connect(port, reconnect_timeout_s=30, max_inflight_msgs=1)
    with contextlib.suppress(rollway.WaitTimeout):
        for counter in range(100):
            client.send(sample(0, counter), timeout=0.2)
    learner.kill()
    with serve(4, port=port) as server:
        with pytest.raises(rollway.ConnectionClosedError, match=r"does not know this client.*is unknown") as raised:
            client.wait(timeout=30)
        assert raised.value.unacknowledged > 0 and server.stats()["tcp_samples"] == 0
    with pytest.raises(rollway.ConnectionClosedError):
        client.close()


def test_a_learner_that_does_not_wait_for_ever_is_told_that_no_remote_worker_is_left(child):
    with serve(4, peer_timeout_s=0.1) as server:
        worker = child(
            PREAMBLE
            + """
client = rollway.TcpClient("127.0.0.1", port, EXAMPLE); client.send(sample(0, 0)); client.wait()
print("sent", flush=True); sys.stdin.readline()
""",
            server.port,
        )
        worker.says("sent")
        worker.kill()
        until(lambda: server.stats()["tcp_connections"] == 0)
        # It may come back, so this is no PeerDied.
        with pytest.raises(rollway.WaitTimeout, match=r"1 samples are committed, .*; 0 producers attached"):
            server.sample(timeout=0.5)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sample", "sample_async"])
def test_a_second_learner_waits_as_long_as_the_first_may_let_remote_workers_in(name, child, asynchronous):
    host = child(
        PREAMBLE
        + """
transports = [rollway.ShmTransport(sys.argv[2]), rollway.TcpTransport()]
with rollway.Server(EXAMPLE, 4, transports): print("serves", flush=True); sys.stdin.readline()
""",
        0,
        name,
    )
    host.says("serves")
    with rollway.Server(EXAMPLE, 4, rollway.ShmTransport(name), peer_timeout_s=0.1) as second:

        def wait(timeout):
            return asyncio.run(second.sample_async(timeout)) if asynchronous else second.sample(timeout)

        local = child(
            PREAMBLE + "c = rollway.ShmClient(sys.argv[2], EXAMPLE); print('in', flush=True); input()", 0, name
        )
        local.says("in")
        local.kill()
        with pytest.raises(rollway.WaitTimeout):  # remote ones may come, so this is no PeerDied
            wait(0.5)
        host.kill()
        with pytest.raises(rollway.PeerDied, match=str(host.pid)):
            wait(30)


def test_a_worker_that_forgets_to_close_delivers_what_it_sent_or_complains(child):
    with serve(1, num_buffers=2) as server:
        worker = child(
            PREAMBLE
            + """
client = rollway.TcpClient("127.0.0.1", port, EXAMPLE)
for counter in range(20): client.send(sample(0, counter))
print("sent", flush=True)
""",
            server.port,
        )
        worker.says("sent")
        until(lambda: worker.process.poll() is not None, timeout=20)
        tally = Tally()
        tally.rest(server)
        assert tally.whole() == {0: 20} or worker.ends(worker.process.returncode)[1]


def learn(port, count, pipe):
    """A learner as the target of a process."""
    with rollway.Server(EXAMPLE, 10, rollway.TcpTransport(port)) as server:
        pipe.send(server.port)
        tally = Tally()
        tally.take(server, count)
        pipe.send(tally.whole())


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_learner_of_every_start_method_serves(method):
    context = mp.get_context(method)
    mine, theirs = context.Pipe()
    learner = context.Process(target=learn, args=(0, 1000, theirs))
    learner.start()
    assert mine.poll(30)
    with connect(mine.recv(), producer_id=3) as client:
        for start in range(0, 1000, 100):
            client.send_many(stacked(3, range(start, start + 100)))
    assert mine.poll(30) and mine.recv() == {3: 1000}
    learner.join(30)
    assert learner.exitcode == 0


def test_a_learner_forked_beside_another_is_a_learner_of_its_own():
    """The fork happens while this process serves: threads, sockets and locks of the parent are not the child's."""
    context = mp.get_context("fork")
    with serve(1) as server, connect(server.port) as client:
        mine, theirs = context.Pipe()
        learner = context.Process(target=learn, args=(0, 50, theirs))
        learner.start()
        assert mine.poll(30)
        with connect(mine.recv(), producer_id=1) as other:
            other.send_many(stacked(1, range(50)))
        assert mine.poll(30) and mine.recv() == {1: 50}
        learner.join(30)
        client.send(sample(0, 0))
        Tally().take(server, 1)


# ── forks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_forked_child_is_told_to_make_its_own_client_and_disturbs_nobody(brood):
    with serve(1) as server, connect(server.port) as client:
        client.send(sample(0, 0))

        def use_the_parents():
            calls = (
                lambda: client.send(sample(0, 1)),
                lambda: client.try_send(sample(0, 1)),
                lambda: client.send_many(stacked(0, [1, 2])),
                lambda: client.try_send_many(stacked(0, [1, 2])),
                client.wait,
                lambda: client.wait(timeout=1),
            )
            for call in calls:
                message = rf"this client belongs to process {os.getppid()}: a forked child has to make its own"
                with pytest.raises(rollway.errors.NotInThisProcess, match=message):
                    call()
            assert not client.connected and repr(client)
            client.close()
            client.close()
            server.close()  # the parent's: must not stop its transport

        assert ended_well(brood(use_the_parents))
        assert not server.closed and client.connected
        client.send(sample(0, 1))
        Tally().take(server, 2)
        assert client.stats()["connects"] == 1


def test_a_forked_child_may_make_its_own_client_in_place_of_its_parents(brood):
    with serve(1) as server, connect(server.port, producer_id=0) as client:

        def make_its_own(port):
            with connect(port, producer_id=1) as mine:
                mine.send(sample(1, 0))

        pid = brood(make_its_own, server.port)
        client.send(sample(0, 0))
        tally = Tally()
        tally.take(server, 2)
        assert ended_well(pid) and tally.whole() == {0: 1, 1: 1}


def test_children_of_the_learner_keep_neither_its_port_nor_its_clients(brood):
    server = serve(4, num_buffers=2)
    server.start()
    port = server.port
    client = connect(port, reconnect_timeout_s=0.2)
    brood(signal.pause)
    server.close()
    with serve(1, port=port) as again:
        assert again.port == port
    with pytest.raises(rollway.ConnectionClosedError):
        client.send(sample(0, 0))
    client.close()


def test_a_killed_learner_is_missed_at_once_though_its_children_live(child):
    """As with data loaders that are forked by a learner while it serves."""
    learner = child(
        PREAMBLE
        + """
server = rollway.Server(EXAMPLE, 4, rollway.TcpTransport(), num_buffers=2)
server.start()
print(server.port, flush=True)
sys.stdin.readline()
orphan = os.fork()
if orphan == 0: signal.alarm(60); signal.pause()
print(orphan, flush=True)
signal.pause()
""",
        0,
    )
    client = connect(int(learner.line()), reconnect_timeout_s=0.3)
    learner.tell()
    orphan = int(learner.line())
    try:
        learner.kill()
        started = time.monotonic()
        until(lambda: not client.connected, timeout=10)
        assert time.monotonic() - started < 4, "not by the silence of three keepalives"
        with pytest.raises(rollway.ConnectionClosedError, match="has been away"):
            while True:
                client.send(sample(0, 0), timeout=10)
    finally:
        os.kill(orphan, signal.SIGKILL)
    with contextlib.suppress(rollway.ConnectionClosedError):
        client.close()


# ── Ctrl-C ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "call",
    [
        "fill(); client.send(sample(0, 0))",
        "fill(); client.send_many({key: np.stack([leaf] * 2) for key, leaf in sample(0, 0).items()})",
        "fill(); client.wait()",
        "fill(); client.close(None)",
        "silent = socket.create_server(('127.0.0.1', 0)); ready(); "
        "rollway.TcpClient('127.0.0.1', silent.getsockname()[1], EXAMPLE, connect_timeout_s=60)",
    ],
)
def test_ctrl_c_ends_every_wait(child, call):
    with serve(1, num_buffers=2) as server:
        waiting = child(
            PREAMBLE
            + f"""
import socket
def ready():
    print("ready", flush=True)
def fill():
    for counter in range(3): client.send(sample(0, counter))
    ready()
client = rollway.TcpClient("127.0.0.1", port, EXAMPLE, max_inflight_msgs=1)
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
""",
            server.port,
        )
        waiting.says("ready")
        until(lambda: "futex" in Path(f"/proc/{waiting.pid}/wchan").read_text() or waiting.process.poll() is not None)
        started = time.monotonic()
        os.kill(waiting.pid, signal.SIGINT)
        waiting.says("interrupted")
        assert time.monotonic() - started < 5
        waiting.ends()


def interrupt(waiting):
    """Ctrl-C, as soon as it waits."""
    until(lambda: "futex" in Path(f"/proc/{waiting.pid}/wchan").read_text() or waiting.process.poll() is not None)
    os.kill(waiting.pid, signal.SIGINT)


def test_ctrl_c_in_a_send_many_says_how_many_are_on_their_way(child):
    with serve(1, num_buffers=2) as server:
        waiting = child(
            PREAMBLE
            + """
client = rollway.TcpClient("127.0.0.1", port, EXAMPLE, max_inflight_msgs=1)
many = {key: np.stack([leaf] * 5_000) for key, leaf in sample(0, 0).items()}
print("ready", flush=True)
try:
    client.send_many(many)
except KeyboardInterrupt as interrupted:
    print(interrupted.sent == client.stats()["sent"] > 0, flush=True)
try:
    client.close(0)
except rollway.ConnectionClosedError:
    pass
""",
            server.port,
        )
        waiting.says("ready")
        interrupt(waiting)
        waiting.says("True")
        waiting.ends()


@pytest.mark.parametrize("leave", ["client.close(None)", "client.__exit__(None, None, None)"])
def test_ctrl_c_closes_a_client_that_waits_to_be_closed_and_what_is_lost_is_told(child, leave):
    with serve(1, num_buffers=2) as server:
        waiting = child(
            PREAMBLE
            + f"""
from rollway.transport import tcp_lifetime
client = rollway.TcpClient("127.0.0.1", port, EXAMPLE, max_inflight_msgs=1)
for counter in range(3): client.send(sample(0, counter))
print("ready", flush=True)
try:
    {leave}
except KeyboardInterrupt:
    print(client.closed, client in tcp_lifetime._open_clients, flush=True)
try:
    client.send(sample(0, 3), timeout=1)
except rollway.ConnectionClosedError:
    print("closed", flush=True)
""",
            server.port,
        )
        waiting.says("ready")
        interrupt(waiting)
        waiting.says("True False")
        waiting.says("closed")
        _, errors = waiting.ends()
    assert "KeyboardInterrupt ended the close of a TcpClient" in errors and "1 samples, from number 2 on" in errors
    assert "Exception ignored" not in errors


def test_ctrl_c_at_the_end_of_a_worker_tells_what_every_forgotten_client_lost(child):
    with serve(1, num_buffers=2) as server:
        waiting = child(
            PREAMBLE
            + """
clients = [rollway.TcpClient("127.0.0.1", port, EXAMPLE, max_inflight_msgs=1) for _ in range(3)]
for client in clients:
    for counter in range(1 + 2 * (client is clients[0])): client.send(sample(0, counter))
print("ready", flush=True)
""",
            server.port,
        )
        waiting.says("ready")
        interrupt(waiting)
        _, errors = waiting.ends()
    assert errors.count("1 samples, from number") == 3 and "Exception ignored" not in errors, errors


def test_a_senseless_timeout_closes_nothing():
    with serve(1) as server, connect(server.port) as client:
        for timeout, error in ((-1.0, ValueError), ("soon", TypeError)):
            with pytest.raises(error):
                client.close(timeout)
        client.send(sample(0, 0))
        client.wait(10)
        assert client in tcp_lifetime._open_clients and not client.closed


# ── two hosts ────────────────────────────────────────────────────────────────────────────────────────────────────────

# Run in a user and network namespace of its own; the far host is a second one, joined by a virtual cable.
TWO_HOSTS = """
import subprocess, time
def ip(*words): subprocess.run(["ip", *words], check=True, capture_output=True)
far = subprocess.Popen(["unshare", "-n", "sh", "-c", 'echo up; read line; exec "$@"', "sh", sys.executable, "-c", sys.argv[2]],
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
assert far.stdout.readline() == "up\\n"
try:
    ip("link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(far.pid))
    inside = ["nsenter", "-t", str(far.pid), "-n", "ip"]
    ip("addr", "add", "10.99.0.1/24", "dev", "near"); ip("link", "set", "near", "up"); ip("link", "set", "lo", "up")
    subprocess.run([*inside, "addr", "add", "10.99.0.2/24", "dev", "far"], check=True, capture_output=True)
    subprocess.run([*inside, "link", "set", "far", "up"], check=True, capture_output=True)
except (subprocess.CalledProcessError, OSError) as error:
    far.kill(); print("skip", getattr(error, "stderr", b"") or error, flush=True); sys.exit()
transport = rollway.TcpTransport(50051, "10.99.0.1", token="between two hosts", keepalive_s=0.2)
with rollway.Server(EXAMPLE, 10, transport) as server:
    far.stdin.write("go\\n"); far.stdin.flush()
    seen, ids = 0, set()
    def take(enough):
        global seen
        while not enough():
            try:
                with server.sample(timeout=0.05) as batch:
                    ids.update(batch.batch["id"][:, 1].tolist())
                    seen += len(batch.batch["id"])
            except rollway.WaitTimeout: pass
    take(lambda: seen >= 500)
    stats = lambda name: server.stats()["tcp_" + name]
    def stands_still():
        before = stats("samples")
        time.sleep(0.2)
        return stats("waited") and stats("samples") == before
    waits = sys.argv[3] == "waits"      # for room: it does not read, and the kernel alone can notice
    while waits and not stands_still(): pass
    ip("link", "set", "near", "down")   # the cable is pulled: no packet tells anybody
    while waits and stats("connections"): time.sleep(0.01)
    take(lambda: not stats("connections"))
    ip("link", "set", "near", "up")
    take(lambda: seen >= 3000)
    assert seen == 3000 and ids == set(range(3000))
    print("resumed", stats("resumed") > 0, "cut", stats("cut_silent") + stats("cut_slow") > 0, flush=True)
    words, _ = far.communicate(timeout=30)
    assert far.returncode == 0, words
"""
FAR_HOST = """
import ctypes
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not to outlive the near host
with rollway.TcpClient("10.99.0.1", 50051, EXAMPLE, token="between two hosts", keepalive_s=0.2, connect_timeout_s=30) as client:
    for counter in range(3000): client.send(sample(7, counter))
    client.wait(60)
"""


@pytest.mark.parametrize("learner", ["reads", "waits"])
def test_two_hosts_and_a_cable_that_is_pulled(child, learner):
    allowed = subprocess.run(["unshare", "-Urn", "unshare", "-n", "ip", "link"], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip(f"no network namespaces here: {allowed.stderr.decode().strip()}")
    far = PREAMBLE.replace("int(sys.argv[1])", "50051") + FAR_HOST
    near = child(
        """
import os, sys
os.execvp("unshare", ["unshare", "-Urn", sys.executable, "-c", *sys.argv[1:]])
""",
        textwrap.dedent(PREAMBLE + TWO_HOSTS),
        0,
        far,
        learner,
    )
    out, _ = near.ends(timeout=60)
    if out.startswith("skip"):
        pytest.skip(f"no virtual cable here: {out[5:].strip()}")
    assert out.strip() == "resumed True cut True"


# ── for a long time ──────────────────────────────────────────────────────────────────────────────────────────────────

SOAK_S = float(os.environ.get("ROLLWAY_SOAK_S", "600"))  # of each setting
STALL_S = 5.0


def pour(port, worker, stop):
    """Sends until told to stop, and leaves the count."""
    with connect(port, producer_id=worker) as client:
        counter = 0
        while not stop.read(0):
            client.send(sample(worker, counter))
            counter += 1
        client.wait()
    stop.note(1 + worker, counter)


def run_for(seconds, clients, batch_size, brood):
    """Takes batches for a while: five seconds without one are a stall, and at the end every sample must be there."""
    stop, tally = Ledger(1 + clients), Tally()
    with rollway.Server(EXAMPLE, batch_size, rollway.TcpTransport()) as server:
        pids = [brood(pour, server.port, worker, stop) for worker in range(clients)]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                with server.sample(timeout=STALL_S) as taken:
                    tally.add(taken)
            except rollway.WaitTimeout as stall:
                raise AssertionError(f"no progress for {STALL_S} s: {stall}; {server.stats()}") from stall
        stop.note(0, 1)
        tally.rest(server)
        assert all(map(ended_well, pids))
        assert tally.whole() == {worker: stop.read(1 + worker) for worker in range(clients)}
        return sum(tally.whole().values())


# The settings in which echo stands still within seconds.
SETTINGS = pytest.mark.parametrize(("clients", "batch_size"), [(1, 1), (2, 8)], ids=["1x1", "2x8"])


@SETTINGS
def test_it_does_not_stall(brood, clients, batch_size):
    assert run_for(1.5, clients, batch_size, brood) > 0


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 120)
@SETTINGS
def test_it_does_not_stall_for_ten_minutes(brood, clients, batch_size):
    assert run_for(SOAK_S, clients, batch_size, brood) > 0
