"""Every error that needs a damaged or foreign segment, and that each says what, where and how to mend it.

The others are met where they arise: test_schema, test_server, process/test_ring, fault/test_memory.
"""

import re
import struct
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import _core, errors

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
        rollway.LayoutMismatch, match=r"has layout version 99, this build reads 3\. Use the same rollway"
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


def test_damaged_words_are_an_error_and_never_a_crash(ring, name):
    """Somebody writes nonsense over the ring's words: calls end in an error or a timeout, not in a signal."""
    rng = np.random.default_rng(0)
    size = ring.stat().st_size
    with rollway.ShmClient(name, EXAMPLE) as client:
        body = 4096 + 1024 * 64
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
    with pytest.raises(rollway.SystemCallFailed, match=r"nowhere.*No such file or directory"):
        rollway.Server(EXAMPLE, 1, rollway.ShmTransport(name))


def test_every_exception_of_the_tree_is_raised_somewhere_in_the_tests():
    root = Path(__file__).parents[1]
    text = "\n".join(path.read_text() for path in root.rglob("test_*.py"))
    tree = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.RollwayError)]
    leaves = {c.__name__ for c in tree if not c.__subclasses__()}
    unmet = {name for name in leaves if not re.search(rf"(raises|except)\W+(rollway\.)?{name}", text)}
    assert not unmet
