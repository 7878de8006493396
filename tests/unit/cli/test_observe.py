"""`rollway top`, `why` and `peek`: they print what `rollway.inspect` returns, for people and for programs."""

import io
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import rollway
from rollway.cli import app
from rollway.cli.top import frame
from rollway.inspect import Monitor

EXAMPLE = {"obs": np.zeros(4, np.float32)}


@pytest.fixture
def shm(monkeypatch):
    """A shared-memory directory of this test's own, so that nobody else's segments are shown."""
    directory = Path(tempfile.mkdtemp(prefix="test-cli-", dir="/dev/shm"))
    monkeypatch.setenv("ROLLWAY_SHM_DIR", str(directory))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def server(shm):
    """A ring with three samples in it, of which the learner holds two."""
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport("running")) as server:
        for value in range(3):
            server.submit({"obs": np.full(4, value, np.float32)}, version=7)
        with server.sample():
            yield server


def run(*args, code=0):
    result = CliRunner().invoke(app.app, list(args), env={"COLUMNS": "160"}, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_top_prints_one_frame_with_every_participant(server):
    lines = run("top", "--once", "--interval", "0.05").splitlines()
    assert lines[0].startswith("running  live  ring, ")
    assert "batches: 0 ready, 1 held, 1 free of 3" in lines[0]
    learner, submitter = (next(line for line in lines if line.startswith(role)) for role in ("learner", "own producer"))
    assert f" {os.getpid()} alive " in learner and "100%" in learner
    assert submitter.split()[-1] == "7"


def test_top_cuts_no_pid_on_a_narrow_terminal(server):
    out = Console(width=80, file=io.StringIO())
    out.print(frame(Monitor(["running"]).look()))
    shown = out.file.getvalue()
    assert f" {os.getpid()} " in shown and "…" not in shown and "writes" not in shown


def test_top_as_json_has_shares_that_add_up(server):
    (segment,) = json.loads(run("top", "running", "--json", "--interval", "0.05"))
    assert (segment["name"], segment["kind"], segment["numbers"]["held_batches"]) == ("running", "ring", 1)
    for one in segment["participants"]:
        shares = one["shares"]
        assert sum(shares[part] for part in ("wait_data", "wait_room", "hold", "work")) == pytest.approx(1)
    assert {one["role"]: one["process"] for one in segment["participants"]}["learner"] == "running"


def test_top_says_what_cannot_be_looked_at(shm):
    assert run("top", "--once", "--interval", "0.05") == "No segments.\n"
    assert "there is no segment 'nowhere'" in run("top", "nowhere", "--once", "--interval", "0.05", code=1)
    (shm / "rollway.odd").write_bytes(b"no segment" * 1000)
    (shm / "rollway.odd").chmod(0o600)
    assert "is not a Rollway segment" in run("top", "--once", "--interval", "0.05")


def test_a_pipe_among_the_segments_keeps_nobody_waiting(server, shm):
    os.mkfifo(shm / "rollway.pipe", 0o600)
    for command in (("top", "--once", "--interval", "0.05"), ("ls",), ("why", "--seconds", "0.05")):
        assert "running" in run(command[0], *command[1:])
    assert "is not a Rollway segment: it is no file" in run("top", "--once", "--interval", "0.05")


def test_names_from_elsewhere_do_not_reach_the_terminal_as_they_are(shm):
    (shm / "rollway.\x1b[2Jx\ny").write_bytes(b"")
    assert "\x1b" not in run("top", "--once", "--interval", "0.05")
    assert "\x1b" not in run("metrics", "--once")


def test_why_ends_with_1_if_a_named_segment_is_missing(server):
    assert "there is no segment 'none'" in run("why", "running", "none", "--seconds", "0.05", code=1)


def test_top_on_a_dumb_terminal_prints_one_frame(server):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "rollway.cli", "top", "--interval", "0.05"]
    dumb = {**os.environ, "TERM": "dumb"}
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=dumb)
    os.close(follower)
    try:
        assert b"own producer" in _read_until(leader, None)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def test_a_closed_standard_output_is_no_traceback(server):
    command = f"{sys.executable} -m rollway.cli top --once --interval 0.05 >&-"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_top_on_a_terminal_draws_until_q(server):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "rollway.cli", "top", "--interval", "0.05"]
    terminal = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=terminal)
    os.close(follower)
    try:
        shown = _read_until(leader, b"q: quit")
        assert b"running" in shown and b"own producer" in shown
        keys = ((b"s", b"by rate"), (b"1", b"producers: "), (b"0", b"1 to 9"), (b"p", b"PAUSED"), (b"q", None))
        for key, words in keys:
            os.write(leader, key)
            _read_until(leader, words)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def _read_until(fd, words):
    """Reads a terminal until it has shown ``words``, or to its end."""
    shown, deadline = b"", time.monotonic() + 30
    while words is None or words not in shown:
        assert select.select([fd], [], [], max(deadline - time.monotonic(), 0))[0], shown
        try:
            more = os.read(fd, 1 << 16)
        except OSError:  # the other end is closed
            more = b""
        if not more:
            assert words is None, shown
            break
        shown += more
    return shown


