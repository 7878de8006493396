"""AtroposSHMGenerator: what SkyRL gets for what an environment sent, who gets it, and what happens when it does not come."""

import asyncio
import os
import threading

import pytest

import rollway
from rollway.integrations.skyrl import NoOpInferenceClient
from rollway.integrations.skyrl.errors import (
    NoInferenceEngine,
    StashFull,
    TrajectoryMissing,
    TrajectoryTimeout,
    TrajectoryUnusable,
)
from rollway.metrics.numbers import GROUPS, STATS
from tests.support import skyrl_records as made
from tests.support.processes import until
from tests.support.segments import overwrite
from tests.support.skyrl_records import batch, generator_of, ids, send_group, tombstone

from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInterface  # isort: skip
from skyrl.train.generators.utils import concatenate_generator_outputs
from skyrl.train.utils.trainer_utils import validate_generator_output


@pytest.fixture
def server(name):
    with rollway.RecordServer(made.ATROPOS_SCHEMA, rollway.ShmTransport(name), lanes=4, lane_bytes=1 << 20) as server:
        yield server


@pytest.fixture
def env(server):
    with rollway.ShmRecordClient(server.name, made.ATROPOS_SCHEMA) as client:
        yield client


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


# ── conversion ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_trajectory_is_split_at_its_first_trained_token(server, env):
    send_group(
        env, tokens=[[1, 2, 3, 4, 5, 6]], masks=[[-100, -100, 3, -100, 5, 6]], logprobs=[[1, 1, -0.5, 1, -0.25, -2]]
    )
    output = run(generator_of(server).generate(batch("a")))
    assert output["prompt_token_ids"] == [[1, 2]]
    assert output["response_ids"] == [[3, 4, 5, 6]]
    assert output["loss_masks"] == [[1, 0, 1, 1]]
    assert output["rollout_logprobs"] == [[-0.5, 0.0, -0.25, -2.0]]
    assert output["rewards"] == [1.0] and isinstance(output["rewards"][0], float)
    assert output["stop_reasons"] == ["stop"]
    validate_generator_output(1, output)


def test_a_trajectory_that_is_trained_from_the_first_token_has_an_empty_prompt(server, env):
    send_group(env, tokens=[[7, 8]], masks=[[7, 8]], logprobs=[[-1, -2]])
    output = run(generator_of(server).generate(batch("a")))
    assert (output["prompt_token_ids"], output["response_ids"], output["loss_masks"]) == ([[]], [[7, 8]], [[1, 1]])


def test_the_token_0_and_the_score_0_are_data(server, env):
    send_group(env, tokens=[[5, 0, 0]], masks=[[-100, 0, 0]], scores=[0.0], logprobs=[[1, 0, 0]])
    output = run(generator_of(server).generate(batch("a")))
    assert (output["response_ids"], output["loss_masks"], output["rewards"]) == ([[0, 0]], [[1, 1]], [0.0])


def test_stop_reasons_come_from_the_overrides_and_are_obeyed(server, env):
    overrides = [{"stop_reason": "length"}, {"finish_reason": "stop"}]
    generator = generator_of(server, group_size=2, zero_reward_on_non_stop=True, overlong_filtering=True)
    send_group(env, size=2, scores=[1.0, 2.0], overrides=overrides)
    output = run(generator.generate(batch("a", size=2)))
    assert output["stop_reasons"] == ["length", "stop"]
    assert output["rewards"] == [0.0, 2.0]
    assert [sum(mask) > 0 for mask in output["loss_masks"]] == [False, True]


def test_every_number_has_a_sentence(name):
    with rollway.RecordServer(made.ATROPOS_SCHEMA, [rollway.ShmTransport(name), rollway.TcpTransport()]) as server:
        keys = generator_of(server).stats().keys()
    assert keys == {key for group in STATS["AtroposSHMGenerator"] for key in GROUPS[group]}


