"""Closing a handle ends every call that waits with it in another thread: with the documented error, or the end.

Each case makes a handle that waits, in a context of its own: what to call, how to close, and what the call ends with.
"""

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import ConnectionClosedError
from tests.support.collector_targets import wait_without_end

SAMPLE = {"x": np.zeros(4, np.float32)}
RECORD = {"x": np.zeros(1000, np.float32)}
RECORDS = {"x": "float32[*]"}
WEIGHTS = {"w": np.zeros(4, np.float32)}


def in_loop(start):
    """The coroutine that ``start`` makes, run in an event loop of the thread that waits."""

    async def run():
        return await start()

    return lambda: asyncio.run(run())


def again(call):
    """Calls until it raises: what was sent a moment ago may have found room meanwhile."""

    def run():
        while True:
            call()

    return run


def in_loop_again(start):
    async def run():
        while True:
            await start()

    return in_loop(run)


# ── handles that wait ─────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def a_server(name):
    with rollway.Server(SAMPLE, 2, rollway.ShmTransport(name)) as server:
        yield server


@contextlib.contextmanager
def one_of_two_servers(name):
    with a_server(name), a_server(name) as second:
        yield second


@contextlib.contextmanager
def a_record_server(name):
    with rollway.RecordServer(RECORDS, rollway.ShmTransport(name)) as server:
        yield server


@contextlib.contextmanager
def one_of_two_record_servers(name):
    with a_record_server(name), a_record_server(name) as second:
        yield second


@contextlib.contextmanager
def a_client_of_a_full_ring(name):
    with rollway.Server(SAMPLE, 1, rollway.ShmTransport(name), num_buffers=2):
        with rollway.ShmClient(name, SAMPLE) as client:
            while client.try_send(SAMPLE):
                pass
            yield client


@contextlib.contextmanager
def a_server_of_a_full_ring(name):
    with rollway.Server(SAMPLE, 1, rollway.ShmTransport(name), num_buffers=2) as server:
        server.submit(SAMPLE)
        server.submit(SAMPLE)
        yield server


@contextlib.contextmanager
def a_client_of_a_full_lane(name):
    transport = rollway.ShmTransport(name)
    with rollway.RecordServer(RECORDS, transport, lane_bytes=16 << 10):
        with rollway.ShmRecordClient(name, RECORDS) as client:
            while client.try_send(RECORD):
                pass
            yield client


@contextlib.contextmanager
def a_remote_client_without_room(name):
    with rollway.Server(SAMPLE, 1, rollway.TcpTransport(), num_buffers=2) as server:
        server.start()
        client = rollway.TcpClient("127.0.0.1", server.port, SAMPLE, max_inflight_msgs=4)
        while client.try_send(SAMPLE):
            pass
        yield client
        closed_at_once(client)


@contextlib.contextmanager
def a_remote_record_client_without_room(name):
    with rollway.RecordServer(RECORDS, rollway.TcpTransport(), lane_bytes=16 << 10) as server:
        server.start()
        client = rollway.TcpRecordClient("127.0.0.1", server.port, RECORDS, max_inflight_msgs=4)
        while client.try_send(RECORD):
            pass
        yield client
        closed_at_once(client)


@contextlib.contextmanager
def weights_without_news(name):
    with rollway.SharedWeightSync.from_state_dict(WEIGHTS, shm_name=name):
        with rollway.SharedWeightSync.attach(name) as reader:
            yield reader


@contextlib.contextmanager
def the_last_reader_of_weights(name):
    rollway.SharedWeightSync.from_state_dict(WEIGHTS, shm_name=name).close()
    with rollway.SharedWeightSync({"w": (4,)}, shm_name=name, peer_timeout_s=None) as writer:
        yield writer


@contextlib.contextmanager
def remote_weights_without_news(name):
    with (
        rollway.SharedWeightSync.from_state_dict(WEIGHTS) as learner,
        learner.serve(rollway.TcpTransport()) as endpoint,
    ):
        with rollway.TcpWeights("127.0.0.1", endpoint.port, name=name) as mirror:
            mirror.wait_for_version(1, timeout=10)
            yield mirror


