"""Kills Atropos environments whose groups travel to a trainer, and counts groups: lost, repeated, wrong in a field.

`python benches/groups.py` runs real Atropos environments in processes of their own, which send scored groups as records
through shared memory, until 10,000 complete groups have arrived; one of the environments is killed every second and
started again. All this twice: with every field of a `ScoredDataGroup`, images too, read by a `GroupReader`; and through
`generate()` of SkyRL's generator. An environment notes each group that it has sent in full. Such a group must arrive
exactly once; one that was cut off by a kill must not arrive at all, unless its last record was out already. Atropos'
pauses (five seconds at the start, a tenth between looks) are shortened, as lives are short here; nothing else of it is
changed. Writes docs/bench/groups.json and prints a table; the exit status says whether there was a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import logging
import os
import random
import signal
import sys
import tempfile
import time
import types
from collections import Counter
from importlib.util import find_spec
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import rollway
from faults.scored_groups import SIZE, Name, environment_class, name_of, scored_group, trajectory
from harness import report
from harness.cell import Report, RunProcesses, die_with

LIVES, COUNTERS = 1 << 9, 1 << 13  # of one worker; of one life
LANE_BYTES = 16 << 20
STALL_S = 60.0  # nothing arrived for this long; importing Atropos takes a while
LEFT_S = 2.0  # after the last environment is dead, what was committed is there
HALF_S = 5.0  # a group of which some records are missing for so long is given up
CALL = 16  # groups that one call of generate() asks for
FAULTS = ("lost", "repeated", "wrong", "stalled")


class Ledger:
    """Which groups were sent in full: a byte for each, in memory that outlives the environments."""

    def __init__(self, workers: int) -> None:
        self._marks = RawArray(ctypes.c_uint8, workers * LIVES * COUNTERS)

    def note(self, name: Name) -> None:
        self._marks[(name.worker * LIVES + name.life) * COUNTERS + name.counter] = 1

    def noted(self) -> list[Name]:
        """All of them."""
        found, at = [], -1
        marks = bytes(self._marks)
        while (at := marks.find(1, at + 1)) >= 0:
            life, counter = divmod(at, COUNTERS)
            found.append(Name(*divmod(life, LIVES), counter))
        return found


# ── environments ──────────────────────────────────────────────────────────────────────────────────────────────────────


def supervise(
    tell: Report, segment: str, workers: int, every_s: float, with_images: bool, ledger: Ledger, stop: Any
) -> None:
    """A process that has Atropos imported, forks the environments, kills one every so often and forks it again."""
    import atroposlib.envs.base as base

    from rollway.integrations.atropos import with_transport

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # it would complain of the forks
    logging.disable(logging.WARNING)
    base.asyncio = _hurried()
    environment = with_transport(environment_class())
    rng = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="groups-bench-") as folder:
        _save_tokenizer(folder)
        settings = (environment, base, segment, folder, with_images, ledger)
        _born(0, 0, *settings)  # imports all that the children need
        alive = {worker: (0, _forked(_live, worker, 0, *settings)) for worker in range(workers)}
        kills, due = 0, time.monotonic() + every_s
        while not stop.value:
            time.sleep(min(0.02, max(0.0, due - time.monotonic())))
            if time.monotonic() >= due:
                worker = rng.randrange(workers)
                life, pid = alive[worker]
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                alive[worker] = (life + 1, _forked(_live, worker, life + 1, *settings))
                kills, due = kills + 1, due + every_s
        for _, pid in alive.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    tell({"kills": kills})


def _live(worker: int, life: int, *settings: Any) -> None:
    """One life of one environment: its own loop, until it is killed."""
    asyncio.run(_born(worker, life, *settings).env_manager())


def _born(
    worker: int, life: int, environment: Any, base: Any, segment: str, folder: str, with_images: bool, ledger: Ledger
) -> Any:
    """An environment that notes what it has sent. It joins the learner when it runs."""

    class Noting(environment):  # type: ignore[misc]
        async def _send_scored_data_to_api(self, scored_data: Any) -> None:
            await super()._send_scored_data_to_api(scored_data)
            ledger.note(name_of(scored_data["tokens"][0]))

    config = Noting.env_config_cls(
        transport="shm",
        shm_name=segment,
        group_size=SIZE,
        batch_size=256,
        max_batches_offpolicy=8,
        max_num_workers=64,
        total_steps=1 << 30,
        use_wandb=False,
        wandb_name="known",
        tokenizer_name=folder,
        min_items_sent_before_logging=1 << 30,
        trainer_max_token_len=4096,
    )
    one = Noting(config, [base.APIServerConfig(api_key="none")], testing=True)
    one.be(worker, life, with_images)
    return one


def _forked(target: Any, *args: Any) -> int:
    """A child that dies with its parent. Forking is fast enough to replace a victim at once."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with(parent)
            target(*args)
        finally:
            os._exit(1)
    return pid


