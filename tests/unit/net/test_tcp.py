"""Samples over TCP within one process: every call and option of TcpTransport, TcpClient, Tls and Transport.

What needs processes of its own is in process/net/test_workers, what needs a bad network in fault/net/test_cuts.
"""

import asyncio
import contextlib
import dataclasses
import gc
import math
import os
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import rollway
from rollway import _core
from rollway.schema.pytree import Schema
from tests.support.authority import Authority
from tests.support.lying_proxy import lying
from tests.support.processes import forked, until

ONE = np.zeros(1, np.int64)
TOKEN = "sixteen random bytes, or more"


def value(i):
    return np.array([i], np.int64)


def stack(*numbers):
    return np.array(numbers, np.int64)[:, None]


def serve(batch_size=1, transport=None, example=ONE, **options):
    return rollway.Server(example, batch_size, transport or rollway.TcpTransport(), **options)


def connect(server, example=ONE, host="127.0.0.1", **options):
    return rollway.TcpClient(host, server.port, example, **options)


def drain(server, count):
    """The next `count` values, in the order of their arrival."""
    found = []
    while len(found) < count:
        with server.sample(timeout=10) as sample:
            found += sample.batch[:, 0].tolist()
    return found


def narrow(**options):
    """A learner with room for two samples."""
    return serve(1, num_buffers=2, **options)


def stuffed(server, **options):
    """A client with no room left: two samples lie in the ring, a third is on its way and cannot arrive."""
    client = connect(server, max_inflight_msgs=1, **options)
    for i in range(3):
        client.send(value(i), timeout=10)
    return client