def test_logprobs_are_there_for_all_or_for_none(server, env):
    generator = generator_of(server)
    send_group(env)
    assert run(generator.generate(batch("a", logprobs=None)))["rollout_logprobs"] is None
    send_group(env, step=1, logprobs=None)
    assert run(generator.generate(batch("a", logprobs=None)))["rollout_logprobs"] is None
    send_group(env, step=2, logprobs=None)
    with pytest.raises(TrajectoryUnusable, match=r"1 of 1 trajectories came without inference_logprobs.*logprobs=null"):
        run(generator.generate(batch("a", logprobs=1)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"masks": [[-100, 2]]}, "has 3 tokens but 2 masks"),
        ({"logprobs": [[1.0, -1.0]]}, "has 3 tokens but 2 inference_logprobs"),
        ({"images": ["aGk"]}, "has images, and SkyRL wants pixel values"),
        ({"scores": [[0.1, 0.2]]}, "has no score that is one number"),
    ],
)
def test_what_skyrl_has_no_place_for_is_an_error_that_names_the_trajectory(server, env, fields, message):
    send_group(env, "math-3", **{"tokens": [[1, 2, 3]], "masks": [[-100, 2, 3]], **fields})
    with pytest.raises(TrajectoryUnusable, match=f"math-3.*{message}"):
        run(generator_of(server).generate(batch("math-3")))


@pytest.mark.parametrize("flaw", [{"images": [["x"]]}, {"logprobs": None}])
def test_one_unusable_group_costs_no_other_of_its_call(server, env, flaw):
    async def one_bad():
        generator = generator_of(server)
        for instance, fields in (("a", {}), ("b", flaw), ("c", {})):
            send_group(env, instance, **fields)
        with pytest.raises(TrajectoryUnusable):
            await generator.generate(batch("1", "2", "3"))
        return await generator.generate(batch("1", "2")), generator.stats()

    output, stats = run(one_bad())
    assert output["prompt_token_ids"] == made.prompts("a", "c")
    assert (stats["taken_records"], stats["stashed_records"]) == (0, 0)


def test_the_output_has_every_key_and_groups_can_be_concatenated(server, env):
    async def both():
        generator = generator_of(server, group_size=2)
        generator.publish(5)
        send_group(env, "a", size=2, version=5)
        send_group(env, "b", size=2, version=3)
        return [await generator.generate(batch("a", size=2)), await generator.generate(batch("b", size=2))]

    outputs = run(both())
    assert outputs[1]["rollout_metrics"]["rollway/staleness_mean"] == 2.0
    assert outputs[1]["trajectory_ids"] == ids("b", size=2)
    whole = concatenate_generator_outputs(outputs)
    assert len(whole["response_ids"]) == 4
    assert whole["rollout_metrics"]["rollway/staleness_max"] == 2


def test_what_was_made_with_later_weights_than_the_trainers_is_not_old(server, env):
    generator = generator_of(server)  # of a trainer that went back to a checkpoint
    generator.publish(3)
    send_group(env, version=50)
    metrics = run(generator.generate(batch("a")))["rollout_metrics"]
    assert (metrics["rollway/staleness_mean"], metrics["rollway/staleness_max"]) == (0, 0)


# ── who gets what ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_fills_the_places_in_order_and_keeps_groups_together(server, env):
    generator = generator_of(server, group_size=2)
    for instance in ("x", "y"):
        send_group(env, instance, size=2)
    output = run(generator.generate(batch("1", "2", size=2)))
    assert output["prompt_token_ids"] == made.prompts("x", "y", size=2)
    assert output["trajectory_ids"] == ids("1", "2", size=2)


@pytest.mark.parametrize("match", ["stream", "id"])
def test_the_same_instance_may_be_asked_for_again_in_a_row(server, env, match):
    generator = generator_of(server, group_size=2, match=match)
    send_group(env, "a", 2, step=0, marks=[1])
    send_group(env, "a", 2, step=1, marks=[2])
    output = run(generator.generate(batch("a", "a", size=2)))
    assert output["prompt_token_ids"] == [[1, 0], [1, 1], [2, 0], [2, 1]]