def _hurried() -> types.SimpleNamespace:
    """asyncio, as Atropos' loop sees it here."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.005))

    return types.SimpleNamespace(**{**vars(asyncio), "sleep": sleep})


def _save_tokenizer(folder: str) -> None:
    """Atropos wants one; it is not used."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)


# ── the trainer's side ────────────────────────────────────────────────────────────────────────────────────────────────


class Watch:
    """What arrived."""

    def __init__(self) -> None:
        self.times: Counter[Name] = Counter()
        self.wrong = 0

    def add(self, name: Name, same: bool) -> None:
        self.times[name] += 1
        self.wrong += not same


class ByReader:
    """Reads whole groups and compares every field."""

    with_images = True

    def __init__(self, server: rollway.RecordServer) -> None:
        from rollway.integrations.atropos import GroupReader

        self._reader = GroupReader(server, group_timeout_s=HALF_S)

    async def take(self, watch: Watch, timeout_s: float) -> bool:
        """False when nothing came in time."""
        from rollway.integrations.atropos import decode_group

        try:
            group = await self._reader.read_async(timeout_s)
        except rollway.WaitTimeout:
            return False
        got = decode_group(group.records)
        name = name_of(got["tokens"][0])
        watch.add(name, got == scored_group(name, with_images=True))
        group.release()
        return True

    def only_the_rest(self) -> None:
        """It reads group by group anyway."""

    def close(self) -> None:
        self._reader.close()


class ByGenerate:
    """Asks for groups as SkyRL's trainer does, and compares every field of the output."""

    with_images = False

    def __init__(self, server: rollway.RecordServer) -> None:
        from rollway.integrations.skyrl import AtroposSHMGenerator

        self._generator = AtroposSHMGenerator(
            server, match="stream", group_size=SIZE, timeout_s=None, group_timeout_s=HALF_S, peer_timeout_s=None
        )
        self._groups = CALL

    async def take(self, watch: Watch, timeout_s: float) -> bool:
        """False when not enough came in time."""
        wanted: Any = {"prompts": [[0]] * (self._groups * SIZE), "trajectory_ids": None}
        try:
            output = await asyncio.wait_for(self._generator.generate(wanted), timeout_s)
        except TimeoutError:
            return False
        for at in range(0, self._groups * SIZE, SIZE):
            name = name_of(output["prompt_token_ids"][at])
            watch.add(name, all(_same(output, at + repetition, name, repetition) for repetition in range(SIZE)))
        return True

    def only_the_rest(self) -> None:
        """What is left is asked for group by group."""
        self._groups = 1

    def close(self) -> None:
        """The server is closed by its owner."""


