"""Training end to end: the runners and the command, with a collector killed, a collector that fails, and Ctrl-C."""

import math
import multiprocessing
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

import rollway
from rollway.algorithms import AppoRunner, Policy, SacRunner
from rollway.runner import training_log
from tests.support.processes import Command, session, until

pytestmark = pytest.mark.timeout(300)  # seconds on a quiet machine; most of it is torch being imported
REACH = "tests.support.reach_env:Reach-v0"
QUICK_SAC = {"warmup_steps": 256, "batch_size": 64, "hidden": (32, 32), "learning_rate": 3e-3, "chunk_steps": 4}


@pytest.fixture(autouse=True)
def nothing_left():
    """No test leaves a segment of its own process behind."""
    yield
    assert not [segment.name for segment in rollway.segments() if segment.creator_pid == os.getpid()]


@pytest.mark.parametrize("env_workers", [None, 1], ids=["on its own", "with a worker"])
def test_appo_doubles_the_return_although_a_collector_is_killed(tmp_path, env_workers):
    killed = []
    with AppoRunner("CartPole-v1", rl_cfg={"return_window": 50, "seed": 1, "env_workers": env_workers}) as runner:
        for progress in runner.train(save_interval=5, log_dir=tmp_path):
            if progress.iteration == 3:
                pid = runner.supervisor.pids()[1]
                killed += [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
                os.kill(pid, signal.SIGKILL)
            if progress.mean_return >= 44 and progress.restarts and progress.collectors == 2:
                break
            assert progress.env_steps < 150_000, progress  # random actions hold the pole for 22 steps
        assert [death.signal_name for death in runner.supervisor.deaths] == ["SIGKILL"]
        assert killed[0] not in runner.supervisor.pids().values()
        assert len(killed) == 1 + (env_workers or 0)
        until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in killed))
    rows = training_log.read(tmp_path)
    assert [row["iteration"] for row in rows] == list(range(1, len(rows) + 1))
    assert Policy.load(tmp_path / "iteration_5").evaluate(episodes=3) > 0


def test_sac_learns_to_reach_and_keeps_the_pace_of_its_collectors(tmp_path):
    with SacRunner(REACH, rl_cfg=QUICK_SAC, num_envs=4, num_collectors=1) as runner:
        for progress in runner.train(log_dir=tmp_path):
            if progress.mean_return > -1:
                break
            assert progress.env_steps < 6_000, progress  # random actions earn -5.3
        assert runner.updates == progress.env_steps - 256 + 16
        assert len(runner.replay) <= progress.env_steps + 16 * 4  # no further ahead than the ring of reports is long
        assert runner.policy.evaluate(episodes=5) > -1


def test_training_on_goes_on_with_the_same_collectors(tmp_path):
    with AppoRunner("CartPole-v1", num_envs=2, num_collectors=1, rl_cfg={"rollout_steps": 8}) as runner:
        runner.learn(1, log_dir=tmp_path)
        pids = runner.supervisor.pids()
        runner.learn(1, log_dir=tmp_path)
        assert runner.supervisor.pids() == pids and len(pids) == 1


def test_what_a_collector_raises_reaches_the_learner_with_its_traceback(tmp_path):
    settings = {"rollout_steps": 8}
    with AppoRunner(REACH, {"fails_at": 20}, settings, num_envs=2, num_collectors=1) as runner:
        with pytest.raises(rollway.CollectorError, match="the simulator has lost its arm") as caught:
            for _ in runner.train(log_dir=tmp_path):
                pass
    assert "reach_env.py" in str(caught.value)


