"""The real Atropos (atroposlib 0.4.0): its loop, its API server, its command line, with an environment that knows nothing."""

import asyncio
import contextlib
import json
import math
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from multiprocessing import forkserver
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from atroposlib.api import server as api
from atroposlib.envs import base
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import rollway
from rollway.integrations.atropos import (
    ATROPOS_SCHEMA,
    GroupReader,
    RollwayTransportMixin,
    __main__,
    decode_group,
    encode_group,
    hub,
    transport,
    with_transport,
)
from rollway.integrations.atropos.group_sender import GroupSender
from tests.support import atropos_hurry, atropos_toy_env
from tests.support.atropos_toy_env import ForgetfulEnv, ToyConfig, ToyEnv, expected_group, trajectory

ENV_FILE = Path(atropos_toy_env.__file__)
SIZE = 4
SECONDS = 60.0  # for what takes far less


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer of three words, in a directory: nothing is downloaded."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "yes": 1, "no": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    directory = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(directory)
    return str(directory)


@pytest.fixture
def make(tokenizer, monkeypatch):
    """Environments in this process. Atropos' pauses (five seconds at the start) are shortened, nothing else is changed."""

    monkeypatch.setattr(base, "asyncio", atropos_hurry.Hurried())

    def make(environment, *, instance_id=None, **config):
        transported = with_transport(environment, instance_id=instance_id)
        settings = {
            "group_size": SIZE,
            "batch_size": 8,
            "max_batches_offpolicy": 4,
            "use_wandb": False,
            "wandb_name": "toy",
            "tokenizer_name": tokenizer,
            "min_items_sent_before_logging": 10**9,
            **config,
        }
        return transported(transported.env_config_cls(**settings), [base.APIServerConfig(api_key="x")], testing=True)

    return make


@contextlib.asynccontextmanager
async def running(env):
    """The environment's own loop, as a task that ends with the block."""
    task = asyncio.create_task(env.env_manager())
    try:
        yield task
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def come_true(condition, task=None):
    """Waits for a condition that no event announces; fails at once if the environment has ended."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            if task is not None and task.done():
                task.result()
                raise AssertionError("the environment has ended")
            await asyncio.sleep(0.005)


async def loops(env, count, task):
    """Lets the environment's loop go round some more times."""
    seen = len(env.mainloop_timings)
    await come_true(lambda: len(env.mainloop_timings) >= seen + count, task)


@pytest.fixture
def learner(name):
    with rollway.RecordServer(ATROPOS_SCHEMA, rollway.ShmTransport(name)) as server:
        yield server


async def read_groups(reader, count):
    """Reads, checks each group against what its item gives, and returns keys and versions."""
    seen = []
    for _ in range(count):
        group = await reader.read_async(SECONDS)
        assert group.is_complete
        assert decode_group(group.records) == expected_group(int(group.key.instance_id), SIZE)
        seen.append((group.key, group.records[0].version))
        group.release()
    return seen


# ── direct: records to a trainer, no API server anywhere ────────────────────────────────────────────────────────────


def test_every_group_arrives_once_and_equal(learner, make):
    async def run():
        async with running(make(ToyEnv, transport="shm", shm_name=learner.name, items=30, epochs=2)):
            return [key for key, _ in await read_groups(GroupReader(learner), 60)]

    keys = asyncio.run(run())
    assert len(set(keys)) == 60
    assert Counter((key.instance_id, key.step) for key in keys) == {(str(i), e): 1 for i in range(30) for e in (0, 1)}
    assert len({key.run for key in keys}) == 1
    assert keys[0].run.startswith("toy:")
    assert learner.try_read() is None


def test_a_group_that_atropos_drops_leaves_tombstones_that_say_why(learner, make):
    async def run():
        settings = {"flaws": True, "items": 20, "trainer_max_token_len": 200}
        async with running(make(ToyEnv, transport="shm", shm_name=learner.name, **settings)):
            sent, buried = [], {}
            while len(sent) < 12 * SIZE or len(buried) < 8:
                for record in await learner.read_many_async(64, SECONDS):
                    if record.is_tombstone:
                        buried[record.key.group] = record.metadata["reason"]
                    else:
                        sent.append(record.key)
                    record.release()  # what is held counts as waiting
            return sent, buried

    sent, buried = asyncio.run(run())
    assert {key.instance_id: said for key, said in buried.items()} == {
        **dict.fromkeys(("3", "13"), "all scores are equal"),
        **dict.fromkeys(("5", "15"), "3 trajectories in a group of 4"),
        **dict.fromkeys(("7", "17"), "the environment collected nothing"),
        **dict.fromkeys(("9", "19"), "a sequence of 200 tokens, where fewer than 200 are allowed"),
    }
    assert Counter(key.instance_id for key in sent) == {str(i): SIZE for i in range(20) if i % 10 not in (3, 5, 7, 9)}


