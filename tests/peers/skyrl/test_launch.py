"""The launcher: both sides come up in order, whoever dies is named, and nothing is left running."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rollway
from tests.support.processes import until

LAUNCH = [sys.executable, "-m", "rollway.integrations.skyrl.launch"]

# A trainer that makes the segment and waits for a sample; an environment that sends it.
TRAINER = """
import sys, numpy as np, rollway
with rollway.Server({"x": np.zeros(1)}, 1, rollway.ShmTransport(sys.argv[1])) as server:
    print("trainer ready", flush=True)
    print("trained on", server.sample(timeout=30).batch["x"].tolist(), flush=True)
"""
ENVIRONMENT = """
import sys, time, numpy as np, rollway
with rollway.ShmClient(sys.argv[1], {"x": np.zeros(1)}, connect_timeout_s=0) as client:
    print("environment attached", flush=True)
    client.send({"x": np.ones(1)})
    time.sleep(1000)
"""
SLEEPER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print("sleeping", child.pid, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script; gives the command that runs it, quoted."""

    def write(name, code, *arguments):
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(code))
        return " ".join([sys.executable, str(path), *map(str, arguments)])

    return write


@pytest.fixture
def launch():
    """Starts launchers; at the end none may be left."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [*LAUNCH, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def gone(pid):
    """Dead, or a zombie that its new parent has not buried yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def collect(name):
    """A trainer that was killed leaves its segment to the next, or to `gc`."""
    until(lambda: name in [one.name for one in rollway.gc()])


def test_the_environment_starts_when_the_segment_is_there_and_ends_with_the_trainer(launch, script, name):
    process = launch(
        "--shm-name", name, "--trainer", script("trainer", TRAINER, name), "--env", script("env", ENVIRONMENT, name)
    )
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output.splitlines() == ["trainer ready", "environment attached", "trained on [[1.0]]"]


def test_a_trainer_that_dies_before_it_is_ready_is_named(launch, script, name):
    trainer = script("trainer", "import sys; sys.exit(3)")
    process = launch("--shm-name", name, "--trainer", trainer, "--env", "true")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the trainer (pid" in errors and f"ended with exit code 3 before it had made the segment '{name}'" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trainer", "", "--env", "true"], "a command is empty: nothing was started"),
        (["--trainer", "touch {started}", "--env", ""], "a command is empty: nothing was started"),
        (["--trainer", "touch {started}", "--env", "bash -c 'oops"], "not quoted as in a shell: No closing"),
        (["--trainer", "true", "--env", "true", "--ready-timeout-s", "nan"], "'nan' is no number of seconds"),
    ],
)
def test_a_command_line_that_cannot_be_meant_starts_nothing(launch, tmp_path, name, arguments, message):
    started = tmp_path / "started"
    process = launch("--shm-name", name, *(one.format(started=started) for one in arguments))
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (1, 2) and message in errors and "Traceback" not in errors
    assert not started.exists()


def test_a_trainer_that_is_killed_by_a_signal_without_a_name_is_named_with_its_number(launch, script, name):
    trainer = script("trainer", "import os; os.kill(os.getpid(), 40)")
    process = launch("--shm-name", name, "--trainer", trainer, "--env", "true")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"was killed by signal 40 before it had made the segment '{name}'" in errors


def test_a_trainer_that_is_never_ready_is_stopped(launch, script, name):
    process = launch("--shm-name", name, "--trainer", script("t", SLEEPER), "--env", "true", "--ready-timeout-s", "0.5")
    grandchild = int(process.stdout.readline().split()[1])
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"the trainer has not made the segment '{name}' within 0.5 s" in errors
    until(lambda: gone(grandchild))


def test_a_command_that_does_not_exist_is_named(launch, name):
    process = launch("--shm-name", name, "--trainer", "no-such-command", "--env", "true")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the trainer cannot be started: no-such-command" in errors


def test_an_environment_that_is_killed_is_named_with_its_signal_and_ends_the_launch(launch, script, name):
    trainer = TRAINER.replace("server.sample(timeout=30)", "server.sample()")
    killer = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    process = launch("--shm-name", name, "--trainer", script("trainer", trainer, name), "--env", script("env", killer))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGSEGV
    assert "the environment (pid" in errors and "was killed by SIGSEGV" in errors
    collect(name)


def test_an_environment_that_has_had_enough_does_not_end_the_launch(launch, script, name):
    process = launch(
        "--shm-name",
        name,
        "--trainer",
        script("trainer", TRAINER, name),
        "--env",
        "true",
        "--env",
        script("env", ENVIRONMENT, name),
    )
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "trained on [[1.0]]" in output
    assert "the environment 0" in errors and "ended with exit code 0" in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_both_sides_and_nothing_is_left(launch, script, name, number):
    trainer = TRAINER.replace("server.sample(timeout=30)", "server.sample()")
    stuck = "import signal; [signal.signal(number, signal.SIG_IGN) for number in (2, 15)]\n" + SLEEPER
    process = launch(
        *("--shm-name", name, "--trainer", script("trainer", trainer, name), "--env", script("env", stuck)),
        *("--grace-s", "0.5"),
    )
    assert process.stdout.readline() == "trainer ready\n"
    grandchild = int(process.stdout.readline().split()[1])
    sides = children_of(process.pid)
    assert len(sides) == 2
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    until(lambda: all(gone(pid) for pid in [*sides, grandchild]))
    if number == signal.SIGTERM:
        collect(name)  # after SIGINT, Python cleaned up


def test_what_cleans_up_after_a_trainer_may_finish(launch, script, name):
    # Python's resource tracker is a process of the trainer's group. It unlinks what a trainer that was killed has left.
    trainer = """
        import os, sys, time
        from multiprocessing import shared_memory
        from pathlib import Path
        import rollway
        launcher = os.getppid()
        kept = [shared_memory.SharedMemory(f"{sys.argv[1]}-{n}", create=True, size=1) for n in range(400)]
        server = rollway.RecordServer({"x": "int32[*]"}, rollway.ShmTransport(sys.argv[1]))
        server.read()
        server.close()
        siblings = Path(f"/proc/{launcher}/task/{launcher}/children")
        while siblings.read_text().split() != [str(os.getpid())]:  # until the environment is gone, and this one the last
            time.sleep(0.01)
        os._exit(0)
    """
    environment = """
        import sys, rollway
        with rollway.ShmRecordClient(sys.argv[1], {"x": "int32[*]"}) as client:
            client.send({"x": [1]})
    """
    process = launch(
        "--shm-name", name, "--trainer", script("t", trainer, name), "--env", script("e", environment, name)
    )
    _, errors = process.communicate(timeout=60)
    left = [path for n in range(400) if (path := Path(f"/dev/shm/{name}-{n}")).exists()]
    for path in left:
        path.unlink()
    assert process.returncode == 0 and not left, errors


def test_the_sides_die_with_a_launcher_that_is_killed(launch, script, name):
    trainer = TRAINER.replace("server.sample(timeout=30)", "server.sample()")
    environment = ENVIRONMENT.replace("client.send", "0 and client.send")
    process = launch(
        "--shm-name", name, "--trainer", script("trainer", trainer, name), "--env", script("env", environment, name)
    )
    assert process.stdout.readline() == "trainer ready\n"
    assert process.stdout.readline() == "environment attached\n"
    sides = children_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in sides))

    collect(name)