def test_records_that_come_in_any_order_are_sorted_by_repetition(server, env):
    generator = generator_of(server, group_size=3)
    send_group(env, "x", size=3, order=[2, 0, 1])
    assert run(generator.generate(batch("1", size=3)))["rewards"] == [0.0, 1.0, 2.0]


def test_by_id_each_instance_gets_its_own_group_whatever_the_order(server, env):
    generator = generator_of(server, match="id", group_size=2)
    for instance in ("c", "a", "b"):
        send_group(env, instance, size=2)
    output = run(generator.generate(batch("a", "b", "c", size=2)))
    assert output["prompt_token_ids"] == made.prompts("a", "b", "c", size=2)


def test_by_id_the_same_instance_of_two_epochs_and_of_evaluation_do_not_collide(server, env):
    async def epochs():
        generator = generator_of(server, match="id", group_size=2, eval_group_size=1)
        send_group(env, "7", size=2, step=0, marks=(100,))
        send_group(env, "7", size=2, step=1, marks=(101,))
        send_group(env, "7", phase="eval", step=0, marks=(102,))
        evaluated = await generator.generate(batch("7", phase="eval"))
        first = await generator.generate(batch("7", size=2))
        second = await generator.generate(batch("7", size=2))
        return [output["prompt_token_ids"][0][0] for output in (first, second, evaluated)]

    assert run(epochs()) == [100, 101, 102]


def test_by_id_a_restarted_environment_does_not_complete_an_older_half_group(server, env):
    generator = generator_of(server, match="id", group_size=2)
    send_group(env, "7", size=2, run="env:1", order=[0], marks=(100,))
    send_group(env, "7", size=2, run="env:2", marks=(200,))
    assert [row[0] for row in run(generator.generate(batch("7", size=2)))["prompt_token_ids"]] == [200, 200]


def test_a_duplicate_is_refused_and_counted(server, env):
    async def twice():
        generator = generator_of(server, group_size=2)
        send_group(env, "x", size=2, order=[0, 0, 1])
        first = await generator.generate(batch("1", size=2))
        send_group(env, "x", size=2)
        send_group(env, "y", size=2)
        second = await generator.generate(batch("2", size=2))
        return first, second, generator.stats()

    first, second, stats = run(twice())
    assert first["prompt_token_ids"] == made.prompts("x", size=2)
    assert second["prompt_token_ids"] == made.prompts("y", size=2)
    assert (stats["records_duplicate"], stats["records_late"]) == (1, 2)


@pytest.mark.parametrize("match", ["stream", "id"])
def test_concurrent_calls_never_take_each_others_trajectories(server, env, match):
    async def many():
        generator = generator_of(server, match=match, group_size=2)
        calls = [asyncio.create_task(generator.generate(batch(str(i), size=2))) for i in range(20)]
        await asyncio.sleep(0)  # all of them wait before the first record comes
        for i in reversed(range(20)):
            send_group(env, str(i), size=2)
            await asyncio.sleep(0)
        return await asyncio.gather(*calls)

    outputs = run(many())
    firsts = [output["prompt_token_ids"] for output in outputs]
    sent = [made.prompts(str(i), size=2) for i in range(20)]
    assert firsts == (sent if match == "id" else sent[::-1])


def test_a_cancelled_call_takes_nothing(server, env):
    async def cancelled():
        generator = generator_of(server, group_size=2)
        call = asyncio.create_task(generator.generate(batch("1", size=2)))
        await asyncio.sleep(0)
        send_group(env, "x", size=2, order=[0])
        while not generator.stats()["stashed_records"]:
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        send_group(env, "x", size=2, order=[1])
        return await generator.generate(batch("2", size=2))

    assert run(cancelled())["prompt_token_ids"] == made.prompts("x", size=2)


