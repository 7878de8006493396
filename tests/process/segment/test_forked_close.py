"""close() in a forked child: the child lets go of what it inherited, and the parent goes on as if nothing had been."""

import os

import numpy as np
import pytest

import rollway
from tests.support.processes import forked, until

ONE = np.zeros(1, np.int64)
SCHEMA = {"tokens": "int32[*]"}
WEIGHTS = {"w": np.zeros(2, np.float32)}


def in_a_child(*calls):
    """Makes the calls in a forked child, which must not fail."""
    pid = forked(lambda: [call() for call in calls])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def value(i):
    return np.array([i], np.int64)


def taken(server):
    with server.sample(timeout=10) as sample:
        return int(sample.batch[0, 0])


def read(server):
    with server.read(timeout=10) as record:
        return record["tokens"].tolist()


def test_a_ring(name):
    with rollway.Server(ONE, 1, rollway.ShmTransport(name), num_buffers=4) as server:
        with rollway.ShmClient(name, ONE) as client:
            client.send(value(1))
            slot = client.reserve()
            slot.tree[0] = 3
            sample = server.sample(timeout=10)
            in_a_child(client.close, client.close)
            in_a_child(server.close, server.close)
            in_a_child(slot.abort, sample.release, client.close, server.close)
            assert not server.closed and not client.closed and sample.batch.tolist() == [[1]]
            sample.release()
            slot.commit()
            client.send(value(2))
            assert [taken(server), taken(server)] == [3, 2]
            with rollway.ShmClient(name, ONE) as late:
                late.send(value(4))
                assert taken(server) == 4
    assert server.closed and client.closed


def test_records(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server:
        with rollway.ShmRecordClient(name, SCHEMA) as client:
            client.send({"tokens": [1]})
            slot = client.reserve({"tokens": 1})
            slot["tokens"][0] = 3
            record = server.read(timeout=10)
            in_a_child(client.close, client.close)
            in_a_child(server.close, server.close)
            in_a_child(slot.abort, record.release, client.close, server.close)
            assert not server.closed and not client.closed and record["tokens"].tolist() == [1]
            record.release()
            slot.commit()
            client.send({"tokens": [2]})
            assert [read(server), read(server)] == [[3], [2]]
            with rollway.ShmRecordClient(name, SCHEMA) as late:
                late.send({"tokens": [4]})
                assert read(server) == [4]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_samples_over_tcp(tls, authority, certificate):
    given = {"tls": rollway.Tls(certificate.cert, certificate.key)} if tls else {}
    with rollway.Server(ONE, 1, rollway.TcpTransport(**given), num_buffers=4) as server:
        with rollway.TcpClient("127.0.0.1", server.port, ONE, ca=authority.pem if tls else None) as client:
            client.send(value(1))
            in_a_child(client.close, client.close)
            in_a_child(server.close, server.close)
            client.send(value(2))
            client.wait(timeout=10)
            assert [taken(server), taken(server)] == [1, 2]
            assert client.stats()["connects"] == 1 and server.stats()["tcp_connections"] == 1
            with rollway.TcpClient("127.0.0.1", server.port, ONE, ca=authority.pem if tls else None) as late:
                late.send(value(3))
                assert taken(server) == 3


def test_records_over_tcp():
    with rollway.RecordServer(SCHEMA, rollway.TcpTransport()) as server:
        with rollway.TcpRecordClient("localhost", server.port, SCHEMA) as client:
            client.send({"tokens": [1]})
            in_a_child(client.close, client.close)
            in_a_child(server.close, server.close)
            client.send({"tokens": [2]})
            client.wait(timeout=10)
            assert [read(server), read(server)] == [[1], [2]] and client.stats()["connects"] == 1


def test_weights(name):
    with rollway.SharedWeightSync.from_state_dict(WEIGHTS, shm_name=name) as sync:
        with rollway.SharedWeightSync.attach(name) as reader, sync.serve(rollway.TcpTransport()) as endpoint:
            with rollway.TcpWeights("localhost", endpoint.port) as mirror:
                mirror.wait_for_version(1, timeout=10)
                for handle in (mirror, reader, sync):
                    in_a_child(handle.close, handle.close)
                sync.update_weights({"w": np.full(2, 7, np.float32)})
                for handle in (reader, mirror):
                    assert handle.wait_for_version(2, timeout=10) == 2
                    assert handle.read_weights()["w"].tolist() == [7, 7]
                assert mirror.connected and mirror.stats()["connects"] == 1
    until(lambda: not any(segment.name == name for segment in rollway.segments()))
