"""A bad network between worker and learner: cut, slow, stuck, replayed, out of order. Nothing lost, nothing twice.

The Rust tests cut one conversation at each of its bytes; here whole runs go through a network that is bad all the time.
"""

import asyncio
import contextlib
import random
import socket
import threading
from dataclasses import dataclass

import numpy as np
import pytest

import rollway
from tests.support.processes import until
from tests.support.segments import token_passed_on

WORDS = 32
EXAMPLE = {"id": np.zeros(2, np.int64), "payload": np.zeros(WORDS, np.int64)}
TOKEN = "a token for the tests of cuts"
HANDSHAKE = 40 + 65 + 64  # preamble, share and proof: what a worker says before its hello


def samples(worker, first, count):
    counters = np.arange(first, first + count)
    ids = np.stack([np.full(count, worker), counters], 1)
    return {"id": ids, "payload": np.arange(WORDS) * 31 + worker * 1_000_003 + counters[:, None]}


def sample(worker, counter):
    return {key: leaf[0] for key, leaf in samples(worker, counter, 1).items()}


class Tally:
    """What arrived: whole, and once. A sample may overtake another after a cut; its number tells."""

    def __init__(self):
        self._seen = {}

    def add(self, taken):
        ids, payload = taken.batch["id"], taken.batch["payload"]
        assert (payload == np.arange(WORDS) * 31 + ids[:, :1] * 1_000_003 + ids[:, 1:]).all(), "a torn sample"
        assert (taken.info.sequences == ids[:, 1]).all() and (taken.info.producer_ids == ids[:, 0]).all()
        for worker, counter in ids.tolist():
            seen = self._seen.setdefault(worker, set())
            assert counter not in seen, f"repeated: sample {counter} of worker {worker}"
            seen.add(counter)

    def count(self, worker):
        return len(self._seen.get(worker, ()))

    def whole(self):
        """How many came from each worker; none may be missing."""
        for worker, seen in self._seen.items():
            assert seen == set(range(len(seen))), f"a gap in worker {worker}"
        return {worker: len(seen) for worker, seen in sorted(self._seen.items())}

    def take(self, server, count):
        while sum(map(len, self._seen.values())) < count:
            with server.sample(timeout=30) as taken:
                self.add(taken)

    def sweep(self, server):
        """Takes what is there, short batches too."""
        with contextlib.suppress(rollway.WaitTimeout):
            while True:
                with server.sample(timeout=0.01, at_least=1) as taken:
                    self.add(taken)


@dataclass
class Fate:
    """What the network does to one connection."""

    up: int | None = None  # bytes to the learner, and then it is cut
    down: int | None = None  # bytes to the worker, and then it is cut
    reset: bool = True  # cut by a reset; otherwise by a polite end
    delay_s: float = 0.0  # at most, for each piece
    piece: int = 1 << 16  # bytes, at most
    stall: int | None = None  # bytes, either way, and then nothing moves any more, and nobody is told
    hold: int | None = None  # bytes to the learner, and the rest is kept until it is delivered


