"""Ctrl-C in a learner and its workers, written as the page on restarts says: no traceback, no process and no segment is left."""

import os
import signal
import subprocess
import sys

import pytest

import rollway
from tests import ROOT
from tests.support.documents import blocks
from tests.support.processes import session, until

PROGRAM = blocks(ROOT / "docs/restarts.md")[0]
HANDLER = "            signal.signal(signal.SIGINT, handler)\n"


@pytest.mark.parametrize(
    "method, when",
    [
        ("spawn", "workers start"),
        ("spawn", "the learner learns"),
        ("fork", "the learner learns"),
        ("forkserver", "workers start"),
    ],
)
def test_ctrl_c_ends_the_program_of_the_docs_without_a_traceback(tmp_path, method, when):
    assert HANDLER in PROGRAM and 'get_context("spawn")' in PROGRAM
    script = tmp_path / "program.py"
    said = HANDLER + '            print("begun", flush=True)\n'
    script.write_text(PROGRAM.replace(HANDLER, said).replace('get_context("spawn")', f'get_context("{method}")'))
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            awaited = "begun" if when == "workers start" else "step 20"
            assert any(line.startswith(awaited) for line in process.stdout), process.stderr.read()
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0 and err == "", err
    assert out.endswith("stopped\n")
    until(lambda: not session(process.pid))
    assert not [segment.name for segment in rollway.segments() if segment.creator_pid == process.pid]
