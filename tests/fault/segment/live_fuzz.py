"""Live fuzzing: processes work in a segment while this one flips words in it, kills some of them and starts others.

A trial has learners and producers (each a forked process with a bounded loop, and a timeout on every call that takes one)
and the driver, which maps the segment's file and writes nonsense into it. Everything that the driver does follows from the
seed; when the others meet it does not. A trial fails when

* a process dies from a signal that the driver did not send;
* Rust panics, in any thread;
* a call raises something that is no `RollwayError`, or what it returns has another shape or dtype than was agreed;
* only payload was flipped, and yet a call fails, or more elements are wrong than were flipped;
* a process takes more than 10 s;
* a process, or a segment that `gc` could have removed, is left at the end.

The file is never truncated: to touch a page that was taken away is SIGBUS by nature.

    python -m tests.fault.segment.live_fuzz --structure weights --trials 2000         # seeds 0 to 1999
    python -m tests.fault.segment.live_fuzz --structure weights --seed 17 --repeat 20  # one of them, again and again
"""

import argparse
import contextlib
import ctypes
import faulthandler
import os
import random
import re
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from mmap import mmap
from pathlib import Path

import rollway
from tests.fault.segment.live_fuzz_structures import STRUCTURES, Task, expect

LIMIT_S = 10.0
"""How long any process may take: those that work end by themselves after a fraction of a second."""


class Process:
    """A forked child that does one task, with its stderr in memory."""

    def __init__(self, role, work, *args):
        self.role = role
        self.killed = False
        self.status = None
        self.errors = os.memfd_create("stderr")
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(work, args)
        with contextlib.suppress(OSError):  # The child does so too: whichever comes first.
            os.setpgid(self.pid, 0)

    def _run(self, work, args):
        code = 3
        try:
            os.setpgid(0, 0)
            os.dup2(self.errors, 2)
            faulthandler.enable(2)
            faulthandler.register(signal.SIGUSR1, 2, all_threads=True)
            work(*args)
            code = 0
        except BaseException:  # noqa: BLE001  A panic is one.
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def said(self):
        return os.pread(self.errors, 1 << 20, 0).decode(errors="replace")

    def fault(self):
        """What is wrong with how it went, if anything."""
        said = self.said()
        if "panicked at" in said or "PanicException" in said:
            return "Rust panicked"
        if found := re.search(r"(SUMMARY: AddressSanitizer|Fatal Python error): .*", said):
            return found[0]
        if found := re.search(r"killed by (SIG(?!KILL)\w+)", said):
            return f"a worker was {found[0]}"
        if self.status is None or self.killed:
            return None
        if os.WIFSIGNALED(self.status):
            return f"killed by {signal.Signals(os.WTERMSIG(self.status)).name}"
        if os.WEXITSTATUS(self.status):
            return said.strip().rpartition("\n")[2]
        return None

    def group_is_gone(self):
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def kill_group(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Trial:
    """One seed of one structure."""

    def __init__(self, structure, seed, directory):
        self.structure = STRUCTURES[structure]()
        self.name, self.seed = structure, seed
        self.rng = random.Random(f"{structure} {seed}")
        self.directory = Path(directory)
        self.processes = []
        self.flips = []
        self.memory = None
        self.strict = self.structure.has_plain_payload and self.rng.random() < 0.1
        self.planned = self.rng.choice([1, 1, 1, 2, 3, 5, 8, 16])
        self.began = time.monotonic()

    def run(self):
        """What went wrong, as a text; ``None`` when nothing did."""
        try:
            found = self._act() or self._end()
            return found and self._report(found)
        finally:
            self._clear()

    def _start(self, role, work):
        self.processes.append(Process(role, work, Task(self.rng.random(), self.planned, self.strict)))
        return self.processes[-1]

    def _start_one(self, roles, role):
        if roles:
            self._start(role, getattr(self.structure, self.rng.choice(roles)))

    def _act(self):
        first = self._start("learner", self.structure.learner)
        for _ in range(self.rng.randrange(1, 3)):
            self._start_one(self.structure.producers, "producer")
        if not self._map(first):
            return None
        regions = [region for region in self.structure.regions(self.memory) if region.payload or not self.strict]
        weights = [region.weight for region in regions]
        todo = ["flip"] * self.planned + ["learner", "producer"]
        if not self.strict:
            todo += self.rng.choices(["kill", "producer", "learner", "look"], k=self.rng.randrange(4))
        self.rng.shuffle(todo)
        for action in todo:
            self._pause(self.rng.random() * 0.008)
            if action == "flip":
                self._flip(self.rng.choices(regions, weights)[0])
            elif action == "kill":
                self._kill(self.rng.random())
            elif action == "look":
                self._start("look", lambda task: [task.call(rollway.segments), task.call(rollway.gc)])
            elif self.name != "vector_env":
                roles = self.structure.learners if action == "learner" else self.structure.producers
                self._start_one(roles, f"late {action}")
        return None

    def _map(self, first):
        """Waits for the segment; false when the learner ended before."""
        while True:
            self._reap()
            for path in self.directory.glob(self.structure.segments):
                with contextlib.suppress(FileNotFoundError):  # Gone since the listing.
                    with path.open("r+b") as file:
                        self.memory = mmap(file.fileno(), 0)
                    return True
            if first.status is not None or time.monotonic() - first.started > LIMIT_S:
                return False
            time.sleep(0.0005)

    def _pause(self, seconds):
        time.sleep(seconds)
        self._reap()

    def _flip(self, region):
        rng = self.rng
        offset = rng.randrange(region.start, region.end)
        if rng.random() < 0.75:  # a word
            offset -= offset % 8
            if rng.random() < 0.3:
                offset += rng.choice([0, 4])
                size = 4
            else:
                size = 8
        else:
            size = 1
        (old,) = struct.unpack(f"<{'BIQ'[size // 4]}", self.memory[offset : offset + size])
        top = (1 << 8 * size) - 1
        how = rng.randrange(8)
        new = [
            old ^ 1 << rng.randrange(8 * size),
            rng.randrange(top + 1),
            0,
            top,
            old + 1 & top,
            old - 1 & top,
            rng.randrange(300) & top,
            top >> rng.randrange(8 * size),
        ][how]
        self.memory[offset : offset + size] = new.to_bytes(size, "little")
        self.flips.append((time.monotonic() - self.began, offset, region.describe(offset), size, old, new))

    def _kill(self, dice):
        alive = [process.pid for process in self.processes if process.status is None]
        if self.name == "vector_env":
            for pid in tuple(alive):
                with contextlib.suppress(OSError):
                    alive += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        if not alive:
            return
        pid = alive[int(dice * len(alive))]
        for process in self.processes:
            process.killed |= process.pid == pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _reap(self):
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                for process in self.processes:
                    if process.pid == pid:
                        process.status = status

    def _late(self, done):
        """Waits until it is so for every process; the first for which it is not so in time."""
        for process in self.processes:
            while not done(process):
                if time.monotonic() - process.started > LIMIT_S:
                    return process
                time.sleep(0.0005)
                self._reap()
        return None

    def _fault(self):
        faults = ((process, process.fault()) for process in self.processes)
        return next((f"{process.role} (pid {process.pid}): {fault}" for process, fault in faults if fault), None)

    def _end(self):
        late = self._late(lambda process: process.status is not None)
        if late is not None:
            return f"{late.role} (pid {late.pid}) did not end within {LIMIT_S:.0f} s"
        if found := self._fault():
            return found
        orphaned = self._late(Process.group_is_gone)
        if orphaned is not None:
            return f"processes of {orphaned.role} (pid {orphaned.pid}) are left"
        self._start("gc", self._collect)
        if self._late(lambda process: process.status is not None) is not None:
            return f"gc did not end within {LIMIT_S:.0f} s"
        return self._fault()

    def _collect(self, task):
        """In a process of its own: what is left, when `gc` ran, must be what it cannot read, and says so."""
        rollway.gc()
        left = [info for info in rollway.segments() if info.problem is None]
        expect(not left, f"left behind: {left}")

    def _report(self, found):
        for process in self.processes:
            if process.status is None:
                before = len(process.said())
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGUSR1)
                deadline = time.monotonic() + 1
                while len(process.said()) == before and time.monotonic() < deadline:
                    time.sleep(0.01)
        lines = [
            f"FAILED {self.name}, seed {self.seed}: {found}",
            f"  again: python -m tests.fault.segment.live_fuzz --structure {self.name} --seed {self.seed} --repeat 20",
        ]
        for at, offset, what, size, old, new in self.flips:
            lines.append(f"  at {at * 1000:6.1f} ms  offset {offset:#x} ({what}): {old:#0{2 * size + 2}x} → {new:#x}")
        for process in self.processes:
            state = "does not end" if process.status is None else f"status {os.waitstatus_to_exitcode(process.status)}"
            killed = ", killed by the driver" if process.killed else ""
            lines.append(f"  {process.role} (pid {process.pid}): {state}{killed}")
            lines += [f"    | {line}" for line in process.said().splitlines()[-60:]]
        return "\n".join(lines)

    def _clear(self):
        for process in self.processes:
            process.kill_group()
        end = time.monotonic() + LIMIT_S
        while not all(process.group_is_gone() for process in self.processes) and time.monotonic() < end:
            self._reap()
            time.sleep(0.0005)
        for process in self.processes:
            os.close(process.errors)
        if self.memory is not None:
            self.memory.close()
        for path in self.directory.iterdir():
            path.unlink()


