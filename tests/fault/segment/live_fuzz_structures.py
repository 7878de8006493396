"""What live fuzzing fuzzes: for each structure, how its processes work in it, and what lies where in its segment.

`live_fuzz` runs them. The offsets follow the `layout.rs` of each structure.
"""

import gc
import random
import struct
import time
from dataclasses import dataclass

import gymnasium
import numpy as np

import rollway

NAME = "fuzz"
PAGE = 4096
SEATS = 8
LOOP_S = 0.08
CALL_S = 0.02
"""The timeout of every call that takes one."""
PEER_S = 0.03
OF_LIFE = (
    rollway.WaitTimeout,
    rollway.PeerDied,
    rollway.ConnectionClosedError,
    rollway.SegmentNotFound,
    rollway.errors.SegmentInUse,
    rollway.errors.NoSeatLeft,
    rollway.errors.NoLaneLeft,
    rollway.errors.BufferEmpty,
    rollway.errors.RowsOverrun,
    rollway.errors.NothingPublished,
    rollway.errors.BatchesHeld,
)
"""What a call may raise where nothing but payload was flipped: others come and go."""


class Wrong(Exception):
    """What a call returned is not what it promises."""


def expect(condition, what):
    if not condition:
        raise Wrong(what)


class Task:
    """One process's share of a trial: how long it works, and what it may be told."""

    def __init__(self, seed, flips, strict):
        self.rng = random.Random(seed)
        self.flips = flips
        """How many words the driver flips."""
        self.strict = strict
        """Whether it flips payload only."""

    def turns(self):
        """Numbers, until the time is over."""
        end = time.monotonic() + LOOP_S
        turn = 0
        while time.monotonic() < end:
            yield turn
            turn += 1

    def call(self, function, *args, **kwargs):
        """What it returns; ``None`` when it raised what it may raise."""
        try:
            return function(*args, **kwargs)
        except rollway.RollwayError as error:
            if self.strict and not isinstance(error, OF_LIFE):
                raise
            return None

    def policy(self):
        """What to do when there is no room; one in eight learners differs from the others."""
        return self.rng.choice(["block"] * 5 + ["drop_oldest", "drop_newest", "error"]) if not self.strict else "block"

    def leave(self, handle, **how):
        """Closes a handle; one in eight is dropped instead."""
        if self.rng.random() < 0.125:
            del handle
            gc.collect()
        else:
            self.call(handle.close, **how)

    def count(self, wrong):
        """Checks how many elements differ from what was sent."""
        if self.strict:
            expect(wrong <= self.flips, f"{wrong} elements are wrong, and {self.flips} were flipped")


@dataclass(frozen=True)
class Region:
    """A part of a segment, and how often it is chosen."""

    name: str
    start: int
    end: int
    weight: float
    step: int = 0
    """From one of several equal things to the next."""
    payload: bool = False

    def describe(self, offset):
        inside = offset - self.start
        if not self.step:
            return f"{self.name} + {inside}"
        return f"{self.name} {inside // self.step} + {inside % self.step}"