def test_a_call_that_is_cancelled_with_its_groups_in_hand_puts_them_back_in_front(server, env):
    async def cancelled():
        generator = generator_of(server)
        first, second = (asyncio.create_task(generator.generate(batch(i))) for i in "12")
        await asyncio.sleep(0)
        send_group(env, "x")
        send_group(env, "y")
        while len(generator._dispatcher._waiters) == 2:  # served, but not yet awake
            await asyncio.sleep(0)
        first.cancel()
        return await asyncio.gather(first, second, generator.generate(batch("3")), return_exceptions=True)

    first, second, third = run(cancelled())
    assert isinstance(first, asyncio.CancelledError)
    got = [second["prompt_token_ids"], third["prompt_token_ids"]]
    assert sorted(got) == sorted([made.prompts("x"), made.prompts("y")])


def test_what_nobody_has_asked_for_stays_in_the_ring(server, env):
    async def one():
        generator = generator_of(server)
        for i in range(10):
            send_group(env, str(i))
        await generator.generate(batch("0"))
        return generator.stats()

    stats = run(one())
    assert (stats["ready_records"], stats["stashed_records"], stats["taken_records"]) == (9, 0, 0)


def test_what_only_a_cancelled_call_has_asked_for_stays_in_the_ring_too(server, env):
    async def one():
        generator = generator_of(server)
        first, second = (asyncio.create_task(generator.generate(batch(i))) for i in "12")
        await asyncio.sleep(0.01)  # both wait, for two records
        second.cancel()
        await asyncio.sleep(0)
        for i in range(3):
            send_group(env, str(i))
        await first
        return generator.stats()

    stats = run(one())
    assert (stats["ready_records"], stats["stashed_records"], stats["taken_records"]) == (2, 0, 0)


def test_a_generator_can_be_used_from_one_event_loop_after_another(server, env):
    generator = generator_of(server)
    for instance in ("x", "y"):
        send_group(env, instance)
        assert run(generator.generate(batch("1")))["prompt_token_ids"] == made.prompts(instance)


# ── what does not come ────────────────────────────────────────────────────────────────────────────────────────────────


def test_in_a_stream_the_next_group_takes_the_place_of_a_dropped_one(server, env):
    async def dropped():
        generator = generator_of(server, group_size=2)
        send_group(env, "x", size=2, order=[0])
        tombstone(env, "x", repetition=1)
        tombstone(env, "w", repetition=0)
        tombstone(env, "w", repetition=2)  # it had one too many
        send_group(env, "y", size=2)
        return await generator.generate(batch("1", size=2)), generator.stats()

    output, stats = run(dropped())
    assert output["prompt_token_ids"] == made.prompts("y", size=2)
    assert stats["groups_missing"] == 2
    assert stats["taken_records"] == 0


@pytest.mark.parametrize("match", ["stream", "id"])
def test_a_dropped_group_ends_the_wait_with_its_reason_when_told_to_raise(server, env, match):
    async def dropped():
        generator = generator_of(server, match=match, group_size=2, on_missing="raise")
        call = asyncio.create_task(generator.generate(batch("x", size=2)))
        await asyncio.sleep(0)
        for repetition in range(2):
            tombstone(env, "x", repetition=repetition, reason="all scores are equal")
        with pytest.raises(TrajectoryMissing, match=r"'x'.*will never come: all scores are equal\."):
            await call
        send_group(env, "x", size=2, step=1)
        return await generator.generate(batch("x", size=2))

    assert run(dropped())["prompt_token_ids"] == made.prompts("x", size=2)


def test_substitution_by_id_is_refused(server):
    with pytest.raises(rollway.InvalidArgument, match="does not work with match=id"):
        generator_of(server, match="id", on_missing="substitute")


def test_a_group_with_nothing_to_train_on_is_treated_as_dropped(server, env):
    async def untrainable():
        generator = generator_of(server, group_size=2)
        send_group(env, "x", size=2, masks=[[-100, -100, 3], [-100, -100, -100]], tokens=[[1, 2, 3]] * 2)
        send_group(env, "y", size=2)
        return await generator.generate(batch("1", size=2)), generator.stats()

    output, stats = run(untrainable())
    assert output["prompt_token_ids"] == made.prompts("y", size=2)
    assert stats["groups_missing"] == 1


