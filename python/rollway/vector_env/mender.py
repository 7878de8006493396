"""Mender: what is done about environments that raise, die or hang. Begins them anew, or tells the caller.

A worker that has ended gets a successor, with its environments made anew. Those that were asked something are asked to
begin again; the others do so with their next action. What the learner hears of it is in `Losses`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from rollway._core import EnvCaller
from rollway.errors import EnvDied, EnvHung
from rollway.vector_env.allowance import Allowance
from rollway.vector_env.answers import Answers
from rollway.vector_env.blame import ADVICE, named, raise_fault
from rollway.vector_env.crew import Crew
from rollway.vector_env.fault_policy import Patience
from rollway.vector_env.layout import Array
from rollway.vector_env.losses import Losses
from rollway.vector_env.mail import Mail
from rollway.vector_env.results import Results
from rollway.vector_env.rollout import Target
from rollway.vector_env.task import FAULT, PARCEL, RESET, RESTORE, Fault
from rollway.vector_env.worker import Orders


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
