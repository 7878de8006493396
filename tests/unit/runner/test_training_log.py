"""The log of a run."""

import pytest

import rollway
from rollway.runner import training_log
from rollway.runner.training_log import TrainingLog


def test_lines_come_back_and_a_second_run_appends(tmp_path):
    for run in range(2):
        with TrainingLog(tmp_path / "deep" / "logs") as log:
            log.write(run, {"loss": 0.5 * run})
    rows = training_log.read(tmp_path / "deep" / "logs")
    assert [(row["iteration"], row["loss"]) for row in rows] == [(0, 0.0), (1, 0.5)]


def test_a_line_is_whole_before_the_log_is_closed_and_a_cut_one_is_left_out(tmp_path):
    log = TrainingLog(tmp_path)
    log.write(1, {"loss": 1})
    assert len(training_log.read(tmp_path)) == 1
    with (tmp_path / training_log.FILE_NAME).open("a") as file:
        file.write('{"iteration": 2, "lo')
    assert len(training_log.read(tmp_path)) == 1
    log.close()
    log.close()


def test_lines_after_a_checkpoint_can_be_cut(tmp_path):
    training_log.cut(tmp_path, 2)  # nothing to cut
    with TrainingLog(tmp_path) as log:
        for iteration in (1, 2, 3):
            log.write(iteration, {"loss": iteration / 2})
    training_log.cut(tmp_path, 2)
    assert [(row["iteration"], row["loss"]) for row in training_log.read(tmp_path)] == [(1, 0.5), (2, 1.0)]
    assert [path.name for path in tmp_path.iterdir() if "progress" in path.name] == [training_log.FILE_NAME]


def test_without_tensorboard_the_lines_are_still_written(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.summary", None)
    with TrainingLog(tmp_path) as log:
        log.write(1, {"loss": 1})
    assert [path.name for path in tmp_path.iterdir()] == [training_log.FILE_NAME]


def test_tensorboard_gets_the_same_numbers(tmp_path, tensorboard):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    with TrainingLog(tmp_path) as log:
        log.write(3, {"loss": 0.25})
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, make_ndarray(event.tensor_proto)) for event in events.Tensors("loss")] == [(3, 0.25)]


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / training_log.FILE_NAME).symlink_to("/dev/full")
    with pytest.raises(rollway.errors.SystemCallFailed, match=f"{training_log.FILE_NAME}: No space left"):
        with training_log.TrainingLog(tmp_path) as log:
            log.write(1, {"loss": 0.5})