def test_a_tombstone_says_why_also_of_arrays_and_of_groups_that_atropos_trips_over(learner, make):
    class Odd(ToyEnv):
        async def collect_trajectories(self, item):
            group, backlog = await super().collect_trajectories(item)
            if item["id"] == 0:
                group["scores"] = np.full(SIZE, 0.5)
            elif item["id"] == 1:
                group["tokens"] = np.ones((SIZE - 1, 2), np.int64)
            else:
                group["group_overrides"] = None
            return [group, group.copy()], backlog

    async def run():
        async with running(make(Odd, transport="shm", shm_name=learner.name, items=3)):
            buried = [await learner.read_async(SECONDS) for _ in range(6)]
            return Counter((record.key.instance_id, record.metadata["reason"]) for record in buried)

    assert asyncio.run(run()) == {
        ("0", "all scores are equal"): 2,
        ("1", "3 trajectories in a group of 4"): 2,
        ("2", "Atropos could not send it: 'NoneType' object has no attribute 'get'"): 2,
    }


def test_a_reader_of_groups_does_not_wait_for_what_was_dropped(learner, make):
    async def run():
        settings = {"flaws": True, "items": 20, "trainer_max_token_len": 200}
        async with running(make(ToyEnv, transport="shm", shm_name=learner.name, **settings)):
            reader = GroupReader(learner)
            await read_groups(reader, 12)
            assert reader.pending == 0

    asyncio.run(run())


def waiting(learner):
    """Records that nobody has taken."""
    return learner.stats()["ready_records"]


@pytest.fixture(params=["shm", "tcp"])
def reached(request, name):
    """A learner, and the settings by which an environment reaches it."""
    if request.param == "shm":
        transport, settings = rollway.ShmTransport(name), {"shm_name": name}
    else:
        transport, settings = rollway.TcpTransport(), {}
    with rollway.RecordServer(ATROPOS_SCHEMA, transport) as learner:
        if request.param == "tcp":
            settings = {"address": f"localhost:{learner.port}"}
        yield learner, {"transport": request.param, **settings}


def test_the_environment_stops_by_itself_when_enough_is_waiting(reached, make):
    learner, settings = reached

    async def run():
        env = make(ToyEnv, **settings, max_batches_offpolicy=2)
        async with running(env) as task:
            await come_true(lambda: waiting(learner) == 4 * SIZE, task)
            await loops(env, 10, task)
            assert waiting(learner) == 4 * SIZE, "2 batches of 8 trajectories are 4 groups"
            reader = GroupReader(learner)
            held = [await reader.read_async(SECONDS) for _ in range(2)]
            await come_true(lambda: waiting(learner) == 4 * SIZE, task)
            await loops(env, 10, task)
            assert waiting(learner) == 4 * SIZE, "what the learner has taken does not wait, though it is held"
            for group in held:
                group.release()
            await loops(env, 10, task)
            assert waiting(learner) == 4 * SIZE
            reader.close()

    asyncio.run(run())


def test_environments_together_stop_when_enough_is_waiting(reached, make):
    learner, settings = reached

    async def run():
        first, second = (make(ToyEnv, **settings, max_batches_offpolicy=4) for _ in range(2))
        async with running(first) as task:
            await come_true(lambda: waiting(learner) == 8 * SIZE, task)
            async with running(second) as other:
                await loops(second, 10, other)
                assert waiting(learner) == 8 * SIZE, "the first has made enough for both"

    asyncio.run(run())


def test_a_trainer_that_keeps_many_batches_during_a_step_is_not_kept_waiting(reached, make):
    learner, settings = reached
    groups, steps = 3 * 2, 15  # three batches of two groups, where the environment stops when two batches wait

    async def run():
        reader = GroupReader(learner)
        async with running(make(ToyEnv, **settings, max_batches_offpolicy=2)), asyncio.timeout(SECONDS):
            for step in range(1, steps + 1):
                held = [await reader.read_async() for _ in range(groups)]
                for group in held:
                    group.release()
                learner.publish(step)
        reader.close()

    asyncio.run(run())