def test_by_id_nothing_to_train_on_is_an_error_that_says_which(server, env):
    send_group(env, "x", tokens=[[1, 2]], masks=[[-100, -100]])
    with pytest.raises(TrajectoryMissing, match="repetition 0 has nothing to train on"):
        run(generator_of(server, match="id").generate(batch("x")))


def test_stale_groups_are_passed_over_in_a_stream_and_counted(server, env):
    async def stale():
        generator = generator_of(server, group_size=2, max_staleness=1)
        generator.publish(7)
        send_group(env, "old", size=2, version=5)
        send_group(env, "mixed", size=2, version=(7, 5))
        send_group(env, "new", size=2, version=6)
        return await generator.generate(batch("1", size=2)), generator.stats()

    output, stats = run(stale())
    assert output["prompt_token_ids"] == made.prompts("new", size=2)
    assert output["rollout_metrics"]["rollway/staleness_max"] == 1
    assert (stats["groups_stale"], stats["taken_records"]) == (2, 0)


def test_a_group_that_grows_stale_while_it_waits_is_stale(server, env):
    async def stale():
        generator = generator_of(server, match="id", max_staleness=1)
        send_group(env, "x", version=1)
        send_group(env, "y", version=1)
        await generator.generate(batch("y"))  # x is stashed meanwhile
        assert generator.stats()["stashed_records"] == 1
        generator.publish(3)
        with pytest.raises(TrajectoryMissing, match="made with weights of version 1, and max_staleness asks for 2"):
            await generator.generate(batch("x"))

    run(stale())


def test_a_timeout_says_what_is_missing_and_who_is_attached(server, env):
    generator = generator_of(server, group_size=2, timeout_s=0.2)
    send_group(env, "x", size=2, order=[1])
    with pytest.raises(TrajectoryTimeout) as raised:
        run(generator.generate(batch("1", "2", size=2)))
    text = str(raised.value)
    assert "waited 0.2 s for 4 trajectories in 2 groups of phase 'train': 2 of 2 groups" in text
    assert "instance 'x', phase 'train', step 0, run 'test' lacks repetitions [0]" in text
    assert f"segment '{server.name}'" in text and str(os.getpid()) in text
    assert "1 environment workers live, 0 died" in text and "1 stashed" in text
    send_group(env, "x", size=2, order=[0])
    send_group(env, "y", size=2)
    assert len(run(generator.generate(batch("1", "2", size=2)))["rewards"]) == 4  # it had taken nothing


def test_a_timeout_says_that_a_call_may_hold_all_that_an_environment_has_room_for(server, env):
    generator = generator_of(server, timeout_s=0.5)
    for number in range(64):  # as many as its lane takes
        send_group(env, f"{number:03}")
    call = generator.generate(batch(*(f"{number:03}" for number in range(65))))
    with pytest.raises(
        TrajectoryTimeout, match=r"A lane has room for 1,048,576 bytes and 64 records; held are .* and 64"
    ):
        run(call)


def test_a_call_may_ask_for_more_than_an_environment_has_room_for(server, env):
    sender = threading.Thread(target=lambda: [send_group(env, f"{number:03}") for number in range(150)])
    sender.start()  # its lane takes 64
    names = [f"{number:03}" for number in range(150)]
    output = run(generator_of(server, timeout_s=60).generate(batch(*names)))
    sender.join()
    assert len(output["rewards"]) == 150
    assert output["prompt_token_ids"] == made.prompts(*names)
    assert server.stats()["taken_records"] == 0


@pytest.mark.parametrize("setting", [{"timeout_s": float("nan")}, {"max_staleness": -1}, {"max_stash": -1}])
def test_numbers_that_mean_nothing_are_refused(server, setting):
    with pytest.raises(rollway.InvalidArgument, match=f"{next(iter(setting))} = .* is out of range"):
        generator_of(server, **setting)


