"""`rollway play`: the returns of a saved policy, and a GIF of it."""

import json

import pytest
from PIL import Image

from rollway.algorithms import AppoRunner

pytestmark = pytest.mark.timeout(300)
LOOK = "tests.support.reach_env:Look-v0"


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    """The log directory of a run that has learnt from pictures."""
    log_dir = tmp_path_factory.mktemp("run")
    with AppoRunner(LOOK, rl_cfg={"rollout_steps": 16, "gamma": 0.5}, num_envs=8, num_collectors=1) as runner:
        for progress in runner.train(save_interval=1000, log_dir=log_dir):
            if progress.window_full and progress.mean_return >= 7:
                break
            assert progress.env_steps < 50_000, progress  # random actions earn 4
        runner.checkpoint(log_dir)
    return log_dir


def test_the_returns_of_episodes_are_printed_with_their_mean(seeing, run_command):
    code, out, err = run_command("play", seeing, "--episodes", 4)
    assert code == 0, err
    lines = out.splitlines()
    returns = [float(line.split()[3]) for line in lines[:4]]
    assert [line.split()[:2] for line in lines[:4]] == [["episode", str(n)] for n in range(1, 5)]
    assert lines[4] == f"mean of 4: {sum(returns) / 4:.2f}" and sum(returns) / 4 >= 6


def test_the_first_episode_is_a_gif(seeing, tmp_path, run_command):
    path = tmp_path / "seen.gif"
    status, out, _ = run_command("play", seeing / "policy.pt", "--episodes", 2, "--gif", path)
    assert status == 0 and str(path) in out
    with Image.open(path) as gif:
        assert gif.size == (16, 12) and 2 <= gif.n_frames <= 9  # frames that do not change are one
        total = 0
        for frame in range(gif.n_frames):
            gif.seek(frame)
            total += gif.info["duration"]
        assert total == 900


def test_the_same_as_json(seeing, run_command):
    status, out, _ = run_command("play", seeing, "--episodes", 2, "--seed", 5, "--json")
    said = json.loads(out)
    assert status == 0 and said["env"] == LOOK and len(said["returns"]) == 2
    assert said["mean"] == sum(said["returns"]) / 2


def test_what_cannot_be_played_is_one_line_and_status_2(seeing, tmp_path, run_command):
    (tmp_path / "notes.txt").write_text("nothing of ours")
    reach = tmp_path / "reach"
    with AppoRunner("tests.support.reach_env:Reach-v0", num_envs=1, num_collectors=1) as runner:
        runner.checkpoint(reach)
    for args, says in (
        ([tmp_path], "there is no checkpoint in"),
        ([tmp_path / "notes.txt"], "is not a policy"),
        ([tmp_path / "nowhere"], "there is no"),
        ([reach, "--gif", tmp_path / "no.gif"], "renders no pictures"),
    ):
        status, out, err = run_command("play", *args)
        assert status == 2 and says in err and err.count("\n") == 1 and not out
    assert not (tmp_path / "no.gif").exists()