def rounded(value, unit):
    return -(-value // unit) * unit


class Structure:
    """What is fuzzed: how its processes work in it, and what lies where in its segment."""

    segments = f"rollway.{NAME}"
    """Which files of the directory are its segments."""
    has_plain_payload = True
    """Whether there are bytes in it that no call looks at."""

    learners = ("learner",)
    """Its methods that make the segment, or find it again; the first one begins."""
    producers = ("producer",)
    """Its methods that attach to it."""

    def body(self, start):
        """The regions of its body, which begins at ``start``."""
        raise NotImplementedError

    def regions(self, memory):
        """All of it. ``memory`` is as it was made: nothing is flipped yet."""
        (seats,) = struct.unpack_from("I", memory, 28)
        (schema,) = struct.unpack_from("Q", memory, 40)
        text = PAGE + seats * 128
        head = [Region("header", 0, 64, 2), Region("geometry word", 64, 192, 2, 8)]
        lines = [Region("seat", PAGE, text, 2, 128)]
        if schema:
            lines.append(Region("schema text", text, text + schema, 2))
        return [*head, *lines, *self.body(rounded(text + schema, PAGE))]


HISTOGRAM = 2456


class Ring(Structure):
    """A `Server` and its `ShmClient`s."""

    producers = ("producer", "reserver")
    batch_size, num_buffers = 4, 3
    example = {"a": np.zeros(3, np.int64), "b": np.zeros((2, 2), np.float64)}  # noqa: RUF012

    def body(self, start):
        control = rounded(64 * 4 + 8 + 3 * HISTOGRAM, 64)
        buffers = start + control
        slots = buffers + self.num_buffers * 64
        end = slots + self.num_buffers * self.batch_size * 32
        payload = start + rounded(end - start, PAGE)
        return [
            Region("open, cursor, holes", start, start + 24, 4),
            Region("bells", start + 64, start + 192, 1),
            Region("counters, closed, next producer", start + 192, start + 264, 1),
            Region("histograms", start + 264, buffers, 0.5),
            Region("buffer", buffers, slots, 3, 64),
            Region("slot", slots, end, 4, 32),
            Region("payload of buffer", payload, payload + self.num_buffers * PAGE, 0.5, PAGE, payload=True),
        ]

    def learner(self, task):
        shm = rollway.ShmTransport(NAME, max_peers=SEATS)
        server = task.call(
            rollway.Server,
            self.example,
            self.batch_size,
            shm,
            self.num_buffers,
            on_full=task.policy(),
            peer_timeout_s=PEER_S,
        )
        if server is None:
            return
        held = []
        for turn in task.turns():
            sample = task.call(server.sample, CALL_S, task.rng.choice([None, 1]))
            if sample is not None:
                self._check(task, sample)
                held.append(sample)
            if len(held) > turn % 2 or sample is None:
                held.clear()
            if turn % 8 == 3:
                task.call(server.stats)
                task.call(server.histograms)
                task.call(server.flush)
            if turn % 8 == 6:
                task.call(server.submit, self.example, timeout=CALL_S)
        task.leave(server)
        if held:
            self._check(task, held[0])

    def _check(self, task, sample):
        wrong = 0
        for key, leaf in self.example.items():
            batch = sample.batch[key]
            expect(
                batch.shape[1:] == leaf.shape and batch.dtype == leaf.dtype, f"a batch of {batch.dtype}{batch.shape}"
            )
            expect(len(batch) <= self.batch_size, f"a batch of {len(batch)}")
            wrong += int(np.isin(batch, (0, 1, 2, 3), invert=True).sum())
        info = sample.info
        expect(len(info.producer_ids) == len(sample.batch["a"]), "as many stamps as samples")
        task.count(wrong)

    def _client(self, task):
        return task.call(
            rollway.ShmClient,
            NAME,
            self.example,
            connect_timeout_s=CALL_S,
            peer_timeout_s=PEER_S,
            on_full=task.policy() if task.rng.random() < 0.3 else None,
        )

    def producer(self, task):
        client = self._client(task)
        if client is None:
            return
        data = [{key: np.full_like(leaf, value) for key, leaf in self.example.items()} for value in range(4)]
        many = {key: np.stack([one[key] for one in data]) for key in self.example}
        for turn in task.turns():
            task.call(client.send, data[turn % 4], timeout=CALL_S)
            if turn % 16 == 7:
                task.call(client.send_many, many, timeout=CALL_S)
        task.leave(client)

    def reserver(self, task):
        client = self._client(task)
        if client is None:
            return
        for turn in task.turns():
            task.call(self._write_in_place, client, turn)
        task.leave(client)

    def _write_in_place(self, client, turn):
        with client.reserve(timeout=CALL_S) as slot:
            slot["a"][:] = turn % 4
            slot["b"][:] = turn % 4
            if turn % 5 == 4:
                slot.abort()


class Records(Structure):
    """A `RecordServer` and its `ShmRecordClient`s."""

    schema = {"id": "int64[3]", "tokens": "int32[*]", "scores": "float32[*, 2]"}  # noqa: RUF012
    has_plain_payload = False  # Each record begins with its counts.
    lanes, lane_bytes, max_records = 4, 16 << 10, 16

    def body(self, start):
        control = rounded(64 * 3 + 2 * HISTOGRAM, 64)
        lanes = start + control
        table = lanes + self.lanes * 256
        end = table + self.lanes * self.max_records * 64
        data = start + rounded(end - start, PAGE)
        return [
            Region("closed, next producer, lanes used, published", start, start + 24, 3),
            Region("bell, counters", start + 64, start + 192, 1),
            Region("histograms", start + 192, lanes, 0.5),
            # Most of it belongs to the lanes that somebody has.
            Region("lane", lanes, lanes + 2 * 256, 5, 256),
            Region("lane", lanes, table, 1, 256),
            Region("descriptor of the first lanes", table, table + 2 * self.max_records * 64, 5, 64),
            Region("descriptor", table, end, 1, 64),
            Region("records of lane", data, data + self.lanes * self.lane_bytes, 1, self.lane_bytes),
            Region("first records of lane 0", data, data + 1024, 1),
        ]

    def learner(self, task):
        shm = rollway.ShmTransport(NAME, max_peers=SEATS)
        server = task.call(
            rollway.RecordServer,
            self.schema,
            shm,
            lane_bytes=self.lane_bytes,
            lanes=self.lanes,
            max_records=self.max_records,
            on_full=task.policy(),
            peer_timeout_s=PEER_S,
        )
        if server is None:
            return
        held = []
        for turn in task.turns():
            if turn % 3 == 2:
                records = task.call(server.read_many, 5, CALL_S) or []
            else:
                records = [task.call(server.read, CALL_S)]
            records = [record for record in records if record is not None]
            for record in records:
                self._check(task, record)
            held = records if turn % 2 else []
            if turn % 8 == 3:
                task.call(server.stats)
                task.call(server.histograms)
                task.call(server.lane_pressure)
                task.call(server.publish, turn)
            if turn % 8 == 6:
                task.call(server.submit, self._data(turn), timeout=CALL_S)
        task.leave(server)
        for record in held:
            self._check(task, record)

    def _check(self, task, record):
        for key, dtype, inner in (("id", np.int64, ()), ("tokens", np.int32, ()), ("scores", np.float32, (2,))):
            leaf = task.call(record.__getitem__, key)
            if leaf is None:
                continue
            expect(leaf.dtype == dtype and leaf.shape[1:] == inner, f"{key} is {leaf.dtype}{leaf.shape}")
            expect(leaf.nbytes <= self.lane_bytes, f"{key} has {leaf.nbytes} bytes")
            leaf.sum()

    def _data(self, turn):
        length = turn * 37 % 200
        return {
            "id": np.full(3, turn),
            "tokens": np.full(length, turn, np.int32),
            "scores": np.zeros((turn % 7, 2), np.float32),
        }

    def producer(self, task):
        client = task.call(rollway.ShmRecordClient, NAME, self.schema, connect_timeout_s=CALL_S, peer_timeout_s=PEER_S)
        if client is None:
            return
        for turn in task.turns():
            if turn % 4 == 3:
                task.call(self._write_in_place, client, turn)
            elif turn % 16 == 5:
                task.call(client.send_many, [self._data(turn), self._data(turn + 1)], timeout=CALL_S)
            else:
                task.call(client.send, self._data(turn), timeout=CALL_S)
        task.leave(client)

    def _write_in_place(self, client, turn):
        with client.reserve({"tokens": 100, "scores": 3}, timeout=CALL_S) as slot:
            slot["id"][:] = turn
            slot["tokens"][:] = turn
            slot["scores"][:] = 0
            if turn % 8 != 7:
                slot.commit({"tokens": turn % 100, "scores": 3})


class Weights(Structure):
    """The writer of a `SharedWeightSync`, and its readers."""

    learners = ("learner", "heir")
    producers = ("reader", "reader_in_place")
    shapes = {"w": (16, 8), "b": (5,), "s": ()}  # noqa: RUF012
    max_buffers = 4

    def body(self, start):
        pins = start + 256
        sizes = pins + (SEATS + 2) * 64
        heads = start + rounded(sizes - start + len(self.shapes) * 8, 64)
        entries = heads + self.max_buffers * 64
        end = entries + self.max_buffers * len(self.shapes) * 16
        data = start + rounded(end - start, PAGE)
        return [
            Region("latest, grown", start, start + 16, 4),
            Region("writer, closed", start + 64, start + 80, 2),
            Region("bell, counters", start + 128, start + 256, 1),
            Region("pins of seat", pins, sizes, 2, 64),
            Region("leaf size", sizes, sizes + len(self.shapes) * 8, 3, 8),
            Region("head of buffer", heads, heads + self.max_buffers * 64, 3, 64),
            Region("leaf entry", entries, end, 3, 16),
            Region("payload of buffer", data, data + self.max_buffers * PAGE, 0.5, PAGE, payload=True),
        ]

    def learner(self, task):
        sync = task.call(
            rollway.SharedWeightSync,
            self.shapes,
            shm_name=NAME,
            dtypes="int64",
            max_buffers=self.max_buffers,
            max_readers=SEATS,
            checksum=not task.strict and task.rng.random() < 0.3,
            peer_timeout_s=PEER_S,
        )
        if sync is not None:
            self._write(task, sync)

    def heir(self, task):
        """Attaches, and writes if nobody else does."""
        sync = task.call(rollway.SharedWeightSync.attach, NAME, connect_timeout_s=CALL_S, peer_timeout_s=PEER_S)
        if sync is not None:
            self._write(task, sync)

    def _write(self, task, sync):
        for turn in task.turns():
            tree = {key: np.full(shape, turn, np.int64) for key, shape in self.shapes.items()}
            if turn % 3 == 2:
                task.call(sync.update_weights, {"b": tree["b"]})
            else:
                task.call(sync.write_weights, tree)
            if turn % 8 == 5:
                task.call(sync.stats)
                task.call(lambda: sync.writer_pid)
        task.leave(sync)

    def reader(self, task):
        sync = task.call(rollway.SharedWeightSync.attach, NAME, connect_timeout_s=CALL_S, peer_timeout_s=PEER_S)
        if sync is None:
            return
        version = 0
        for turn in task.turns():
            if turn % 2:
                version = task.call(sync.wait_for_version, version + 1, CALL_S) or 0
            tree = task.call(sync.read_weights)
            if tree is not None:
                self._check(task, tree)
            task.call(lambda: sync.version)
        task.leave(sync)

    def reader_in_place(self, task):
        sync = task.call(rollway.SharedWeightSync.attach, NAME, connect_timeout_s=CALL_S, peer_timeout_s=PEER_S)
        if sync is None:
            return
        tree, version = {key: np.zeros(shape, np.int64) for key, shape in self.shapes.items()}, 0
        for turn in task.turns():
            since = version if turn % 2 else 0
            version = task.call(sync.read_weights_into, tree, since=since) or 0
            self._check(task, tree)
        task.leave(sync)

    def _check(self, task, tree):
        expect(tree.keys() == self.shapes.keys(), f"the leaves are {', '.join(tree)}")
        wrong = 0
        for key, shape in self.shapes.items():
            leaf = tree[key]
            expect(leaf.shape == shape and leaf.dtype == np.int64, f"{key} is {leaf.dtype}{leaf.shape}")
            values, counts = np.unique(leaf, return_counts=True)
            wrong += len(values) and int(counts.sum() - counts.max())
        task.count(wrong)


class Table(Structure):
    """A `ReplayBuffer`, to which several processes add and from which several sample."""

    producers = ("producer", "producer", "sampler")
    capacity, obs_dim, action_dim = 24, 3, 2

    def body(self, start):
        tallies = start + 192
        words = tallies + SEATS * 64
        end = words + self.capacity * 8
        rows = start + rounded(end - start, PAGE)
        return [
            Region("head", start, start + 8, 4),
            Region("settled, closed", start + 64, start + 80, 4),
            Region("bell", start + 128, start + 136, 1),
            Region("tally of seat", tallies, words, 1, 64),
            Region("row word", words, end, 5, 8),
            Region("rows", rows, rows + self.capacity * 64, 0.5, payload=True),
        ]

    def _make(self, task):
        return task.call(
            rollway.ReplayBuffer, self.capacity, self.obs_dim, self.action_dim, name=NAME, max_peers=SEATS, seed=1
        )

    def learner(self, task):
        self._sample(task, self._make(task))

    def sampler(self, task):
        self._sample(task, task.call(rollway.ReplayBuffer.attach, NAME))

    def _sample(self, task, buffer):
        if buffer is None:
            return
        layout = buffer.layout
        block = np.zeros(16 * layout.row_bytes, np.uint8)
        for turn in task.turns():
            if turn % 4 == 0:
                task.call(buffer.wait_for, 1 + turn % self.capacity, timeout=CALL_S)
            if turn % 2:
                fields = layout.arrays(block) if task.call(buffer.fill, 16, block) else None
            else:
                shapes = {leaf.name: ((7, *leaf.shape), leaf.dtype) for leaf in layout.schema.values()}
                out = {key: np.zeros(*how) for key, how in shapes.items()}
                fields = task.call(buffer.sample, 7, out)
            if fields is not None:
                expect(fields["obs"].shape[1:] == (self.obs_dim,), f"obs is {fields['obs'].shape}")
                expect(fields["actions"].shape[1:] == (self.action_dim,), f"actions is {fields['actions'].shape}")
            if turn % 8 == 5:
                task.call(buffer.stats)
                length = task.call(len, buffer)
                expect(length is None or 0 <= length <= self.capacity, f"{length} rows of {self.capacity}")
        task.leave(buffer)

    def producer(self, task):
        buffer = task.call(rollway.ReplayBuffer.attach, NAME)
        if buffer is None:
            return
        for turn in task.turns():
            rows = 1 + turn * 5 % 30
            wide = np.full((rows, self.obs_dim), turn, np.float32)
            flat = wide[:, 0].copy()
            task.call(buffer.add, wide, wide[:, :2].copy(), flat, wide, flat, flat)
        task.leave(buffer)


class Count(gymnasium.Env):
    """The smallest environment."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self):
        self.count = 0

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.zeros(3), {}

    def step(self, action):
        self.count += 1
        return np.full(3, self.count, np.float64), 1.0, False, self.count >= 20, {}


class VectorEnv(Structure):
    """The caller of a vector environment. Its workers are processes that it starts, and that the driver kills."""

    segments = "rollway.auto-*"
    producers = ()
    envs, workers = 4, 2

    def body(self, start):
        lines = start + 128
        asked = lines + self.workers * 128
        answered = asked + self.envs * 8
        end = answered + self.envs * 8
        data = start + rounded(end - start, PAGE)
        arrays = data + 3 * 64
        letters = arrays + 64 + 2 * 320  # actions; two buffers of observations, rewards and two flags
        return [
            Region("closed, limit, caller", start, start + 16, 3),
            Region("bell", start + 64, start + 72, 1),
            Region("line of worker", lines, asked, 3, 128),
            Region("asked, of environment", asked, answered, 5, 8),
            Region("answered, of environment", answered, end, 5, 8),
            Region("busy_env, last_sent, lengths", data, arrays, 1, 64),
            Region("arrays", arrays, letters, 1, payload=True),
            Region("letters", letters, data + PAGE, 1),
        ]

    def learner(self, task):
        restart = None if task.strict else task.rng.choice([None, rollway.vector_env.FaultPolicy(3)])
        envs = task.call(
            rollway.make_vec,
            [Count] * self.envs,
            num_workers=self.workers,
            context="fork",
            step_timeout_s=5.0 if task.strict else 0.25,
            restart=restart,
            batch_size=task.rng.choice([None, self.envs]),
        )
        if envs is None:
            return
        task.call(envs.reset)
        for turn in task.turns():
            result = task.call(envs.step, np.zeros(self.envs, np.int64))
            if result is None:
                if task.call(envs.reset) is None:
                    break
                continue
            observations, rewards, terminations, truncations, _ = result
            expect(observations.shape == (self.envs, 3), f"observations are {observations.shape}")
            for part in (rewards, terminations, truncations):
                expect(part.shape == (self.envs,), f"a part of a step is {part.shape}")
            if turn % 32 == 9:
                task.call(envs.call, "get_wrapper_attr", "count")
        task.leave(envs, timeout=0.2)


STRUCTURES = {"ring": Ring, "records": Records, "weights": Weights, "table": Table, "vector_env": VectorEnv}
