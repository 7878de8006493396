"""Fault recovery: restarts environments that raise, die or hang, or raises to the caller.

A worker process that has ended is replaced, and its environments are made again. Environments with a request under way
restart at once, the others with their next action. The learner sees a lost episode as truncated; a lost reset is
repeated. `LostEpisodes` keeps both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode

from rollway.errors import EnvDied, EnvHung, InvalidArgument
from rollway.runner.restart_policy import RestartCount, RestartPolicy
from rollway.vector_env.layout import RolloutTarget
from rollway.vector_env.messages import Messages, PendingAnswers
from rollway.vector_env.protocol import (
    FAULT,
    OVERFLOW,
    RESET,
    RESTART_ADVICE,
    RESTORE,
    RESTORED,
    Fault,
    WorkerSettings,
    describe_envs,
    raise_fault,
)
from rollway.vector_env.results import Results

Reset = tuple[int | None, dict[str, Any] | None]
"""Seed and options."""


class FaultBudget:
    """Counts the faults of each environment against a policy. ``policy`` is ``None`` where none is ever restarted."""

    def __init__(self, policy: RestartPolicy | None) -> None:
        if not isinstance(policy, RestartPolicy | None):
            raise InvalidArgument(f"restart must be a RestartPolicy, or None for none; not {policy!r}")
        self.policy = None if policy is None or policy.max_restarts == 0 else policy
        self._counts: dict[int, RestartCount] = {}

    def record_fault(self, env: int) -> bool:
        """Counts a fault. False when it was one too many."""
        if self.policy is None:
            return False
        count = self._counts.get(env) or self._counts.setdefault(env, RestartCount(self.policy))
        return count.allows_another()


class LostEpisodes:
    """Which episodes and resets were lost to faults, until the learner is told. `FaultRecovery` acts on it."""

    def __init__(self, num_envs: int, mode: AutoresetMode) -> None:
        self._same_step = mode is AutoresetMode.SAME_STEP
        self.seeds: list[int | None] = [None] * num_envs
        """By environment: the seed of its last reset that had one."""
        self._restarts = [0] * num_envs
        self._why: dict[int, str] = {}  # by environment that restarts now, or with its next action
        self._last: dict[int, Any] = {}  # its last observation, if the learner is told about it
        self._ends: dict[int, dict[str, Any]] = {}  # the infos of lost episodes, not yet given to the learner
        self._resets: dict[int, Reset] = {}  # the resets under way
        self.repeated_resets: dict[int, str] = {}
        """Resets that were lost, and why; the learner is not told yet."""

    def __bool__(self) -> bool:
        """Whether there is a loss that the learner was not told about yet, or a reset under way."""
        return bool(self._why or self._ends or self._resets or self.repeated_resets)

    def begin_resets(self, resets: dict[int, Reset]) -> None:
        """These resets are under way. Earlier losses of their environments do not matter any more."""
        self._resets, self.repeated_resets = resets, {}
        for env in resets:
            self._why.pop(env, None)

    def on_arrived(self, envs: Iterable[int]) -> None:
        """These environments have answered: their resets, if any, are done or have failed for good."""
        if self._resets:
            for env in envs:
                self._resets.pop(env, None)

    def repeat_reset(self, env: int, why: str) -> Reset | None:
        """The lost reset, which has to be done again; ``None`` if no reset was under way."""
        reset = self._resets.get(env)
        if reset is not None:
            self.repeated_resets[env] = why
        return reset

    def add(self, env: int, why: str) -> None:
        """The episode of an environment is lost."""
        self._why[env] = why

    def keep_last_observation(self, env: int, last: Any) -> None:
        """Keeps the last observation of a lost episode. Known only once the caller was given all of it."""
        if self._same_step:
            self._last[env] = last

    def envs(self) -> Iterable[int]:
        """The environments that restart now, or with their next step."""
        return self._why.keys()

    def next_seed(self, env: int) -> int | None:
        """The seed of the next episode, derived from the one before."""
        seed = self.seeds[env]
        self._restarts[env] += 1
        if isinstance(seed, int) and seed >= 0:  # an environment may accept other seeds; SeedSequence does not
            seed = int(np.random.SeedSequence([seed, self._restarts[env]]).generate_state(1)[0])
        return seed

    def on_answer(self, env: int, flag: int) -> None:
        """An answer is taken. The info is made at once: the next episode may be lost before the answer is given."""
        if flag & RESTORED:
            fault = {"fault": self._why.pop(env, "its worker was restarted")}
            last = self._last.pop(env, None)
            self._ends[env] = {"final_obs": last, "final_info": fault} if self._same_step else fault

    def infos_of(self, env: int, flag: int) -> list[dict[str, Any]]:
        """The infos about faults that the learner gets with an answer."""
        infos: list[dict[str, Any]] = []
        if env in self.repeated_resets:
            infos.append({"fault": self.repeated_resets.pop(env)})
        if flag & RESTORED:
            infos.append(self._ends.pop(env))
        return infos


class FaultRecovery:
    """Restarts environments and replaces workers, as long as the fault budget allows it."""

    def __init__(
        self,
        fault_budget: FaultBudget,
        settings: WorkerSettings,
        messages: Messages,
        results: Results,
        lost_episodes: LostEpisodes,
    ) -> None:
        self._fault_budget, self._settings = fault_budget, settings
        self._messages, self._results, self._lost_episodes = messages, results, lost_episodes
        self._core, self._workers, self._deadlines = messages.core, messages.workers, messages.deadlines
        self._busy_env = messages.arrays.busy_env
        self.targets: list[RolloutTarget] = []
        """Slots of rings that replacement workers have to know."""
        self.death: EnvDied | None = None
        """The end of a worker that was not replaced."""

    def on_raised(self, env: int, fault: Fault) -> None:
        """An environment has raised: it alone is made again, unless the error is the caller's."""
        if fault.is_caller_error or not self._fault_budget.record_fault(env):
            self._lost_episodes.on_arrived([env])
            self._deadlines.remaking_envs.discard(env)
            raise_fault([env], fault, "raised")
        self.restore(env, f"{fault.summary}\n{fault.traceback}", remake=True)

    def on_died(self, worker: int, answers: PendingAnswers) -> str:
        """A worker process has ended: it is replaced. Returns how it ended."""
        envs = list(self._workers.envs_of[worker])
        pid, busy = self._workers.pid(worker), self._busy_env_of(worker)
        reported = self._messages.collect_from_dead(worker)
        what = f"worker process {pid} of {describe_envs(envs)} ended: {self._workers.reap(worker)}"
        if busy >= 0:
            what += f", while it was busy with environment {busy}"
        at_fault = [busy] if busy in envs else envs
        cause = None
        if reported is not None:
            env, fault = reported
            cause = fault.cause()
            if env is None:
                what = f"worker process {pid} of {describe_envs(envs)} ended"
            else:
                at_fault = [env]
                what = f"{describe_envs(at_fault)} could not be made again"
            what += f": {fault.summary}\n\nIn the worker:\n{fault.traceback}"
        if not all([self._fault_budget.record_fault(env) for env in at_fault]):
            policy = self._fault_budget.policy
            advice = RESTART_ADVICE if policy is None else f"That is one fault too many for {policy}"
            self.death = EnvDied(f"{what}. {advice}", at_fault)
            raise self.death from cause
        self._replace(worker, what, answers)
        return what

    def on_hung(self, overdue: list[int], answers: PendingAnswers) -> None:
        """Environments have not answered in time: their workers are killed and replaced."""
        for worker in dict.fromkeys(self._workers.worker_of[env] for env in overdue):
            envs = [env for env in overdue if self._workers.worker_of[env] == worker]
            at_fault = self._at_fault(worker, envs)
            if not all([self._fault_budget.record_fault(env) for env in at_fault]):
                self.raise_hung(worker, envs)
            what = f"{describe_envs(at_fault)} did not answer within {self._deadlines.timeout_s} s; worker process "
            what += f"{self._workers.pid(worker)} was killed"
            self._workers.kill(worker)
            self._messages.collect_from_dead(worker)
            self._workers.reap(worker)
            self._replace(worker, what, answers)

    def _busy_env_of(self, worker: int) -> int:
        """Which environment a worker is busy with; -1: none."""
        return int(self._busy_env[worker]) - 1

    def _at_fault(self, worker: int, envs: list[int]) -> list[int]:
        busy = self._busy_env_of(worker)
        return [busy] if busy in envs else envs

    def _replace(self, worker: int, what: str, answers: PendingAnswers) -> None:
        """Starts another process in place of one that has ended. Its environments are made again."""
        self._core.vacate(worker)
        self._busy_env[worker] = 0
        self._messages.on_worker_started(worker)
        self._messages.discard_overflow([env for env in self._workers.envs_of[worker] if not answers.is_unread(env)])
        settings = replace(self._settings, worker=worker, targets=tuple(self.targets))
        self._core.expect(worker, self._workers.start(settings))
        self._deadlines.starting_workers.add(worker)
        for env in self._workers.envs_of[worker]:
            if self._core.is_busy(env):
                self.restore(env, what, remake=False)
                continue
            # Idle, or its last answer is taken already: it restarts with its next action.
            flag = answers.get(env)
            is_whole = flag is not None and not flag & FAULT
            if flag is not None and flag & (OVERFLOW | FAULT) and answers.is_unread(env):
                is_whole = self._messages.overflow_arrived(env) and is_whole
            if is_whole:
                self._results.arrived([env])
            self._lost_episodes.add(env, what)

    def restore(self, env: int, what: str, remake: bool) -> None:
        """Ends a lost episode: shows the last observation again, and derives a new seed from the old one.

        A lost reset is done again, because its caller waits for a first observation.
        """
        self._deadlines.remaking_envs.add(env)
        reset = self._lost_episodes.repeat_reset(env, what)
        if reset is not None:
            self._ask(RESET, env, (*reset, remake))
            return
        self._results.copy_to_current(env)
        self._lost_episodes.add(env, what)
        self._lost_episodes.keep_last_observation(env, self._results.last_observation(env))
        self._ask(RESTORE, env, (self._lost_episodes.next_seed(env), remake))

    def _ask(self, what: int, env: int, parameter: tuple[object, ...]) -> None:
        self._messages.ask(what, self._results.buffer, self._messages.pack({env: parameter}))

    def raise_death(self, worker: int) -> NoReturn:
        """Raises that a worker has ended. For callers without a restart policy."""
        envs, pid = list(self._workers.envs_of[worker]), self._workers.pid(worker)
        what = f"worker process {pid} of {describe_envs(envs)} ended: {self._workers.reap(worker)}"
        self.death = EnvDied(f"{what}. {RESTART_ADVICE}", envs)
        raise self.death

    def raise_hung(self, worker: int, envs: list[int]) -> NoReturn:
        """Raises that environments of a worker have not answered in time."""
        at_fault, others = self._at_fault(worker, envs), describe_envs(self._workers.envs_of[worker])
        raise EnvHung(
            f"{describe_envs(at_fault)} has not answered for {self._deadlines.timeout_s} s (in worker process "
            f"{self._workers.pid(worker)}, with {others}). Wait longer with the same call (after "
            "step(): step_wait()), or close() to end it"
            + (", or use restart=RestartPolicy.up_to(3) to restart it" if self._fault_budget.policy is None else ""),
            at_fault,
        )