def test_a_timeout_says_who_was_not_let_in():
    with rollway.RecordServer(made.ATROPOS_SCHEMA, rollway.TcpTransport()) as server:
        with pytest.raises(rollway.SchemaMismatch):
            rollway.TcpRecordClient("localhost", server.port, {"tokens": "int64[*]"})
        until(lambda: server.refusals)
        with pytest.raises(TrajectoryTimeout, match=r"Last refused worker: .*tokens"):
            run(generator_of(server, timeout_s=0.1).generate(batch("1")))


def test_a_timeout_says_when_no_environment_ever_sent_that_phase(server, env):
    generator = generator_of(server, timeout_s=0.2)
    send_group(env, "x")
    with pytest.raises(
        TrajectoryTimeout, match=r"no environment has sent a record of phase 'eval'.*eval_interval=-1"
    ) as raised:
        run(generator.generate(batch("1", phase="eval")))
    assert "Is the environment running" not in str(raised.value)  # it is: the other phase came
    with pytest.raises(TrajectoryTimeout) as raised:
        run(generator_of(server, timeout_s=0.2).generate(batch("1", "2")))
    assert "no environment has sent a record of phase 'train'" in str(raised.value)
    assert "Is the environment running" in str(raised.value)


def test_by_id_a_timeout_names_the_instance_and_what_came_instead(server, env):
    generator = generator_of(server, match="id", timeout_s=0.2)
    send_group(env, "other")
    with pytest.raises(
        TrajectoryTimeout, match=r"\(instance wanted\) are missing; here, but not asked for: instance 'other'"
    ):
        run(generator.generate(batch("wanted")))


def test_a_group_that_stays_incomplete_counts_as_dropped_after_its_deadline(server, env):
    async def incomplete():
        generator = generator_of(server, group_size=2, group_timeout_s=0.2, on_missing="raise")
        send_group(env, "x", size=2, order=[0])
        with pytest.raises(TrajectoryMissing, match=r"repetitions \[1\] did not come in time"):
            await generator.generate(batch("1", size=2))
        return generator.stats()

    assert run(incomplete())["taken_records"] == 0


def test_the_stash_is_bounded(server, env):
    async def flooded():
        generator = generator_of(server, match="id", max_stash=8)
        for i in range(20):
            send_group(env, f"unwanted-{i}")
        with pytest.raises(
            StashFull,
            match=r"9 trajectories are stashed, and none of them is requested.*\(instance wanted\).*max_stash \(now 8\)",
        ):
            await generator.generate(batch("wanted"))
        return generator.stats()

    stats = run(flooded())
    assert (stats["stashed_records"], stats["ready_records"]) == (9, 11)


def test_dropped_groups_that_nobody_asks_for_fill_the_stash_too(server, env):
    async def flooded():
        generator = generator_of(server, match="id", max_stash=8)
        for i in range(20):
            tombstone(env, f"unwanted-{i}")
        with pytest.raises(StashFull, match=r"max_stash \(now 8\)"):
            await generator.generate(batch("wanted"))

    run(flooded())


def test_by_id_what_was_used_leaves_nothing_behind(server, env):
    async def used():
        generator = generator_of(server, match="id")
        for i in range(20):
            send_group(env, str(i))
            await generator.generate(batch(str(i)))
        return generator

    assert not run(used())._stash._queues


