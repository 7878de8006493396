"""Live fuzzing of every structure: no signal, no panic, no strange exception and no hang, whatever a segment's words say."""

import os
import subprocess
import sys

import pytest

from tests import ROOT
from tests.fault.segment.live_fuzz_structures import STRUCTURES

DRIVER = [sys.executable, "-m", "tests.fault.segment.live_fuzz"]
TRIALS = int(os.environ.get("ROLLWAY_FUZZ_TRIALS", "2000"))
FIRST = int(os.environ.get("ROLLWAY_FUZZ_FIRST", "0"))


def fuzz(structure, trials, first, seconds=None):
    command = [*DRIVER, f"--structure={structure}", f"--trials={trials}", f"--first={first}"]
    if seconds is not None:
        command.append(f"--seconds={seconds}")
    # Not in this process: it has threads, and is too large to be forked thousands of times.
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("structure", STRUCTURES)
def test_flipped_words_neither_crash_nor_hang_those_who_use_them(structure):
    fuzz(structure, trials=12, first=0, seconds=8)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_thousands_of_flipped_words_neither_crash_nor_hang_anybody(structure):
    fuzz(structure, trials=TRIALS, first=FIRST)


def test_weights_with_mutated_schemas_and_inventories_are_refused_or_read():
    command = [sys.executable, "-m", "tests.fault.weights.weights_mutations", "--mutations=400"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"\n{done.stdout}{done.stderr}"
