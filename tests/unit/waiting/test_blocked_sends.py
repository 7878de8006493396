"""Calls that have to wait: what they send is what they were given, whatever happens meanwhile, and a close ends them."""

import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

import rollway

WORDS = 1000
EXAMPLE = {"x": np.zeros(WORDS, np.int64)}
RECORD = {"x": "int64[*]"}


def open_way(way, name, stack):
    """A server, and a call that sends to it: each waits after a few."""
    transport = rollway.TcpTransport() if "tcp" in way else rollway.ShmTransport(name)
    if "records" in way:
        server = stack.enter_context(rollway.RecordServer(RECORD, transport, lane_bytes=20_480, lanes=2))
        clients, schema = (rollway.ShmRecordClient, rollway.TcpRecordClient), RECORD
    else:
        server = stack.enter_context(rollway.Server(EXAMPLE, 1, transport, num_buffers=2))
        clients, schema = (rollway.ShmClient, rollway.TcpClient), EXAMPLE
    server.start()
    if way == "submit":
        return server, server.submit
    if "tcp" in way:
        client = clients[1]("localhost", server.port, schema, max_inflight_msgs=1)
    else:
        client = clients[0](name, schema)
    stack.enter_context(client)
    if "many records" in way:
        return server, lambda data: client.send_many([data])
    return server, client.send_many if way == "send_many" else client.send


def values(server):
    if isinstance(server, rollway.RecordServer):
        with server.read(10) as record:
            return set(record["x"].tolist())
    with server.sample(10) as sample:
        return set(sample.batch["x"].ravel().tolist())


@pytest.mark.parametrize(
    "way", ["submit", "send", "send_many", "records", "many records", "tcp", "tcp records", "tcp many records"]
)
def test_an_array_that_is_taken_out_of_the_dict_while_its_send_waits_is_sent_all_the_same(way, name):
    shape = (1, WORDS) if way == "send_many" else WORDS
    data, sent, enough = {"x": np.full(shape, 7)}, [], threading.Event()
    with ExitStack() as stack:
        server, send = open_way(way, name, stack)

        def fill():
            while not enough.is_set():
                sent.append(send(data))

        thread = threading.Thread(target=fill)
        thread.start()
        count = -1
        while count != len(sent):  # until one waits
            count = len(sent)
            time.sleep(0.2)
        enough.set()
        data["x"] = np.full(shape, 8)
        others = [np.full(shape, 666) for _ in range(100)]  # one of them where the sevens were, if nobody holds them
        assert [values(server) for _ in range(count + 1)] == [{7}] * (count + 1)
        thread.join(10)
        assert not thread.is_alive()
        del others


def test_the_close_of_a_client_of_records_ends_its_own_send_that_waits(name):
    with ExitStack() as stack:
        _, send = open_way("records", name, stack)
        client, raised = send.__self__, []

        def fill():
            try:
                while True:
                    send({"x": np.zeros(WORDS, np.int64)})
            except rollway.ConnectionClosedError as error:
                raised.append(str(error))

        thread = threading.Thread(target=fill)
        thread.start()
        while not client.stats()["blocked"]:
            time.sleep(0.01)
        client.close()
        thread.join(10)
        assert raised == [f"this client of '{name}' is closed"]