def test_the_published_step_drives_versions_evaluations_checkpoints_and_the_end(learner, make, tmp_path):
    journal = tmp_path / "evaluations"

    async def run():
        env = make(
            ToyEnv,
            transport="shm",
            shm_name=learner.name,
            max_batches_offpolicy=1,
            total_steps=20,
            steps_per_eval=5,
            journal=str(journal),
            checkpoint_dir=str(tmp_path),
            checkpoint_interval=10,
        )
        reader = GroupReader(learner)
        async with running(env) as task:
            assert {version for _, version in await read_groups(reader, 4)} == {0}
            learner.publish(7)
            await come_true(lambda: env.curr_step == 7, task)
            await read_groups(reader, 4)  # what had begun before
            assert {version for _, version in await read_groups(reader, 4)} == {7}
            learner.publish(11)
            await come_true(lambda: env.curr_step == 11, task)
            learner.publish(21)
            await asyncio.wait_for(asyncio.shield(task), SECONDS)
        assert env._rollway_sender.closed

    asyncio.run(run())
    assert [json.loads(line)["step"] for line in journal.read_text().splitlines()] == [11], (
        "Atropos compares remainders: from 7 to 11"
    )
    assert json.loads((tmp_path / "env_checkpoints" / "toy" / "step-10.json").read_text())["iter"] > 0


def test_the_environment_ends_when_the_learner_closes(name, make):
    async def run():
        with rollway.RecordServer(ATROPOS_SCHEMA, rollway.ShmTransport(name)) as learner:
            async with running(make(ToyEnv, transport="shm", shm_name=name)) as task:
                await read_groups(GroupReader(learner), 4)
                learner.close()
                await asyncio.wait_for(asyncio.shield(task), SECONDS)

    asyncio.run(run())


def test_a_worker_that_takes_too_long_leaves_a_tombstone_and_one_sent_back_does_not(learner, make):
    class Slow(ToyEnv):
        async def collect_trajectories(self, item):
            if item["id"] == 1 or (item["id"] == 2 and not self.retried):
                self.retried = item["id"] == 2
                await asyncio.Event().wait()
            return await super().collect_trajectories(item)

        retried = False

    async def run():
        env = make(Slow, transport="shm", shm_name=learner.name, items=4, worker_timeout=-1)
        async with running(env):
            reader = GroupReader(learner)
            assert {key.instance_id for key, _ in await read_groups(reader, 2)} == {"0", "3"}
            stuck = {entry["item"]["id"]: (uuid, entry) for uuid, entry in env.running_items.items()}
            env.backlog.append(stuck[2][1]["item"])  # as Atropos does when it has too many workers
            for uuid, entry in stuck.values():
                entry["worker"].cancel()
                env.workers.discard(entry["worker"])
                env.running_items.pop(uuid)
            assert {key.instance_id for key, _ in await read_groups(reader, 1)} == {"2"}
            assert reader.tombstones == 1, "of item 1, sent before item 2 was tried again"

    asyncio.run(run())


@contextlib.asynccontextmanager
async def stuck(name, make, environment, count):
    """Workers at so many items, over a lane that is full; with what fills it."""
    record = {leaf: np.zeros(0, ATROPOS_SCHEMA[leaf].partition("[")[0]) for leaf in ATROPOS_SCHEMA}
    record["score"] = np.array(0.0)
    with rollway.RecordServer(ATROPOS_SCHEMA, rollway.ShmTransport(name), lane_bytes=64 << 10) as learner:
        env = make(environment, transport="shm", shm_name=name)
        await env.setup()
        await env.register_env()
        held = []
        for length in (1000, 0):
            record["tokens"] = np.zeros(length, np.int32)
            while env._rollway_sender._client.try_send(record):
                held += learner.try_read_many(1)
        env.running_items = {str(item): {"item": {"id": item}} for item in range(count)}
        env.workers = {asyncio.create_task(env.handle_env(uuid)) for uuid in list(env.running_items)}
        try:
            yield env, learner, held
        finally:
            for record in held:
                record.release()
            learner.close()
            await asyncio.wait(env.workers)


def test_a_finished_group_whose_worker_is_cancelled_before_it_is_sent_leaves_a_tombstone(name, make):
    async def run():
        async with stuck(name, make, ToyEnv, 3) as (env, learner, held):
            await come_true(lambda: not env.running_items)  # Atropos forgets an item when it is collected
            for worker in env.workers:
                worker.cancel()
            await asyncio.sleep(0)
            for record in held:
                record.release()
            await come_true(lambda: waiting(learner) == 3)
            records = learner.read_many(10)
            assert {record.key.instance_id for record in records} == {"0", "1", "2"}
            assert all(record.is_tombstone for record in records)

    asyncio.run(run())


