"""Every error that needs a damaged or foreign segment, and that each says what, where and how to mend it.

The others are met where they arise: test_schema, test_server, process/ring/test_ring, fault/segment/test_memory.
"""

import contextlib
import re
import struct
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import _core, errors
from tests.support.segments import overwrite as segment_overwrite

EXAMPLE = {"a": np.zeros(4)}
VERSION_OFFSET, SEATS_OFFSET, TOTAL_OFFSET, GEOMETRY_OFFSET = 8, 28, 16, 64


@pytest.fixture
def ring(name):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)) as server:
        yield Path(_core.shm_directory()) / f"rollway.{server.name}"


def overwrite(path, offset, form, value):
    with path.open("r+b") as file:
        file.seek(offset)
        before = file.read(struct.calcsize(form))
        file.seek(offset)
        file.write(struct.pack(form, value))
    return before


def test_another_layout_version_is_refused(ring, name):
    before = overwrite(ring, VERSION_OFFSET, "I", 99)
    with pytest.raises(
        rollway.errors.LayoutMismatch, match=r"has layout version 99, this build reads 8\. Use the same rollway"
    ):
        rollway.ShmClient(name, EXAMPLE)
    overwrite(ring, VERSION_OFFSET, "I", int.from_bytes(before, "little"))


@pytest.mark.parametrize(
    ("offset", "form", "value", "message"),
    [
        (0, "Q", 12345, "does not start with the magic number"),
        (SEATS_OFFSET, "I", 0, "its number of seats is out of range"),
        (SEATS_OFFSET, "I", 2**31, "its number of seats is out of range"),
        (TOTAL_OFFSET, "Q", 2**60, "its size is not the one in its header"),
        (48, "Q", 2**62, "its size is not the one in its header"),
        (GEOMETRY_OFFSET, "Q", 0, "the geometry in its header is out of range"),
        (GEOMETRY_OFFSET, "Q", 3000, "the geometry in its header does not fit its schema"),
        (GEOMETRY_OFFSET + 8, "Q", 2**40, "the geometry in its header is out of range"),
        (GEOMETRY_OFFSET + 32, "Q", 77, "its policy is unknown"),
    ],
)
def test_a_damaged_header_is_refused_and_never_a_crash(ring, name, offset, form, value, message):
    before = overwrite(ring, offset, form, value)
    with pytest.raises(rollway.RollwayError, match=message):
        rollway.ShmClient(name, EXAMPLE)
    overwrite(ring, offset, form, struct.unpack(form, before)[0])
    rollway.ShmClient(name, EXAMPLE).close()


RECORD = {"tokens": "int32[*]", "score": "float32[]"}
WEIGHTS = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float16)}


@contextlib.contextmanager
def a_ring(name):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
        yield lambda: rollway.ShmClient(name, EXAMPLE).close()


@contextlib.contextmanager
def records(name):
    with rollway.RecordServer(RECORD, rollway.ShmTransport(name)):
        yield lambda: rollway.ShmRecordClient(name, RECORD).close()


@contextlib.contextmanager
def weights(name):
    with rollway.SharedWeightSync.from_state_dict(WEIGHTS, shm_name=name):
        yield lambda: rollway.SharedWeightSync.attach(name).close()


@contextlib.contextmanager
def a_table(name):
    with rollway.ReplayBuffer(7, 3, 2, name=name):
        yield lambda: rollway.ReplayBuffer.attach(name).close()


@contextlib.contextmanager
def a_vector_env(name):
    caller = _core.EnvCaller(name, 3, 9, 5000)
    yield lambda: _core.EnvWorker(name, 0)
    caller.close()


@contextlib.contextmanager
def a_block(name):
    block = _core.Block.create(name, 5000)
    yield lambda: _core.Block.attach(name).close()
    block.unlink()
    block.close()


STRUCTURES = {a_ring: 5, records: 5, weights: 3, a_table: 4, a_vector_env: 4, a_block: 1}
"""How to make each, what opens it, and how many words of the header say its sizes."""


@pytest.mark.parametrize("make", STRUCTURES, ids=lambda make: make.__name__)
def test_every_wrong_word_about_sizes_is_damage_at_attach(make, name):
    path = Path(_core.shm_directory()) / f"rollway.{name}"
    with make(name) as attach:
        for word in range(STRUCTURES[make]):
            offset = GEOMETRY_OFFSET + 8 * word
            with path.open("rb") as file:
                file.seek(offset)
                right = int.from_bytes(file.read(8), "little")
            for wrong in {0, 1, right + 1, right - 1, 2 * right, 2**31, 2**32 + right, 2**63, 2**64 - 1} - {right}:
                if make in (a_ring, records) and word == 4 and wrong < 4:
                    continue  # Another policy, which the learner may choose.
                overwrite(path, offset, "Q", wrong % 2**64)
                with pytest.raises(rollway.errors.SegmentDamaged, match="is damaged"):
                    attach()
                overwrite(path, offset, "Q", right)
        attach()


