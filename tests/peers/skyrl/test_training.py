"""SkyRL's real trainers, in a process of their own, on what an unmodified Atropos environment sends from another.

Only the model is stubbed: forward and update. At the end every token, mask, logprob and score that the trainer was about
to train on is compared with what the environment had made up.
"""

import socket
from collections import Counter

import pytest

from tests.support import skyrl_stage
from tests.support.skyrl_run import run_fixture, stage_fixture  # noqa: F401

pytestmark = pytest.mark.timeout(300)  # the first of them imports both packages in another process

SIZE = skyrl_stage.GROUP_SIZE
SECOND = 100_000
"""The first item of an environment that was started again."""

atropos_toy_env = skyrl_stage.atropos_toy_env


def rows(journal):
    """What was trained on, a row at a time: tokens, trained or not from the response on, logprobs."""
    for batch in journal["batches"]:
        for tokens, there, response, mask, logprobs in zip(
            *(
                batch[name]
                for name in ("sequences", "attention_mask", "response_mask", "loss_mask", "rollout_logprobs")
            ),
            strict=True,
        ):
            yield (
                [token for token, real in zip(tokens, there, strict=True) if real],
                [int(one) for one, real in zip(mask, response, strict=True) if real],
                [one for one, real in zip(logprobs, response, strict=True) if real],
            )


def check(journal, times=1):
    """Every row is a trajectory that was made, complete and as often as it may be, and groups stand together.

    Gives the items, one for each group.
    """
    made = {
        tuple(one["tokens"]): (item, repetition, one)
        for item in (*range(500), *range(SECOND, SECOND + 500))
        for repetition in range(SIZE)
        for one in [atropos_toy_env.trajectory(item, repetition)]
    }
    seen = []
    for (tokens, mask, logprobs), reward in zip(rows(journal), journal["rewards"], strict=True):
        item, repetition, one = made[tuple(tokens)]
        prompt = one["masks"].count(-100)
        assert mask == [1] * (len(tokens) - prompt)
        assert logprobs == pytest.approx(one["inference_logprobs"][prompt:], rel=1e-6)
        assert reward == one["scores"]
        seen.append((item, repetition))
    assert set(Counter(seen).values()) == {times}
    groups = [seen[at : at + SIZE] for at in range(0, len(seen), SIZE)]
    assert all(group == [(group[0][0], repetition) for repetition in range(SIZE)] for group in groups)
    return [group[0][0] for group in groups]


def test_the_real_trainer_trains_on_what_an_unmodified_environment_sends(run, name):
    run.train(8, generator__external__shm_name=name, trainer__epochs=2)
    environment = run.environment(transport="shm", shm_name=name)
    journal = run.ends()
    assert sorted(check(journal)) == list(range(16))  # two groups a step, eight steps: the first sixteen, each once
    environment.join(30)
    assert environment.exitcode == 0, run.logs()  # the learner closed: it is told, and ends
    assert (journal["version"], journal["engine_version"]) == (8, 9)  # before the first step, and after each
    assert journal["stats"]["stashed_records"] < 4  # at most the beginning of the next group


def test_by_id_each_prompt_is_trained_on_with_its_own_trajectories(run, name):
    run.train(6, generator__external__shm_name=name, generator__external__match="id", trainer__epochs=2)
    run.environment(transport="shm", shm_name=name, items=6, epochs=2)
    journal = run.ends()
    items = check(journal, times=2)  # two epochs
    assert [str(item) for item in items for _ in range(SIZE)] == journal["uids"]


def test_the_fully_asynchronous_trainer_asks_many_times_at_once(run, name):
    settings = {name.replace(".", "__"): value for name, value in skyrl_stage.FULLY_ASYNC.items()}
    run.train(8, generator__external__shm_name=name, trainer__epochs=2, **settings)
    run.environment(transport="shm", shm_name=name)
    journal = run.ends()
    assert sorted(check(journal)) == list(range(16))
    assert journal["most_at_once"] == 4
    assert journal["version"] == 8


def test_an_environment_that_is_killed_and_restarted_loses_and_repeats_nothing(run, name):
    run.train(40, generator__external__shm_name=name, generator__external__group_timeout_s=2)
    first = run.environment(transport="shm", shm_name=name)
    run.until_step(2)
    run.kill(first)
    run.environment(transport="shm", shm_name=name, first_item=SECOND)
    items = check(run.ends())
    assert len(items) == 40
    of_first = sorted(item for item in items if item < SECOND)
    assert of_first == list(range(len(of_first))) and len(of_first) >= 4  # all that it had sent, without a gap
    assert len(of_first) < 40  # and the second took over


def test_the_same_over_tcp(run):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    token = run.directory / "token"
    token.write_text("sixteen bytes and more")
    settings = {"transport": "tcp", "address": address, "token_file": token}
    run.train(8, **{f"generator__external__{name}": value for name, value in settings.items()})
    run.environment(transport="tcp", address=address, token_file=str(token))
    assert sorted(check(run.ends())) == list(range(8))