def test_an_environment_leaves_though_there_is_no_room_for_the_tombstones_of_its_workers(name, make, monkeypatch):
    class Endless(ToyEnv):
        begun = 0

        async def collect_trajectories(self, item):
            self.begun += 1
            await asyncio.Event().wait()

    monkeypatch.setattr(transport, "_LEAVING_S", 0.1)

    async def run():
        async with stuck(name, make, Endless, 50) as (env, _, _):
            await come_true(lambda: env.begun == 50)
            await asyncio.wait_for(env._shut_down(), SECONDS)
            assert env._rollway_sender.closed

    asyncio.run(run())


def test_an_environment_that_waits_for_its_learner_can_be_stopped(name, make, monkeypatch):
    waits = threading.Event()

    def connect(*arguments):
        waits.set()
        return transport_connect(*arguments)

    transport_connect = transport.connect
    monkeypatch.setattr(transport, "connect", connect)
    env = make(ToyEnv, transport="shm", shm_name=name, connect_timeout_s=90)

    async def run():
        joining = asyncio.create_task(env.env_manager())
        await come_true(waits.is_set, joining)
        joining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await joining

    runs = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    runs.start()
    runs.join(SECONDS)
    assert not runs.is_alive()


def test_logprobs_that_atropos_forgets_are_put_back(learner, make):
    async def run():
        async with running(make(ForgetfulEnv, transport="shm", shm_name=learner.name, items=3)):
            reader = GroupReader(learner)
            groups = [await reader.read_async(SECONDS) for _ in range(3)]
            return {int(group.key.instance_id): decode_group(group.records) for group in groups}

    for item, group in asyncio.run(run()).items():
        made = [trajectory(item, repetition) for repetition in range(SIZE)]
        assert sorted(group["inference_logprobs"]) == sorted(one["inference_logprobs"] for one in made)
        for tokens, logprobs in zip(group["tokens"], group["inference_logprobs"], strict=True):
            assert {"tokens": tokens, "inference_logprobs": logprobs}.items() <= next(
                one for one in made if one["tokens"] == tokens
            ).items()


def test_an_item_without_a_name_ends_the_environment_with_the_reason(learner, make):
    class Nameless(ToyEnv):
        async def get_next_item(self):
            return object()

    env = make(Nameless, transport="shm", shm_name=learner.name)
    with pytest.raises(TypeError, match="instance_id=lambda"):
        asyncio.run(asyncio.wait_for(env.env_manager(), SECONDS))


def test_items_may_be_named_by_numbers(learner, make):
    async def run():
        env = make(ToyEnv, instance_id=lambda item: item["id"], transport="shm", shm_name=learner.name, items=3)
        async with running(env):
            return {key.instance_id for key, _ in await read_groups(GroupReader(learner), 3)}

    assert asyncio.run(run()) == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("instance_id", "error"), [(lambda item: None, "not None"), (lambda item: item["nowhere"], "nowhere")]
)
def test_names_that_are_none_end_the_environment_with_the_reason(learner, make, instance_id, error):
    env = make(ToyEnv, instance_id=instance_id, transport="shm", shm_name=learner.name)
    with pytest.raises((TypeError, KeyError), match=error):
        asyncio.run(asyncio.wait_for(env.env_manager(), SECONDS))


def test_a_learner_that_died_ends_the_environment(learner, make, monkeypatch):
    async def nobody_there(self, *arguments):
        raise rollway.PeerDied("the learner died")

    monkeypatch.setattr(GroupSender, "send", nobody_there)
    env = make(ToyEnv, transport="shm", shm_name=learner.name)
    with pytest.raises(rollway.PeerDied):
        asyncio.run(asyncio.wait_for(env.env_manager(), SECONDS))


def test_over_tcp(make, tmp_path):
    token = tmp_path / "token"
    token.write_text("a secret of sixteen bytes\n")

    async def run():
        transport = rollway.TcpTransport(token="a secret of sixteen bytes")
        with rollway.RecordServer(ATROPOS_SCHEMA, transport) as learner:
            settings = {"transport": "tcp", "address": f"localhost:{learner.port}", "token_file": str(token)}
            env = make(ToyEnv, **settings, max_batches_offpolicy=1)
            reader = GroupReader(learner)
            async with running(env) as task:
                assert {version for _, version in await read_groups(reader, 2)} == {0}
                learner.publish(3)
                await come_true(lambda: env.curr_step == 3, task)
                await read_groups(reader, 4)  # what had begun before
                assert {version for _, version in await read_groups(reader, 2)} == {3}

    asyncio.run(run())


# ── with Atropos' API server ────────────────────────────────────────────────────────────────────────────────────────


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def port():
    return free_port()