def test_why_prints_three_lines(server):
    lines = run("why", "running", "--seconds", "0.05").splitlines()
    assert len(lines) == 3
    assert lines[0] == "nobody holds the others up: no producer waits for room, and no learner waits for data"
    assert lines[1].startswith(f"learner: pid {os.getpid()}: holds 100%, 1 batch in hand")
    assert lines[2].startswith("producers: 1 alive, ")
    assert json.loads(run("why", "running", "--seconds", "0.05", "--json"))["running"]["culprit"] == "nobody"


def test_why_without_a_name_is_about_all_segments(server, shm):
    (shm / "rollway.odd").write_bytes(b"no segment" * 1000)
    (shm / "rollway.odd").chmod(0o600)
    lines = run("why", "--seconds", "0.05").splitlines()
    assert lines[0] == "odd" and "is not a Rollway segment" in lines[1]
    assert lines[lines.index("running") + 1].startswith("nobody holds the others up")


def test_why_says_when_there_are_no_segments(shm):
    assert run("why", "--seconds", "0.05") == "No segments.\n"


def test_peek_prints_schema_ranges_and_the_newest_samples(server):
    text = run("peek", "running", "-n", "2")
    assert "running  ring, the newest samples, 2 of them" in text
    assert "float32[4]" in text
    assert "obs[4]: 2.0, 2.0, 2.0, 2.0" in text and "obs[4]: 1.0, 1.0" in text and "0.0, 0.0" not in text
    assert "weights 7" in text
    seen = json.loads(run("peek", "running", "-n", "1", "--json"))
    assert seen["items"][0]["leaves"]["obs"] == {"shape": [4], "values": [2.0, 2.0, 2.0, 2.0]}
    assert server.stats()["ready_samples"] == 1


def test_peek_prints_messages_of_records(shm):
    with rollway.RecordServer({"tokens": "int32[*]"}, rollway.ShmTransport("agents")) as server:
        messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4" * 1000}]
        key = rollway.RecordKey("run", "train", 0, "sum", 1)
        server.submit({"tokens": [1, 2]}, key=key, metadata={"messages": messages, "env": "gsm8k"})
        text = run("peek", "agents")
        assert "key ('run', 'train', 0, 'sum', 1)" in text
        assert 'metadata: {"env": "gsm8k"}' in text and "  user: 2 + 2?" in text
        assert "... (1,000 characters)" in text


def test_peek_says_when_there_is_nothing_to_see(shm):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport("empty")):
        assert "No samples can be seen" in run("peek", "empty", "--seconds", "0")


def test_a_missing_segment_is_one_sentence(shm):
    for command in ("why", "peek"):
        ended = subprocess.run([sys.executable, "-m", "rollway.cli", command, "x"], capture_output=True, text=True)
        assert ended.returncode == 1 and ended.stderr.startswith("error: there is no segment 'x'")


def test_the_dashboard_names_the_extra_that_is_missing(monkeypatch):
    monkeypatch.setattr("rollway.errors.find_spec", lambda name: None)
    with pytest.raises(rollway.errors.MissingExtra, match=r"needs nicegui: pip install '\.\[dashboard\]' in the clone"):
        run("dashboard")
