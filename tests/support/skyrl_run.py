"""Run: a trainer and its environments, each in a process of its own, watched. Fixtures for the tests of whole runs."""

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal

import pytest

from tests import ROOT
from tests.support import skyrl_stage

_IMPORTS_S = 240


@pytest.fixture(scope="session", name="stage")
def stage_fixture():
    """Starts processes that have imported both packages already."""
    context = multiprocessing.get_context("forkserver")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([before] if before else [])])  # the fork server's
    context.set_forkserver_preload(["tests.support.skyrl_stage"])
    started = []

    def start(target, *arguments):
        process = context.Process(target=_call, args=(target, *arguments))
        process.start()
        started.append(process)
        return process

    ready = start("ready")  # the first waits for the imports
    ready.join(_IMPORTS_S)
    assert ready.exitcode == 0, f"importing skyrl and atroposlib took more than {_IMPORTS_S} s"
    yield start
    for process in started:
        process.kill()
        process.join()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def _call(target, *arguments):
    from tests.support import skyrl_stage

    getattr(skyrl_stage, target)(*arguments)


@pytest.fixture(name="run")
def run_fixture(stage, tmp_path):
    return Run(stage, tmp_path)


class Run:
    """One training run: a trainer, environments, and the journal of what was trained on."""

    def __init__(self, stage, directory):
        self.stage = stage
        self.directory = directory
        self.journal = directory / "journal"
        self.steps, self._trainers_end = multiprocessing.Pipe(duplex=False)
        self.environments = []
        tokenizer = directory / "tokenizer"
        tokenizer.mkdir()
        skyrl_stage.write_tokenizer(tokenizer)
        self.tokenizer = str(tokenizer)

    def train(self, prompts, **settings):
        self.trainer = self.stage("train", settings, prompts, str(self.journal), self._trainers_end)

    def main(self, *arguments):
        """SkyRL's command line."""
        self.trainer = self.stage("main", arguments, str(self.directory / "trainer.log"))

    def environment(self, **settings):
        log = self.directory / f"environment{len(self.environments)}.log"
        self.environments.append(self.stage("environment", {"tokenizer_name": self.tokenizer, **settings}, str(log)))
        return self.environments[-1]

    def kill(self, environment):
        self.environments.remove(environment)
        os.kill(environment.pid, signal.SIGKILL)
        environment.join()

    def until_step(self, step):
        while True:
            assert self.wait(self.steps) == self.steps, self.logs()
            if self.steps.recv() >= step:
                return

    def ends(self):
        """Waits for the end of training; gives what was trained on."""
        assert self.wait(self.trainer.sentinel) == self.trainer.sentinel, self.logs()
        self.trainer.join()
        assert self.trainer.exitcode == 0, self.logs()
        return pickle.loads(self.journal.read_bytes()) if self.journal.exists() else None

    def wait(self, wanted):
        """Waits for this, or for the end of somebody who should not have ended."""
        ends = {process.sentinel: process for process in (self.trainer, *self.environments)}
        while wanted not in (ready := multiprocessing.connection.wait({wanted, *ends}, timeout=90)):
            for sentinel in ready:
                process = ends.pop(sentinel)
                process.join()
                if process.exitcode != 0 or process is self.trainer:
                    return None
            if not ready:
                return None
        return wanted

    def logs(self):
        return "\n".join(f"== {path.name}\n{path.read_text()[-4000:]}" for path in sorted(self.directory.glob("*.log")))
