"""Remote workers of a learner that is killed, or ends, and is started again on the same port."""

import contextlib
import signal
import socket

import numpy as np
import pytest

import rollway
from tests.support.processes import until

EXAMPLE = {"id": np.int64(0), "payload": np.zeros(64, np.int64)}
SAMPLE_BYTES = 65 * 8
SCHEMA = {"id": "int64[]", "payload": "int64[*]"}
SOON = 30

LEARNER = """
import sys, numpy as np, rollway
port, dtype = int(sys.argv[1]), sys.argv[2]
example = {"id": np.int64(0), "payload": np.zeros(64, dtype)}
with rollway.Server(example, 4, rollway.TcpTransport(port), num_buffers=2) as server:
    print(server.port, flush=True)
    for line in sys.stdin:
        if line.strip() == "fail": raise RuntimeError("a bug in the learner")
        ids = []
        while len(ids) < int(line):
            try:
                with server.sample(timeout=0.02, at_least=1) as taken: ids += taken.batch["id"].tolist()
            except rollway.WaitTimeout: pass
        print(*ids, flush=True)
"""

RECORD_LEARNER = """
import sys, numpy as np, rollway
port, dtype = int(sys.argv[1]), sys.argv[2]
schema = {"id": "int64[]", "payload": f"{dtype}[*]"}
with rollway.RecordServer(schema, rollway.TcpTransport(port), max_records=8) as server:
    print(server.port, flush=True)
    for line in sys.stdin:
        if line.strip() == "fail": raise RuntimeError("a bug in the learner")
        ids = []
        while len(ids) < int(line):
            with server.read(timeout=30) as record: ids.append(int(record["id"]))
        print(*ids, flush=True)
"""


class Samples:
    """Samples, one after the other, and a learner whose ring has room for 8 of them."""

    code, unit = LEARNER, "samples"

    @staticmethod
    def connect(port, **options):
        return rollway.TcpClient("127.0.0.1", port, EXAMPLE, **options)

    @staticmethod
    def serve(port=0, batch_size=4):
        return rollway.Server(EXAMPLE, batch_size, rollway.TcpTransport(port), num_buffers=2)

    @staticmethod
    def value(number):
        return {"id": np.int64(number), "payload": np.full(64, number)}

    @staticmethod
    def take(server, count):
        ids = []

        def sample():
            with contextlib.suppress(rollway.WaitTimeout), server.sample(timeout=0.02, at_least=1) as taken:
                ids.extend(taken.batch["id"].tolist())
            return len(ids) >= count

        until(sample, timeout=SOON)
        return ids


class Records(Samples):
    """Records, and a learner whose lane has room for 8 of them."""

    code, unit = RECORD_LEARNER, "records"

    @staticmethod
    def connect(port, **options):
        return rollway.TcpRecordClient("127.0.0.1", port, SCHEMA, **options)

    @staticmethod
    def serve(port=0, batch_size=4):
        return rollway.RecordServer(SCHEMA, rollway.TcpTransport(port))

    @staticmethod
    def take(server, count):
        ids = []
        for _ in range(count):
            with server.read(timeout=SOON) as record:
                ids.append(int(record["id"]))
        return ids


@pytest.fixture(params=[Samples, Records], ids=["samples", "records"])
def kind(request):
    return request.param


@pytest.fixture
def learner(child):
    """Starts a learner as a process of its own: ``learner(kind, port, dtype)``; gives it and its port."""

    def start(kind, port=0, dtype="int64"):
        process = child(kind.code, port, dtype)
        return process, int(process.line())

    return start


def fill(kind, client, number=0, room=8):
    """Sends as many as the learner has room for, and 6 more, which stay on their way; gives the number of the next."""
    end = number + room + 6
    while number < end:
        client.send(kind.value(number), timeout=SOON)
        number += 1
    until(lambda: client.stats()["bytes"] >= number * SAMPLE_BYTES)  # all of them were given to a socket
    until(lambda: client.unacknowledged == 6)
    return number


def adds_up(client):
    stats = client.stats()
    assert stats["sent"] == stats["acknowledged"] + stats["dropped"] + client.unacknowledged
    return stats


def taken_by(process, count):
    process.tell(str(count))
    return [int(word) for word in process.line().split()]


