"""The connection between a collector on any node and its learner, without Ray."""

import json
import socket
import struct
import threading

import pytest

from rollway.errors import LearnerUnreachable
from rollway.integrations.ray.collector_line import CollectorLine, LearnerLines
from rollway.runner.collector import Collector, StopFlag
from tests.support.processes import until


@pytest.fixture
def lines():
    lines = LearnerLines("127.0.0.1")
    yield lines
    lines.close()


def test_reports_arrive_whole_and_in_order_and_those_without_room_are_not_sent(lines):
    found, reads = [], threading.Event()
    line = CollectorLine(
        lines.address, lines.expect(lambda message: reads.wait() and found.append(json.loads(message)))
    )
    collector = Collector(0, 0, StopFlag(line), line)
    much = {f"number{index}": 1.0 for index in range(150)}
    sent = 0
    while collector.report(sent=sent, **much):
        sent += 1
    reads.set()
    until(lambda: len(found) == sent or collector.report(sent=-1.0), 30)
    line.close()
    until(lambda: len(found) >= sent, 30)
    assert sent and [message["sent"] for message in found[:sent]] == list(range(sent))


def test_the_order_to_stop_reaches_collectors_that_connect_later_too(lines):
    early = CollectorLine(lines.address, lines.expect(lambda message: None))
    assert not StopFlag(early).is_set()
    lines.set()
    late = CollectorLine(lines.address, lines.expect(lambda message: None))
    for line in (early, late):
        assert StopFlag(line).wait(10) and not line.was_cut
        line.close()


def test_the_end_of_the_learner_stops_a_collector_which_knows_the_difference(lines):
    line = CollectorLine(lines.address, lines.expect(lambda message: None))
    assert not line.was_cut
    lines.close()
    assert line.poll(10) and line.was_cut
    line.send_bytes(b"nobody")
    line.close()


@pytest.mark.parametrize("said", [b"k" * 32, b"short"])
def test_a_stranger_is_not_heard(lines, said):
    with socket.create_connection(lines.address) as stranger:
        stranger.sendall(said + struct.pack("!I", 2) + b"{}")
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""


def test_a_message_that_is_too_long_ends_the_connection(lines):
    found = []
    line = CollectorLine(lines.address, lines.expect(found.append))
    line.send_bytes(b"x" * (1 << 20))
    assert line.poll(10) and line.was_cut and not found
    line.close()


def test_a_learner_that_cannot_be_reached_is_an_error_that_says_where():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    with pytest.raises(LearnerUnreachable, match=rf"127\.0\.0\.1:{address[1]}: .*refused"):
        CollectorLine(address, b"k" * 32)
