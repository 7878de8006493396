"""Mender: what is done about environments that raise, die or hang. Begins them anew, or tells the caller.

A worker that has ended gets a successor, with its environments made anew. Those that were asked something are asked to
begin again; the others do so with their next action. What the learner hears of it is in `Losses`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode

from rollway._core import EnvCaller
from rollway.errors import EnvDied, EnvHung
from rollway.vector_env.fault_policy import Allowance, Patience
from rollway.vector_env.layout import Array, Target
from rollway.vector_env.messages import Answers, Mail
from rollway.vector_env.protocol import (
    ADVICE,
    FAULT,
    PARCEL,
    RESET,
    RESTORE,
    RESTORED,
    Fault,
    Orders,
    named,
    raise_fault,
)
from rollway.vector_env.results import Results
from rollway.vector_env.worker_processes import Crew

Reset = tuple[int | None, dict[str, Any] | None]
"""Seed and options."""


class Losses:
    """What was lost of each environment, until it is told."""

    def __init__(self, num_envs: int, mode: AutoresetMode) -> None:
        self._same_step = mode is AutoresetMode.SAME_STEP
        self.seeds: list[int | None] = [None] * num_envs
        """Of the last reset with one."""
        self._restarts = [0] * num_envs
        self._why: dict[int, str] = {}  # by environment that is, or will be, begun anew
        self._last: dict[int, Any] = {}  # its last observation, where that is told
        self._ends: dict[int, dict[str, Any]] = {}  # what to tell of episodes that have ended so
        self._resets: dict[int, Reset] = {}  # those under way
        self.repeated: dict[int, str] = {}
        """Those that were lost, and why: still to be told."""

    def __bool__(self) -> bool:
        """Whether anything is lost and not told, or would be with a fault: a reset that is under way."""
        return bool(self._why or self._ends or self._resets or self.repeated)

    def begin(self, resets: dict[int, Reset]) -> None:
        """These resets are under way, and what was lost before them is of no interest any more."""
        self._resets, self.repeated = resets, {}
        for env in resets:
            self._why.pop(env, None)

    def arrived(self, envs: Iterable[int]) -> None:
        """These have answered: if it was a reset, it is done, or has failed for good."""
        if self._resets:
            for env in envs:
                self._resets.pop(env, None)

    def reset_again(self, env: int, why: str) -> Reset | None:
        """The reset that was lost and has to be done again; ``None``: it was a step, or nothing."""
        reset = self._resets.get(env)
        if reset is not None:
            self.repeated[env] = why
        return reset

    def mourn(self, env: int, why: str) -> None:
        """An episode is lost."""
        self._why[env] = why

    def keep_last(self, env: int, last: Any) -> None:
        """The observation after which it was lost. Not known before the caller was given all of it."""
        if self._same_step:
            self._last[env] = last

    def mourned(self) -> Iterable[int]:
        """Those that are being begun anew, or will be with their next step."""
        return self._why.keys()

    def next_seed(self, env: int) -> int | None:
        """For the next episode: follows from the one that it had."""
        seed = self.seeds[env]
        self._restarts[env] += 1
        if isinstance(seed, int) and seed >= 0:  # an environment may take others, which no sequence follows from
            seed = int(np.random.SeedSequence([seed, self._restarts[env]]).generate_state(1)[0])
        return seed

    def accept(self, env: int, flag: int) -> None:
        """An answer is taken. How an episode was lost is noted at once: another may be before the answer is given."""
        if flag & RESTORED:
            fault = {"fault": self._why.pop(env, "its worker was started anew")}
            last = self._last.pop(env, None)
            self._ends[env] = {"final_obs": last, "final_info": fault} if self._same_step else fault

    def notes(self, env: int, flag: int) -> list[dict[str, Any]]:
        """What the learner is told with an answer."""
        notes: list[dict[str, Any]] = []
        if env in self.repeated:
            notes.append({"fault": self.repeated.pop(env)})
        if flag & RESTORED:
            notes.append(self._ends.pop(env))
        return notes


class Mender:
    """Mends what is broken, as long as there is patience."""

    def __init__(
        self,
        patience: Patience,
        orders: Orders,
        core: EnvCaller,
        crew: Crew,
        mail: Mail,
        results: Results,
        losses: Losses,
        allowance: Allowance,
        in_hand: Array,
    ) -> None:
        self._patience = patience
        self._orders, self._core, self._crew, self._mail = orders, core, crew, mail
        self._results, self._losses, self._allowance, self._in_hand = results, losses, allowance, in_hand
        self.targets: list[Target] = []
        """Places in others' memory, of which successors have to know."""

    def raised(self, env: int, fault: Fault) -> None:
        """An environment has raised: it is made again, alone. Unless it is as it was, and the caller mistaken."""
        if fault.is_callers or not self._patience.bears(env):
            self._losses.arrived([env])
            self._allowance.anew.discard(env)
            raise_fault([env], fault, "raised")
        self.restore(env, f"{fault.summary}\n{fault.traceback}", remake=True)

    def died(self, worker: int, answers: Answers) -> str:
        """A worker has ended: it gets a successor. Says how it ended."""
        share = list(self._crew.shares[worker])
        pid, hand = self._crew.pid(worker), self._hand(worker)
        last_words = self._mail.inherit(worker)
        what = f"worker process {pid} of {named(share)} ended: {self._crew.bury(worker)}"
        if hand >= 0:
            what += f", while it was busy with environment {hand}"
        blamed = [hand] if hand in share else share
        cause = None
        if last_words is not None:
            env, fault = last_words
            cause = fault.cause()
            if env is None:
                what = f"worker process {pid} of {named(share)} ended"
            else:
                blamed = [env]
                what = f"{named(blamed)} could not be made again"
            what += f": {fault.summary}\n\nIn the worker:\n{fault.traceback}"
        if not all([self._patience.bears(env) for env in blamed]):
            policy = self._patience.policy
            advice = ADVICE if policy is None else f"That is one fault too many for {policy}"
            raise EnvDied(f"{what}. {advice}", blamed) from cause
        self._replace(worker, what, answers)
        return what

    def hung(self, overdue: list[int], answers: Answers) -> None:
        """Environments have not answered in time: their workers are killed, and get successors."""
        for worker in dict.fromkeys(self._crew.worker_of[env] for env in overdue):
            envs = [env for env in overdue if self._crew.worker_of[env] == worker]
            blamed = self._blamed(worker, envs)
            if not all([self._patience.bears(env) for env in blamed]):
                self.raise_hung(worker, envs)
            what = f"{named(blamed)} did not answer within {self._allowance.timeout_s} s; worker process "
            what += f"{self._crew.pid(worker)} was killed"
            self._crew.kill(worker)
            self._mail.inherit(worker)
            self._crew.bury(worker)
            self._replace(worker, what, answers)

    def _hand(self, worker: int) -> int:
        """Which environment a worker is busy with; -1: none."""
        return int(self._in_hand[worker]) - 1

    def _blamed(self, worker: int, envs: list[int]) -> list[int]:
        hand = self._hand(worker)
        return [hand] if hand in envs else envs

    def _replace(self, worker: int, what: str, answers: Answers) -> None:
        """Another process takes the place of one that has ended. Its environments are made anew."""
        self._core.vacate(worker)
        self._in_hand[worker] = 0
        self._mail.begin(worker)
        self._mail.forget([env for env in self._crew.shares[worker] if not answers.is_unread(env)])
        orders = replace(self._orders, worker=worker, targets=tuple(self.targets))
        self._core.expect(worker, self._crew.start(orders))
        self._allowance.absent.add(worker)
        for env in self._crew.shares[worker]:
            if self._core.is_out(env):
                self.restore(env, what, remake=False)
                continue
            # Idle, or its last answer is taken already: begun anew with its next action.
            flag = answers.get(env)
            is_whole = flag is not None and not flag & FAULT
            if flag is not None and flag & (PARCEL | FAULT) and answers.is_unread(env):
                is_whole = self._mail.has_come(env) and is_whole
            if is_whole:
                self._results.arrived([env])
            self._losses.mourn(env, what)

    def restore(self, env: int, what: str, remake: bool) -> None:
        """Ends a lost episode: the last observation again, and a new seed that follows from the old one.

        A lost reset is done again: whoever asked for it is owed a first observation.
        """
        self._allowance.anew.add(env)
        reset = self._losses.reset_again(env, what)
        if reset is not None:
            self._ask(RESET, env, (*reset, remake))
            return
        self._results.carry(env)
        self._losses.mourn(env, what)
        self._losses.keep_last(env, self._results.last_observation(env))
        self._ask(RESTORE, env, (self._losses.next_seed(env), remake))

    def _ask(self, what: int, env: int, parameter: tuple[object, ...]) -> None:
        self._mail.ask(what, self._results.buffer, self._mail.pack({env: parameter}))

    def raise_death(self, worker: int) -> NoReturn:
        """A worker has ended, and there is no policy."""
        share, pid = list(self._crew.shares[worker]), self._crew.pid(worker)
        raise EnvDied(f"worker process {pid} of {named(share)} ended: {self._crew.bury(worker)}. {ADVICE}", share)

    def raise_hung(self, worker: int, envs: list[int]) -> NoReturn:
        """Environments of a worker have not answered, and that is too much."""
        blamed = self._blamed(worker, envs)
        raise EnvHung(
            f"{named(blamed)} has not answered for {self._allowance.timeout_s} s (in worker process "
            f"{self._crew.pid(worker)}, with {named(self._crew.shares[worker])}). Wait on with the same call (after "
            "step() it is step_wait()), or close() to end it"
            + (", or use restart=FaultPolicy() to have it begun anew" if self._patience.policy is None else ""),
            blamed,
        )
