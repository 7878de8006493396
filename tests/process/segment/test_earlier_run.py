"""A learner that was not told to resume says what it finds of an earlier run."""

import os
import re
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import _core

KINDS = ("samples", "records", "transitions")
CODE = """
import sys
import numpy as np
import rollway
from tests.process.segment.test_earlier_run import fill, learner
fill(learner(sys.argv[2], sys.argv[1], None))
print("ready", flush=True)
sys.stdin.readline()
"""


def learner(what, name, if_exists):
    if what == "transitions":
        return rollway.replay.TransitionBuffer(100, 2, 1, name=name, if_exists=if_exists)
    transport = rollway.ShmTransport(name, if_exists=if_exists)
    if what == "samples":
        return rollway.Server({"x": np.zeros(1)}, 2, transport)
    return rollway.RecordServer({"x": "float64[*]"}, transport)


def fill(it):
    if isinstance(it, rollway.replay.TransitionBuffer):
        ones = np.ones((5, 2), np.float32)
        return it.add(ones, ones[:, :1], ones[:, 0], ones, ones[:, 0], ones[:, 0])
    for value in range(5):
        it.submit({"x": [value]})


def dies(child, what, name):
    run = child(CODE, name, what)
    run.says("ready")
    run.kill()


def older(name, seconds):
    """Makes a segment older: the time of its creation is a word of its header."""
    made = next(segment.created_unix_ns for segment in rollway.segments() if segment.name == name)
    path = Path(_core.shm_directory()) / f"rollway.{name}"
    word = struct.pack("<Q", made)
    with path.open("r+b") as file:
        at = file.read(4096).index(word)
        os.pwrite(file.fileno(), struct.pack("<Q", made - int(seconds * 1e9)), at)


@pytest.mark.parametrize("what", KINDS)
def test_a_new_learner_warns_once_of_the_data_of_an_earlier_run(what, name, child):
    dies(child, what, name)
    older(name, 3 * 3600)
    expected = rf"'{name}' has 5 {what} of an earlier run, which began 3 hours ago: .*if_exists=\"replace\""
    with pytest.warns(UserWarning) as warned:
        with learner(what, name, None) as it:
            assert it.resumed
    assert len(warned) == 1 and re.search(expected, str(warned[0].message)) and warned[0].filename == __file__


@pytest.mark.parametrize("what", KINDS)
@pytest.mark.parametrize(("if_exists", "resumed"), [("resume", True), ("replace", False)])
def test_a_learner_that_says_what_it_wants_gets_it_without_a_warning(what, if_exists, resumed, name, child):
    dies(child, what, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with learner(what, name, if_exists) as it:
            assert it.resumed == resumed


@pytest.mark.parametrize("what", KINDS)
def test_a_second_learner_of_the_same_run_does_not_warn(what, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with learner(what, name, None) as first:
            fill(first)
            with learner(what, name, None) as second:
                assert second.resumed