class Crossing:
    """One connection through the proxy."""

    def __init__(self, fate, dice):
        self.fate, self.dice = fate, dice
        self.recorded, self.held = bytearray(), bytearray()
        self.ended = False

    async def run(self, near, far):
        (up_from, self.to_worker), (down_from, self.to_learner) = near, far
        pumps = [
            asyncio.ensure_future(self._pump(up_from, self.to_learner, self.fate.up, self.fate.hold, self.recorded)),
            asyncio.ensure_future(self._pump(down_from, self.to_worker, self.fate.down, None, bytearray())),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if self.held:
                await asyncio.wait(pumps)
        finally:
            [pump.cancel() for pump in pumps]
            for writer in (self.to_worker, self.to_learner):
                writer.transport.abort() if self.fate.reset else writer.close()
            self.ended = True

    async def _pump(self, reader, writer, limit, hold, record):
        passed = 0
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(self.dice.randrange(self.fate.piece) + 1):
                record += data
                if self.fate.delay_s:
                    await asyncio.sleep(self.dice.random() * self.fate.delay_s)
                if hold is not None and passed + len(data) > hold:
                    kept = max(hold - passed, 0)
                    self.held += data[kept:]
                    data = data[:kept]
                if limit is not None and passed + len(data) >= limit:
                    writer.write(data[: limit - passed])
                    return
                passed += len(data)
                writer.write(data)
                await writer.drain()
                if self.fate.stall is not None and passed >= self.fate.stall:
                    await asyncio.Event().wait()


class Proxy:
    """Stands between workers and the learner at `port`; connection number n meets with the fate `fates(n)`."""

    def __init__(self, port, fates=lambda number: Fate(), seed=0):
        self._learner, self._fates, self._dice = port, fates, random.Random(seed)
        self.crossings = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self):
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._cross, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self._token = token_passed_on(self._learner, self.port)
        self._token.__enter__()
        return self

    def __exit__(self, *_):
        self._token.__exit__(None, None, None)
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _end(self):
        self._server.close()
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        [task.cancel() for task in tasks]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _cross(self, *near):
        crossing = Crossing(self._fates(len(self.crossings)), self._dice)
        self.crossings.append(crossing)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await crossing.run(near, await asyncio.open_connection("127.0.0.1", self._learner))
        near[1].transport.abort()

    def go_away(self):
        """Nobody gets through any more."""
        self._do(self._end())

    def hang_up_on_the_worker(self, number):
        self._loop.call_soon_threadsafe(self.crossings[number].to_worker.transport.abort)

    def deliver(self, number):
        """Lets go of what was held, after all."""

        async def late():
            crossing = self.crossings[number]
            crossing.to_learner.write(bytes(crossing.held))
            with contextlib.suppress(ConnectionError):
                await crossing.to_learner.drain()

        self._do(late())


def serve(batch_size=10, num_buffers=4, **options):
    return rollway.Server(EXAMPLE, batch_size, rollway.TcpTransport(**options), num_buffers)


def connect(port, **options):
    return rollway.TcpClient("127.0.0.1", port, EXAMPLE, **options)


def send_all(port, worker, count, **options):
    """Sends one by one and in stacks, and waits now and then: what is acknowledged is not sent again."""
    with connect(port, producer_id=worker, **options) as client:
        sent = 0
        while sent < count:
            if sent % 7:
                sent += client.send(sample(worker, sent))
            else:
                sent += client.send_many(samples(worker, sent, min(40, count - sent)))
            if sent % 500 == 0:
                client.wait(timeout=60)


def run_through(fates, workers=3, each=1500, seed=0, learner=None, **options):
    """Several workers send through a bad network. Everything arrives, once, whole and in order."""
    with serve(**(learner or {})) as server, Proxy(server.port, fates, seed) as proxy:
        failures = []

        def run(worker):
            try:
                send_all(proxy.port, worker, each, **options)
            except BaseException as failure:
                failures.append(failure)
                raise

        threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in range(workers)]
        [thread.start() for thread in threads]
        tally = Tally()
        tally.take(server, workers * each)
        [thread.join(60) for thread in threads]
        assert not failures and tally.whole() == dict.fromkeys(range(workers), each)
        tally.sweep(server)
        assert server.stats()["claimed_slots"] == 0 and server.stats()["tcp_samples"] == workers * each
        return server.stats(), proxy


@pytest.mark.parametrize("seed", range(3))
def test_cuts_after_any_number_of_bytes_lose_and_repeat_nothing(seed):
    dice, cuts = random.Random(seed), 60

    def fate(number):
        if number >= cuts:
            return Fate()
        way, most = dice.choice((("up", 300), ("up", 5_000), ("up", 30_000), ("down", 300), ("down", 1_500)))
        return Fate(**{way: dice.randrange(most)}, reset=dice.random() < 0.5)

    stats, proxy = run_through(fate, each=6000, seed=seed)
    assert len(proxy.crossings) > cuts and stats["tcp_resumed"] > cuts / 4


