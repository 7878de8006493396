"""The entrypoint: what it accepts, what it sets, which trainer it takes; and SkyRL's own command line leads to it."""

import json
import os
import pickle
import signal

import pytest

import rollway
from rollway.integrations.atropos import ATROPOS_SCHEMA
from rollway.integrations.skyrl import trainers
from rollway.integrations.skyrl.config import ExternalConfig, ExternalTrainConfig, prepare
from rollway.integrations.skyrl.entrypoint import trainer_class
from tests.support import skyrl_records, skyrl_stage
from tests.support.processes import until
from tests.support.skyrl_run import run_fixture, stage_fixture  # noqa: F401

PLAIN = [f"{name}={value}" for name, value in skyrl_stage.SETTINGS.items()]
FULLY_ASYNC = [f"{name}={value}" for name, value in skyrl_stage.FULLY_ASYNC.items()]


def test_backend_none_is_accepted_and_what_only_an_engine_could_use_is_off():
    cfg = prepare([*PLAIN, "trainer.placement.colocate_all=true", "trainer.override_entrypoint=any.module"])
    assert cfg.generator.inference_engine.backend == "vllm"  # the name that SkyRL's code behind it knows
    assert cfg.trainer.placement.colocate_all is False
    assert cfg.generator.inference_engine.enable_ray_prometheus_stats is False


def test_evaluation_is_off_and_the_log_says_so_unless_it_is_asked_for(caplog):
    silent = [one for one in PLAIN if not one.startswith("trainer.eval")]
    for more in ([], ["trainer.eval_before_train=false"]):
        trainer = prepare([*silent, *more]).trainer
        assert (trainer.eval_interval, trainer.eval_before_train) == (-1, False)
        assert "trainer.eval_interval=-1 trainer.eval_before_train=false" in caplog.text
        caplog.clear()
    assert prepare([*silent, "trainer.eval_interval=3"]).trainer.eval_interval == 3
    assert prepare([*silent, "trainer.eval_before_train=true"]).trainer.eval_interval == 5
    own = [one for one in silent if not one.endswith("backend=none")]
    engine = ["generator.external.enabled=false", "generator.inference_engine.num_engines=1"]
    assert prepare([*own, *engine]).trainer.eval_interval == 5
    assert not caplog.records