@pytest.mark.parametrize(
    ("make", "old", "new"),
    [
        (a_ring, b'"<f8"', b'"<f4"'),
        (records, b'"<i4"', b'"<i8"'),
        (a_table, b'"obs","<f4",[3]', b'"obs","<f4",[4]'),
        (a_table, b'"obs","<f4",[3]', b'"obs","<f8",[3]'),
    ],
)
def test_another_schema_in_memory_is_refused_at_attach(make, old, new, name):
    with make(name) as attach:
        segment_overwrite(name, old, new)
        with pytest.raises((rollway.SchemaMismatch, rollway.errors.SegmentDamaged)):
            attach()
        segment_overwrite(name, new, old)
        attach()


@pytest.mark.parametrize("make", [a_ring, records, a_table], ids=lambda make: make.__name__)
@pytest.mark.parametrize("new", [b"[[]", b'{"a', b'["[', b"\xff\xff\xff"])
def test_what_is_no_schema_in_memory_is_damage_at_attach(make, new, name):
    with make(name) as attach:
        segment_overwrite(name, b'[["', new)
        with pytest.raises(rollway.errors.SegmentDamaged, match="its schema cannot be read"):
            attach()


@pytest.mark.parametrize("dtype", ["|O8", "O,O", "<f4,<f4"])
def test_a_dtype_that_carries_objects_is_damage_at_attach(dtype, name):
    honest = f"|S{10 ** (len(dtype) - 3)}"
    with rollway.ReplayBuffer(7, 3, 2, name=name, fields={"x": f"{honest[1:]}[]"}):
        segment_overwrite(name, f'"{honest}"'.encode(), f'"{dtype}"'.encode())
        with pytest.raises(rollway.errors.SegmentDamaged, match="dtype is not known"):
            rollway.ReplayBuffer.attach(name)


def test_rows_that_no_memory_holds_are_damage_at_attach(name):
    """The item sizes have a least common multiple that is larger than an address space."""
    primes = (991, 997, 983, 977, 971, 967, 953, 947, 941)
    with rollway.ReplayBuffer(7, 3, 2, name=name, fields={f"x{prime}": "S100[]" for prime in primes}):
        for prime in primes:
            segment_overwrite(name, b'"|S100"', f'"|S{prime}"'.encode())
        with pytest.raises(rollway.errors.SegmentDamaged, match="rows of"):
            rollway.ReplayBuffer.attach(name)


def test_damaged_words_are_an_error_and_never_a_crash(ring, name):
    """Somebody writes nonsense over the ring's words: calls end in an error or a timeout, not in a signal."""
    rng = np.random.default_rng(0)
    size = ring.stat().st_size
    with rollway.ShmClient(name, EXAMPLE) as client:
        body = 4096 + 1024 * 128
        for _ in range(200):
            overwrite(
                ring, int(rng.integers(body // 8, size // 8)) * 8, "Q", int(rng.integers(0, 2**64, dtype=np.uint64))
            )
            try:
                client.send(EXAMPLE, timeout=0.001)
            except rollway.RollwayError as error:
                assert str(error)


def test_a_missing_directory_is_a_clear_system_error(name, monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLWAY_SHM_DIR", str(tmp_path / "nowhere"))
    advice = r"nowhere.*ROLLWAY_SHM_DIR.*No such file or directory"
    for call in (
        lambda: rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name)),
        lambda: rollway.SharedWeightSync({"w": (3,)}),
        lambda: rollway.make_vec("CartPole-v1", num_envs=1),
        rollway.segments,
        lambda: rollway.Server(EXAMPLE, 1, rollway.TcpTransport()).start(),
    ):
        with pytest.raises(rollway.errors.SystemCallFailed, match=advice):
            call()


def test_a_learner_over_tcp_that_was_given_a_token_needs_no_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLWAY_SHM_DIR", str(tmp_path / "nowhere"))
    transport = rollway.TcpTransport(token="given by hand")
    with (
        rollway.Server(EXAMPLE, 1, transport) as server,
        rollway.TcpClient("127.0.0.1", server.port, EXAMPLE, token="given by hand") as client,
    ):
        client.send(EXAMPLE)
        server.sample(timeout=10).release()


def test_every_exception_of_the_tree_is_raised_somewhere_in_the_tests():
    root = Path(__file__).parents[1]
    text = "\n".join(path.read_text() for path in root.rglob("test_*.py"))
    tree = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.RollwayError)]
    leaves = {c.__name__ for c in tree if not c.__subclasses__()}
    unmet = {name for name in leaves if not re.search(rf"(raises|except)\W+(rollway\.(errors\.)?)?{name}", text)}
    assert not unmet