@contextlib.contextmanager
def a_worker_at_a_mirror(name):
    with remote_weights_without_news(name), rollway.SharedWeightSync.attach(name) as reader:
        yield reader


@contextlib.contextmanager
def a_rollout_reader(name):
    with rollway.RolloutRingBuffer(1, 2, 3, 1, shm_name_prefix=name) as ring:
        yield ring


@contextlib.contextmanager
def a_rollout_writer(name):
    with rollway.RolloutRingBuffer(1, 2, 3, 1, shm_name_prefix=name, num_slots=2, on_full="block"):
        with rollway.RolloutRingBuffer(
            1, 2, 3, 1, create=False, shm_name_prefix=name, num_slots=2, on_full="block"
        ) as writer:
            for _ in range(2):
                with writer.writing():
                    pass
            yield writer


@contextlib.contextmanager
def a_dropping_rollout_writer(name):
    given = {"shm_name_prefix": name, "num_slots": 2, "on_full": "drop_oldest"}
    with rollway.RolloutRingBuffer(1, 2, 3, 1, **given), contextlib.ExitStack() as others:
        for _ in range(2):  # Every slot is being written: there is nothing to drop.
            other = others.enter_context(rollway.RolloutRingBuffer(1, 2, 3, 1, create=False, **given))
            assert other.wait_for_slot(0.0)
        with rollway.RolloutRingBuffer(1, 2, 3, 1, create=False, **given) as writer:
            yield writer


@contextlib.contextmanager
def a_replay_buffer(name):
    with rollway.ReplayBuffer(100, obs_dim=2, action_dim=1, name=name) as buffer:
        yield buffer


@contextlib.contextmanager
def an_adder_to_a_replay_buffer(name):
    with a_replay_buffer(name), rollway.ReplayBuffer.attach(name) as adder:
        yield adder


@contextlib.contextmanager
def a_pipeline_whose_batch_never_comes(name):
    done = threading.Event()
    with a_replay_buffer(name) as buffer:
        ones = np.ones((4, 2), np.float32)
        buffer.add(ones, ones[:, :1], ones[:, 0], ones, ones[:, 0], ones[:, 0])
        fill, buffer.fill = buffer.fill, lambda rows, block: (done.wait(60), fill(rows, block))[1]
        with rollway.ReplayPipeline(buffer, sample_count=4) as pipeline:
            try:
                yield pipeline
            finally:
                done.set()


class Runner(rollway.AsyncRunner):
    """A learner that waits for what its collector never sends."""

    def learn(self, max_iterations, save_interval=50, log_dir="logs"):
        """Nothing to learn."""


@contextlib.contextmanager
def a_runner(name):
    with Runner("Toy-v0", {}, {}, device="cpu") as runner:
        runner.rollouts = runner.own(rollway.RolloutRingBuffer(1, 2, 3, 1, shm_name_prefix=name))
        runner.start_collectors(wait_without_end)
        yield runner


class Slow:
    """Makes environments whose steps take longer than any test."""

    def __call__(self):
        import gymnasium as gym

        class Env(gym.Env):
            observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
            action_space = gym.spaces.Discrete(2)

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                return np.zeros(1, np.float32), {}

            def step(self, action):
                time.sleep(600)

        return Env()


@contextlib.contextmanager
def a_vector_env(name):
    env = rollway.make_vec(Slow(), num_envs=2)
    try:
        env.reset()
        yield env
    finally:
        env.close(timeout=0.0)


# ── closing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def close(handle):
    handle.close()


def closed_at_once(client):
    with contextlib.suppress(ConnectionClosedError):  # It says what was not acknowledged.
        client.close(timeout=0.0)


def closed_with_its_workers(env):
    env.close(timeout=0.0)


class Raises:
    """The call raises one of these."""

    def __init__(self, *errors):
        self.errors = errors


CLOSED = Raises(ConnectionClosedError)

