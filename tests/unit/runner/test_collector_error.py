"""What a collector's end looks like in words."""

import pytest

import rollway
from rollway.runner.collector_error import (
    Failure,
    OomKills,
    build_error_pipe,
    collector_error,
    collector_error_guard,
    format_collector_death,
)


def failure_of(error):
    try:
        raise error
    except type(error) as caught:
        return Failure.of(caught)


def test_a_failure_survives_the_pipe():
    learner, collector = build_error_pipe()
    with learner, collector:
        with pytest.raises(ValueError, match="no such env"), collector_error_guard(collector):
            raise ValueError("no such env \N{SNOWMAN}")
        failure = Failure.decode(learner.recv_bytes())
    assert failure.kind == "ValueError" and failure.message == "no such env \N{SNOWMAN}"
    assert "test_collector_error.py" in failure.traceback


def test_a_huge_message_fits_into_a_pipe_that_nobody_reads():
    learner, collector = build_error_pipe()
    with learner, collector:
        for text in ("x" * 10**6, "\N{SNOWMAN}" * 10**6, "\U0001f479" * 10**6, "\0" * 10**6, "\udc80" * 10**6):
            with pytest.raises(ValueError), collector_error_guard(collector):
                raise ValueError(text)
            failure = Failure.decode(learner.recv_bytes())
            assert "characters left out" in failure.message and failure.traceback.startswith("Traceback")


def test_leaving_in_peace_is_no_failure():
    learner, collector = build_error_pipe()
    with learner, collector:
        with pytest.raises(SystemExit), collector_error_guard(collector):
            raise SystemExit(0)
        assert not learner.poll(0)
        with pytest.raises(SystemExit), collector_error_guard(collector):
            raise SystemExit("gave up")
        assert Failure.decode(learner.recv_bytes()).message == "gave up"


@pytest.mark.parametrize(
    ("exitcode", "words"),
    [
        (-9, ["SIGKILL", "out-of-memory"]),
        (137, ["SIGKILL", "137"]),
        (-7, ["SIGBUS", "/dev/shm", "MiB are free"]),
        (-11, ["SIGSEGV", "native code"]),
        (-6, ["SIGABRT"]),
        (5, ["code 5"]),
        (None, ["not known"]),
        (-250, ["code -250"]),
    ],
)
def test_a_death_is_named_and_hinted_at(exitcode, words):
    text = format_collector_death(exitcode)
    assert all(word in text for word in words), text


def test_a_traceback_says_more_than_an_exit_code():
    text = format_collector_death(1, failure_of(KeyError("joint")).traceback)
    assert "KeyError: 'joint'" in text and "code" not in text


def test_the_counters_of_the_kernel_tell_a_kill_from_an_out_of_memory_kill():
    before = OomKills(in_cgroup=2, on_machine=5)
    assert "from 2 to 3" in OomKills(3, 6).since(before)
    assert "from 5 to 6" in OomKills(2, 6).since(before)
    assert "a process sent it" in OomKills(2, 5).since(before)
    assert OomKills(None, None).since(before) == ""


def test_the_counters_are_read_from_cgroup_and_vmstat(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 1\noom_kill 9\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (tmp_path / "proc/self/mountinfo").write_text("1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "sys/fs/cgroup/job").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/job/memory.events").write_text("low 0\nhigh 0\nmax 7\noom 4\noom_kill 4\n")
    assert OomKills.count(tmp_path) == OomKills(4, 9)


def test_the_error_carries_the_facts():
    error = collector_error(3, 4711, -9, None)
    assert (error.index, error.pid, error.exitcode, error.signal_name) == (3, 4711, -9, "SIGKILL")
    assert "collector 3 (pid 4711)" in str(error) and isinstance(error, rollway.RollwayError | RuntimeError)
    error = collector_error(0, 1, 1, failure_of(ValueError("no")))
    assert (error.kind, error.message, error.signal_name) == ("ValueError", "no", None)


def test_an_exception_that_cannot_be_put_into_words_is_still_one():
    class Mute(Exception):
        def __str__(self):
            raise LookupError

    failure = Failure.of(Mute())
    assert failure.kind.endswith("Mute") and "LookupError" in failure.message and "Mute" in failure.traceback
