"""The registry of a run, without Ray: leases, ranks, the numbers of workers. Its actor is tested in tests/peers/ray."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

from rollway.integrations.ray import registry as registry_module
from rollway.integrations.ray.learner_entry import LearnerEntry, SegmentIdentity
from rollway.integrations.ray.lease import PRESENT, WITHDRAWN
from rollway.integrations.ray.registry import LinkId, Registered, Registry, Status

ENTRY = LearnerEntry(
    identity="first",
    rank=0,
    world_size=1,
    kind="samples",
    host="127.0.0.1",
    port=1,
    token="a secret",
    node_id="node",
    pid=7,
    version="0",
    protocol=0,
    leaves=[],
    structure=b"",
    on_full="block",
    ring=None,
    weights=None,
    reconnect_timeout_s=60.0,
    weights_fan_out=1,
    run_id="run",
)
LINK = LinkId("ring of a node", "run", was_connected=False)
SOON = 20.0


@pytest.fixture
def ended(monkeypatch):
    """How often the actor has ended itself."""
    ends = []
    monkeypatch.setattr(registry_module, "end_this_actor", lambda: ends.append(1))
    monkeypatch.setattr(registry_module, "_OVER_LINGER_S", 0.0)
    return ends


async def present(registry, entry=ENTRY, generation=0, if_exists="resume"):
    """Registers a learner, and takes its lease: the learner's end of it."""
    registered = await registry.register(entry, generation, if_exists)
    assert isinstance(registered, Registered), registered
    reader, writer = await asyncio.open_connection(registered.host, registered.port)
    writer.write(registered.key)
    assert await reader.read(1) == PRESENT
    return writer


def rank(number, world_size=2, **changes):
    return replace(ENTRY, identity=f"rank {number}", rank=number, world_size=world_size, **changes)


def test_a_learner_is_present_while_its_lease_is_open(ended):
    async def run():
        registry = Registry("127.0.0.1")
        assert "has not been published" in await registry.learner(None, 0.0)
        lease = await present(registry)
        seen = await registry.watch(0, Status(None, None), SOON)
        assert seen == Status("present", "first")
        lease.close()
        assert await registry.watch(0, seen, SOON) == Status("lost", "first")
        assert "its learner (pid 7 on 127.0.0.1) died 0 s ago" in await registry.learner(None, 0.0)
        assert not ended  # it waits for the next learner
        lease = await present(registry, replace(ENTRY, identity="second"))
        assert (await registry.learner(0, SOON)).identity == "second"
        lease.write(WITHDRAWN)
        assert await registry.watch(0, Status("present", "second"), SOON) == Status("over", "second")
        while not ended:
            await asyncio.sleep(0)

    asyncio.run(run())


def test_links_are_told_at_once_that_the_run_is_over_and_the_registry_waits_until_they_leave(ended):
    async def run():
        registry = Registry("127.0.0.1")
        lease = await present(registry)
        assert (await registry.forward_to(LINK, 0, SOON)).identity == "first"
        lease.write(WITHDRAWN)
        over = Status("over", "first")
        assert await registry.watch(0, Status("present", "first"), SOON) == over
        assert await registry.forward_to(LINK, 0, 1000.0) == over  # of an actor that Ray has restarted
        assert await registry.weights_from(LINK._replace(segment="weights"), "node", 1000.0) == over
        await registry.leave(LINK.segment, SOON)
        await asyncio.sleep(0.05)
        assert not ended
        await registry.leave("weights", SOON)
        while not ended:
            await asyncio.sleep(0)

    asyncio.run(run())


def test_a_link_that_comes_back_waits_for_a_learner_that_died_as_long_as_the_registry_does(ended):
    async def run():
        registry = Registry("127.0.0.1")
        leases = [await present(registry, rank(number)) for number in range(2)]
        leases[0].close()
        assert await registry.watch(0, Status("present", "rank 0"), SOON) == Status("lost", "rank 0")
        assert await registry.forward_to(LINK, 0, 0.0) == Status("lost", "rank 0")
        registry._ranks[0].since -= ENTRY.reconnect_timeout_s
        assert await registry.forward_to(LINK, 0, 1000.0) == Status("over", "rank 0")
        leases[1].close()

    asyncio.run(run())


