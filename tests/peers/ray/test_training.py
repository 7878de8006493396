"""APPO on a Ray cluster: it learns on three nodes although one of them is killed; the command does the same."""

import os
import signal

import pytest

from rollway.algorithms import AppoRunner, Policy, SacRunner
from rollway.errors import InvalidArgument
from rollway.integrations.ray import RayPlacement
from tests.peers.ray.conftest import WAIT_S, add_node
from tests.peers.ray.test_collectors import segments
from tests.support.processes import Command, until


def test_appo_learns_on_three_nodes_although_one_of_them_is_killed(ray, ray_cluster, tmp_path):
    third = add_node(ray_cluster, num_cpus=2)
    placement = RayPlacement(num_cpus=1, route="forwarder")
    killed_at = None
    settings = {"return_window": 50, "seed": 1}
    with AppoRunner("CartPole-v1", rl_cfg=settings, num_envs=12, num_collectors=3, placement=placement) as runner:
        for progress in runner.train(save_interval=1000, log_dir=tmp_path):
            if killed_at is None and len(runner.supervisor.pids()) == 3 and progress.iteration >= 3:
                nodes = runner.supervisor.nodes()
                assert len(set(nodes.values())) == 3
                ray_cluster.remove_node(third, allow_graceful=False)
                killed_at = progress.iteration
            restarted = killed_at is not None and progress.restarts and len(runner.supervisor.pids()) == 3
            if progress.mean_return >= 35 and restarted:
                break
            assert progress.env_steps < 400_000, progress  # random actions hold the pole for 22 steps
        (death,) = runner.supervisor.deaths
        assert nodes[death.index] == third.node_id and "was lost. Ray says" in str(death)
    until(lambda: not segments(), WAIT_S)


def test_sac_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="run on the learner's machine"):
        SacRunner("Pendulum-v1", placement=RayPlacement())


def test_ctrl_c_ends_the_command_its_actors_and_forwarders(ray, address, tmp_path):
    run = ["--collectors", 2, "--envs", 2, "--log-dir", tmp_path, "--set", "rollout_steps=16"]
    command = Command("train", "appo", "--ray", address, *run, ROLLWAY_RAY_FORWARD="1")
    command.line("steps/s")
    os.killpg(command.process.pid, signal.SIGINT)
    code, out, err = command.ends()
    assert code == 130, err
    assert "stopped by Ctrl-C" in out and not err
    assert Policy.load(tmp_path / "policy.pt").evaluate(episodes=2) > 0
    until(lambda: not segments(), WAIT_S)
    until(lambda: not ray.util.list_named_actors(all_namespaces=True), WAIT_S)  # forwarders, and what knows the run
    until(lambda: ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"], WAIT_S)


@pytest.mark.parametrize(
    "args, status, says",
    [
        (["sac", "--ray", "auto"], 2, "the collectors of SAC run on the learner's machine"),
        (["appo", "--ray", "ray://localhost:10001"], 2, "is 'auto' or host:port, not 'ray://localhost:10001'"),
        (["appo", "--ray", "localhost:1"], 1, "no cluster of Ray answers at 'localhost:1'"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_line(args, status, says, tmp_path, monkeypatch, capfd):
    from rollway.cli import app

    monkeypatch.setattr("sys.argv", ["rollway", "train", *args, "--log-dir", str(tmp_path)])
    code, err = app.run(), capfd.readouterr().err
    assert code == status and err.count("\n") == 1 and says in err and "Traceback" not in err, err