# What waits; how; what the wait ends with; how it is closed.
WAITS = {
    "Server.sample": (a_server, lambda s: s.sample, None, close),
    "Server.sample beside another learner": (one_of_two_servers, lambda s: s.sample, None, close),
    "Server.sample(at_least)": (a_server, lambda s: lambda: s.sample(60, at_least=1), None, close),
    "Server.dataset_iter": (a_server, lambda s: lambda: list(s.dataset_iter()), [], close),
    "Server.sample_async": (a_server, lambda s: in_loop(s.sample_async), None, close),
    "Server.submit": (a_server_of_a_full_ring, lambda s: lambda: s.submit(SAMPLE), CLOSED, close),
    "RecordServer.read": (a_record_server, lambda s: s.read, None, close),
    "RecordServer.read beside another learner": (one_of_two_record_servers, lambda s: s.read, None, close),
    "RecordServer.read_many": (a_record_server, lambda s: lambda: s.read_many(8), [], close),
    "RecordServer.read_async": (a_record_server, lambda s: in_loop(s.read_async), None, close),
    "RecordServer.read_many_async": (a_record_server, lambda s: in_loop(lambda: s.read_many_async(8)), [], close),
    "ShmClient.send": (a_client_of_a_full_ring, lambda c: lambda: c.send(SAMPLE), CLOSED, close),
    "ShmClient.send_many": (
        a_client_of_a_full_ring,
        lambda c: lambda: c.send_many({"x": np.zeros((9, 4), np.float32)}),
        CLOSED,
        close,
    ),
    "ShmClient.reserve": (a_client_of_a_full_ring, lambda c: c.reserve, CLOSED, close),
    "ShmClient.send_async": (a_client_of_a_full_ring, lambda c: in_loop(lambda: c.send_async(SAMPLE)), CLOSED, close),
    "ShmClient.reserve_async": (a_client_of_a_full_ring, lambda c: in_loop(c.reserve_async), CLOSED, close),
    "ShmRecordClient.send": (a_client_of_a_full_lane, lambda c: lambda: c.send(RECORD), CLOSED, close),
    "ShmRecordClient.send_many": (a_client_of_a_full_lane, lambda c: lambda: c.send_many([RECORD] * 3), CLOSED, close),
    "ShmRecordClient.reserve": (a_client_of_a_full_lane, lambda c: lambda: c.reserve({"x": 1000}), CLOSED, close),
    "ShmRecordClient.send_async": (
        a_client_of_a_full_lane,
        lambda c: in_loop(lambda: c.send_async(RECORD)),
        CLOSED,
        close,
    ),
    "ShmRecordClient.send_many_async": (
        a_client_of_a_full_lane,
        lambda c: in_loop(lambda: c.send_many_async([RECORD] * 3)),
        CLOSED,
        close,
    ),
    "ShmRecordClient.reserve_async": (
        a_client_of_a_full_lane,
        lambda c: in_loop(lambda: c.reserve_async({"x": 1000})),
        CLOSED,
        close,
    ),
    "TcpClient.send": (a_remote_client_without_room, lambda c: again(lambda: c.send(SAMPLE)), CLOSED, closed_at_once),
    "TcpClient.wait": (a_remote_client_without_room, lambda c: c.wait, CLOSED, closed_at_once),
    "TcpClient.send_async": (
        a_remote_client_without_room,
        lambda c: in_loop_again(lambda: c.send_async(SAMPLE)),
        CLOSED,
        closed_at_once,
    ),
    "TcpClient.wait_async": (a_remote_client_without_room, lambda c: in_loop(c.wait_async), CLOSED, closed_at_once),
    "TcpRecordClient.send": (
        a_remote_record_client_without_room,
        lambda c: again(lambda: c.send(RECORD)),
        CLOSED,
        closed_at_once,
    ),
    "TcpRecordClient.wait": (a_remote_record_client_without_room, lambda c: c.wait, CLOSED, closed_at_once),
    "TcpRecordClient.send_async": (
        a_remote_record_client_without_room,
        lambda c: in_loop_again(lambda: c.send_async(RECORD)),
        CLOSED,
        closed_at_once,
    ),
    "TcpRecordClient.wait_async": (
        a_remote_record_client_without_room,
        lambda c: in_loop(c.wait_async),
        CLOSED,
        closed_at_once,
    ),
    "SharedWeightSync.wait_for_version": (
        weights_without_news,
        lambda w: lambda: w.wait_for_version(2),
        CLOSED,
        close,
    ),
    "SharedWeightSync.wait_for_version of the last one there": (
        the_last_reader_of_weights,
        lambda w: lambda: w.wait_for_version(9),
        CLOSED,
        close,
    ),
    "SharedWeightSync.wait_for_version until cleanup": (
        weights_without_news,
        lambda w: lambda: w.wait_for_version(2),
        CLOSED,
        lambda w: w.cleanup(),
    ),
    "SharedWeightSync.wait_for_version at a mirror": (
        a_worker_at_a_mirror,
        lambda w: lambda: w.wait_for_version(2),
        CLOSED,
        close,
    ),
    "TcpWeights.wait_for_version": (
        remote_weights_without_news,
        lambda w: lambda: w.wait_for_version(2),
        CLOSED,
        close,
    ),
    "RolloutRingBuffer.wait_for_data": (a_rollout_reader, lambda r: r.wait_for_data, CLOSED, close),
    "RolloutRingBuffer.wait_for_slot": (a_rollout_writer, lambda r: r.wait_for_slot, CLOSED, close),
    "RolloutRingBuffer.wait_for_slot where there is nothing to drop": (
        a_dropping_rollout_writer,
        lambda r: r.wait_for_slot,
        CLOSED,
        close,
    ),
    "ReplayBuffer.wait_for": (a_replay_buffer, lambda b: lambda: b.wait_for(50), CLOSED, close),
    "ReplayBuffer.wait_for of an adder": (an_adder_to_a_replay_buffer, lambda b: lambda: b.wait_for(50), CLOSED, close),
    "AsyncRunner.wait_for_data": (
        a_runner,
        lambda r: lambda: r.wait_for_data(r.rollouts),
        Raises(
            ConnectionClosedError, rollway.CollectorError
        ),  # The ring is closed, or the collectors have ended before.
        close,
    ),
    "VectorEnv.step": (a_vector_env, lambda e: lambda: e.step(np.zeros(2, int)), CLOSED, closed_with_its_workers),
    "VectorEnv.step_wait": (
        a_vector_env,
        lambda e: (e.step_async(np.zeros(2, int)), e.step_wait)[1],
        CLOSED,
        closed_with_its_workers,
    ),
    "VectorEnv.recv": (
        a_vector_env,
        lambda e: (e.send(np.zeros(2, int)), e.recv)[1],
        CLOSED,
        closed_with_its_workers,
    ),
}