def native_threads():
    """The threads of Rollway's core in this process."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:  # it has just ended
            continue
    return sorted(name for name in names if name.startswith("rollway"))


def listeners():
    return sum(name.startswith("rollway-tcp-") for name in native_threads())


@pytest.fixture
def no_thread_is_left():
    """Fails the test that leaves a thread of the core behind."""
    gc.collect()
    before = native_threads()
    yield before
    until(lambda: (gc.collect(), len(native_threads()))[1] <= len(before))


# ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sent_samples_are_in_the_ring_when_wait_returns():
    with serve(4) as server, connect(server) as client:
        assert client.send(value(1)) is True and client.try_send(value(2)) is True
        assert client.send_many(stack(3, 4)) == 2 and client.try_send_many(stack(5, 6, 7, 8)) == 4
        assert client.wait() is None and client.wait(timeout=0) is None
        assert client.unacknowledged == 0 and server.stats()["ready_samples"] == 8
        assert drain(server, 8) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.usefixtures("no_thread_is_left")
def test_close_waits_for_what_is_on_its_way():
    with serve(500, num_buffers=2) as server:
        for _ in range(20):
            with connect(server) as client:
                for i in range(50):
                    client.send(value(i))
            assert client.closed
        assert drain(server, 1000) == list(range(50)) * 20


def test_a_sample_is_copied_before_send_returns():
    with serve(3) as server, connect(server) as client:
        row = value(1)
        for i in (1, 2, 3):
            row[0] = i
            client.send(row)
        row[0] = 99
        assert drain(server, 3) == [1, 2, 3]


def test_send_many_takes_more_than_the_ring_has_room_for_while_the_learner_reads():
    with serve(8, num_buffers=2) as server, connect(server, max_inflight_msgs=2) as client:
        sender = threading.Thread(target=client.send_many, args=(stack(*range(5000)),))
        sender.start()
        assert drain(server, 5000) == list(range(5000))
        sender.join()


def test_no_samples_are_no_message():
    with serve() as server, connect(server) as client:
        assert client.send_many(np.zeros((0, 1), np.int64)) == 0
        client.wait()
        assert client.stats()["frames"] == 0


def test_threads_share_a_client():
    with serve(100, num_buffers=4) as server, connect(server) as client:
        threads = [
            threading.Thread(target=lambda k=k: [client.send(value(k * 1000 + i)) for i in range(250)])
            for k in range(4)
        ]
        [thread.start() for thread in threads]
        found = drain(server, 1000)
        [thread.join() for thread in threads]
        for k in range(4):
            assert [v for v in found if v // 1000 == k] == [k * 1000 + i for i in range(250)]


def test_the_learner_sees_who_sent_what_with_which_version():
    with serve(4) as server:
        with connect(server, producer_id=7) as client, connect(server) as other:
            assert client.producer_id == 7 and other.producer_id not in (None, 7)
            client.send(value(0), version=3)
            client.send_many(stack(1, 2), version=4)
            client.wait()
            other.try_send_many(stack(3), version=2**32 - 1)
            info = server.sample(timeout=10).info
            assert info.producer_ids.tolist() == [7, 7, 7, other.producer_id]
            assert info.sequences.tolist() == [0, 1, 2, 0]
            assert info.versions.tolist() == [3, 4, 4, 2**32 - 1]
            assert (info.committed_ns <= time.monotonic_ns()).all()


def test_clients_without_a_number_get_different_ones():
    with serve() as server:
        clients = [connect(server) for _ in range(5)]
        assert len({client.producer_id for client in clients}) == 5
        [client.close() for client in clients]


# ── when there is no room ────────────────────────────────────────────────────────────────────────────────────────────


def test_without_room_try_refuses_and_send_waits_as_long_as_it_may():
    with narrow() as server:
        client = stuffed(server)
        assert client.try_send(value(3)) is False and client.try_send_many(stack(3, 4)) == 0
        with pytest.raises(
            rollway.WaitTimeout,
            match=rf"127.0.0.1:{server.port} did not take everything within 0.05 s: 1 samples are not acknowledged, connected",
        ):
            client.send(value(3), timeout=0.05)
        with pytest.raises(rollway.WaitTimeout, match=r"within 0\.05 s: 1 samples are not acknowledged"):
            client.wait(timeout=0.05)
        with pytest.raises(TimeoutError):
            client.send_many(stack(3, 4), timeout=0.01)
        assert drain(server, 3) == [0, 1, 2]
        client.send(value(3), timeout=10)
        assert drain(server, 1) == [3], "nothing of what was refused has arrived"
        client.close()


def test_without_room_and_without_time_a_send_says_that_the_way_is_full():
    with narrow() as server:
        client = stuffed(server)
        with pytest.raises(
            rollway.RingFull, match=rf"no room on the way to 127.0.0.1:{server.port}: 1 samples are not ack"
        ):
            client.send(value(3), timeout=0)
        drain(server, 3)
        client.close()


def test_a_send_many_that_times_out_says_how_many_were_taken():
    with serve(2, num_buffers=2) as server:
        client = connect(server, max_inflight_msgs=1)
        with pytest.raises(rollway.WaitTimeout) as raised:
            client.send_many(stack(*range(50)), timeout=0.2)
        taken = raised.value.sent
        assert 4 <= taken < 50
        rest = threading.Thread(target=client.send_many, args=(stack(*range(taken, 50)),))
        rest.start()
        assert drain(server, 50) == list(range(50))
        rest.join()
        client.close()


def test_a_close_that_times_out_says_what_is_not_acknowledged_and_closes_all_the_same():
    with narrow() as server:
        client = stuffed(server)
        with pytest.raises(
            rollway.ConnectionClosedError,
            match=r"closed before everything was acknowledged\. 1 samples, from number 2 on, are not acknowledged",
        ) as raised:
            client.close(timeout=0.05)
        assert raised.value.unacknowledged == 1 and client.closed
        assert "longer timeout" in str(raised.value) and "new client" not in str(raised.value)
        client.close()


def test_what_a_client_that_nobody_closed_has_lost_is_told_with_the_right_advice(caplog):
    with narrow() as server:
        stuffed(server)
        gc.collect()
    assert "1 samples, from number 2 on, are not acknowledged" in caplog.text
    assert "`with`" in caplog.text and "new client" not in caplog.text


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_max_inflight_msgs_bounds_what_a_client_keeps(limit):
    with narrow() as server:
        client = connect(server, max_inflight_msgs=limit)
        for i in range(2 + limit):  # two of them find room in the ring
            client.send(value(i), timeout=10)
        until(lambda: not client.try_send(value(99)))
        until(lambda: client.unacknowledged in (limit, limit + 1))
        with pytest.raises(rollway.ConnectionClosedError):
            client.close(timeout=0)


def test_drop_newest_drops_at_the_learner_and_counts():
    with narrow(on_full="drop_newest") as server, connect(server) as client:
        for i in range(5):
            assert client.send(value(i)) is True
        client.wait()
        assert server.stats()["tcp_dropped"] == 3 and server.stats()["tcp_samples"] == 2
        assert drain(server, 2) == [0, 1]
        client.send(value(5))
        assert drain(server, 1) == [5]


def test_drop_oldest_keeps_the_newest():
    with narrow(on_full="drop_oldest") as server, connect(server) as client:
        for i in range(6):
            client.send(value(i))
        client.wait()
        dropped = server.stats()["dropped_oldest"]
        assert dropped >= 4 and server.stats()["tcp_samples"] == 6
        assert drain(server, 6 - dropped) == list(range(dropped, 6))


def test_the_policy_error_is_told_to_the_next_call_once_with_what_was_refused():
    with narrow(on_full="error") as server, connect(server) as client:
        client.send(value(0))
        client.send(value(1))
        client.wait()
        client.send(value(2))
        with pytest.raises(rollway.RingFull, match="the learner refused 1 samples, from number 2 on"):
            client.wait(timeout=10)
        client.wait(timeout=10)
        assert client.stats()["refused"] == 1 and server.stats()["tcp_refused_full"] == 1
        assert drain(server, 2) == [0, 1]
        client.send(value(3))
        assert drain(server, 1) == [3]


def test_a_client_waits_whatever_the_policy_of_the_learner():
    with narrow(on_full="error") as server, connect(server) as client:
        assert client.blocks is True


# ── asyncio ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_coroutines_send_and_wait():
    async def work(server, client):
        assert await client.send_async(value(0), version=5) is True
        assert await client.send_many_async(stack(1, 2, 3), version=6) == 3
        assert await client.wait_async() is None
        sample = await server.sample_async(timeout=10)
        assert sample.batch[:, 0].tolist() == [0, 1, 2, 3] and sample.info.versions.tolist() == [5, 6, 6, 6]

    with serve(4) as server, connect(server) as client:
        asyncio.run(work(server, client))


def test_coroutines_wait_for_room_and_let_others_run():
    async def work(server, client):
        late = asyncio.create_task(client.send_async(value(3)))
        many = asyncio.create_task(client.send_many_async(stack(*range(4, 40))))
        found = []
        while len(found) < 40:
            found += (await server.sample_async(timeout=10)).batch[:, 0].tolist()
        assert await late is True and await many == 36
        assert sorted(found) == list(range(40))
        assert [v for v in found if v >= 4] == list(range(4, 40))

    with narrow() as server:
        client = stuffed(server)
        asyncio.run(work(server, client))
        client.close()


def test_a_cancelled_coroutine_has_sent_nothing():
    async def work(server, client):
        for call in (client.send_async(value(90)), client.send_many_async(stack(91, 92))):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call, 0.05)
        assert client.unacknowledged == 1

    with narrow() as server:
        client = stuffed(server)
        asyncio.run(work(server, client))
        assert drain(server, 3) == [0, 1, 2]
        client.send(value(3), timeout=10)
        assert drain(server, 1) == [3]
        client.close()


def test_coroutines_time_out():
    async def work(server, client):
        with pytest.raises(
            rollway.WaitTimeout, match=r"did not take everything within 0.05 s: 1 samples are not acknowledged"
        ):
            await client.send_async(value(3), timeout=0.05)
        with pytest.raises(rollway.WaitTimeout) as raised:
            await client.send_many_async(stack(3, 4), timeout=0.05)
        assert raised.value.sent == 0
        with pytest.raises(rollway.WaitTimeout, match="1 samples are not acknowledged"):
            await client.wait_async(timeout=0.05)

    with narrow() as server:
        client = stuffed(server)
        asyncio.run(work(server, client))
        drain(server, 3)
        client.close()


def test_a_waiting_coroutine_is_told_that_the_learner_has_closed():
    async def work(server, client):
        sending = asyncio.create_task(client.send_async(value(3)))
        waiting = asyncio.create_task(client.wait_async())
        await asyncio.to_thread(server.close)
        for task in (sending, waiting):
            with pytest.raises(rollway.ConnectionClosedError) as raised:
                await asyncio.wait_for(task, 10)
            assert raised.value.unacknowledged == 1

    with narrow() as server:
        client = stuffed(server)
        asyncio.run(work(server, client))
        with pytest.raises(rollway.ConnectionClosedError):
            client.close()


def test_the_message_of_wait_async_names_the_timeout_that_was_given():
    with narrow() as server:
        client = stuffed(server)
        with pytest.raises(rollway.WaitTimeout, match=r"within 1\.2 s"):
            asyncio.run(client.wait_async(timeout=1.2))
        drain(server, 3)
        client.close()


def test_waiting_coroutines_take_no_thread_of_the_executor():
    class Nobody(ThreadPoolExecutor):
        def submit(self, *_args, **_options):
            raise AssertionError("a thread was taken")

    async def work(server, clients):
        asyncio.get_running_loop().set_default_executor(Nobody())
        waiting = [asyncio.create_task(client.wait_async(timeout=30)) for client in clients for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        for _ in range(8):
            (await server.sample_async(timeout=10)).release()
        await asyncio.gather(*waiting)

    with narrow() as server:
        clients = [stuffed(server)] + [connect(server) for _ in range(5)]
        for client in clients[1:]:
            client.send(value(1))
        asyncio.run(work(server, clients))
        assert not any(client.unacknowledged for client in clients)
        [client.close() for client in clients]


def test_a_cancelled_wait_leaves_nobody_waiting_and_everything_on_its_way():
    async def work(server, client):
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.wait_async(), 0.01)
        assert [reader.calls for reader in client._settled_notifier._readers.values()] == [[]]
        assert client.unacknowledged == 1
        waiting = asyncio.create_task(client.wait_async(timeout=10))
        await asyncio.sleep(0)
        assert drain(server, 3) == [0, 1, 2]
        await waiting

    with narrow() as server:
        client = stuffed(server)
        asyncio.run(work(server, client))
        client.close()


def test_wait_async_raises_what_wait_raises():
    def both(client, timeout):
        errors = []
        for wait in (client.wait, lambda timeout: asyncio.run(client.wait_async(timeout))):
            with pytest.raises(Exception) as raised:
                wait(timeout)
            errors.append((type(raised.value), str(raised.value)))
        assert errors[0] == errors[1]
        return errors[0][0]

    with narrow() as server:
        client = stuffed(server)
        assert both(client, 0.05) is rollway.WaitTimeout
        assert both(client, -0.5) is rollway.InvalidArgument
        server.close()
        assert both(client, 10) is rollway.ConnectionClosedError
        with pytest.raises(rollway.ConnectionClosedError):
            client.close()
        assert both(client, 10) is rollway.ConnectionClosedError


def test_a_waiting_coroutine_is_told_what_the_learner_refused():
    async def work(client):
        client.send(value(2))
        with pytest.raises(rollway.RingFull, match="the learner refused 1 samples, from number 2 on"):
            await client.wait_async(timeout=10)
        await client.wait_async(timeout=10)

    with narrow(on_full="error") as server, connect(server) as client:
        client.send_many(stack(0, 1))
        client.wait()
        asyncio.run(work(client))
        assert drain(server, 2) == [0, 1]


def test_a_client_closed_by_another_thread_ends_the_wait_of_a_coroutine():
    async def work(client):
        waiting = asyncio.create_task(client.wait_async())
        await asyncio.sleep(0)
        with pytest.raises(rollway.ConnectionClosedError):
            await asyncio.to_thread(client.close, 0.0)
        with pytest.raises(rollway.ConnectionClosedError):
            await asyncio.wait_for(waiting, 10)

    with narrow() as server:
        asyncio.run(work(stuffed(server)))


def test_closing_in_a_thread_does_not_hold_up_the_event_loop_of_a_waiting_coroutine(monkeypatch):
    async def work(client):
        bell, begun = client._notifier.close, threading.Event()
        monkeypatch.setattr(client._notifier, "close", lambda: (bell(), begun.set()))
        closing = asyncio.create_task(asyncio.to_thread(client.close, 0.5))
        await asyncio.to_thread(begun.wait, 10)
        sending = asyncio.create_task(client.send_async(value(3)))
        slowest, last = 0.0, time.monotonic()
        while not closing.done():
            await asyncio.wait([closing], timeout=0.01)
            slowest, last = max(slowest, time.monotonic() - last), time.monotonic()
        for task in (sending, closing):
            with pytest.raises(rollway.ConnectionClosedError):
                await task
        assert slowest < 0.3, f"the event loop stood still for {slowest:.2f} s"

    with narrow() as server:
        asyncio.run(work(stuffed(server)))


# ── lifetimes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_client_shows_its_state_and_a_closed_one_says_so():
    with serve() as server:
        client = connect(server)
        address = f"127.0.0.1:{server.port}"
        assert repr(client) == f"<rollway.TcpClient {address} connected>"
        assert client.address == address and client.connected and not client.closed
        with client as entered:
            assert entered is client
        assert repr(client) == f"<rollway.TcpClient {address} closed>"
        assert client.closed and not client.connected and client.address == address
        client.close()
        calls = (
            lambda: client.send(value(0)),
            lambda: client.try_send(value(0)),
            lambda: client.send_many(stack(0)),
            lambda: client.try_send_many(stack(0)),
            lambda: asyncio.run(client.send_async(value(0))),
            lambda: asyncio.run(client.send_many_async(stack(0))),
        )
        for call in calls:
            with pytest.raises(rollway.ConnectionClosedError, match=f"this client of {address} is closed"):
                call()


def test_a_client_of_a_learner_that_has_closed_shows_that_it_is_of_no_more_use():
    server = serve()
    server.start()
    client = connect(server)
    server.close()
    with pytest.raises(rollway.ConnectionClosedError):
        client.send(value(0))  # taken, if word of it is still on its way
        client.wait()
    assert "connecting" not in repr(client)


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_forgotten_client_hangs_up_when_it_is_garbage():
    with serve(2) as server:
        client = connect(server)
        client.send(value(1))
        client.wait()
        del client
        gc.collect()
        until(lambda: server.stats()["tcp_connections"] == 0)


@pytest.mark.usefixtures("no_thread_is_left")
def test_the_learner_closes_and_clients_are_told_how_many_samples_are_not_acknowledged():
    server = narrow()
    server.start()
    client = stuffed(server)
    server.close()
    assert server.closed
    for call in (client.wait, lambda: client.send(value(3)), lambda: client.try_send(value(3)), client.close):
        with pytest.raises(
            rollway.ConnectionClosedError, match=r"1 samples, from number 2 on, are not acknowledged"
        ) as raised:
            call()
        assert raised.value.unacknowledged == 1
    assert client.closed


@pytest.mark.usefixtures("no_thread_is_left")
def test_with_everything_acknowledged_a_client_closes_in_peace_after_its_learner():
    with serve() as server:
        client = connect(server)
        client.send(value(1))
        client.wait()
    until(lambda: client.over)  # a send before the learner's goodbye is read would be accepted
    with pytest.raises(rollway.ConnectionClosedError, match=r"closed: .*Everything sent is acknowledged") as raised:
        client.send(value(2))
    assert raised.value.unacknowledged == 0
    assert "0 samples" not in str(raised.value) and "new client when the learner is back" in str(raised.value)
    client.close()


def test_an_error_inside_the_with_block_is_the_one_that_is_raised():
    with narrow() as server:
        client = stuffed(server)
        server.close()
        with pytest.raises(ZeroDivisionError):
            with client:
                1 / 0


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_server_has_a_port_from_start_on():
    server = serve()
    assert server.port is None and server.endpoints == []
    server.start()
    port, endpoints = server.port, server.endpoints
    assert port > 0 and [endpoint.address for endpoint in endpoints] == [f"127.0.0.1:{port}"]
    server.start()
    assert server.port == port and server.endpoints == endpoints, "starting twice changes nothing"
    with connect(server) as client:
        client.send(value(1))
    assert drain(server, 1) == [1]
    server.close()
    server.close()
    with pytest.raises(rollway.ConnectionClosedError, match="this server is closed"):
        server.start()


def test_nobody_listens_before_start_and_after_close(name):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = serve(transport=[rollway.ShmTransport(name), rollway.TcpTransport(port)])
    for ready in (False, True, False):
        if ready:
            server.start()
        with socket.socket() as stranger:
            assert (stranger.connect_ex(("127.0.0.1", port)) == 0) is ready
        if ready:
            server.close()
    with serve(transport=rollway.TcpTransport(port)) as again:
        assert again.port == port, "the port is free again at once"


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_server_that_was_never_started_closes():
    server = serve()
    server.close()
    assert server.closed and server.port is None


def test_close_ends_every_thread():
    gc.collect()
    before = len(native_threads())
    with serve() as server:
        until(lambda: len(native_threads()) == before + 2)
    assert server.closed
    assert len(native_threads()) == before


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_server_that_is_garbage_stops_listening():
    server = serve()
    server.start()
    port = server.port
    del server
    gc.collect()
    with socket.socket() as stranger:
        assert stranger.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_taken_port_raises_from_start_and_leaves_nothing_behind(name):
    with serve() as first:
        server = serve(transport=[rollway.ShmTransport(name), rollway.TcpTransport(first.port)])
        message = rf"cannot listen on 127.0.0.1:{first.port}: Address already in use.*Choose another port \(0: any"
        with pytest.raises(rollway.errors.AddressUnavailable, match=message):
            server.start()
        assert listeners() == 1 and server.port is None and server.endpoints == []
        assert server.stats()["producers_alive"] == 0
        with rollway.ShmClient(name, ONE) as local:
            local.send(value(1))
        assert drain(server, 1) == [1], "it goes on without"
        server.close()
        with pytest.raises(OSError, match="cannot listen"):
            with serve(transport=[rollway.ShmTransport(name), rollway.TcpTransport(first.port)]):
                pass
        assert listeners() == 1


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_start_that_failed_can_be_tried_again():
    server = None
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        server = serve(transport=[rollway.TcpTransport(), rollway.TcpTransport(squatter.getsockname()[1])])
        with pytest.raises(rollway.errors.AddressUnavailable):
            server.start()
        first = server.port
    server.start()
    assert server.port == first and len(server.endpoints) == 2
    server.close()


@pytest.mark.parametrize("host", ["8.8.8.8", "no.such.host.invalid", ""])
def test_an_address_that_is_not_ours_is_refused(host):
    with pytest.raises(rollway.errors.AddressUnavailable, match=f"cannot listen on {host}:0: .*Choose another port"):
        serve(transport=rollway.TcpTransport(host=host, token=TOKEN)).start()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_every_name_of_loopback_does_without_a_token(host):
    try:
        server = serve(transport=rollway.TcpTransport(host=host))
        server.start()
    except rollway.errors.AddressUnavailable:
        assert host == "::1"
        pytest.skip("this machine has no IPv6")
    with server, connect(server, host=host) as client:
        client.send(value(1))
        assert drain(server, 1) == [1]


# ── several ways in ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_workers_in_shared_memory_and_over_tcp_fill_one_batch(name):
    with serve(3, [rollway.ShmTransport(name), rollway.TcpTransport()]) as server:
        with rollway.ShmClient(name, ONE, producer_id=1) as local, connect(server, producer_id=2) as remote:
            local.send(value(10))
            remote.send(value(20))
            remote.wait()
            server.submit(value(30))
            batch, info = server.sample(timeout=10)
            assert batch[:, 0].tolist() == [10, 20, 30] and info.producer_ids.tolist()[:2] == [1, 2]
            assert info.active_connections == 2, "one in shared memory, one over TCP, and not the learner itself"


def test_several_tcp_transports_feed_one_ring_and_their_counters_are_added():
    transports = [rollway.TcpTransport(), rollway.TcpTransport(token=TOKEN)]
    with serve(2, transports) as server:
        open_port, guarded_port = (int(endpoint.address.rsplit(":")[1]) for endpoint in server.endpoints)
        assert server.port == open_port != guarded_port
        with connect(server) as one, rollway.TcpClient("127.0.0.1", guarded_port, ONE, token=TOKEN) as two:
            one.send(value(1))
            one.wait()
            two.send(value(2))
            two.wait()  # counted, and then acknowledged
            assert drain(server, 2) == [1, 2]
            assert server.stats()["tcp_connections"] == 2 and server.stats()["tcp_samples"] == 2


class Pipe:
    """A transport of our own: hands samples over in this process."""

    address = "here"

    def __init__(self):
        self.stopped = 0

    def start(self, intake):
        assert [leaf.shape for leaf in intake.schema.leaves] == [(1,)]
        self.producer = intake.producer()
        return self

    def stats(self):
        return {"pipe_stops": self.stopped, "tcp_samples": 100}

    def stop(self):
        self.stopped += 1
        self.producer.close()


def test_a_transport_of_our_own_is_started_counted_and_stopped():
    pipe = Pipe()
    assert isinstance(pipe, rollway.transport.Transport) and isinstance(
        rollway.TcpTransport(), rollway.transport.Transport
    )
    with serve(2, [pipe, rollway.TcpTransport()]) as server:
        assert server.endpoints[0] is pipe and server.endpoints[1].address == f"127.0.0.1:{server.port}"
        with connect(server) as client:
            client.send(value(1))
        pipe.producer.send_many(stack(2), version=9)
        assert drain(server, 2) == [1, 2]
        assert server.stats()["pipe_stops"] == 0 and server.stats()["tcp_samples"] == 101, "same names are added"
    assert pipe.stopped == 1


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_transport_that_fails_to_start_takes_the_others_with_it():
    class Broken:
        def start(self, intake):
            raise rollway.InvalidArgument("broken on purpose")

    pipe = Pipe()
    with pytest.raises(rollway.InvalidArgument, match="broken on purpose"):
        with serve(1, [rollway.TcpTransport(), pipe, Broken()]):
            pass
    assert pipe.stopped == 1 and listeners() == 0


class Eventful(Pipe):
    """Something happens while it starts."""

    starts = 0

    def __init__(self, event):
        super().__init__()
        self.event = event

    def start(self, intake):
        self.starts += 1
        super().start(intake)
        self.event()
        return self


def test_threads_that_start_a_server_start_each_transport_once():
    both, done = threading.Barrier(2), []

    def meet():
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # the other, if that comes so far

    def start():
        server.start()
        done.append(True)

    slow, pipe = Eventful(meet), Pipe()
    server = serve(1, [slow, pipe])
    threads = [threading.Thread(target=start) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join(10) for thread in threads]
    assert done == [True, True] and slow.starts == 1 and server.endpoints == [slow, pipe]
    server.close()


def test_a_server_that_is_closed_while_it_starts_leaves_no_endpoint_behind():
    pipe = Eventful(lambda: server.close())
    server = serve(1, pipe)
    with pytest.raises(rollway.ConnectionClosedError, match="this server is closed"):
        server.start()
    assert pipe.stopped == 1


def test_an_endpoint_that_fails_to_stop_keeps_none_of_the_others_open(name):
    class Stuck(Pipe):
        def stop(self):
            super().stop()
            raise OSError("stuck on purpose")

    pipe, first, second = Pipe(), Stuck(), Stuck()
    server = serve(1, [rollway.ShmTransport(name), pipe, first, second, rollway.TcpTransport()])
    server.start()
    with pytest.raises(OSError, match="stuck on purpose") as raised:
        server.close()
    assert raised.value.__notes__ == ["and after it: OSError('stuck on purpose')"]
    assert (pipe.stopped, first.stopped, second.stopped) == (1, 1, 1)
    assert listeners() == 0 and server.closed, "the name fixture looks for the segment"
    server.close()


@pytest.mark.parametrize("transport", [5, "tcp", object(), [rollway.TcpTransport(), None]])
def test_what_is_no_transport_is_refused(transport):
    said = r"must be ShmTransport, TcpTransport or have start\(intake\)|is the text 'tcp'; .* for TCP TcpTransport\(\)"
    with pytest.raises(rollway.InvalidArgument, match=said):
        serve(transport=transport)


# ── what a sample may be ─────────────────────────────────────────────────────────────────────────────────────────────


class Point(NamedTuple):
    x: np.ndarray
    y: np.ndarray


@dataclasses.dataclass
class Step:
    obs: np.ndarray
    reward: np.ndarray


def once(example, sample):
    with serve(1, example=example) as server, connect(server, example) as client:
        client.send(sample)
        return server.sample(timeout=10).batch


def test_trees_of_every_kind_arrive_as_they_were():
    batch = once((np.zeros(2), [np.zeros(1, np.uint8)]), (np.arange(2.0), [np.array([7], np.uint8)]))
    assert batch[0].tolist() == [[0, 1]] and batch[1][0].tolist() == [[7]]
    batch = once(Point(np.zeros(2), np.zeros(())), Point(np.ones(2), np.array(3.0)))
    assert isinstance(batch, Point) and batch.x.tolist() == [[1, 1]] and batch.y.tolist() == [3]
    batch = once({"s": Step(np.zeros((2, 3)), np.zeros(1))}, {"s": Step(np.ones((2, 3)), np.ones(1))})
    assert isinstance(batch["s"], Step) and batch["s"].obs.shape == (1, 2, 3) and batch["s"].reward.tolist() == [[1]]


def test_leaves_without_dimensions_take_python_numbers():
    example = {"reward": np.float32(0), "done": np.bool_(False), "count": np.int64(0)}
    batch = once(example, {"reward": 1.5, "done": True, "count": -3})
    assert {k: v.tolist() for k, v in batch.items()} == {"reward": [1.5], "done": [True], "count": [-3]}
    with serve(3, example=example) as server, connect(server, example) as client:
        client.send_many({"reward": np.float32([1, 2, 3]), "done": np.array([True] * 3), "count": np.arange(3)})
        assert server.sample(timeout=10).batch["count"].tolist() == [0, 1, 2]


def test_more_leaves_than_one_write_has_parts():
    example = {f"leaf{i:03}": np.zeros(i % 5, np.int32) for i in range(100)}
    batch = once(example, {key: np.full_like(leaf, int(key[4:])) for key, leaf in example.items()})
    assert all((leaf == int(key[4:])).all() and leaf.shape == (1, int(key[4:]) % 5) for key, leaf in batch.items())


def test_a_sample_larger_than_any_buffer_arrives_whole():
    example = {"frame": np.zeros((3, 1024, 1024), np.uint8)}
    frame = np.random.default_rng(0).integers(0, 256, (3, 1024, 1024), dtype=np.uint8)
    assert (once(example, {"frame": frame})["frame"][0] == frame).all()


def test_arrays_that_are_not_contiguous_are_sent_as_they_look():
    wide = np.arange(12.0).reshape(3, 4)
    assert once(np.zeros((4, 3)), wide.T)[0].tolist() == wide.T.tolist()
    assert once(np.zeros(4), wide[1, ::-1])[0].tolist() == [7, 6, 5, 4]


def test_torch_tensors_and_bfloat16_are_sent(torch):
    example = {"obs": torch.zeros(3), "half": np.zeros(2, ml_dtypes.bfloat16)}
    sample = {"obs": torch.arange(3.0, requires_grad=True), "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16)}
    batch = once(example, sample)
    assert batch["obs"].tolist() == [[0, 1, 2]]
    assert batch["half"].dtype == ml_dtypes.bfloat16 and batch["half"].astype(np.float32).tolist() == [[1.5, -2]]


EXAMPLE = {"obs": np.zeros(4, np.float32), "reward": np.zeros(1, np.float32)}


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({**EXAMPLE, "obs": np.zeros(4)}, r"leaf 'obs' is float64\[4\] here but float32\[4\] in the schema\. Cast"),
        ({**EXAMPLE, "obs": np.zeros(5, np.float32)}, r"leaf 'obs' is float32\[5\] here but float32\[4\]"),
        ({**EXAMPLE, "reward": "high"}, "leaf 'reward' is a str; it must be an array of numpy"),
        ({"obs": EXAMPLE["obs"]}, "missing 'reward'"),
        ({**EXAMPLE, "done": np.zeros(1)}, "unexpected 'done'"),
    ],
)
def test_a_leaf_that_does_not_fit_is_named_and_nothing_is_sent(sample, message):
    with serve(1, example=EXAMPLE) as server, connect(server, EXAMPLE) as client:
        calls = [client.send, client.try_send, lambda data: asyncio.run(client.send_async(data))]
        for call in calls:
            with pytest.raises(rollway.SchemaMismatch, match=message):
                call(sample)
        assert client.stats()["sent"] == 0
        client.send(EXAMPLE)
        client.wait()
        assert server.stats()["tcp_samples"] == 1


def test_stacks_that_do_not_fit_are_named_and_nothing_is_sent():
    bad = {"obs": np.zeros((3, 4), np.float32), "reward": np.zeros((2, 1), np.float32)}
    with serve(1, example=EXAMPLE) as server, connect(server, EXAMPLE) as client:
        for call in (client.send_many, client.try_send_many, lambda data: asyncio.run(client.send_many_async(data))):
            with pytest.raises(rollway.SchemaMismatch, match="the leaves hold different numbers of samples"):
                call(bad)
        assert client.stats()["sent"] == 0


@pytest.mark.parametrize(
    ("example", "mine", "learners"),
    [
        (
            {**EXAMPLE, "obs": np.zeros(4)},
            r"leaf 'obs' is float64\[4\] here but float32\[4\] at the learner on 127.0.0.1:{port}\. Cast before send",
            r"leaf 'obs' is float32\[4\] here but float64\[4\] at worker 127.0.0.1:",
        ),
        (
            {"obs": EXAMPLE["obs"]},
            r"leaf 'reward' is missing here but float32\[1\] at the learner",
            r"leaf 'reward' is float32\[1\] here but missing at worker",
        ),
        (
            {**EXAMPLE, "done": np.zeros(1)},
            r"leaf 'done' is float64\[1\] here but missing at the learner",
            r"leaf 'done' is missing here but float64\[1\] at worker",
        ),
    ],
)
def test_another_schema_is_told_on_both_sides_with_the_leaf(example, mine, learners):
    with serve(1, example=EXAMPLE) as server:
        assert server.endpoints[0].last_refusal is None
        with pytest.raises(rollway.SchemaMismatch, match=mine.format(port=server.port)):
            connect(server, example)
        until(lambda: server.stats()["tcp_refused_schema"] == 1)
        assert re.search(learners, server.endpoints[0].last_refusal)
        with pytest.raises(rollway.WaitTimeout, match=f"Last refused worker: 127.0.0.1:\\d+: {learners}") as raised:
            server.sample(timeout=0.01)
        assert "Wait longer" in str(raised.value)


def test_a_refusal_is_told_with_its_age():
    with serve(1, example=EXAMPLE) as server:
        with pytest.raises(rollway.SchemaMismatch):
            connect(server, ONE)
        until(lambda: server.refusals and server.refusals[0].endswith("(1 s ago)"))
        with pytest.raises(rollway.WaitTimeout, match=r" \([12] s ago\)\. Wait longer"):
            server.sample(timeout=0.01)


MANY = {f"leaf{number:03}": np.zeros(1) for number in range(200)}
TEXT = Schema.of(MANY).text
FORMS = [
    b"[" * len(TEXT),
    b'[["a","' + b"(" * (len(TEXT) - 13) + b'",[1]]',
    b'[["a","' + b"f4," * ((len(TEXT) - 13) // 3) + b"f" * ((len(TEXT) - 13) % 3) + b'",[1]]',
    b'[["a",' * (len(TEXT) // 6) + b" " * (len(TEXT) % 6),
    b"\xff" * len(TEXT),
]


@pytest.mark.parametrize("text", FORMS, ids=range(len(FORMS)))
def test_a_refused_stranger_does_not_decide_what_sample_raises(text):
    assert len(text) == len(TEXT)
    with serve(1, example=MANY) as server, lying(server.port, TEXT, text, to="learner") as port:
        with pytest.raises(rollway.SchemaMismatch):
            rollway.TcpClient("127.0.0.1", port, MANY, token=server.token)
        until(lambda: server.stats()["tcp_refused_schema"] == 1)
        with pytest.raises(
            rollway.WaitTimeout, match=r"Last refused worker: .* the schema at worker .* cannot be read"
        ):
            server.sample(timeout=0.01)


def test_a_refused_schema_that_is_much_longer_is_not_read_to_word_the_refusal(monkeypatch):
    read = []
    monkeypatch.setattr(
        "rollway.schema.pytree.read_schema", lambda text: read.append(len(text)) or _core.read_schema(text)
    )
    with serve(1, example=MANY) as server:
        for leaves, words in ((220, "leaf 'leaf200' is missing here"), (8000, r"its schema has \d\d\d,\d\d\d bytes")):
            stranger = {f"leaf{number:03}": np.zeros(1) for number in range(leaves)}
            with pytest.raises(rollway.SchemaMismatch):
                connect(server, stranger)
            until(lambda words=words: re.search(words, "".join(server.refusals)))
        read.clear()
        assert server.refusals and not read


@pytest.mark.parametrize("text", FORMS, ids=range(len(FORMS)))
def test_a_lying_learner_gives_a_client_a_schema_mismatch_and_nothing_else(text):
    with serve(1, example=MANY) as server, lying(server.port, TEXT, text, to="worker") as port:
        with pytest.raises(rollway.SchemaMismatch, match=r"the schema at the learner on .* cannot be read"):
            rollway.TcpClient("127.0.0.1", port, {"a": np.zeros(1)}, token=server.token)


def test_the_message_about_a_refusal_is_well_formed():
    with serve(1, example=EXAMPLE) as server:
        with pytest.raises(rollway.SchemaMismatch):
            connect(server, ONE)
        until(lambda: server.stats()["tcp_refused_schema"] == 1)
        with pytest.raises(rollway.WaitTimeout) as raised:
            server.sample(timeout=0)
        assert ".." not in str(raised.value)


# ── who may come in ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("token", [TOKEN, TOKEN.encode(), "ünïcödé", b"\x00\xff" * 20])
def test_the_right_token_lets_a_client_in(token):
    with serve(transport=rollway.TcpTransport(token=token)) as server:
        with connect(server, token=token) as client:
            client.send(value(5))
            assert drain(server, 1) == [5]


@pytest.mark.parametrize(
    ("learners", "mine", "message", "seen"),
    [
        (TOKEN, "another one", "token is not the learner's: give both the same", "token is not the learner's"),
        (TOKEN, None, "the learner asks for a token, and this client has none. Give it", "the client has none"),
        (None, TOKEN, "token is not the learner's: give both the same", "token is not the learner's"),  # made its own
    ],
)
def test_a_token_on_one_side_only_or_another_one_is_refused(learners, mine, message, seen):
    with serve(transport=rollway.TcpTransport(token=learners)) as server:
        with pytest.raises(rollway.NotAuthorized, match=f"127.0.0.1:{server.port}: .*{re.escape(message)}"):
            connect(server, token=mine)
        until(lambda: server.stats()["tcp_refused_token"] + server.stats()["tcp_refused_protocol"] == 1)
        assert server.stats()["tcp_accepted"] == 0
        with pytest.raises(PermissionError):
            connect(server, token=mine)
        if server.stats()["tcp_refused_token"]:
            with pytest.raises(rollway.WaitTimeout, match=f"Last refused worker: .*{seen}"):
                server.sample(timeout=0.01)
        with connect(server, token=learners) as client:
            client.send(value(1))
            assert drain(server, 1) == [1]


@pytest.mark.parametrize("token", ["", b""])
def test_an_empty_token_is_refused_on_both_sides(token):
    message = "token length = 0 is out of range: at least one byte; 16 random ones or more are advised"
    with pytest.raises(rollway.InvalidArgument, match=message):
        serve(transport=rollway.TcpTransport(host="0.0.0.0", token=token)).start()
    with serve() as server, pytest.raises(rollway.InvalidArgument, match=message):
        connect(server, token=token)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_that_others_can_reach_needs_a_token(host):
    with pytest.raises(
        rollway.errors.TokenRequired,
        match=rf"refusing to listen on {host}:0 without a token: .*Set a token.*or listen on 127",
    ):
        serve(transport=rollway.TcpTransport(host=host)).start()
    with pytest.raises(ValueError, match="without a token"):
        with serve(transport=rollway.TcpTransport(host=host)):
            pass


def test_with_a_token_a_learner_listens_on_every_address():
    with serve(transport=rollway.TcpTransport(host="0.0.0.0", token=TOKEN)) as server:
        assert server.endpoints[0].address == f"0.0.0.0:{server.port}"
        with connect(server, token=TOKEN) as client:
            client.send(value(1))
            assert drain(server, 1) == [1]


def test_a_learner_that_was_given_no_token_tells_the_one_that_it_made():
    with rollway.Server(ONE, 1) as without:
        assert without.token is None
    server = serve(transport=rollway.TcpTransport())
    assert server.token is None
    with server, serve(transport=rollway.TcpTransport()) as other:
        made = server.token
        assert re.fullmatch("[0-9a-f]{64}", made) and made != other.token and server.endpoints[0].token == made
        assert made not in f"{server!r} {server.endpoints} {server.stats()} {server.endpoints[0].last_refusal}"
        with connect(server, token=made) as client:
            assert made not in f"{client!r} {client.stats()} {vars(client)}"
        with pytest.raises(rollway.NotAuthorized, match="token is not the learner's") as raised:
            connect(server, token=other.token)
        assert made not in str(raised.value) and other.token not in str(raised.value)


@pytest.mark.parametrize("token", [TOKEN, TOKEN.encode(), b"\xff" * 20])
def test_a_learner_tells_the_token_that_it_was_given(token):
    with serve(transport=rollway.TcpTransport(token=token)) as server:
        told = server.token
        assert told == (token if token == b"\xff" * 20 else TOKEN)
        connect(server, token=told).close()
        assert not token_files()


def token_files():
    return list(Path(_core.shm_directory()).glob("rollway-token.*"))


def test_the_file_with_the_token_goes_with_the_learner_and_is_no_segment():
    with serve(transport=rollway.TcpTransport()) as server:
        (path,) = token_files()
        assert path.stat().st_mode & 0o7777 == 0o600 and path.read_text() == f"{server.token}\n"
        rollway.gc()
        assert path.exists() and not [one for one in rollway.segments() if "token" in one.name]
    assert not path.exists()


def test_a_forked_child_of_the_learner_leaves_the_token_where_it_is():
    with serve(transport=rollway.TcpTransport()) as server:
        pid = forked(server.close)
        assert os.waitpid(pid, 0)[1] == 0
        connect(server).close()


def test_a_client_that_finds_no_token_says_where_it_looked_and_what_to_do():
    with serve(transport=rollway.TcpTransport(token=TOKEN)) as server:
        where = re.escape(f"{_core.shm_directory()}/rollway-token.")
        with pytest.raises(rollway.NotAuthorized, match=rf"Give it the learner's token\. .* {where}.*no such file"):
            connect(server)


def test_the_token_is_in_no_text():
    tls = rollway.Tls("cert.pem", "key.pem")
    transport = rollway.TcpTransport(50051, token=TOKEN, tls=tls)
    assert TOKEN not in repr(transport) and "port=50051" in repr(transport) and repr(tls) in repr(transport)
    with serve(transport=rollway.TcpTransport(token=TOKEN)) as server:
        assert TOKEN not in f"{server!r} {server.endpoints} {server.stats()}"
        with connect(server, token=TOKEN) as client:
            assert TOKEN not in f"{client!r} {client.stats()} {vars(client)}"
        with pytest.raises(rollway.NotAuthorized) as raised:
            connect(server, token=TOKEN + "!")
        assert TOKEN not in str(raised.value) and TOKEN not in server.endpoints[0].last_refusal


def test_transports_are_values():
    assert rollway.TcpTransport(1) == rollway.TcpTransport(port=1) != rollway.TcpTransport(2)
    assert rollway.TcpTransport(token="a") != rollway.TcpTransport(token="b")
    transport = rollway.TcpTransport()
    with pytest.raises(dataclasses.FrozenInstanceError):
        transport.port = 5
    with serve(transport=transport) as one, serve(transport=transport) as two:
        assert one.port != two.port, "one description serves for many"


def test_samples_go_over_tls(authority, certificate):
    with serve(100, rollway.TcpTransport(tls=certificate, token=TOKEN)) as server:
        with connect(server, token=TOKEN, ca=authority.pem) as by_address:
            by_address.send_many(stack(*range(50)))
            by_address.wait()
            with connect(server, token=TOKEN, ca=str(authority.pem), server_name="learner.example") as by_name:
                for i in range(50, 100):
                    by_name.send(value(i))
        assert drain(server, 100) == list(range(100))


def test_a_certificate_that_signed_itself_can_be_trusted(authority):
    tls = authority.self_signed("IP:127.0.0.1")
    with serve(transport=rollway.TcpTransport(tls=tls)) as server:
        with connect(server, ca=tls.cert) as client:
            client.send(value(1))
            assert drain(server, 1) == [1]


def test_a_certificate_that_another_signed_is_trusted_through_its_authority_only(authority, certificate):
    with serve(transport=rollway.TcpTransport(tls=certificate)) as server:
        with pytest.raises(rollway.errors.TlsFailed, match="UnknownIssuer"):
            connect(server, ca=certificate.cert)
        connect(server, ca=authority.pem).close()


def test_an_untrusted_authority_and_a_wrong_name_in_a_certificate_are_errors(authority, certificate, tmp_path):
    with serve(transport=rollway.TcpTransport(tls=certificate)) as server:
        where = f"TLS: 127.0.0.1:{server.port}: "
        with pytest.raises(rollway.errors.TlsFailed, match=f"{where}.*UnknownIssuer"):
            connect(server, ca=Authority(tmp_path, "stranger").pem)
        with pytest.raises(rollway.errors.TlsFailed, match=f"{where}.*not valid for name.*other.example"):
            connect(server, ca=authority.pem, server_name="other.example")
        with pytest.raises(ConnectionError):
            connect(server, ca=authority.pem, server_name="other.example")
        assert server.stats()["tcp_accepted"] == 0


def test_tls_on_one_side_only_is_an_error_and_not_a_hang(authority, certificate):
    with serve(transport=rollway.TcpTransport(tls=certificate)) as server:
        with pytest.raises(rollway.errors.TlsFailed, match="the learner speaks TLS, and this client does not"):
            connect(server, connect_timeout_s=20)
    with serve() as server:
        with pytest.raises(rollway.errors.TlsFailed, match="this client speaks TLS, and the learner does not"):
            connect(server, ca=authority.pem, connect_timeout_s=20)
        assert "speaks TLS" in server.endpoints[0].last_refusal
        with pytest.raises(rollway.InvalidArgument, match=r"server_name = 'learner.example' without ca"):
            connect(server, server_name="learner.example")


def test_files_that_are_no_certificates_are_named(authority, certificate, tmp_path):
    missing, empty = tmp_path / "missing.pem", tmp_path / "empty.pem"
    empty.write_text("")
    cases = [
        (rollway.Tls(missing, certificate.key), "cannot read certificates from .*missing.pem"),
        (rollway.Tls(certificate.cert, missing), "cannot read a private key from .*missing.pem"),
        (rollway.Tls(empty, certificate.key), "there is no certificate in .*empty.pem"),
        (rollway.Tls(authority.pem, certificate.key), "cannot serve TLS with .*ca.pem and .*key"),
    ]
    for tls, message in cases:
        with pytest.raises(rollway.errors.TlsFailed, match=message):
            serve(transport=rollway.TcpTransport(tls=tls)).start()
    with pytest.raises(rollway.errors.TlsFailed, match=r"cannot read certificates from .*missing\.pem"):
        rollway.TcpClient("127.0.0.1", 1, ONE, ca=missing)
    with pytest.raises(rollway.errors.TlsFailed, match="'not a name' is not a host name"):
        rollway.TcpClient("127.0.0.1", 1, ONE, ca=authority.pem, server_name="not a name")


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_both_sides_count():
    with serve(4, num_buffers=4) as server:
        client = connect(server)
        client.send_many(stack(*range(8)))
        client.wait()
        mine, learners = client.stats(), server.stats()
        assert mine["sent"] == mine["acknowledged"] == 8 and mine["connects"] == 1
        assert mine["frames"] == learners["tcp_frames"] >= 2 and mine["acks"] >= 1
        assert mine["bytes"] == learners["tcp_bytes"] == 8 * 8 + 32 * mine["frames"]
        assert mine["resumed"] == mine["failed_connects"] == mine["frames_again"] == mine["refused"] == 0
        assert learners["tcp_samples"] == 8 and learners["tcp_arrived"] == learners["tcp_accepted"] == 1
        assert learners["tcp_connections"] == learners["tcp_sessions"] == 1 and learners["producers_alive"] == 1
        quiet = ("resumed", "taken_over", "duplicates", "dropped", "waited", "spilled", "accept_errors")
        quiet += tuple(f"refused_{why}" for why in ("token", "schema", "protocol", "busy", "other", "full"))
        quiet += ("cut_slow", "cut_silent", "cut_damaged", "evicted")
        assert {name: learners[f"tcp_{name}"] for name in quiet} == dict.fromkeys(quiet, 0)
        client.close()
        until(lambda: server.stats()["tcp_connections"] == 0)
        assert server.stats()["tcp_sessions"] == 1 and server.stats()["tcp_arrived"] == 1, (
            "it is remembered for a while"
        )
        assert all(type(number) is int for number in server.stats().values())


def test_frames_that_wait_for_room_are_counted():
    with serve(2, num_buffers=2) as server, connect(server) as client:
        client.send_many(stack(*range(6)))
        until(lambda: server.stats()["tcp_waited"] > 0)
        assert server.stats()["blocked"] > 0, "as workers on this machine are counted"
        assert drain(server, 6) == list(range(6))


def test_a_batch_says_how_many_workers_are_connected():
    with serve(1) as server:
        clients = [connect(server) for _ in range(3)]
        clients[0].send(value(1))
        info = server.sample(timeout=10).info
        assert info.active_connections == 3 == server.stats()["producers_alive"]
        clients.pop().close()
        until(lambda: info.active_connections == 2)
        server.submit(value(0))
        assert info.active_connections == 2, "the learner itself is no client"
        assert server.stats()["producers_alive"] == 3, "but a producer"
        [client.close() for client in clients]
        until(lambda: info.active_connections == 0)


def test_more_connections_than_allowed_are_told_to_wait():
    with serve(transport=rollway.TcpTransport(max_connections=2)) as server:
        first, second = connect(server), connect(server)
        with pytest.raises(rollway.LearnerUnreachable):
            connect(server, connect_timeout_s=0.2)
        assert server.stats()["tcp_refused_busy"] > 0 and server.stats()["tcp_connections"] == 2
        waiting = []
        knocking = threading.Thread(target=lambda: waiting.append(connect(server, connect_timeout_s=20)))
        knocking.start()
        first.close()
        knocking.join()
        waiting[0].close()
        second.close()


@pytest.mark.usefixtures("no_thread_is_left")
def test_several_threads_serve_and_start_with_the_connections_that_need_them():
    with serve(100, rollway.TcpTransport(threads=3), num_buffers=3) as server:
        assert listeners() == 1
        clients, threads = [], []
        for _ in range(5):
            clients.append(connect(server))
            threads.append(listeners())
        assert threads == [1, 2, 3, 3, 3]
        for i in range(20):
            [client.send(value(i)) for client in clients]
        [client.close() for client in clients]
        assert sorted(drain(server, 100)) == sorted(list(range(20)) * 5)


def test_the_old_name_of_threads_still_works():
    with pytest.warns(DeprecationWarning, match="the argument 'io_threads' is deprecated: use 'threads'"):
        transport = rollway.TcpTransport(io_threads=2)
    assert transport == rollway.TcpTransport(threads=2)
    with pytest.raises(TypeError, match="got both 'threads' and 'io_threads'"):
        rollway.TcpTransport(threads=2, io_threads=2)


def test_a_session_is_forgotten_after_its_time_and_a_silent_peer_is_cut():
    transport = rollway.TcpTransport(keepalive_s=0.05, session_ttl_s=0.01)
    with serve(transport=transport) as server, connect(server, keepalive_s=0.05) as client:
        client.send(value(1))
        assert drain(server, 1) == [1]
        with socket.create_connection(("127.0.0.1", server.port)):
            until(lambda: server.stats()["tcp_arrived"] == 2)
        client.send(value(2))
        assert drain(server, 1) == [2]
        assert client.stats()["connects"] == 1, "pings keep a living client"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads = 0 is out of range: at least 1"),
        ({"max_connections": 0}, "max_connections = 0 is out of range: at least 1"),
        ({"frame_timeout_s": -1}, "a timeout must be a number of seconds >= 0"),
        ({"keepalive_s": math.nan}, "a timeout must be a number of seconds >= 0"),
        ({"session_ttl_s": -0.1}, "a timeout must be a number of seconds >= 0"),
    ],
)
def test_a_transport_with_senseless_options_does_not_start(options, message):
    with pytest.raises(ValueError, match=message):
        serve(transport=rollway.TcpTransport(**options)).start()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_inflight_msgs": 0}, "max_inflight_msgs = 0 is out of range: at least 1"),
        ({"producer_id": 2**32 - 1}, "producer_id = 4294967295 is out of range: at most 4294967294"),
        ({"connect_timeout_s": -1}, "a timeout must be a number of seconds >= 0"),
        ({"reconnect_timeout_s": math.nan}, "a timeout must be a number of seconds >= 0"),
        ({"keepalive_s": -1}, "a timeout must be a number of seconds >= 0"),
    ],
)
def test_a_client_with_senseless_options_does_not_start(options, message):
    with serve() as server, pytest.raises(ValueError, match=message):
        connect(server, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"port": 70000},
        {"port": -1},
        {"producer_id": 2**32},
        {"producer_id": -1},
        {"max_inflight_msgs": -1},
    ],
    ids=str,
)
def test_a_number_out_of_range_is_named(options):
    with serve() as server:
        with pytest.raises(rollway.InvalidArgument, match=next(iter(options))):
            rollway.TcpClient("127.0.0.1", **{"port": server.port, **options}, data_sample=ONE)


def test_the_sample_is_given_by_echos_keyword_and_by_the_one_before_it():
    with serve(2) as server:
        with rollway.TcpClient("127.0.0.1", server.port, data_sample=ONE) as client:
            client.send(value(1))
        with pytest.warns(DeprecationWarning, match="'example' is deprecated: use 'data_sample'") as seen:
            client = rollway.TcpClient("127.0.0.1", server.port, example=ONE)
        assert seen[0].filename == __file__
        with client:
            client.send(value(2))
        assert drain(server, 2) == [1, 2]


@pytest.mark.parametrize("options", [{"port": 70000}, {"port": -1}, {"threads": -1}], ids=str)
def test_a_number_of_the_transport_out_of_range_is_named(options):
    with pytest.raises(rollway.InvalidArgument, match=next(iter(options))):
        serve(transport=rollway.TcpTransport(**options)).start()


def test_a_senseless_timeout_of_a_send_is_refused_even_with_room():
    with serve() as server, connect(server) as client:
        for call in (client.wait, lambda t: client.send_many(stack(1), timeout=t)):
            with pytest.raises(ValueError, match="a timeout must be a number of seconds"):
                call(-1)
        with pytest.raises(ValueError, match="a timeout must be a number of seconds"):
            client.send(value(1), timeout=-1)


@pytest.mark.parametrize("option", ["connect_timeout_s", "reconnect_timeout_s", "keepalive_s"])
def test_infinity_is_a_long_time_for_a_client(option):
    with serve() as server:
        with connect(server, **{option: math.inf}) as client:
            client.send(value(1))
            assert drain(server, 1) == [1]


@pytest.mark.parametrize("option", ["frame_timeout_s", "keepalive_s", "session_ttl_s"])
def test_infinity_is_a_long_time_for_a_transport(option):
    with serve(transport=rollway.TcpTransport(**{option: math.inf})) as server:
        with connect(server, connect_timeout_s=2) as client:
            client.send(value(1))
            assert drain(server, 1) == [1]


def test_a_keepalive_of_nothing_does_not_break_the_connection_over_and_over():
    with serve() as server:
        try:
            client = connect(server, keepalive_s=0)
        except ValueError:
            return  # refused: as good
        with client:
            for i in range(20):
                client.send(value(i))
                assert drain(server, 1) == [i]
            assert client.stats()["connects"] < 10  # a busy machine may be silent for too long, now and then


# ── what, where, how to mend it ──────────────────────────────────────────────────────────────────────────────────────


def nobody():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_nobody_there_is_told_with_the_address_and_the_reason():
    port = nobody()
    with pytest.raises(
        rollway.LearnerUnreachable,
        match=rf"cannot reach a learner at 127.0.0.1:{port}: .*\. Is it running, and is the port right\?",
    ):
        rollway.TcpClient("127.0.0.1", port, ONE, connect_timeout_s=0.05)
    with pytest.raises(rollway.LearnerUnreachable, match=r"no\.such\.host\.invalid:1: failed to lookup address"):
        rollway.TcpClient("no.such.host.invalid", 1, ONE, connect_timeout_s=0.05)
    with pytest.raises(ConnectionError):
        rollway.TcpClient("127.0.0.1", port, ONE, connect_timeout_s=0)


@pytest.mark.parametrize("patience", [0.05, 0.3])
def test_a_refused_connection_is_called_refused(patience):
    with pytest.raises(rollway.LearnerUnreachable, match=r"[Rr]efused"):
        rollway.TcpClient("127.0.0.1", nobody(), ONE, connect_timeout_s=patience)


def test_somebody_else_at_the_port_is_told():
    with socket.create_server(("127.0.0.1", 0)) as web:

        def answer():
            peer, _ = web.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        port = web.getsockname()[1]
        with pytest.raises(
            rollway.errors.ProtocolMismatch, match=rf"127.0.0.1:{port} does not speak our protocol: .*same version\?"
        ):
            rollway.TcpClient("127.0.0.1", port, ONE)
        answering.join()


def refused_samples():
    with narrow(on_full="error") as server, connect(server) as client:
        for i in range(3):
            client.send(value(i))
        client.wait(timeout=10)


def timed_out():
    with narrow() as server:
        client = stuffed(server)
        try:
            client.wait(timeout=0.01)
        finally:
            drain(server, 3)
            client.close()


def closed_by_the_learner():
    with serve() as server:
        client = connect(server)
    client.send(value(1))


def not_trusted():
    rollway.TcpClient("127.0.0.1", 1, ONE, ca="/nowhere/ca.pem")


ADVICE = re.compile(
    r"\?$|\. (Give|Set|Choose|Cast|Wait|Use|Create|Start|Make|Take|Raise|Connect|Check)|\bor (listen|take|give|create)\b"
)


@pytest.mark.parametrize("provoke", [refused_samples, timed_out, closed_by_the_learner, not_trusted])
def test_an_error_says_how_to_mend_it(provoke):
    with pytest.raises(rollway.RollwayError) as raised:
        provoke()
    assert ADVICE.search(str(raised.value)), str(raised.value)


def test_every_error_of_the_network_is_also_the_builtin_that_people_catch():
    kinds = {
        rollway.LearnerUnreachable: ConnectionError,
        rollway.errors.ProtocolMismatch: ConnectionError,
        rollway.errors.TlsFailed: ConnectionError,
        rollway.NotAuthorized: PermissionError,
        rollway.errors.TokenRequired: ValueError,
        rollway.errors.AddressUnavailable: OSError,
        rollway.errors.NotInThisProcess: RuntimeError,
    }
    for kind, builtin in kinds.items():
        assert issubclass(kind, builtin) and issubclass(kind, rollway.RollwayError) and kind.__doc__