def test_cuts_lose_and_repeat_nothing_with_a_token_a_full_ring_and_several_threads():
    dice = random.Random(9)
    stats, _ = run_through(
        lambda number: Fate(up=dice.randrange(30_000)) if number < 30 else Fate(),
        learner={"token": TOKEN, "threads": 2, "batch_size": 3, "num_buffers": 2},
        token=TOKEN,
        max_inflight_msgs=4,
    )
    assert stats["tcp_resumed"] > 10 and stats["tcp_waited"] > 0


def test_a_slow_line_that_breaks_everything_into_pieces_only_takes_longer():
    stats, proxy = run_through(lambda number: Fate(delay_s=0.002, piece=4000), workers=2, each=600)
    assert len(proxy.crossings) == 2 and stats["tcp_resumed"] == 0


@pytest.mark.parametrize("stall", [2_000, 20_000])
def test_a_line_that_goes_dead_without_a_word_is_given_up_and_made_again(stall):
    stats, proxy = run_through(
        lambda number: Fate(stall=stall) if number < 2 else Fate(),
        workers=2,
        each=600,
        learner={"keepalive_s": 0.3, "frame_timeout_s": 0.9},
        keepalive_s=0.3,  # on a busy machine a shorter one ends connections in their handshake
    )
    assert len(proxy.crossings) >= 4 and stats["tcp_resumed"] >= 2


def test_a_network_that_is_gone_for_good_is_an_error_with_an_honest_count():
    with serve(1, num_buffers=600) as server, Proxy(server.port, lambda number: Fate(delay_s=0.001)) as proxy:
        client = connect(proxy.port, producer_id=0, reconnect_timeout_s=0.3, max_inflight_msgs=8)
        for counter in range(100):
            client.send(sample(0, counter))
        proxy.go_away()
        with pytest.raises(rollway.ConnectionClosedError) as raised:
            for counter in range(100, 600):
                client.send(sample(0, counter), timeout=30)
        stats = client.stats()
        assert raised.value.unacknowledged == stats["sent"] - stats["acknowledged"]
        tally = Tally()
        tally.sweep(server)
        assert stats["acknowledged"] <= tally.whole()[0] <= stats["sent"]
        with pytest.raises(rollway.ConnectionClosedError):
            client.close()