def test_a_run_keeps_its_id_until_its_learners_withdraw_and_links_of_another_run_get_none(ended):
    entry = replace(ENTRY, run_id="")

    async def run():
        registry = Registry("127.0.0.1")
        lease = await present(registry, entry)
        old = LinkId("ring", (await registry.learner(0, SOON)).run_id, was_connected=False)
        lease.close()
        await registry.watch(0, Status("present", "first"), SOON)
        lease = await present(registry, replace(entry, identity="second"))
        assert (await registry.forward_to(old, 0, SOON)).run_id == old.run_id
        lease.write(WITHDRAWN)
        await registry.watch(0, Status("present", "second"), SOON)
        lease = await present(registry, replace(entry, identity="third"))
        assert (await registry.learner(0, SOON)).run_id != old.run_id
        assert await registry.forward_to(old, 0, 1000.0) == Status("over", None)
        lease.close()

    asyncio.run(run())


def test_a_run_goes_on_with_another_registry_for_links_that_were_connected(ended):
    async def run():
        registry = Registry("127.0.0.1")
        lease = await present(registry, replace(ENTRY, run_id=""))
        assert await registry.forward_to(LINK, 0, 0.0) == Status(None, None)
        restarted = asyncio.create_task(registry.forward_to(LINK, 0, 1000.0))
        connected = LINK._replace(segment="another ring", was_connected=True)
        assert (await registry.forward_to(connected, 0, SOON)).identity == "first"
        assert (await restarted).identity == "first"  # of the same run
        lease.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_link_first", [True, False])
def test_links_of_a_run_whose_learner_and_registry_died_get_the_next_learner(ended, is_link_first):
    entry, connected = replace(ENTRY, run_id=""), LINK._replace(was_connected=True)

    async def run():
        registry = Registry("127.0.0.1")
        if is_link_first:
            waiting = asyncio.create_task(registry.forward_to(connected, 0, SOON))
            await asyncio.sleep(0)
        lease = await present(registry, entry)
        if not is_link_first:
            waiting = asyncio.create_task(registry.forward_to(connected, 0, SOON))
        assert (await waiting).identity == "first"
        await asyncio.sleep(0.05)
        assert not ended
        lease.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_link_first", [True, False])
def test_a_learner_that_begins_anew_does_so_also_with_another_registry(ended, is_link_first):
    entry, connected = replace(ENTRY, run_id=""), LINK._replace(was_connected=True)

    async def run():
        registry = Registry("127.0.0.1")
        if is_link_first:
            waiting = asyncio.create_task(registry.forward_to(connected, 0, SOON))
            await asyncio.sleep(0)
        lease = await present(registry, entry, if_exists="replace")
        if not is_link_first:
            waiting = asyncio.create_task(registry.forward_to(connected, 0, SOON))
        assert await waiting == Status("over", None)
        assert (await registry.learner(0, SOON)).run_id != LINK.run_id
        lease.close()

    asyncio.run(run())


def test_a_learner_with_other_leaves_does_not_take_the_place_of_one_that_died(ended):
    before = replace(ENTRY, leaves=[("obs", (4,), "float64")], run_id="")
    entry = replace(before, identity="second", leaves=[("obs", (4,), "float32")])

    async def run():
        registry = Registry("127.0.0.1")
        lease = await present(registry, before)
        lease.close()
        await registry.watch(0, Status("present", "first"), SOON)
        refused = await registry.register(entry, 0)
        assert refused == replace(before, run_id=refused.run_id, token=None)
        shown = "leaf 'obs' is float32[4] here but float64[4] at the learner before it (pid 7 on 127.0.0.1)"
        assert entry.difference(refused) == shown
        lease = await present(registry, entry, if_exists="replace")
        lease.close()

    asyncio.run(run())


