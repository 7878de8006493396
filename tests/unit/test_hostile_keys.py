"""Dict keys of a subclass of `str` run their own code when they are compared. It must not see borrowed pointers.

Each key here replaces the other array of its dict, and has the memory of the old one written over. What arrives is the
array that was in the dict before, or the one that is in it then; never what was written over freed memory.
"""

from contextlib import ExitStack

import numpy as np
import pytest

import rollway

ITEMS = 1000  # more than numpy keeps in its own cache: the next array of this size gets the freed memory
SAMPLE = {"a": np.zeros(ITEMS, np.float32), "b": np.zeros(2, np.float32)}
RECORD = {"a": "float32[*]", "b": "float32[*]"}
GIVEN, REPLACED, FREED = 1.0, 2.0, 7.0
garbage = []


class HostileKey(str):
    """Equal to its text; replaces `victim` in `data` whenever it is compared or hashed, once `data` is set."""

    data = None
    seen = 0

    def _strike(self):
        if self.data is not None:
            HostileKey.seen += 1
            shape = self.data["a"].shape
            self.data["a"] = np.full(shape, REPLACED, np.float32)
            garbage.extend(np.full(shape, FREED, np.float32) for _ in range(64))

    def __eq__(self, other):
        self._strike()
        return str.__eq__(self, other)

    def __hash__(self):
        self._strike()
        return str.__hash__(self)


def hostile(a, b):
    """A dict that changes when its second key is compared."""
    key = HostileKey("b")
    data = {"a": a, key: b}
    key.data = data
    HostileKey.seen = 0
    return data


def is_sound(array):
    return HostileKey.seen > 0 and np.all(array == array.flat[0]) and array.flat[0] in (GIVEN, REPLACED)


@pytest.fixture(params=["shm", "tcp"])
def kind(request):
    return request.param


@pytest.fixture
def ring(kind, name):
    with ExitStack() as stack:
        transport = rollway.ShmTransport(name) if kind == "shm" else rollway.TcpTransport()
        server = stack.enter_context(rollway.Server(SAMPLE, batch_size=2, num_buffers=4, transport=transport))
        server.start()
        client = (
            rollway.ShmClient(name, SAMPLE) if kind == "shm" else rollway.TcpClient("localhost", server.port, SAMPLE)
        )
        yield server, stack.enter_context(client)


@pytest.fixture
def records(kind, name):
    with ExitStack() as stack:
        transport = rollway.ShmTransport(name) if kind == "shm" else rollway.TcpTransport()
        server = stack.enter_context(rollway.RecordServer(RECORD, transport, lanes=2))
        server.start()
        client = (
            rollway.ShmRecordClient(name, RECORD)
            if kind == "shm"
            else rollway.TcpRecordClient("localhost", server.port, RECORD)
        )
        yield server, stack.enter_context(client)


def full(*shape):
    return np.full(shape, GIVEN, np.float32)


@pytest.mark.parametrize("call", ["send", "try_send"])
def test_a_key_that_changes_its_dict_does_not_spoil_a_sample(ring, call):
    server, client = ring
    for _ in range(2):
        data = hostile(full(ITEMS), full(2))  # not in the assert: pytest would keep the arrays alive
        assert getattr(client, call)(data)
    assert is_sound(server.sample(timeout=20).batch["a"][1])


@pytest.mark.parametrize("call", ["send_many", "try_send_many"])
def test_a_key_that_changes_its_dict_does_not_spoil_stacked_samples(ring, call):
    server, client = ring
    data = hostile(full(2, ITEMS), full(2, 2))
    assert getattr(client, call)(data) == 2
    assert is_sound(server.sample(timeout=20).batch["a"])


@pytest.mark.parametrize("call", ["send", "try_send"])
def test_a_key_that_changes_its_dict_does_not_spoil_a_record(records, call):
    server, client = records
    data = hostile(full(ITEMS), full(2))
    assert getattr(client, call)(data)
    assert is_sound(server.read(timeout=20)["a"])


@pytest.mark.parametrize("call", ["send_many", "try_send_many"])
def test_a_key_that_changes_another_records_dict_does_not_spoil_that_record(records, call):
    server, client = records
    plain, second = {"a": full(ITEMS), "b": full(2)}, hostile(full(ITEMS), full(2))
    next(key for key in second if type(key) is HostileKey).data = plain
    assert getattr(client, call)([plain, second]) == 2
    assert is_sound(server.read(timeout=20)["a"])


def test_numpy_scalars_of_a_class_of_ones_own_are_converted_by_python(name):
    class Score(np.float32):
        @property
        def dtype(self):
            raise AssertionError("somebody asked")

    schema = {"score": "float32[]"}
    with (
        rollway.RecordServer(schema, rollway.ShmTransport(name), lanes=1) as server,
        rollway.ShmRecordClient(name, schema) as client,
    ):
        client.send({"score": Score(2.5)})
        assert server.read(timeout=20)["score"] == 2.5
