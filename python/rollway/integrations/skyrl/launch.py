"""Launcher: starts the trainer, then the environments, and stops everything that it started.

```text
python -m rollway.integrations.skyrl.launch --shm-name run1 \\
    --trainer "python -m rollway.integrations.skyrl generator.external.shm_name=run1 …" \\
    --env "python -m rollway.integrations.atropos my_env.py serve --env.transport shm --env.shm_name run1 …"
```

The trainer makes the segment, and the environments are started when its header can be read. A segment of an earlier
run counts as well: environments attach to it, and the trainer continues with its records (with ``if_exists=replace``
it cannot: run ``rollway gc`` before).

Each command has a process group of its own. Processes that a command leaves behind in it, for instance Python's
resource tracker, get a moment to end, and are killed then. If the launcher itself is killed, the kernel kills the
commands, but not what they started. The launcher does not depend on SkyRL or Atropos.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollway.integrations.skyrl.errors import LaunchFailed
from rollway.machine.catalog import segments
from rollway.runner.collector_error import signal_of

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.1  # how often to look for the segment
_GROUP_END_S = 2.0  # how long the rest of a group may outlive its command
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(eq=False)
class LaunchedProcess:
    """One command, running in a process group of its own."""

    name: str
    process: subprocess.Popen[bytes]
    pidfd: int
    asked: bool = False
    """Whether it was sent a signal, and may need time to end."""

    @classmethod
    def start(cls, name: str, command: Sequence[str]) -> LaunchedProcess:
        """Starts it; `LaunchFailed` if there is no such command."""
        parent = os.getpid()

        # `rollway.runner.parent_watch` says why collectors and environments do it in another way.
        def die_with_the_launcher() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # the launcher died before the call
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            process = subprocess.Popen(command, start_new_session=True, preexec_fn=die_with_the_launcher)
        except OSError as error:
            raise LaunchFailed(f"the {name} cannot be started: {shlex.join(command)}: {error}") from None
        return cls(name, process, os.pidfd_open(process.pid))

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        code = self.process.returncode
        if code is None:
            return f"the {self.name} (pid {self.process.pid}) is running"
        if code >= 0:
            return f"the {self.name} (pid {self.process.pid}) ended with exit code {code}"
        killer = signal_of(code)
        hint = " (out of memory? see dmesg)" if killer == signal.SIGKILL else ""
        by = f"signal {-code}" if killer is None else killer.name  # those of real time have no name
        return f"the {self.name} (pid {self.process.pid}) was killed by {by}{hint}"

    def others(self) -> list[int]:
        """The living processes of its group, except the command itself."""
        return [pid for pid in _living(self.process.pid) if pid != self.process.pid]

    def send(self, number: int) -> None:
        """Sends a signal to the whole group, if any of it is left."""
        self.asked = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class ProcessWatch:
    """Waits for the end of a process, or for a signal."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._pipe[0], selectors.EVENT_READ)
        self._signals: list[int] = []

    def add(self, process: LaunchedProcess) -> None:
        """Also waits for the end of this process."""
        self._selector.register(process.pidfd, selectors.EVENT_READ, process)

    def wait(self, timeout: float | None = None) -> list[LaunchedProcess]:
        """Sleeps until something happens, at most ``timeout`` seconds. Returns the processes that have ended."""
        ended = []
        for ready, _ in self._selector.select(timeout):
            if isinstance(ready.data, LaunchedProcess):
                ready.data.process.wait()
                self._selector.unregister(ready.fd)
                ended.append(ready.data)
            else:
                self._signals += [number for number in os.read(ready.fd, 4096) if number in _PASSED_ON]
        return ended

    def take_signals(self) -> list[int]:
        """The signals that came since the last time."""
        taken, self._signals = self._signals, []
        return taken

    @contextlib.contextmanager
    def recording_signals(self) -> Iterator[None]:
        """In the block, SIGINT, SIGTERM and SIGHUP are recorded instead of ending the launcher."""
        before: dict[int, Any] = {number: signal.signal(number, lambda *_: None) for number in _PASSED_ON}
        wakeup = signal.set_wakeup_fd(self._pipe[1])
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """Stops watching."""
        self._selector.close()
        for descriptor in self._pipe:
            os.close(descriptor)