def become_subreaper():
    """Orphans of killed processes become our children, so that we see how they end."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def main():
    parser = argparse.ArgumentParser(description="Live fuzzing of one structure, or of all of them in turn.")
    parser.add_argument("--structure", choices=STRUCTURES, action="append", help="may be given several times")
    parser.add_argument("--trials", type=int, default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--repeat", type=int, default=1, help="how often each seed is tried")
    parser.add_argument("--seconds", type=float, help="stop early after so long")
    parser.add_argument("--max-failures", type=int, default=3, help="stop after so many")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.trials)
    become_subreaper()
    base = os.environ.get("ROLLWAY_SHM_DIR", "/dev/shm")
    directory = tempfile.mkdtemp(prefix="live-fuzz.", dir=base)
    os.environ["ROLLWAY_SHM_DIR"] = directory
    failures = 0
    try:
        for structure in options.structure or STRUCTURES:
            began, done, failed = time.monotonic(), 0, 0
            for seed in (seed for seed in seeds for _ in range(options.repeat)):
                if options.seconds is not None and time.monotonic() - began > options.seconds:
                    break
                done += 1
                if (report := Trial(structure, seed, directory).run()) is not None:
                    print(report, flush=True)
                    failed += 1
                    if failed >= options.max_failures:
                        break
            seconds = time.monotonic() - began
            print(f"{structure}: {done} trials from seed {seeds[0]} on, {failed} failed, {seconds:.1f} s", flush=True)
            failures += failed
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