@contextlib.asynccontextmanager
async def trainer(port):
    """A trainer as Atropos knows them: it registers, and asks for batches."""

    async def ask(path, body=None):
        async with aiohttp.ClientSession() as session:
            verb = session.get if body is None else session.post
            async with verb(f"http://127.0.0.1:{port}/{path}", json=body) as answer:
                return await answer.json(content_type=None)

    def is_up():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    await come_true(is_up)
    registration = {
        "wandb_group": "",
        "wandb_project": "",
        "batch_size": 8,
        "max_token_len": 1000,
        "checkpoint_dir": "",
        "save_checkpoint_interval": -1,
        "starting_step": 0,
        "num_steps": 1000,
    }
    await ask("register", registration)
    assert (await ask("batch"))["batch"] is None  # tells the environments to begin
    try:
        yield ask
    finally:
        vars(api.app.state)["_state"].clear()


async def batches(ask, count):
    """Takes batches until there were so many; their groups by item."""
    groups = {}
    async with asyncio.timeout(SECONDS):
        while len(groups) < 2 * count:
            for group in (await ask("batch"))["batch"] or ():
                groups[group["messages"][0][0]["content"]] = group
            await asyncio.sleep(0.005)
    return groups


def equal(groups):
    for said, group in groups.items():
        assert group == {**expected_group(int(said.removeprefix("été ")), SIZE), "env_id": 0}


@pytest.mark.parametrize("environment", [ToyEnv, with_transport(ToyEnv)], ids=["as it comes", "with our transport"])
def test_over_http_everything_is_as_it_was(make, tokenizer, port, environment):
    async def run():
        import uvicorn

        web = uvicorn.Server(uvicorn.Config(api.app, port=port, log_level="warning"))
        serving = asyncio.create_task(web.serve())
        async with trainer(port) as ask:
            prepared = make(environment, items=50, rollout_server_url=f"http://127.0.0.1:{port}")
            env = environment(prepared.config, [base.APIServerConfig(api_key="x")], testing=True)
            async with running(env) as task:
                await come_true(lambda: len(api.app.state.queue) == 8, task)
                await loops(env, 5, task)
                assert len(api.app.state.queue) == 8, "4 batches of 8 trajectories are 8 groups"
                equal(await batches(ask, 8))
                assert getattr(env, "_rollway_sender", None) is None
        web.should_exit = True
        await serving

    asyncio.run(run())


def test_through_the_hub_batches_and_backpressure_are_atropos_own(reached, make, port):
    learner, settings = reached

    async def run():
        serving = asyncio.create_task(hub.serve(learner, "127.0.0.1", port))
        async with trainer(port) as ask:
            url = f"http://127.0.0.1:{port}"
            env = make(ToyEnv, items=50, **settings, delivery="hub", rollout_server_url=url)
            async with running(env) as task:
                await come_true(lambda: len(api.app.state.queue) == 8, task)
                await loops(env, 5, task)
                assert len(api.app.state.queue) == 8, "4 batches of 8 trajectories are 8 groups"
                assert waiting(learner) == 0
                equal(await batches(ask, 8))
                assert env.status_dict["current_step"] > 0
        learner.close()
        await asyncio.wait_for(serving, SECONDS)

    asyncio.run(run())


def test_a_hub_that_closes_ends_its_environments_though_its_api_server_went_first(name, make):
    with rollway.RecordServer(ATROPOS_SCHEMA, rollway.ShmTransport(name)) as learner:

        class Asked(ToyEnv):
            async def get_status(self):
                learner.close()
                raise aiohttp.ClientConnectionError("nobody answers")

            async def register_env(self):
                self.env_id = 0

            async def get_server_info(self):
                pass

        env = make(Asked, transport="shm", shm_name=name, delivery="hub")
        asyncio.run(asyncio.wait_for(env.env_manager(), SECONDS))


def test_a_hub_whose_port_is_taken_gives_an_exit_code(learner):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert asyncio.run(hub.serve(learner, *taken.getsockname())) not in (None, 0)


def test_a_hub_that_is_told_to_end_gives_the_exit_code_of_the_handler(learner, port):
    async def run():
        serving = asyncio.create_task(hub.serve(learner, "127.0.0.1", port))
        async with trainer(port):
            os.kill(os.getpid(), signal.SIGTERM)
            return await asyncio.wait_for(serving, SECONDS)

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        assert asyncio.run(run()) == 143
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.asynccontextmanager
async def fed(learner):
    """The hub's feed, into the API server's state as a registered trainer leaves it."""
    api.app.state.queue, api.app.state.envs, api.app.state.started = [], [], True
    feeding = asyncio.create_task(hub.feed(learner))
    try:
        yield feeding
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        vars(api.app.state)["_state"].clear()