def test_by_default_a_restart_is_an_error_that_names_the_choices(kind, learner):
    first, port = learner(kind)
    client = kind.connect(port, reconnect_timeout_s=SOON)
    fill(kind, client)
    first.kill()
    learner(kind, port)
    with pytest.raises(
        rollway.ConnectionClosedError, match=rf'6 {kind.unit}, .*not acknowledged.*on_restart="drop" or "resend"'
    ) as raised:
        client.wait(timeout=SOON)
    assert raised.value.unacknowledged == 6
    with pytest.raises(rollway.ConnectionClosedError):
        client.close()


def test_drop_gives_up_what_was_sent_and_goes_on_with_the_new_learner(kind, learner):
    first, port = learner(kind)
    with kind.connect(port, on_restart="drop", reconnect_timeout_s=SOON) as client:
        number = fill(kind, client)
        first.kill()
        until(lambda: not client.connected)
        client.send(kind.value(number))  # packed while there is no learner: not of unknown fate
        second, _ = learner(kind, port)
        client.send(kind.value(number + 1), timeout=SOON)
        assert taken_by(second, 2) == [number, number + 1]
        client.wait(timeout=SOON)
        stats = adds_up(client)
        assert (stats["dropped"], stats["resent"], stats["acknowledged"]) == (6, 0, number - 6 + 2)


def test_resend_sends_to_the_new_learner_what_the_old_one_did_not_acknowledge(kind, learner):
    first, port = learner(kind)
    with kind.connect(port, on_restart="resend", reconnect_timeout_s=SOON) as client:
        number = fill(kind, client)
        first.kill()
        until(lambda: not client.connected)
        client.send(kind.value(number))
        second, _ = learner(kind, port)
        assert taken_by(second, 7) == list(range(number - 6, number + 1))
        client.wait(timeout=SOON)
        stats = adds_up(client)
        assert (stats["dropped"], stats["resent"], stats["acknowledged"]) == (0, 6, number + 1)


@pytest.mark.parametrize("on_restart", ["drop", "resend"])
def test_a_worker_outlives_several_learners_and_every_count_is_exact(kind, learner, on_restart):
    process, port = learner(kind)
    with kind.connect(port, on_restart=on_restart, reconnect_timeout_s=SOON) as client:
        number = fill(kind, client)
        for restarts in range(1, 4):
            process.kill()
            until(lambda: not client.connected)
            process, _ = learner(kind, port)
            number = fill(kind, client, number, 8 if on_restart == "drop" else 2)
            expected = (6 * restarts, 0) if on_restart == "drop" else (0, 6 * restarts)
            stats = adds_up(client)
            assert (stats["dropped"], stats["resent"]) == expected
        assert taken_by(process, 14) == list(range(number - 14, number))
        client.wait(timeout=SOON)


@pytest.mark.parametrize("on_restart", ["drop", "resend"])
def test_a_worker_outlives_a_learner_that_ends_with_an_exception(kind, learner, on_restart):
    first, port = learner(kind)
    with kind.connect(port, on_restart=on_restart, reconnect_timeout_s=SOON) as client:
        number = fill(kind, client)
        first.tell("fail")
        assert "a bug in the learner" in first.ends(1)[1]
        until(lambda: not client.connected)
        second, _ = learner(kind, port)
        client.send(kind.value(number), timeout=SOON)
        kept = [number] if on_restart == "drop" else list(range(number - 6, number + 1))
        assert taken_by(second, len(kept)) == kept
        client.wait(timeout=SOON)
        assert adds_up(client)[{"drop": "dropped", "resend": "resent"}[on_restart]] == 6


@pytest.mark.parametrize("on_restart", ["raise", "drop", "resend"])
def test_a_learner_that_never_comes_back_is_an_error_with_the_count(kind, learner, on_restart):
    first, port = learner(kind)
    client = kind.connect(port, on_restart=on_restart, reconnect_timeout_s=0.3)
    fill(kind, client)
    first.kill()
    with pytest.raises(rollway.ConnectionClosedError, match=r"the learner has been away for .*refused") as raised:
        client.wait(timeout=SOON)
    assert raised.value.unacknowledged == 6
    assert adds_up(client)["dropped"] == 0
    with pytest.raises(rollway.ConnectionClosedError):
        client.close()