# ── replayed ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def replay(port, recorded):
    """Says to the learner what somebody else said before, and listens to the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
        with contextlib.suppress(ConnectionError):
            stranger.sendall(recorded)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass


def record(server, proxy, **options):
    """Twenty samples of one worker, and the client that sent them."""
    client = connect(proxy.port, producer_id=0, **options)
    client.send_many(samples(0, 0, 20))
    client.wait(timeout=20)
    tally = Tally()
    tally.take(server, 20)
    return client, tally


def test_with_a_token_a_recorded_session_is_refused():
    with serve(token=TOKEN) as server, Proxy(server.port) as proxy:
        client, tally = record(server, proxy, token=TOKEN)
        recorded = bytes(proxy.crossings[0].recorded)
        replay(server.port, recorded)
        until(lambda: server.stats()["tcp_refused_token"] == 1)
        client.send_many(samples(0, 20, 10))
        client.close()
        until(lambda: proxy.crossings[0].ended)
        replay(server.port, bytes(proxy.crossings[0].recorded))
        until(lambda: server.stats()["tcp_refused_token"] == 2)
        tally.take(server, 30)
        tally.sweep(server)
        assert tally.whole() == {0: 30} and server.stats()["tcp_samples"] == 30


@pytest.mark.parametrize("length", [HANDSHAKE, HANDSHAKE + 60, None])
def test_without_a_token_a_replayed_session_delivers_nothing_and_does_no_harm(length):
    with serve() as server, Proxy(server.port) as proxy:
        client, tally = record(server, proxy)
        replay(server.port, bytes(proxy.crossings[0].recorded)[:length])
        client.send_many(samples(0, 20, 10))
        client.wait(timeout=20)
        tally.take(server, 30)
        tally.sweep(server)
        assert tally.whole() == {0: 30} and server.stats()["tcp_samples"] == 30
        client.close()


def test_without_a_token_the_session_of_a_worker_that_vanished_is_not_delivered_again():
    with serve() as server, Proxy(server.port) as proxy:
        client, tally = record(server, proxy)
        recorded = bytes(proxy.crossings[0].recorded)
        proxy.go_away()
        until(lambda: server.stats()["tcp_connections"] == 0)
        assert server.stats()["tcp_sessions"] == 1
        replay(server.port, recorded)
        tally.sweep(server)
        assert tally.whole() == {0: 20} and server.stats()["tcp_samples"] == 20
        client.close()


def test_without_a_token_a_finished_session_is_not_delivered_again():
    with serve() as server, Proxy(server.port) as proxy:
        client, _ = record(server, proxy)
        client.close()
        until(lambda: proxy.crossings[0].ended)
        replay(server.port, bytes(proxy.crossings[0].recorded))
        assert server.stats()["tcp_samples"] == 20


# ── out of order ─────────────────────────────────────────────────────────────────────────────────────────────────────


def late(hold, *, token=None):
    """A first connection whose later bytes stay on the way while a second one does the work, and then arrive."""
    fates = {0: Fate(hold=hold)}
    with serve(token=token) as server, Proxy(server.port, lambda number: fates.get(number, Fate())) as proxy:
        started = []
        starting = threading.Thread(target=lambda: started.append(connect(proxy.port, producer_id=0, token=token)))
        starting.start()
        if hold > 1000:  # it is let in, and its samples are held
            starting.join()
            started[0].send_many(samples(0, 0, 20))
        until(lambda: proxy.crossings and proxy.crossings[0].held)
        proxy.hang_up_on_the_worker(0)
        starting.join()
        client = started[0]
        already = client.stats()["sent"]
        client.send_many(samples(0, already, 40 - already))
        client.wait(timeout=20)
        tally = Tally()
        tally.take(server, 40)
        proxy.deliver(0)
        client.send_many(samples(0, 40, 20))
        client.wait(timeout=20)
        tally.take(server, 60)
        tally.sweep(server)
        assert tally.whole() == {0: 60} and server.stats()["tcp_samples"] == 60
        connects = client.stats()["connects"]
        client.close()
        return connects, server.stats()


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_hello_that_comes_late_does_not_take_over_from_a_younger_connection(token):
    connects, stats = late(HANDSHAKE, token=token)
    assert connects == 1 and stats["tcp_taken_over"] == 0


def test_samples_that_come_late_over_an_old_connection_are_not_delivered_again():
    connects, _ = late(3_000)
    assert connects == 2


def test_one_worker_that_is_cut_all_the_time_does_not_hold_up_another():
    dice = random.Random(4)
    with serve(5, num_buffers=2, frame_timeout_s=0.5) as server:
        with Proxy(server.port, lambda number: Fate(up=2_000 + dice.randrange(6_000), reset=False)) as proxy:
            poor, other = connect(proxy.port, producer_id=0), connect(server.port, producer_id=1)
            struggling = threading.Thread(target=poor.send_many, args=(samples(0, 0, 100),), daemon=True)
            sending = threading.Thread(target=other.send_many, args=(samples(1, 0, 3000),), daemon=True)
            [thread.start() for thread in (struggling, sending)]
            tally = Tally()
            while tally.count(1) < 3000:
                with server.sample(timeout=20, at_least=1) as taken:
                    tally.add(taken)
            until(lambda: tally.sweep(server) or tally.count(0) == 100, timeout=30)
            [thread.join() for thread in (struggling, sending)]
            poor.close()
            other.close()
            assert tally.whole() == {0: 100, 1: 3000} and server.stats()["tcp_resumed"] > 5
