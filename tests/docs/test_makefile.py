"""The list of commands: what `make` does beyond calling the tools."""

import os
import re
import subprocess

from tests import ROOT

OF_A_MAKE_ABOVE_US = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}

FAKE_PYTHON = """#!/bin/sh
echo "ran $1"
case $1 in benches/groups.py) exit 3;; benches/orphans.py) exit 1;; esac
"""


def make_bench(folder, fake_python):
    python = folder / "python"
    python.write_text(fake_python)
    python.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name not in OF_A_MAKE_ABOVE_US}
    command = ["make", "bench", f"VENV={folder}", f"PY={python}", "-o", f"{folder}/.bench"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


def test_every_bench_runs_and_those_that_failed_are_named_at_the_end(tmp_path):
    done = make_bench(tmp_path, FAKE_PYTHON)
    ran = re.findall(r"^ran benches/(\w+)\.py$", done.stdout, re.MULTILINE)
    assert ran[0] == "ring" and ran[-1] == "vector_env" and len(ran) == len(set(ran)) == 11
    assert re.findall(r"^benches/.*$", done.stderr, re.MULTILINE) == [
        "benches/groups.py ended with status 3",
        "benches/orphans.py ended with status 1",
    ]
    assert done.returncode != 0


def test_make_bench_succeeds_when_every_bench_does(tmp_path):
    done = make_bench(tmp_path, "#!/bin/sh\n")
    assert (done.returncode, done.stderr) == (0, "")