def launch(
    trainer_command: Sequence[str],
    env_commands: Sequence[Sequence[str]],
    shm_name: str,
    *,
    ready_timeout_s: float = 600.0,
    grace_s: float = 10.0,
) -> int:
    """Runs a trainer and its environments until the trainer ends, or one of them fails. Returns the exit code.

    An environment may end with exit code 0; one that fails ends the launch. Call it from the main thread: SIGINT,
    SIGTERM and SIGHUP are passed on to all processes.

    Args:
        trainer_command: Makes the segment. Its exit code is the result; 128 + n if signal n ended it, as in a shell.
        env_commands: Started once the segment is there, each in a process group of its own.
        shm_name: The segment's name.
        ready_timeout_s: How long the trainer may take to make it, before `LaunchFailed`.
        grace_s: How long a process may take to end after SIGTERM, before it is killed.
    """
    if not (trainer_command and all(env_commands)):
        raise LaunchFailed("a command is empty: nothing was started")
    watch = ProcessWatch()
    processes: list[LaunchedProcess] = []

    def start(name: str, command: Sequence[str]) -> LaunchedProcess:
        process = LaunchedProcess.start(name, command)
        processes.append(process)
        watch.add(process)
        return process

    with watch.recording_signals():
        try:
            trainer = start("trainer", trainer_command)
            if number := _ready(watch, trainer, shm_name, ready_timeout_s):
                return 128 + number
            for index, command in enumerate(env_commands):
                start(f"environment {index}" if len(env_commands) > 1 else "environment", command)
            return _supervise(watch, trainer, processes)
        finally:
            _stop(watch, processes, grace_s)
            watch.close()


def _ready(watch: ProcessWatch, trainer: LaunchedProcess, shm_name: str, timeout: float) -> int:
    """Waits for the segment. Returns the number of a signal that ended the wait, or 0."""
    deadline = time.monotonic() + timeout
    while not any(one.name == shm_name and one.problem is None for one in segments()):
        left = deadline - time.monotonic()
        if left <= 0:
            raise LaunchFailed(f"the trainer has not made the segment '{shm_name}' within {timeout} s")
        ended = watch.wait(min(left, _LOOK_S))
        if number := _forward_signals(watch, [trainer]):
            return number
        if ended:
            raise LaunchFailed(f"{trainer.ending} before it had made the segment '{shm_name}'")
    return 0


def _supervise(watch: ProcessWatch, trainer: LaunchedProcess, processes: list[LaunchedProcess]) -> int:
    while True:
        ended = watch.wait()
        if number := _forward_signals(watch, processes):
            return 128 + number
        if trainer in ended:
            if trainer.process.returncode:
                _print(trainer.ending)
            return _code(trainer)
        for process in ended:
            _print(process.ending)
            if process.process.returncode:
                return _code(process)


def _forward_signals(watch: ProcessWatch, processes: list[LaunchedProcess]) -> int:
    """Sends the recorded signals to all processes. Returns the first of them, or 0."""
    taken = watch.take_signals()
    for number in taken:
        for process in processes:
            process.send(number)
    return taken[0] if taken else 0


def _stop(watch: ProcessWatch, processes: list[LaunchedProcess], grace_s: float) -> None:
    """Ends every group: sends SIGTERM, unless a signal was passed on already; waits; kills what is left."""
    running = [process for process in processes if process.process.returncode is None]
    for process in running:
        if not process.asked:
            process.send(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while running and (left := deadline - time.monotonic()) > 0:
        ended = watch.wait(left)
        running = [process for process in running if process not in ended]
    _end_groups([process for process in processes if process not in running], min(_GROUP_END_S, grace_s))
    for process in processes:
        if process in running or process.others():  # otherwise the number of the group may belong to another
            process.send(signal.SIGKILL)
        process.process.wait()
        os.close(process.pidfd)


def _end_groups(processes: list[LaunchedProcess], limit_s: float) -> None:
    """Waits a moment for processes that are left in the groups of ended commands."""
    deadline = time.monotonic() + limit_s
    while (left := deadline - time.monotonic()) > 0 and (
        pids := [pid for process in processes for pid in process.others()]
    ):
        with contextlib.suppress(ProcessLookupError):  # it has just ended: look again
            pidfd = os.pidfd_open(pids[0])
            try:
                select.select([pidfd], [], [], left)
            finally:
                os.close(pidfd)


def _living(group: int) -> list[int]:
    """The processes of a group that have not ended. Zombies count as ended."""
    living = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, _, its_group = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                living.append(int(stat.parent.name))
    return living


def _code(process: LaunchedProcess) -> int:
    code = process.process.returncode
    return code if code >= 0 else 128 - code


def _seconds(text: str) -> float:
    """A number of seconds, from the command line."""
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, from 0 on")


def _print(text: str) -> None:
    sys.stderr.write(f"rollway launch: {text}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m rollway.integrations.skyrl.launch", description=launch.__doc__)
    parser.add_argument("--shm-name", required=True, help="the segment that the trainer makes")
    parser.add_argument("--trainer", required=True, help="the trainer's command, quoted")
    parser.add_argument(
        "--env", action="append", required=True, help="an environment's command, quoted; may be repeated"
    )
    parser.add_argument(
        "--ready-timeout-s", type=_seconds, default=600.0, help="how long the trainer may take to start"
    )
    parser.add_argument("--grace-s", type=_seconds, default=10.0, help="how long a process may take to end")
    given = parser.parse_args(arguments)
    try:
        trainer, *environments = map(shlex.split, [given.trainer, *given.env])
    except ValueError as error:
        parser.error(f"a command is not quoted as in a shell: {error}")
    try:
        times = {"ready_timeout_s": given.ready_timeout_s, "grace_s": given.grace_s}
        return launch(trainer, environments, given.shm_name, **times)
    except LaunchFailed as error:
        _print(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