def sleeps(thread):
    """Whether a thread waits in the kernel, and goes on doing so: not for the interpreter's lock alone."""
    stat = Path(f"/proc/self/task/{thread.native_id}/stat")
    for _ in range(30):
        try:
            state = stat.read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False  # It has ended.
        if state != "S":
            return False
        time.sleep(0.001)
    return True


@pytest.mark.parametrize("case", WAITS.values(), ids=WAITS.keys())
def test_closing_a_handle_ends_a_wait_in_another_thread(case, name):
    make, how, end, close_it = case
    with make(name) as handle:
        ended = []
        wait = how(handle)

        def run():
            try:
                ended.append(wait())
            except Exception as error:  # noqa: BLE001 - compared below
                ended.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        deadline = time.monotonic() + 10
        while not sleeps(thread):
            assert thread.is_alive(), f"the call did not wait: {ended}"
            assert time.monotonic() < deadline, "the call never slept"
        close_it(handle)
        thread.join(10)
        assert not thread.is_alive(), "the wait goes on although its handle is closed"
        if isinstance(end, Raises):
            assert isinstance(ended[0], end.errors), ended
        else:
            assert ended == [end]


def test_closing_a_replay_pipeline_ends_a_wait_for_its_batch(name):
    with a_pipeline_whose_batch_never_comes(name) as pipeline:
        ended = []

        def run():
            try:
                pipeline.next()
            except ConnectionClosedError as error:
                ended.append(error)

        waiting, closing = threading.Thread(target=run), threading.Thread(target=pipeline.close)
        waiting.start()
        while not sleeps(waiting):
            assert waiting.is_alive()
        closing.start()  # It waits for the batch that is being made.
        waiting.join(10)
        assert not waiting.is_alive() and len(ended) == 1
    closing.join(10)