def test_a_group_of_another_size_is_an_error_at_once(server, env):
    generator = generator_of(server, group_size=4)
    send_group(env, "x", size=2)
    with pytest.raises(TrajectoryUnusable, match=r"has 2 trajectories, but SkyRL asks for 4.*n_samples_per_prompt"):
        run(generator.generate(batch("1", size=4)))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ({"metadata": {"group_size": 1}}, "a record without a key came from producer"),
        ({"key": rollway.RecordKey("r", "train", 0, "x", 0)}, "does not come from an Atropos environment"),
        (
            {"key": rollway.RecordKey("r", "train", 0, "x", 0), "metadata": {"group_size": 1}},
            "does not come from an Atropos",
        ),
        (
            {"key": rollway.RecordKey("r", "train", 0, "x", 7), "metadata": {"group_size": 1}},
            "does not come from an Atropos",
        ),
        (
            {"key": rollway.RecordKey("r", "sleep", 0, "x", 0), "metadata": {"group_size": 1}},
            "only the phases train; eval",
        ),
    ],
)
def test_one_record_that_is_no_trajectory_harms_no_other(server, env, label, message):
    async def bad():
        generator = generator_of(server)
        env.send(made.data(), **label)
        send_group(env, "x")
        with pytest.raises(TrajectoryUnusable, match=message):
            await generator.generate(batch("1"))
        return await generator.generate(batch("1"))

    assert run(bad())["prompt_token_ids"] == made.prompts("x")


def test_records_that_cannot_be_read_or_settled_harm_no_other(server, env):
    async def bad():
        generator = generator_of(server)
        env.tombstone(rollway.RecordKey("r", "train", 0, "x", -7))
        env.send(made.data(), key=rollway.RecordKey("r", "train", 0, "x", 0), metadata="this will be no JSON")
        overwrite(server.name, b'"this will be no JSON"', b"!this will be no JSON!")
        send_group(env, "x")
        with pytest.raises(rollway.InvalidArgument, match="outside a group"):
            await generator.generate(batch("1", "2", "3"))  # which reads all three at once
        return await generator.generate(batch("1"))

    assert run(bad())["prompt_token_ids"] == made.prompts("x")


def test_metadata_that_begins_well_and_is_no_json_costs_no_other_group_of_its_call(server, env):
    async def bad():
        generator = generator_of(server)
        for instance in ("a", "b", "c"):
            send_group(env, instance, messages=[f"of {instance}"])
        overwrite(server.name, b'"of b"', b'"of b!')
        with pytest.raises(rollway.InvalidArgument, match="is not JSON"):
            await generator.generate(batch("1", "2", "3"))
        return await generator.generate(batch("1", "2")), generator.stats()

    output, stats = run(bad())
    assert output["prompt_token_ids"] == made.prompts("a", "c")
    assert (stats["taken_records"], stats["stashed_records"]) == (0, 0)


def test_a_tombstone_that_gives_no_reason_is_one_all_the_same(server, env):
    generator = generator_of(server, match="id")
    tombstone(env, "x", reason="nothing at all")
    overwrite(server.name, b'{"reason":"nothing at all"}', b'["reason","nothing at all"]')
    with pytest.raises(TrajectoryMissing, match="the environment dropped it"):
        run(generator.generate(batch("x")))


@pytest.mark.parametrize("overrides", [["length"], [["stop_reason"]], [7]])
def test_overrides_that_are_no_dict_say_nothing_about_the_stop(server, env, overrides):
    send_group(env, "x", overrides=overrides)
    assert run(generator_of(server).generate(batch("x")))["stop_reasons"] == ["stop"]


def killed_environment(child, name):
    code = """
        import sys, rollway
        from rollway.integrations.atropos import ATROPOS_SCHEMA
        client = rollway.ShmRecordClient(sys.argv[1], ATROPOS_SCHEMA)
        print("attached", flush=True)
        sys.stdin.readline()
    """
    environment = child(code, name)
    environment.says("attached")
    environment.kill()


def test_when_every_environment_has_died_the_wait_ends(server, child):
    killed_environment(child, server.name)
    with pytest.raises(rollway.PeerDied, match=r"at least one died, and none came back within 0.1 s.*1 died"):
        run(generator_of(server, peer_timeout_s=0.1).generate(batch("1")))


