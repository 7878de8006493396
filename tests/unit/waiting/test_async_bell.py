"""Waiting in asyncio: by a descriptor that a native thread makes readable."""

import asyncio
import os
import threading

import rollway
from tests.support.processes import forked, until

SCHEMA = {"tokens": "int32[*]"}


def sentries():
    """How many native threads of ours this process has."""
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as comm:
                names.append(comm.read().strip())
        except FileNotFoundError:  # it ended
            continue
    return names.count("rollway-eventfd")


def eventfds():
    """How many of their descriptors are open."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # the one of the directory itself
            continue
    return links.count("anon_inode:[eventfd]")


async def one(server):
    record = await server.read_async(timeout=30)
    with record:
        return record["tokens"].tolist()


def send_later(client, *values):
    def work():
        for value in values:
            client.send({"tokens": [value]})

    timer = threading.Timer(0.02, work)
    timer.start()
    return timer


def test_loops_that_come_and_go_leave_neither_threads_nor_descriptors(name):
    before, files = sentries(), eventfds()
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server:
        with rollway.ShmRecordClient(name, SCHEMA) as client:
            for value in range(4):
                sender = send_later(client, value)
                assert asyncio.run(one(server)) == [value]
                sender.join()
                assert sentries() <= before + 2  # this loop's, and the last one's until it has noticed
    until(lambda: sentries() <= before)
    until(lambda: eventfds() <= files)


def test_loops_in_two_threads_are_both_told(name):
    got = []
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server:
        readers = [threading.Thread(target=lambda: got.append(asyncio.run(one(server)))) for _ in range(2)]
        for reader in readers:
            reader.start()
        with rollway.ShmRecordClient(name, SCHEMA) as client:
            send_later(client, 1, 2).join()
            for reader in readers:
                reader.join(30)
        assert sorted(got) == [[1], [2]]


def test_a_server_closed_by_another_thread_ends_the_wait(name):
    server = rollway.RecordServer(SCHEMA, rollway.ShmTransport(name))

    async def wait():
        closer = threading.Timer(0.02, server.close)
        closer.start()
        assert await server.read_async(timeout=30) is None
        assert await server.read_async(timeout=30) is None
        closer.join()

    asyncio.run(wait())


def test_a_forked_child_waits_in_a_loop_of_its_own(name):
    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server:
        with rollway.ShmRecordClient(name, SCHEMA) as client:
            send_later(client, 1)
            assert asyncio.run(one(server)) == [1]
            heard, told = os.pipe()

            def child():
                async def read():
                    waiting = asyncio.create_task(one(server))
                    await asyncio.sleep(0.01)
                    os.write(told, b"!")
                    assert await waiting == [2]

                asyncio.run(read())

            pid = forked(child)
            assert os.read(heard, 1) == b"!"
            client.send({"tokens": [2]})
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            send_later(client, 3)
            assert asyncio.run(one(server)) == [3]
            os.close(heard)
            os.close(told)


def test_a_call_is_made_once_when_there_is_something_to_read(name):
    async def heard(server, client):
        loop, calls = asyncio.get_running_loop(), []
        come = loop.create_future()

        def call():
            calls.append(len(server.try_read_many(8)))
            come.done() or come.set_result(None)

        assert server.call_when_readable(call)
        sender = send_later(client, 1, 2)
        await asyncio.wait_for(come, 30)
        await asyncio.to_thread(sender.join)
        await asyncio.sleep(0.05)
        return calls

    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server:
        with rollway.ShmRecordClient(name, SCHEMA) as client:
            calls = asyncio.run(heard(server, client))
    assert len(calls) == 1 and calls[0] in (1, 2)


def test_the_end_is_worth_a_call_and_after_it_none_is_made(name):
    async def heard(server):
        come = asyncio.get_running_loop().create_future()
        assert server.call_when_readable(lambda: come.set_result(None))
        closer = threading.Timer(0.02, server.close)
        closer.start()
        await asyncio.wait_for(come, 30)
        await asyncio.to_thread(closer.join)
        assert server.closed and not server.call_when_readable(lambda: None)

    asyncio.run(heard(rollway.RecordServer(SCHEMA, rollway.ShmTransport(name))))


def test_a_call_that_fails_is_told_to_the_loop_and_the_others_are_made(name):
    async def heard(server, client):
        loop, told = asyncio.get_running_loop(), []
        come = loop.create_future()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        assert server.call_when_readable(lambda: 1 / 0)
        assert server.call_when_readable(lambda: come.set_result(None))
        client.send({"tokens": [1]})
        await asyncio.wait_for(come, 5)
        return told

    with rollway.RecordServer(SCHEMA, rollway.ShmTransport(name)) as server:
        with rollway.ShmRecordClient(name, SCHEMA) as client:
            told = asyncio.run(heard(server, client))
    assert [type(error) for error in told] == [ZeroDivisionError]


def test_a_peer_check_of_a_server_that_was_just_closed_finds_nothing_wrong(name):
    server = rollway.RecordServer(SCHEMA, rollway.ShmTransport(name))
    (check,) = server._stall_checks()
    server.close()
    assert check.state() is None