def submit(learner, instance, **fields):
    small = {"tokens": [[1, 2], [1, 3]], "masks": [[-100, 2], [-100, 3]], "scores": [1.0, 0.0], **fields}
    for repetition, (data, metadata) in enumerate(encode_group(small)):
        learner.submit(data, key=rollway.RecordKey("r", "train", 0, instance, repetition), metadata=metadata)


def test_a_record_that_is_no_trajectory_does_not_end_the_hub(learner, caplog):
    data = encode_group({"tokens": [[1]], "masks": [[1]], "scores": [1.0]})[0].data
    odd = rollway.RecordKey("r", "train", 0, "odd", 0)

    async def run():
        async with fed(learner) as feeding:
            learner.submit(data, key=odd)
            submit(learner, "a")
            learner.submit(data, key=odd, metadata={"group_size": 1})
            submit(learner, "b")
            await come_true(lambda: len(api.app.state.queue) == 2, feeding)

    asyncio.run(run())
    assert caplog.text.count("odd") >= 2


def test_the_hub_refuses_bytes_which_would_cost_a_trainer_its_batch(learner, caplog):
    async def run():
        async with fed(learner) as feeding:
            submit(learner, "bytes", images=[b"\xff\xd8jpeg", None])
            submit(learner, "deep", group_overrides={"a": [{"b": b"x"}]})
            submit(learner, "text", images=["aGk", None])
            await come_true(lambda: api.app.state.queue, feeding)
            assert [group["images"] for group in api.app.state.queue] == [["aGk", None]]

    asyncio.run(run())
    assert "field 'images' holds bytes" in caplog.text and "field 'group_overrides' holds bytes" in caplog.text


def test_the_hub_refuses_numbers_that_json_does_not_have(learner, caplog):
    fine = [[1.0, -0.5], [1.0, -0.25]]

    async def run():
        async with fed(learner) as feeding:
            submit(learner, "endless", inference_logprobs=[[1.0, -math.inf], [1.0, -0.5]])
            submit(learner, "none", scores=[1.0, math.nan])
            submit(learner, "deep", group_overrides={"a": [{"b": math.inf}]})
            submit(learner, "fine", inference_logprobs=fine)
            await come_true(lambda: api.app.state.queue, feeding)
            assert [group["inference_logprobs"] for group in api.app.state.queue] == [fine]

    asyncio.run(run())
    for name, number in (("inference_logprobs", "-inf"), ("scores", "nan"), ("group_overrides", "inf")):
        assert f"field '{name}' holds {number}, which /batch cannot give" in caplog.text


def test_the_api_command_needs_a_way_in():
    with pytest.raises(SystemExit) as ended:
        __main__.main(["api"])
    assert ended.value.code == 2


def test_the_api_command_takes_a_certificate_with_its_key_only(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["api", "--tcp-port", "0", "--tls-cert", "cert.pem"])
    assert "TLS needs --tls-cert and --tls-key, both" in capsys.readouterr().err