def test_how_long_to_wait_for_a_new_environment_is_the_generators_setting(name, child):
    with rollway.RecordServer(made.ATROPOS_SCHEMA, rollway.ShmTransport(name), peer_timeout_s=0.0) as server:
        killed_environment(child, name)
        with pytest.raises(rollway.PeerDied, match=r"none came back within 1.0 s"):
            run(generator_of(server, peer_timeout_s=1.0).generate(batch("1")))


def test_closing_ends_every_wait(server):
    async def closed():
        generator = generator_of(server)
        calls = [asyncio.create_task(generator.generate(batch(str(i)))) for i in range(3)]
        await asyncio.sleep(0)
        generator.close()
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [type(error) for error in run(closed())] == [rollway.ConnectionClosedError] * 3


def test_the_published_version_reaches_the_environments(server, env):
    generator_of(server).publish(12)
    assert env.published_version == 12


def test_a_trainer_that_dies_leaves_what_it_had_stashed_to_the_next(name, child):
    """What is stashed is only taken: the next trainer gets it."""
    code = """
        import sys
        import rollway
        from rollway.integrations.atropos import ATROPOS_SCHEMA
        from rollway.integrations.skyrl.request import GroupRequest, OutputRow
        from rollway.integrations.skyrl.stash import Stash
        server = rollway.RecordServer(ATROPOS_SCHEMA, rollway.ShmTransport(sys.argv[1]))
        stash = Stash("id", {"train": 1}, substitutes=False)
        print("ready", flush=True)
        slots = stash.slots(GroupRequest("train", (OutputRow("b", 0),)))
        while (groups := stash.take(slots, 0)) is None:
            stash.add(server.read())
        groups[0].records[0].release()
        print("stashed", len(stash), flush=True)
        sys.stdin.readline()
    """
    trainer = child(code, name)
    trainer.says("ready")
    with rollway.ShmRecordClient(name, made.ATROPOS_SCHEMA) as client:
        for instance in "ab":
            send_group(client, instance)
        trainer.says("stashed 1")
        trainer.kill()
        with rollway.RecordServer(made.ATROPOS_SCHEMA, rollway.ShmTransport(name)) as server:
            assert run(generator_of(server, match="id").generate(batch("a")))["prompt_token_ids"] == made.prompts("a")


# ── the engine that is none ───────────────────────────────────────────────────────────────────────────────────────────

INFERENCE = {"generate": ({},), "chat_completion": ({},), "render_chat_completion": ({},), "completion": ({},)}
LIFE_CYCLE = {
    "wake_up": (),
    "sleep": (),
    "init_weight_update_communicator": (None,),
    "update_named_weights": (None,),
    "teardown": (),
    "reset_prefix_cache": (),
    "pause_generation": (),
    "resume_generation": (),
    "finish_session": ("session",),
}


def test_every_member_of_the_interface_is_known_to_these_tests():
    others = {"model_name", "get_endpoint_url", "get_world_size"}
    assert InferenceEngineInterface.__abstractmethods__ == {*INFERENCE, *LIFE_CYCLE, *others}


@pytest.mark.parametrize("call", INFERENCE)
def test_inference_calls_raise_and_say_what_to_do(call):
    with pytest.raises(NoInferenceEngine, match=rf"{call}\(\) was called.*generator.external.enabled=false"):
        run(getattr(NoOpInferenceClient(), call)(*INFERENCE[call]))


@pytest.mark.parametrize("call", LIFE_CYCLE)
def test_life_cycle_calls_do_nothing(call):
    assert run(getattr(NoOpInferenceClient(), call)(*LIFE_CYCLE[call])) is None


def test_the_rest_of_the_engine_is_honest():
    client = NoOpInferenceClient("org/model")
    assert client.model_name == "org/model"
    with pytest.raises(NoInferenceEngine, match="get_endpoint_url"):
        client.get_endpoint_url()
    assert run(client.get_world_size()) == (0, 0)
    client.increment_weight_version()
    assert client.weight_version == 1
    with pytest.raises(AttributeError):
        client.load_lora_adapter