@pytest.mark.parametrize("on_restart", ["drop", "resend"])
def test_a_new_learner_with_another_schema_is_a_mismatch_that_names_the_leaf(kind, learner, on_restart):
    first, port = learner(kind)
    client = kind.connect(port, on_restart=on_restart, reconnect_timeout_s=SOON)
    fill(kind, client)
    first.kill()
    learner(kind, port, "float32")
    with pytest.raises(rollway.SchemaMismatch, match=rf"'payload' is int64.* here but float32.* 127.0.0.1:{port}"):
        client.wait(timeout=SOON)
    with pytest.raises(rollway.SchemaMismatch):
        client.send(kind.value(0))
    with pytest.raises(rollway.SchemaMismatch):
        client.close()
    assert client.closed


def test_no_more_than_max_unacknowledged_wait_for_a_learner(kind, learner):
    first, port = learner(kind)
    with kind.connect(port, on_restart="resend", max_unacknowledged=10, reconnect_timeout_s=SOON) as client:
        number = fill(kind, client)
        first.kill()
        until(lambda: not client.connected)
        for _ in range(4):
            assert client.try_send(kind.value(number))
            number += 1
        assert not client.try_send(kind.value(number)) and client.unacknowledged == 10
        until(lambda: "refused" in (client.last_error or ""))
        with pytest.raises(
            rollway.WaitTimeout, match=rf"10 {kind.unit} are not acknowledged, no connection now \(.*refused"
        ):
            client.send(kind.value(number), timeout=0.05)
        second, _ = learner(kind, port)
        client.send(kind.value(number), timeout=SOON)  # waits until there is a learner
        assert client.last_error is None
        assert taken_by(second, 11) == list(range(number - 10, number + 1))


def test_while_there_is_a_learner_the_bound_holds_too(kind):
    with kind.serve() as server, kind.connect(server.port, max_unacknowledged=1) as client:
        for number in range(40):
            client.send(kind.value(number), timeout=SOON)
            assert client.unacknowledged <= 1
            assert kind.take(server, 1) == [number]


def test_a_new_learner_may_have_smaller_batches(learner):
    with Samples.serve(batch_size=64) as first:
        port = first.port
        client = Samples.connect(port, on_restart="resend", reconnect_timeout_s=SOON)
        many = {"id": np.arange(100), "payload": np.zeros((100, 64), np.int64)}
        client.send_many(many)
        client.wait(timeout=SOON)
        sent = client.send_many({"id": np.arange(100, 200), "payload": np.zeros((100, 64), np.int64)})
        assert sent == 100 and client.unacknowledged >= 72
    kept = client.unacknowledged
    with client, Samples.serve(port, batch_size=2) as second:
        assert Samples.take(second, kept) == list(range(200 - kept, 200))


@pytest.mark.parametrize("bad", ["Raise", "", "ignore"])
def test_another_word_is_refused_before_anything_is_connected(bad):
    with pytest.raises(ValueError, match="it must be 'raise', 'drop' or 'resend'"):
        Samples.connect(1, on_restart=bad, connect_timeout_s=SOON)


@pytest.mark.parametrize("bad", [0, -1, 2**64])
def test_a_bound_below_one_is_refused(kind, bad):
    with pytest.raises(rollway.InvalidArgument, match="max_unacknowledged"):
        kind.connect(1, max_unacknowledged=bad, connect_timeout_s=SOON)


def test_ctrl_c_ends_a_send_that_waits_at_the_bound(child):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with Samples.serve(port):
        worker = child(
            """
            import sys, numpy as np, rollway
            example = {"id": np.int64(0), "payload": np.zeros(64, np.int64)}
            client = rollway.TcpClient("127.0.0.1", int(sys.argv[1]), example, on_restart="drop", max_unacknowledged=3)
            print("in", flush=True)
            sys.stdin.readline()
            while client.try_send(example):
                pass
            try:
                print("full", flush=True)
                client.send(example)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            """,
            port,
        )
        worker.says("in")
    worker.tell()
    worker.says("full")
    worker.process.send_signal(signal.SIGINT)
    worker.says("interrupted")
    worker.kill()