def test_the_api_command_names_a_token_file_that_is_not_there(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        __main__.main(["api", "--tcp-port", "0", "--token-file", str(tmp_path / "none")])
    assert ended.value.code == 2 and "none' (" in (said := capsys.readouterr().err) and "--token-file must name" in said


# ── waiting for a learner ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_token_file_that_is_not_there_is_named_before_anything_is_done(make, tmp_path):
    env = make(ToyEnv, transport="tcp", address="localhost:1", token_file=str(tmp_path / "none"))
    with pytest.raises(rollway.InvalidArgument, match=r"none' .*--env\.token_file must name"):
        asyncio.run(env.env_manager())


def test_an_environment_that_waits_for_its_learner_says_so_once(make, name, caplog, monkeypatch):
    monkeypatch.setattr(transport, "_SILENT_S", 0.01)

    async def run():
        env = make(ToyEnv, transport="shm", shm_name=name, connect_timeout_s=SECONDS)
        waiting = asyncio.create_task(env.register_env())
        await come_true(lambda: "no learner yet" in caplog.text, waiting)
        with rollway.RecordServer(ATROPOS_SCHEMA, rollway.ShmTransport(name)):
            await waiting
        env._rollway_sender.close()

    asyncio.run(run())
    (said,) = [one.message for one in caplog.records if "no learner" in one.message]
    assert f"--env.shm_name {name}" in said and "up to 60 s in all (--env.connect_timeout_s)" in said


# ── classes, flags, files ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_environment_class_is_left_alone_and_its_settings_are_kept():
    transported = with_transport(ToyEnv)
    config, _ = transported.config_init()
    assert isinstance(config, ToyConfig)
    assert (config.wandb_name, config.transport, config.group_size) == ("toy", "http", 4)
    assert transported.__name__ == "ToyEnv"
    assert not hasattr(ToyEnv.config_init()[0], "transport")
    assert ToyEnv.env_config_cls is ToyConfig
    assert with_transport(transported) is transported
    assert issubclass(type("Mine", (RollwayTransportMixin, ToyEnv), {}), ToyEnv)


def test_the_mixin_must_stand_before_an_environment():
    with pytest.raises(TypeError, match="Wrong: RollwayTransportMixin must come before an Atropos environment"):

        class Wrong(ToyEnv, RollwayTransportMixin):
            """Would send by HTTP, whatever its settings say."""

    with pytest.raises(TypeError, match="dict: RollwayTransportMixin must come before an Atropos environment"):
        with_transport(dict)


def test_a_field_that_means_something_else_already_is_refused():
    class Clash(base.BaseEnvConfig):
        transport: str = "bicycle"

    with pytest.raises(TypeError, match="names of Rollway's settings: transport"):
        with_transport(type("Other", (ToyEnv,), {"env_config_cls": Clash}))


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"transport": "shm"}, "--env.shm_name"),
        ({"transport": "tcp", "address": "nowhere"}, "--env.address"),
        ({"transport": "shm", "shm_name": "x", "batch_size": -1}, "--env.batch_size"),
        ({"transport": "shm", "shm_name": "x", "batch_size": 2}, "--env.group_size"),
        ({"transport": "shm", "shm_name": "x", "total_steps": -1}, "--env.total_steps"),
    ],
)
def test_a_setting_that_is_missing_is_named(make, settings, flag):
    with pytest.raises(rollway.InvalidArgument, match=flag):
        asyncio.run(make(ToyEnv, **settings).env_manager())


def test_names_of_items_can_be_chosen():
    named = with_transport(ToyEnv, instance_id=lambda item: f"mine-{item}")
    assert named.instance_id(None, 3) == "mine-3"

    class Own(ToyEnv):
        def instance_id(self, item):
            return "own"

    transported = with_transport(Own)
    assert transported.instance_id(object.__new__(transported), 3) == "own"


def test_the_launcher_finds_environments_and_says_what_it_found(monkeypatch):
    assert __main__.load("tests.support.atropos_toy_env:ForgetfulEnv") is ForgetfulEnv
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    monkeypatch.setattr(sys, "path", sys.path.copy())
    assert __main__.load(f"{ENV_FILE}:ToyEnv").__name__ == "ToyEnv"
    for target, complaint in [
        (str(ENV_FILE), r"2 environments \(ToyEnv, ForgetfulEnv\): say which"),
        (f"{ENV_FILE}:Nobody", "no class Nobody; its environments: ToyEnv, ForgetfulEnv"),
        ("nowhere.py:Env", "no file nowhere.py"),
        ("nowhere_at_all:Env", "no module nowhere_at_all"),
    ]:
        with pytest.raises(SystemExit, match=complaint):
            __main__.load(target)


# ── processes of their own ──────────────────────────────────────────────────────────────────────────────────────────


def flags(name, tokenizer, **more):
    settings = {
        "transport": "shm",
        "shm_name": name,
        "batch_size": 8,
        "tokenizer_name": tokenizer,
        "min_items_sent_before_logging": 10**9,
        **more,
    }
    return ["serve", "--testing", "true", *(f"--env.{key}={value}" for key, value in settings.items())]