def _same(output: Any, row: int, name: Name, repetition: int) -> bool:
    want = trajectory(name, repetition)
    tokens, trained = want["tokens"], [mask != -100 for mask in want["masks"]]
    begin = trained.index(True)
    kept = zip(want["inference_logprobs"][begin:], trained[begin:], strict=True)
    return (
        output["prompt_token_ids"][row] == tokens[:begin]
        and output["response_ids"][row] == tokens[begin:]
        and output["loss_masks"][row] == [int(used) for used in trained[begin:]]
        and output["rollout_logprobs"][row] == [logprob if used else 0.0 for logprob, used in kept]
        and output["rewards"][row] == want["scores"]
        and output["stop_reasons"][row] == "stop"
    )


def run(kind: Any, options: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """One run. Ends early, and says so, when nothing arrives any more or the supervisor fails."""
    from rollway.integrations.atropos import ATROPOS_SCHEMA

    watch, processes, ledger = Watch(), RunProcesses(), Ledger(options.environments)
    stop = RawValue(ctypes.c_bool, False)
    task = progress.add_task(NAMES[kind], total=options.groups)

    async def read(server: rollway.RecordServer) -> tuple[float, bool]:
        consumer = kind(server)
        began, heard, stalled = 0.0, time.monotonic(), False
        while processes.alive() and not stalled:
            if await consumer.take(watch, LEFT_S):
                heard = time.monotonic()
                began = began or heard
            arrived = len(watch.times)
            stop.value = arrived >= options.groups
            stalled = time.monotonic() - heard > STALL_S
            progress.update(task, completed=min(arrived, options.groups))
            processes.read()
        took = heard - began
        consumer.only_the_rest()
        while await consumer.take(watch, LEFT_S):
            pass
        consumer.close()
        return took, stalled

    with rollway.RecordServer(
        ATROPOS_SCHEMA,
        rollway.ShmTransport(),
        lane_bytes=LANE_BYTES,
        lanes=2 * options.environments,
        peer_timeout_s=None,
    ) as server:
        try:
            settings = (server.name, options.environments, options.every, kind.with_images, ledger, stop)
            processes.spawn("supervisor", (supervise,), settings)
            took, stalled = asyncio.run(read(server))
            processes.read()
        finally:
            processes.kill()
        stats = server.stats()
    for told in processes.reports:
        if "error" in told:
            progress.console.print(f"the supervisor failed: {told['error']}", highlight=False)
    noted, arrived = set(ledger.noted()), set(watch.times)
    return {
        "environments": options.environments,
        "kills": sum(told.get("kills", 0) for told in processes.reports),
        "groups": len(arrived),
        "groups_per_s": len(arrived) / max(took, 1e-9),
        "sent_in_full": len(noted),
        "lost": len(noted - arrived),
        "repeated": sum(watch.times.values()) - len(arrived),
        "wrong": watch.wrong,
        "arrived_and_not_noted": len(arrived - noted),
        "records_of_the_dead_taken_back": stats["recovered_reservations"],
        "stalled": int(stalled or not noted),
    }


NAMES = {ByReader: "read as groups", ByGenerate: "through generate()"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=10_000, help="that must arrive, in each run (10000)")
    parser.add_argument("--environments", type=int, default=4, help="processes (4)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between kills (1)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "bench")
    options = parser.parse_args()
    console = Console()
    if find_spec("atroposlib") is None:
        console.print("not installed: atroposlib")
        return 2
    kinds = [kind for kind in NAMES if kind is ByReader or find_spec("skyrl") is not None]
    if len(kinds) < len(NAMES):
        console.print("skyrl is not installed: without generate()")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        rows = [run(kind, options, progress) for kind in kinds]
    title = f"Atropos environments killed every {options.every:g} s, {options.groups:,} groups to a trainer"
    report.show_runs(title, [NAMES[kind] for kind in kinds], rows, console)
    options.out.mkdir(parents=True, exist_ok=True)
    report.write_runs(rows, options.out / "groups.json")
    return int(any(row[fault] for row in rows for fault in FAULTS))


if __name__ == "__main__":
    sys.exit(main())