def test_the_command_trains_sums_up_and_leaves_a_policy_and_a_curve(tmp_path, run_command):
    settings = [f"--set={key}={str(value).strip('()').replace(' ', '')}" for key, value in QUICK_SAC.items()]
    logs = tmp_path / "logs"
    run = ["--env", REACH, "--steps", 800, "--collectors", 1, "--log-dir", logs]
    code, out, err = run_command("train", "sac", *run, *settings)
    assert code == 0, err
    assert re.search(r"staleness \d.*queue \d.*waiting: learner \d+%, collectors \d+%", out)
    assert re.search(r"evaluated +-\d", out) and f"{logs / 'learning_curve.png'}" in out
    assert (logs / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
    assert Policy.load(logs / "policy.pt").algorithm == "sac"


def test_ctrl_c_saves_what_was_learnt_and_ends_everything(tmp_path):
    command = Command(
        "train", "appo", "--collectors", 1, "--envs", 2, "--log-dir", tmp_path, "--set", "rollout_steps=16"
    )
    command.line("steps/s")
    os.killpg(command.process.pid, signal.SIGINT)
    code, out, err = command.ends()
    assert code == 130, err
    assert "stopped by Ctrl-C" in out and "Traceback" not in err
    assert Policy.load(tmp_path / "policy.pt").evaluate(episodes=2) > 0
    until(lambda: not session(command.process.pid))
    assert not [segment.name for segment in rollway.segments() if segment.creator_pid == command.process.pid]


def test_a_full_disk_is_one_line_that_names_the_file(tmp_path, run_command):
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", tmp_path]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        steps = ["--steps", 64, "--set", "rollout_steps=16"]
        code, _, err = run_command("train", "appo", "--collectors", 1, "--envs", 2, "--log-dir", tmp_path, *steps)
        assert code == 1 and "Traceback" not in err, err
        assert f"cannot write the policy to {tmp_path}" in err and "No space left on device" in err, err
        assert not list(tmp_path.glob("*policy*"))
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize(
    "args, says",
    [
        (["sac", "--env", "CartPole-v1"], "SAC takes Box"),
        (["appo", "--env", "Nothing-v9"], "cannot make the environment 'Nothing-v9'"),
        (
            ["appo", "--env", "tests.support.reach_env:Unmade-v0"],
            "'tests.support.reach_env:Unmade-v0': RuntimeError: the simulator has no arm (",
        ),
        (["appo", "--set", "epoks=3"], "no 'epoks'"),
        (["appo", "--device", "bogus"], "device is 'bogus'"),
        (["sac", "--device", "cuda:99"], "device is 'cuda:99'"),
        (["appo", "--seed", "-1"], "seed is -1"),
    ],
)
def test_what_cannot_be_trained_is_one_line_and_status_2(args, says, run_command):
    status, out, err = run_command("train", *args)
    assert status == 2 and err.count("\n") == 1 and says in err and not out


def test_an_environment_that_fails_in_a_collector_is_named_with_its_error(tmp_path, run_command):
    env = "tests.support.reach_env:Breaking-v0"
    code, _, err = run_command("train", "sac", "--env", env, "--collectors", 1, "--log-dir", tmp_path)
    assert code == 1 and repr(env) in err and "\nRuntimeError: the simulator has lost its arm\n" in err, err
    assert err.count("Traceback") == 1  # that of the collector, because the fault may be anywhere
    assert not multiprocessing.active_children()


def test_an_environment_that_a_collector_cannot_make_is_one_line_and_status_2(tmp_path, run_command):
    env = "tests.support.reach_env:Single-v0"
    code, _, err = run_command("train", "sac", "--env", env, "--collectors", 1, "--log-dir", tmp_path)
    assert code == 2 and "Traceback" not in err, err
    assert f"{env!r} again: RuntimeError: there is one arm only" in err and "fewer collectors" in err, err


# ── to the full return ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("every_s", [math.inf, 2.0], ids=["undisturbed", "a kill every 2 s"])
def test_appo_balances_the_pole(tmp_path, every_s):
    due, kills = time.monotonic() + every_s, 0
    with AppoRunner("CartPole-v1") as runner:
        for progress in runner.train(log_dir=tmp_path):
            if progress.window_full and progress.mean_return >= 475:
                break
            assert progress.env_steps < 1_000_000, progress
            alive = sorted(runner.supervisor.pids().values())
            if alive and time.monotonic() >= due:
                os.kill(alive[kills % len(alive)], signal.SIGKILL)
                due, kills = due + every_s, kills + 1
        assert every_s == math.inf or kills > 1
        assert len(runner.supervisor.deaths) in (kills, kills - 1)  # the last may not have been noticed yet
        assert runner.policy.evaluate(episodes=50) >= 475


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_sac_swings_the_pendulum_up(tmp_path):
    with SacRunner("Pendulum-v1") as runner:
        for progress in runner.train(log_dir=tmp_path):
            if progress.env_steps >= 12_000:
                break
        assert runner.policy.evaluate(episodes=100) >= -200