@pytest.fixture(scope="module", autouse=True)
def started(tokenizer):
    """What takes long to import, begun before it is needed: the launcher, and a server that forks ready processes."""
    multiprocessing.set_forkserver_preload(["atroposlib.envs.base", "rollway.integrations.atropos.__main__"])
    forkserver.ensure_running()
    with rollway.RecordServer(ATROPOS_SCHEMA, rollway.ShmTransport()) as learner:
        command = [sys.executable, "-m", "rollway.integrations.atropos", f"{ENV_FILE}:ToyEnv"]
        environment = subprocess.Popen(
            [*command, *flags(learner.name, tokenizer, items=10, total_steps=5)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        yield learner, environment
        environment.kill()
        environment.communicate()


@pytest.mark.timeout(300)  # a process that imports Atropos, on a machine that may be busy
def test_the_launcher_runs_a_file_unedited(started):
    learner, environment = started
    while learner.stats()["producers_alive"] == 0 and environment.poll() is None:
        time.sleep(0.01)
    keys = asyncio.run(read_groups(GroupReader(learner), 10))
    assert sorted(int(key.instance_id) for key, _ in keys) == list(range(10))
    learner.publish(6)
    said, _ = environment.communicate(timeout=SECONDS)
    assert environment.returncode == 0, said


@pytest.fixture
def launched(started):
    """Starts the launcher in processes that are forked from one with Atropos in it."""
    processes = []

    def launch(*arguments):
        target = atropos_hurry.main
        processes.append(
            multiprocessing.get_context("forkserver").Process(target=target, args=(arguments,), daemon=True)
        )
        processes[-1].start()
        return processes[-1]

    yield launch
    for process in processes:
        process.kill()
        process.join()


def test_the_api_command_is_the_hub(name, make, port, launched):
    process = launched("api", "--shm-name", name, "--host", "127.0.0.1", "--port", str(port))

    async def run():
        async with trainer(port) as ask:
            url = f"http://127.0.0.1:{port}"
            settings = {"transport": "shm", "delivery": "hub", "shm_name": name, "rollout_server_url": url}
            async with running(make(ToyEnv, items=50, **settings)):
                equal(await batches(ask, 4))

    asyncio.run(run())
    process.terminate()
    process.join(SECONDS)
    assert process.exitcode == 143


def test_the_api_command_lets_environments_in_over_tcp_with_a_token_and_tls(
    tmp_path, make, port, launched, authority, certificate
):
    token, tcp_port = tmp_path / "token", free_port()
    token.write_text("a secret that both sides know")
    listening = ["--tcp-port", str(tcp_port), "--token-file", str(token), "--lane-bytes", str(1 << 20)]
    shown = ["--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key)]
    launched("api", "--host", "127.0.0.1", "--port", str(port), *listening, *shown)
    joining = {"address": f"127.0.0.1:{tcp_port}", "token_file": str(token), "tls_ca": str(authority.pem)}

    async def run():
        async with trainer(port) as ask:
            url = f"http://127.0.0.1:{port}"
            async with running(make(ToyEnv, transport="tcp", delivery="hub", rollout_server_url=url, **joining)):
                equal(await batches(ask, 1))

    asyncio.run(run())


def test_ctrl_c_ends_an_environment_and_leaves_what_it_had_sent(learner, tokenizer, launched):
    environment = launched(f"{ENV_FILE}:ToyEnv", *flags(learner.name, tokenizer))
    reader = GroupReader(learner, group_timeout_s=1.0)
    keys = [key for key, _ in asyncio.run(read_groups(reader, 5))]
    os.kill(environment.pid, signal.SIGINT)
    environment.join(SECONDS)
    assert environment.exitcode == 1, "a KeyboardInterrupt that nobody caught"
    with contextlib.suppress(rollway.WaitTimeout):
        while (group := reader.read(2.0)) is not None:
            assert decode_group(group.records) == expected_group(int(group.key.instance_id), SIZE)
            keys.append(group.key)
            group.release()
    assert len(set(keys)) == len(keys)
    stats = learner.stats()
    assert stats["producers_alive"] == stats["reserved_records"] == 0


def test_ctrl_c_ends_the_hub_and_leaves_nothing(name, port, launched):
    process = launched("api", "--shm-name", name, "--host", "127.0.0.1", "--port", str(port))

    async def registered():
        async with trainer(port):
            pass

    asyncio.run(registered())
    os.kill(process.pid, signal.SIGINT)
    process.join(SECONDS)
    assert process.exitcode == 130


def test_environments_killed_in_the_middle_and_started_again(learner, tokenizer, launched):
    arguments = [f"{ENV_FILE}:ToyEnv", *flags(learner.name, tokenizer, max_batches_offpolicy=50)]
    reader = GroupReader(learner, group_timeout_s=1.0)
    seen = []
    for _ in range(3):
        environment = launched(*arguments)
        seen += asyncio.run(read_groups(reader, random.randint(20, 60)))
        environment.kill()
        environment.join()
        assert environment.exitcode == -signal.SIGKILL
    with contextlib.suppress(rollway.WaitTimeout):  # what the dead had committed; a half group is not among it
        while (group := reader.read(2.0)) is not None:
            assert decode_group(group.records) == expected_group(int(group.key.instance_id), SIZE)
            seen.append((group.key, 0))
            group.release()
    assert reader.pending == 0
    assert len({key for key, _ in seen}) == len(seen), "no group came twice"
    assert len({key.run for key, _ in seen}) == 3, "each start has a run of its own"
    assert waiting(learner) == 0
