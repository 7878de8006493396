"""A run of `rollway train` that goes on: from its checkpoints, with its counts, and never over the files of another."""

import json
import re
import sys

import numpy as np
import pytest
import torch

import rollway
from rollway.algorithms import AppoRunner, Policy, SacRunner
from rollway.runner import training_log

pytestmark = pytest.mark.timeout(300)  # seconds on a quiet machine; most of it is torch being imported
REACH = "tests.support.reach_env:Reach-v0"
SMALL_APPO = {"rollout_steps": 8}
SMALL_SAC = {"warmup_steps": 64, "batch_size": 16, "hidden": (16,)}


def weights(runner):
    return [parameter.detach().clone() for parameter in runner.learner.actor.parameters()]


def test_a_runner_goes_on_with_networks_optimisers_counts_and_transitions(tmp_path):
    options = {"rl_cfg": SMALL_SAC, "num_envs": 2, "num_collectors": 1}
    with SacRunner(REACH, **options) as runner:
        progress = list(runner.train(20, save_interval=100, log_dir=tmp_path))[-1]
        runner.checkpoint(tmp_path)
        before, updates, alpha = weights(runner), runner.updates, runner.learner.alpha
        moments = runner.learner.optimisers.actor.state_dict()["state"][0]["exp_avg"].clone()
        rewards = runner.replay.contents()["rewards"]
    with SacRunner(REACH, **options) as runner:
        runner.resume(tmp_path)
        torch.testing.assert_close(weights(runner), before, rtol=0, atol=0)
        torch.testing.assert_close(runner.learner.optimisers.actor.state_dict()["state"][0]["exp_avg"], moments)
        assert (runner.updates, runner.learner.alpha, runner.iteration) == (updates, alpha, 20)
        assert np.isin(rewards, runner.replay.contents()["rewards"]).all()
        after = next(runner.train(2, log_dir=tmp_path))
        assert after.iteration == 21 and after.env_steps == progress.env_steps + 16
        assert after.episodes >= progress.episodes and runner.updates == updates + 16
        with pytest.raises(rollway.InvalidArgument, match="before the first train"):
            runner.resume(tmp_path)


def test_without_its_transitions_a_runner_fills_the_buffer_again_before_it_learns(tmp_path):
    options = {"rl_cfg": SMALL_SAC, "num_envs": 2, "num_collectors": 1}
    with SacRunner(REACH, **options) as runner:
        runner.learn(8, log_dir=tmp_path)  # saves iteration_8, as a run that is killed later
        updates = runner.updates
    with SacRunner(REACH, **options) as runner:
        runner.resume(tmp_path)
        assert updates == runner.updates > 0 and len(runner.replay) == 0
        runner.learn(3, log_dir=tmp_path)
        assert runner.updates == updates
        runner.learn(2, log_dir=tmp_path)
        assert runner.updates > updates


def test_what_is_no_checkpoint_of_the_run_is_refused(tmp_path):
    with AppoRunner("CartPole-v1", num_envs=1, num_collectors=1, rl_cfg=SMALL_APPO) as runner:
        with pytest.raises(rollway.InvalidArgument, match="no checkpoint"):
            runner.resume(tmp_path)
        runner.policy.save(tmp_path / "policy.pt")
        with pytest.raises(rollway.InvalidArgument, match="not the state of its training"):
            runner.resume(tmp_path)
        runner.checkpoint(tmp_path)
    with AppoRunner("Acrobot-v1", num_envs=1, num_collectors=1, rl_cfg=SMALL_APPO) as runner:
        with pytest.raises(rollway.InvalidArgument, match="is of appo on 'CartPole-v1', not of appo on 'Acrobot-v1'"):
            runner.resume(tmp_path)
    with AppoRunner("CartPole-v1", num_envs=1, num_collectors=1, rl_cfg={"hidden": (8,)}) as runner:
        with pytest.raises(rollway.InvalidArgument, match=r"do not fit.*hidden"):
            runner.resume(tmp_path)


def test_the_command_goes_on_after_ctrl_c_and_again_with_more_steps(tmp_path, run_command, interrupted_command):
    settings = ["--set", "warmup_steps=64", "--set", "batch_size=16", "--set", "hidden=16"]
    args = ["train", "sac", "--collectors", 1, "--log-dir", tmp_path, *settings, "--env", REACH, "--steps", 100_000]
    log = tmp_path / training_log.FILE_NAME
    code, _, err = interrupted_command(lambda: log.exists() and training_log.read(tmp_path), *args)
    assert code == 130 and "Traceback" not in err, err
    rows = training_log.read(tmp_path)
    with (tmp_path / training_log.FILE_NAME).open("a") as file:  # as a run that is killed after its last checkpoint
        file.write(json.dumps({**rows[-1], "iteration": rows[-1]["iteration"] + 5}) + "\n")
    made = Policy.read(tmp_path / "policy.pt")["extra"]["training"]["board"]["steps"]
    code, out, err = run_command("train", "sac", "--log-dir", tmp_path, "--resume", "--steps", made + 160)
    assert code == 0, err
    assert f"goes on after {made:,} steps" in out
    after = training_log.read(tmp_path)
    assert [row["iteration"] for row in after] == list(range(1, len(after) + 1))
    assert after[len(rows)]["env_steps"] == made + 16 and after[-1]["env_steps"] == made + 160
    request = json.loads((tmp_path / "run.json").read_text())
    assert (request["env"], request["collectors"], request["settings"]["hidden"]) == (REACH, 1, "16")
    code, _, err = run_command("train", "sac", "--log-dir", tmp_path, "--resume")
    assert code == 2 and "give it more with --steps" in err, err


