"""EnvPool: all environments as their caller sees them. Makes requests, waits for answers, and starts fault recovery.

Only `ShmVectorEnv` uses it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from gymnasium.vector import AutoresetMode

from rollway._core import EnvCaller
from rollway.errors import EnvDied, EnvRaised, WaitTimeout
from rollway.runner.restart_policy import RestartPolicy
from rollway.segment.naming import auto_name
from rollway.vector_env.errors import ResultsTimeout
from rollway.vector_env.fault_recovery import FaultBudget, FaultRecovery, LostEpisodes, Reset
from rollway.vector_env.layout import RolloutTarget, SharedLayout
from rollway.vector_env.messages import Deadlines, Messages, Packed, PendingAnswers
from rollway.vector_env.pipe import WorkerGone, WorkerTimeout, packed
from rollway.vector_env.protocol import (
    CommonSpaces,
    EnvDescriptions,
    Fault,
    ObservationMode,
    WorkerSettings,
    describe_envs,
    raise_fault,
)
from rollway.vector_env.results import Results
from rollway.vector_env.worker_processes import Maker, WorkerProcesses

Outcome = tuple[str, list[int], bytes]
"""The end of a wait in the core: its kind, the environments or workers, and the flags of the answers."""
EnvInfo = tuple[int, dict[str, Any]]
"""An environment, and an info of it."""
_CLOSING_S = 5.0
"""How long environments may take to close."""


class EnvPool:
    """Environments in worker processes, their arrays, and the state of each of them."""

    def __init__(
        self,
        makers: list[Maker],
        num_workers: int,
        mode: AutoresetMode,
        observation_mode: ObservationMode,
        restart: RestartPolicy | None,
        context: str | None,
        daemon: bool,
    ) -> None:
        self.num_envs = len(makers)
        envs_of = [
            range(w * self.num_envs // num_workers, (w + 1) * self.num_envs // num_workers) for w in range(num_workers)
        ]
        self._fault_budget = FaultBudget(restart)
        self._workers = WorkerProcesses(makers, envs_of, context, daemon)
        try:
            started = time.monotonic()
            self.spaces = self._describe_spaces(makers[0], mode, observation_mode)
            self.deadlines = Deadlines(time.monotonic() - started)
            self._open(num_workers)
        except BaseException as error:  # workers close the environments that they made, except after Ctrl-C
            self._workers.cancel_start()
            if hasattr(self, "core"):
                self.core.close()
            self._workers.stop(_CLOSING_S if isinstance(error, Exception) else 0.0)
            raise
        self.results = Results(self.shared_layout, self.arrays)
        self.lost_episodes = LostEpisodes(self.num_envs, mode)
        self._messages = Messages(self.core, self._workers, self.arrays, self.deadlines)
        settings = WorkerSettings(0, os.getpid(), envs_of[0], mode, self.shared_layout, self.core.name)
        self._recovery = FaultRecovery(self._fault_budget, settings, self._messages, self.results, self.lost_episodes)
        self._answers = PendingAnswers()
        self._calling_thread: dict[str, int] = {}

    def _describe_spaces(self, make: Maker, mode: AutoresetMode, observation_mode: ObservationMode) -> CommonSpaces:
        envs_of = self._workers.envs_of
        for worker, envs in enumerate(envs_of):
            self._workers.start(WorkerSettings(worker, os.getpid(), envs, mode, None, None))
        descriptions = [self._workers.receive_expected(worker, "spaces") for worker in range(len(envs_of))]
        if None not in descriptions:
            return CommonSpaces.of([pickle.loads(one) for one in descriptions], observation_mode)
        # Spaces that cannot be pickled: make an environment here, and assume that all are alike.
        example = make()
        description = EnvDescriptions.of([example] * self.num_envs)
        example.close()
        return CommonSpaces.of([description], observation_mode)

    def _open(self, workers: int) -> None:
        spaces = self.spaces.single_observation_space, self.spaces.single_action_space
        self.shared_layout = SharedLayout.of(*spaces, self.num_envs, workers)
        self.action = self.shared_layout.action
        name = auto_name()
        self.core = EnvCaller(name, workers, self.num_envs, self.shared_layout.bytes)
        # Also when the pool is dropped without `close`; see `_close_all` for the end of the interpreter.
        self._end = weakref.finalize(self, _end, self.core, self._workers, os.getpid())
        self._end.atexit = False
        _open.add(self)
        self.arrays = self.shared_layout.arrays(self.core.memory)
        for worker in range(workers):
            self.core.expect(worker, self._workers.pid(worker) or 0)
            self._workers.put(worker, packed((self.shared_layout, name)))
            with contextlib.suppress(WorkerGone):  # `receive_expected` says how it ended
                self._workers.flush(worker)
        for worker in range(workers):
            self._workers.receive_expected(worker, "ready")

    def close(self, timeout: float) -> None:
        """Ends the workers; kills those that have not ended in time. Does nothing in a forked child."""
        still = self._end.peek()
        if still is not None:
            _, _, (core, workers, pid), _ = still
            _end(core, workers, pid, timeout)  # when it raises, `close` can be called again
            self._end.detach()

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def pack(self, parameters: dict[int, Any]) -> Packed:
        """Pickles the parameters of a request, by environment. Raises when one of them cannot be pickled."""
        return self._messages.pack(parameters)

    def pack_resets(self, resets: dict[int, Reset]) -> Packed:
        """Makes the request for resets. Nothing else may be under way."""
        request = self._messages.pack({env: (*reset, False) for env, reset in resets.items()})
        self._messages.discard_overflow(range(self.num_envs))
        self.lost_episodes.begin_resets(resets)
        return request

    def ask(self, what: int, request: Packed) -> None:
        """Makes a request that has parameters."""
        self._messages.ask(what, self.results.buffer, request)

    def next_buffer(self) -> None:
        """Goes to the buffer of the next step. Environments that restart with it show their last observation there."""
        self.results.next_buffer()
        for env in self.lost_episodes.envs():
            self.lost_episodes.keep_last_observation(env, self.results.last_observation(env))
            self.results.copy_last_observation(env)

    def back_up(self, envs: list[int]) -> None:
        """Copies results that workers are about to overwrite, for recovery from a fault."""
        if self._fault_budget.policy is not None:
            for env in self.lost_episodes.envs():
                if env in envs:
                    self.lost_episodes.keep_last_observation(env, self.results.last_observation(env))
            self.results.back_up(envs)

    def is_busy(self, env: int | None = None) -> bool:
        """Whether an environment (or any) has a request whose answer was not given to the caller yet."""
        if env is None:
            return self.core.num_busy() > 0 or bool(self._answers)
        return self.core.is_busy(env) or env in self._answers

    def check_alive(self) -> None:
        """Raises `EnvDied` again, if a worker has ended and was not replaced."""
        death = self._recovery.death
        if death is not None:
            raise EnvDied(
                f"{describe_envs(death.env_ids)} died before, and no step of all environments is possible any more: "
                f"close() this vector environment and make it again. What happened: {death}",
                death.env_ids,
            ) from death

    def can_step_fast(self) -> bool:
        """Whether no request or fault is under way, and all parts of actions and results are arrays."""
        is_plain = not (self.action.variable_parts or self.shared_layout.observation.variable_parts)
        return is_plain and not (
            self.is_busy()
            or self._workers.unflushed
            or self.lost_episodes
            or self.deadlines.starting_workers
            or self.deadlines.remaking_envs
        )

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def gather(
        self, count: int, timeout: float | None = None, outcome: Outcome | None = None
    ) -> tuple[list[int], list[EnvInfo]]:
        """Waits for ``count`` answers, and recovers from faults. Returns the environments, and their infos.

        ``outcome`` is the result of a wait in the core that was made already.
        """
        answers = self._answers
        if self._workers.unflushed:
            for worker in self._messages.flush_pending(timeout):
                self._recovery.on_hung(
                    [env for env in self._workers.envs_of[worker] if self.core.is_busy(env)], answers
                )
        while True:
            if answers:
                for env in [env for env in answers if answers.is_unread(env)]:
                    self._read_message(env)
                count = min(count, self.core.num_busy() + len(answers))
                if len(answers) >= count:
                    break
            # With no answers yet the core waits for all requests, if those are fewer.
            try:
                if outcome is None:
                    outcome = self.core.wait(count - len(answers), self.deadlines.limit(), timeout)
            except WaitTimeout:
                count = min(count, self.core.num_busy() + len(answers))
                raise ResultsTimeout(
                    f"fewer than {count} environments have answered within {timeout} s. Nothing is lost: call again to "
                    "wait longer, or reset()"
                ) from None
            (kind, ids, flags), outcome = outcome, None
            if kind == "answered":
                if self.deadlines.starting_workers:
                    self.deadlines.starting_workers.difference_update(self._workers.worker_of[env] for env in ids)
                if not answers and flags.count(0) == len(ids) and not (ids and self.lost_episodes.repeated_resets):
                    return self._mark_arrived(ids), []
                self._accept(ids, flags)
            elif kind == "died":
                self._take_answers()
                for worker in ids:
                    self._recovery.on_died(worker, answers)
            else:
                self._take_answers()
                self._recovery.on_hung(ids, answers)
        envs = sorted(answers) if count == self.num_envs else list(answers)[:count]
        infos = [(env, info) for env in envs for info in self._take_infos(env)]
        return self._mark_arrived(envs), infos

    def _take_answers(self) -> None:
        """Takes the answers that are there before a worker is replaced, so that they are not lost with it."""
        with contextlib.suppress(WaitTimeout):
            while self.core.num_busy():
                _, ids, flags = self.core.wait(1, None, 0.0)
                self._accept(ids, flags)

    def _accept(self, ids: list[int], flags: bytes) -> None:
        for env, flag in zip(ids, flags, strict=True):
            self._answers[env] = flag
            self.lost_episodes.on_answer(env, flag)

    def _read_message(self, env: int) -> None:
        """Reads the message that came with an answer. A fault, or an unreadable message, is recovered."""
        try:
            data = self._messages.read_message(env, self._answers[env])
        except WorkerGone:
            if self._fault_budget.policy is None:
                self._recovery.raise_death(self._workers.worker_of[env])
            data = None
        content: Any = None
        try:
            if data is not None:
                content = pickle.loads(data)
        except Exception as error:  # noqa: BLE001 - reported to the user, as an error of this environment
            content = Fault.of(TypeError(f"its info or observation cannot be unpickled here: {error!r}"))
        if isinstance(content, tuple):
            self._answers.contents[env] = content
            self._messages.discard_message(env)
            return
        del self._answers[env]
        self._messages.discard_message(env)
        if isinstance(content, Fault):
            self._recovery.on_raised(env, content)
        else:
            self._recovery.restore(env, "its worker ended before its message was sent", remake=False)

    def _take_infos(self, env: int) -> list[dict[str, Any]]:
        """The infos of an environment whose answer the caller gets now."""
        flag, (infos, variable) = self._answers.take(env)
        if variable:
            self.results.keep_variable_parts(env, variable)
        return [*self.lost_episodes.infos_of(env, flag), *infos]

    def _mark_arrived(self, envs: list[int]) -> list[int]:
        self.lost_episodes.on_arrived(envs)
        if self.deadlines.remaking_envs:
            self.deadlines.remaking_envs.difference_update(envs)
        self.results.arrived(envs)
        return envs

    def drain_after_error(self) -> None:
        """Waits for all requests after an exception of one environment, and drops infos and further exceptions."""
        while self.is_busy():
            with contextlib.suppress(EnvRaised):
                self.gather(self.num_envs)

    def drain(self) -> None:
        """Waits for all earlier requests, for instance after Ctrl-C, and drops their results."""
        while self.is_busy():
            self.gather(self.num_envs)

    def end_rollout(self) -> None:
        """Ends a rollout. After it, even after an error, no worker writes to the rows of the slot."""
        try:
            self.drain_after_error()
        except BaseException:  # hung, dead, or Ctrl-C again: a killed worker does not write
            for worker in {self._workers.worker_of[env] for env in range(self.num_envs) if self.core.is_busy(env)}:
                self._workers.kill(worker)
            raise
        finally:
            self.results.end_rollout()

    # ── calls to all workers ──────────────────────────────────────────────────────────────────────────────────────────

    def add_target(self, target: RolloutTarget) -> None:
        """Tells the workers about a slot of a ring to write results to."""
        self._call_all_workers("add_target", target)
        self._recovery.targets.append(target)

    def remove_targets(self, clients: set[int]) -> None:
        """Tells the workers to unmap the memory of these clients, whose slots are not used any more."""
        self._recovery.targets = [target for target in self._recovery.targets if target.client not in clients]
        self._call_all_workers("remove_targets", clients)

    def _call_all_workers(self, *message: Any) -> None:
        """Makes the same call to every worker; again, if one died and was replaced."""
        try:
            self.call_workers(lambda envs: message)
        except EnvDied:
            if self._fault_budget.policy is None:
                raise
            self.call_workers(lambda envs: message)

    def call_workers(self, message: Callable[[range], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Calls every worker with a message for its environments, and returns the results of all environments."""
        me = threading.get_ident()
        if self._calling_thread.setdefault("thread", me) != me:
            raise RuntimeError("another thread is using this vector environment")
        try:
            self.core.num_busy()  # raises when another thread waits
            return self._call_workers(message)
        finally:
            self._calling_thread.clear()

    def _call_workers(self, message: Callable[[range], tuple[Any, ...]]) -> tuple[Any, ...]:
        envs_of = self._workers.envs_of
        payloads = self._messages.pack_calls([message(envs) for envs in envs_of])
        deadline, gone, replies = self.deadlines.deadline(), [], []
        for worker, payload in enumerate(payloads):
            try:
                self._messages.send_call(worker, payload, deadline)
            except WorkerGone:
                gone.append(worker)
            except WorkerTimeout:
                self._recovery.raise_hung(worker, list(envs_of[worker]))
        for worker in range(len(envs_of)):
            try:
                if worker not in gone:
                    replies.append(self._messages.receive_reply(worker, deadline))
            except WorkerGone:
                gone.append(worker)
            except WorkerTimeout:
                self._recovery.raise_hung(worker, list(envs_of[worker]))
        if gone:
            how = "; ".join(self._recovery.on_died(worker, self._answers) for worker in gone)
            lost = [env for worker in gone for env in envs_of[worker]]
            raise EnvDied(f"{how}. Its environments restart in another process: call again", lost)
        for reply in replies:
            if not isinstance(reply, bytes):
                env, fault = reply
                raise_fault([env], fault, "raised")
        return tuple(result for reply in replies for result in pickle.loads(reply))


def _end(core: EnvCaller, workers: WorkerProcesses, pid: int, timeout: float = _CLOSING_S) -> None:
    if os.getpid() == pid:
        core.close()
        workers.stop(timeout)


_open: weakref.WeakSet[EnvPool] = weakref.WeakSet()


def _close_all() -> None:
    with contextlib.ExitStack() as stack:  # closes every pool, also after one that raises
        for pool in list(_open):
            stack.callback(pool.close, _CLOSING_S)


atexit.register(_close_all)  # registered after multiprocessing's handler, which waits for all children; so runs first