def test_a_learner_that_never_takes_its_lease_is_forgotten(ended, monkeypatch):
    monkeypatch.setattr(registry_module, "_LEASE_WAIT_S", 0.01)

    async def run():
        registry = Registry("127.0.0.1")
        assert isinstance(await registry.register(ENTRY, 0), Registered)
        seen = await registry.watch(0, Status("expected", "first"), SOON)
        assert seen == Status(None, None)

    asyncio.run(run())


def test_a_stranger_gets_no_lease(ended):
    async def run():
        registry = Registry("127.0.0.1")
        registered = await registry.register(ENTRY, 0)
        reader, writer = await asyncio.open_connection(registered.host, registered.port)
        writer.write(bytes(32))
        assert await reader.read() == b""
        assert isinstance(await registry.register(replace(ENTRY, identity="other"), 0), str)

    asyncio.run(run())


def test_only_those_who_connect_get_the_secret(ended):
    async def run():
        registry = Registry("127.0.0.1")
        lease = await present(registry)
        joined, number = await registry.join(None, None, None, SOON)
        assert (joined.token, number) == (None, 0) and (await registry.learner(0, SOON)).token is None
        assert (await registry.way_in(0, SOON)).token == "a secret" and "a secret" not in repr(ENTRY)
        assert (await registry.forward_to(LINK, 0, SOON)).token == "a secret"
        assert await registry.weights_from(LINK, "node", 0.0) == Status("present", "first")
        lease.close()

    asyncio.run(run())


def test_workers_wait_for_all_ranks_and_are_spread_over_them(ended):
    async def run():
        registry = Registry("127.0.0.1")
        leases = [await present(registry, rank(0))]
        early = asyncio.create_task(registry.join("a", None, None, SOON))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(early), 0.05)
        assert not early.done()
        leases.append(await present(registry, rank(1)))
        joined = [await early, *[await registry.join(worker, None, None, SOON) for worker in "bcdab"]]
        assert [entry.rank for entry, _ in joined] == [0, 1, 0, 1, 0, 1]  # a and b came twice
        assert [number for _, number in joined] == list(range(6))
        leases[0].close()
        await registry.watch(0, Status("present", "rank 0"), SOON)
        assert (await registry.join("a", None, None, SOON))[0].rank == 1  # its own is lost
        assert "its rank 0 (pid 7 on 127.0.0.1) died" in await registry.join("a", 0, None, 0.0)
        leases[1].close()

    asyncio.run(run())


def test_numbers_of_workers_go_on_after_a_registry_was_lost(ended):
    async def run():
        registry = Registry("127.0.0.1")
        lease = await present(registry, generation=3)
        _, number = await registry.join(None, None, None, SOON)
        assert number == 3 << 20
        lease.close()

    asyncio.run(run())


def test_nodes_fetch_weights_from_each_other_and_from_the_next_one_when_a_node_is_lost(ended):
    async def offered(registry, node):
        registered = await registry.offer(node, "127.0.0.2", ord(node), f"secret of {node}")
        reader, writer = await asyncio.open_connection(registered.host, registered.port)
        writer.write(registered.key)
        assert await reader.read(1) == PRESENT
        return writer

    async def run():
        registry = Registry("127.0.0.1")
        lease = await present(registry, replace(ENTRY, weights=SegmentIdentity("w", 1)))
        assert (await registry.weights(SOON)).token is None
        first = await registry.weights_from(LINK, "a", SOON)
        assert (first.weights_node, first.port) == (None, ENTRY.port)
        waiting = asyncio.create_task(registry.weights_from(LINK, "b", SOON))  # until a has a copy
        mirrors = {"a": await offered(registry, "a")}
        second = await waiting
        assert (second.weights_node, second.port, second.token) == ("a", ord("a"), "secret of a")
        mirrors["b"] = await offered(registry, "b")
        seen = Status("present", "first", "a")
        moved = asyncio.create_task(registry.watch(0, seen, SOON, node="b"))
        mirrors["a"].close()
        assert await moved == Status("present", "first", None)
        assert (await registry.weights_from(LINK, "b", SOON)).port == ENTRY.port
        lease.close()
        mirrors["b"].close()

    asyncio.run(run())