@pytest.mark.parametrize(
    "args, says",
    [
        (
            ["appo", "--log-dir", "{run}"],
            "{run} holds a run. Add --resume to go on with it, or choose another --log-dir",
        ),
        (["appo", "--resume"], "--resume needs --log-dir"),
        (["appo", "--resume", "--log-dir", "{empty}"], "{empty} holds no run"),
        (["sac", "--resume", "--log-dir", "{run}"], "has the algorithm 'appo', not 'sac'"),
        (
            ["appo", "--resume", "--log-dir", "{run}", "--env", "Acrobot-v1"],
            "has --env 'CartPole-v1', not 'Acrobot-v1'",
        ),
        (["appo", "--resume", "--log-dir", "{run}", "--wrapper", "a:B"], "has --wrapper none, not a:B"),
        (["appo", "--resume", "--log-dir", "{run}"], "there is no checkpoint in {run}"),
    ],
)
def test_a_directory_that_does_not_suit_is_one_line_and_status_2(tmp_path, args, says, run_command):
    from rollway.cli.train.run_directory import RunDirectory, TrainRequest

    run = tmp_path / "run"
    RunDirectory(run, TrainRequest("appo", "CartPole-v1", 2, 8, 100), False).write()
    before = sorted(run.iterdir())
    places = {"run": run, "empty": tmp_path / "empty"}
    status, out, err = run_command("train", *(arg.format(**places) for arg in args))
    assert status == 2 and err.count("\n") == 1 and says.format(**places) in err and not out
    assert sorted(run.iterdir()) == before and not (tmp_path / "empty").exists()


def test_what_was_learnt_is_saved_when_a_collector_raises(tmp_path, run_command):
    code, out, err = run_command(
        "train", "appo", "--env", "tests.support.reach_env:Breaking-v0", "--collectors", 1, "--envs", 1,
        "--log-dir", tmp_path, "--set", "rollout_steps=4", "--set", "rollouts_per_update=1",
    )  # fmt: skip
    assert code == 1 and "the simulator has lost its arm" in err, err
    assert f"{tmp_path / 'policy.pt'}" in out
    assert Policy.read(tmp_path / "policy.pt")["extra"]["training"]["iteration"] >= 1


def test_a_wrapper_of_the_current_directory_reaches_the_collectors_and_the_checkpoint(
    tmp_path, run_command, monkeypatch
):
    (tmp_path / "mine.py").write_text(
        "import gymnasium\n"
        "class Richer(gymnasium.RewardWrapper):\n"
        "    def reward(self, reward):\n"
        "        return reward + 1000\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # as a script that pip installs has it
    code, out, err = run_command(
        "train", "appo", "--wrapper", "mine:Richer", "--wrapper", "gymnasium.wrappers:FlattenObservation",
        "--collectors", 1, "--envs", 2, "--steps", 512, "--log-dir", "logs", "--set", "rollout_steps=16",
    )  # fmt: skip
    assert code == 0, err
    assert training_log.read(tmp_path / "logs")[-1]["mean_return"] > 1000
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    del sys.modules["mine"]  # so that `play` finds it by itself
    code, out, err = run_command("play", "logs", "--episodes", 1)
    assert code == 0 and float(out.split("mean of 1: ")[1]) > 1000, err
    del sys.modules["mine"]


def test_the_numbers_go_to_weights_and_biases(tmp_path, run_command, monkeypatch):
    pytest.importorskip("wandb")
    args = ["train", "appo", "--wandb", "tests", "--collectors", 1, "--envs", 2, "--set", "rollout_steps=16"]
    args += ["--log-dir", tmp_path / "run"]
    for variable, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(variable, value)
    code, _, err = run_command(*args, "--steps", 128)
    assert code == 0, err
    identity = json.loads((tmp_path / "run" / "run.json").read_text())["wandb_id"]
    files = f"offline-run-*-{identity}/*.wandb"
    (first,) = (tmp_path / "run" / "wandb").glob(files)
    assert re.search(rb"env_steps.{3}128\b", first.read_bytes())  # how the package writes a number
    code, _, err = run_command(*args, "--steps", 256, "--resume")
    assert code == 0, err
    (second,) = {*(tmp_path / "run" / "wandb").glob(files)} - {first}
    assert re.search(rb"env_steps.{3}256\b", second.read_bytes())