def test_the_external_settings_are_read_and_the_config_can_be_sent_to_another_process():
    cfg = prepare([*PLAIN, "generator.external.shm_name=run1", "generator.external.max_staleness=3"])
    again = pickle.loads(pickle.dumps(cfg)).generator.external
    assert (again.shm_name, again.max_staleness, again.match) == ("run1", 3, "stream")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("generator.external.match=best", "match is 'best'; it must be one of stream, id"),
        ("generator.external.transport=pigeon", "transport is 'pigeon'; it must be one of shm, tcp, both"),
        ("generator.external.on_missing=wait", "on_missing is 'wait'; it must be one of None, substitute, raise"),
        ("generator.external.if_exists=maybe", "if_exists is 'maybe'"),
        ("generator.external.tls_cert=cert.pem", "tls_cert and tls_key, both"),
        ("generator.external.max_staleness=-1", "max_staleness = -1 is out of range: from 0 on, or null"),
        ("generator.external.timeout_s=-1", "timeout_s = -1 is out of range"),
        ("generator.external.peer_timeout_s=.nan", "peer_timeout_s = nan is out of range"),
        ("generator.external.max_stash=-1", "max_stash = -1 is out of range: at least 0"),
        ("generator.external.lanes=0", "lanes = 0 is out of range: at least 1"),
        ("generator.external.enabled=false", "backend=none needs generator.external.enabled=true"),
        ("generator.step_wise_trajectories=true", "step_wise_trajectories=true is not supported"),
        ("generator.vision_language_generator=true", "vision_language_generator=true is not supported"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(setting, message):
    with pytest.raises(rollway.InvalidArgument, match=message):
        prepare([*PLAIN, setting])


def test_the_batch_of_skyrls_defaults_fits_into_the_lane_of_one_environment(name):
    """A call of ``generate`` holds what has come until the last of it is there."""
    wanted = ExternalTrainConfig()
    asked = wanted.trainer.train_batch_size * wanted.generator.n_samples_per_prompt
    with (
        ExternalConfig(shm_name=name).open() as server,
        rollway.ShmRecordClient(name, ATROPOS_SCHEMA, on_full="error") as environment,
    ):
        for _ in range(asked):
            environment.send(skyrl_records.data())
        assert server.stats()["ready_records"] == asked == 5120


def test_an_unknown_setting_is_refused_by_skyrl_itself():
    with pytest.raises(ValueError, match=r"Invalid fields \{'shmname'\} for ExternalConfig"):
        prepare([*PLAIN, "generator.external.shmname=run1"])


def test_the_old_name_of_the_group_timeout_works_with_a_warning():
    with pytest.warns(
        DeprecationWarning, match=r"group_deadline_s is deprecated: use generator\.external\.group_timeout_s"
    ):
        external = prepare([*PLAIN, "generator.external.group_deadline_s=7"]).generator.external
    assert external.group_timeout_s == 7


def test_without_external_generation_skyrls_own_settings_stay():
    own = [one for one in PLAIN if not one.endswith("backend=none")]
    cfg = prepare([*own, "generator.external.enabled=false", "generator.inference_engine.num_engines=1"])
    assert cfg.trainer.placement.colocate_all is True


def test_an_address_that_is_none_is_refused():
    external = prepare(
        [*PLAIN, "generator.external.transport=tcp", "generator.external.address=here"]
    ).generator.external
    with pytest.raises(rollway.InvalidArgument, match="address is 'here'; write it like"):
        external.open()


def test_a_token_file_that_is_not_there_is_named_with_its_setting(tmp_path):
    where = [f"generator.external.token_file={tmp_path / 'none'}", "generator.external.transport=tcp"]
    with pytest.raises(rollway.InvalidArgument, match=r"none' .*generator\.external\.token_file must name"):
        prepare([*PLAIN, *where]).generator.external.open()


def test_each_configuration_has_its_trainer():
    not_simulated = [one for one in FULLY_ASYNC if "simulate" not in one]
    assert trainer_class(prepare(PLAIN)) is trainers.ExternalRayPPOTrainer
    assert trainer_class(prepare([*PLAIN, *not_simulated])) is trainers.ExternalFullyAsyncRayPPOTrainer
    assert trainer_class(prepare([*PLAIN, *FULLY_ASYNC])) is trainers.ExternalFullyAsyncTrainerSim


def test_a_trainer_of_ours_refuses_another_generator():
    with pytest.raises(rollway.InvalidArgument, match=r"needs an AtroposSHMGenerator.*its generator is a object"):
        trainers.ExternalRayPPOTrainer(
            cfg=prepare(PLAIN),
            tracker=None,
            tokenizer=None,
            train_dataset=skyrl_stage.Prompts(8),
            inference_engine_client=None,
            generator=object(),
        )


def command_line(run, name, directory):
    """SkyRL's, for a simulated training of five steps on one prompt."""
    data = directory / "prompts.jsonl"
    data.write_text(json.dumps({"prompt": [{"role": "user", "content": "hello"}]}) + "\n")
    return [
        "trainer.override_entrypoint=rollway.integrations.skyrl.entrypoint",
        *PLAIN,
        *FULLY_ASYNC,
        f"generator.external.shm_name={name}",
        f"trainer.policy.model.path={run.tokenizer}",
        f"data.train_data=['{data}']",
        f"trainer.export_path={directory}",
        f"trainer.ckpt_path={directory}",
        "trainer.train_batch_size=1",
        "trainer.policy_mini_batch_size=1",
        "trainer.fully_async.num_parallel_generation_workers=1",
        "trainer.epochs=5",
    ]


@pytest.mark.timeout(300)  # the first of its kind imports both packages in another process
def test_skyrls_own_command_line_trains_on_external_trajectories(run, name, tmp_path):
    run.main(*command_line(run, name, tmp_path))
    environment = run.environment(transport="shm", shm_name=name)
    run.ends()
    log = run.logs()
    assert "'trainer/global_step': 5" in log and "Training done!" in log
    assert "rollway/staleness_mean" in log
    environment.join(30)
    assert environment.exitcode == 0, log


@pytest.mark.timeout(300)
def test_a_trainer_that_is_told_to_end_closes_its_records_and_its_environments_end(run, name, tmp_path):
    run.main(*command_line(run, name, tmp_path), "trainer.fully_async.simulate_training_step_seconds=1000")
    environment = run.environment(transport="shm", shm_name=name)
    until(lambda: any(environment.pid in one.pids for one in rollway.segments() if one.name == name), 200)
    os.kill(run.trainer.pid, signal.SIGTERM)
    run.trainer.join(60)
    assert run.trainer.exitcode == 128 + signal.SIGTERM, run.logs()
    environment.join(60)
    assert environment.exitcode == 0, run.logs()
    assert name not in [one.name for one in rollway.segments()]
