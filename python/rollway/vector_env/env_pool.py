"""Troupe: the environments as their caller sees them. Asks them, waits for their answers, and has mended what broke.

`ShmVectorEnv` is its only user, and gives it the shape that Gymnasium's users know. Processes are `crew`'s business,
ways to them `mail`'s, where the newest results lie is `results`', and what is done about a fault `mender`'s.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from gymnasium.vector import AutoresetMode

from rollway._core import EnvCaller
from rollway.errors import EnvDied, EnvRaised, WaitTimeout
from rollway.vector_env.common_spaces import Agreement, ObservationMode
from rollway.vector_env.fault_policy import Allowance, FaultPolicy, Patience
from rollway.vector_env.fault_recovery import Losses, Mender, Reset
from rollway.vector_env.layout import Blueprint, SpaceLayout, Target
from rollway.vector_env.messages import Answers, Mail, Packed
from rollway.vector_env.pipe import WorkerGone, WorkerSilent, packed
from rollway.vector_env.protocol import Fault, Introduction, Orders, raise_fault
from rollway.vector_env.results import Results
from rollway.vector_env.worker_processes import Crew, Maker

Outcome = tuple[str, list[int], bytes]
"""What the core says of a wait: how it ended, whom that is about, and the flags of those that answered."""
Note = tuple[int, dict[str, Any]]
"""An environment, and something that it says beside its arrays."""
_LETTER_BYTES = 4096
_CLOSING_S = 5.0
"""How long environments may take to close."""


class Troupe:
    """Environments in worker processes, their arrays, and what is known about each of them."""

    def __init__(
        self,
        makers: list[Maker],
        num_workers: int,
        mode: AutoresetMode,
        observation_mode: ObservationMode,
        restart: FaultPolicy | None,
        context: str | None,
        daemon: bool,
    ) -> None:
        self.num_envs = len(makers)
        shares = [
            range(w * self.num_envs // num_workers, (w + 1) * self.num_envs // num_workers) for w in range(num_workers)
        ]
        self._patience = Patience(restart)
        self._crew = Crew(makers, shares, context, daemon)
        try:
            started = time.monotonic()
            self.spaces = self._introduce(makers[0], mode, observation_mode)
            self.allowance = Allowance(time.monotonic() - started)
            self._open(num_workers)
        except BaseException as error:  # who has made its environments closes them, unless Ctrl-C is in a hurry
            self._crew.send_home()
            if hasattr(self, "core"):
                self.core.close()
            self._crew.dismiss(_CLOSING_S if isinstance(error, Exception) else 0.0)
            raise
        self.results = Results(self.blueprint, self.floor)
        self.losses = Losses(self.num_envs, mode)
        self._mail = Mail(self.core, self._crew, self.floor, self.allowance)
        self._mender = Mender(
            self._patience,
            Orders(0, os.getpid(), shares[0], mode, self.blueprint, self.core.name),
            self.core,
            self._crew,
            self._mail,
            self.results,
            self.losses,
            self.allowance,
            self.floor.in_hand,
        )
        self._answers = Answers()
        self._consulting: dict[str, int] = {}

    def _introduce(self, make: Maker, mode: AutoresetMode, observation_mode: ObservationMode) -> Agreement:
        shares = self._crew.shares
        for worker, share in enumerate(shares):
            self._crew.start(Orders(worker, os.getpid(), share, mode, None, None))
        told = [self._crew.hear(worker, "hello") for worker in range(len(shares))]
        if None not in told:
            return Agreement.among([pickle.loads(one) for one in told], observation_mode)
        # Spaces that cannot be pickled: ask an environment of our own, and believe that all are alike.
        example = make()
        hello = Introduction.of([example] * self.num_envs)
        example.close()
        return Agreement.among([hello], observation_mode)

    def _open(self, workers: int) -> None:
        layout, self.action = (
            SpaceLayout(self.spaces.single_observation_space),
            SpaceLayout(self.spaces.single_action_space),
        )
        room = max(_LETTER_BYTES, -(-(layout.bytes(1) + 2048) // 4096) * 4096)
        self.blueprint = Blueprint(layout, self.action, self.num_envs, workers, room)
        name = f"auto-{os.getpid()}-{secrets.token_hex(4)}"
        self.core = EnvCaller(name, workers, self.num_envs, self.blueprint.bytes)
        # Also when we are forgotten; see `_close_all` for the end of the interpreter.
        self._end = weakref.finalize(self, _end, self.core, self._crew, os.getpid())
        self._end.atexit = False
        _open.add(self)
        self.floor = self.blueprint.floor(self.core.memory)
        for worker in range(workers):
            self.core.expect(worker, self._crew.pid(worker) or 0)
            self._crew.put(worker, packed((self.blueprint, name)))
            with contextlib.suppress(WorkerGone):  # `hear` says how it ended.
                self._crew.flush(worker)
        for worker in range(workers):
            self._crew.hear(worker, "ready")

    def close(self, timeout: float) -> None:
        """Ends the workers; kills those that have not ended in time. In a forked child: nothing."""
        still = self._end.peek()
        if still is not None:
            _, _, (core, crew, pid), _ = still
            _end(core, crew, pid, timeout)  # or raises, and can be called again
            self._end.detach()

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def pack(self, parameters: dict[int, Any]) -> Packed:
        """The parameters of a request, by environment, ready to travel. What cannot travel raises here."""
        return self._mail.pack(parameters)

    def pack_resets(self, resets: dict[int, Reset]) -> Packed:
        """The request for resets, when nothing else is under way."""
        request = self._mail.pack({env: (*reset, False) for env, reset in resets.items()})
        self._mail.forget(range(self.num_envs))
        self.losses.begin(resets)
        return request

    def ask(self, what: int, request: Packed) -> None:
        """Asks for something that has parameters."""
        self._mail.ask(what, self.results.buffer, request)

    def turn_over(self) -> None:
        """The buffer of the next step. Those that are begun anew with it show their last observation there."""
        self.results.turn_over()
        for env in self.losses.mourned():
            self.losses.keep_last(env, self.results.last_observation(env))
            self.results.show(env)

    def keep(self, envs: list[int]) -> None:
        """Before workers write over results in their place: copies, to begin anew from after a fault."""
        if self._patience.policy is not None:
            for env in self.losses.mourned():
                if env in envs:
                    self.losses.keep_last(env, self.results.last_observation(env))
            self.results.keep(envs)

    def is_busy(self, env: int | None = None) -> bool:
        """Whether an environment (or any) was asked, and its answer not given to the caller."""
        if env is None:
            return self.core.out() > 0 or bool(self._answers)
        return self.core.is_out(env) or env in self._answers

    def is_calm(self) -> bool:
        """Whether nothing is under way, lost, or still to be told, and all parts of actions and results are arrays."""
        is_plain = not (self.action.loose or self.blueprint.observation.loose)
        return is_plain and not (
            self.is_busy() or self._crew.owing or self.losses or self.allowance.absent or self.allowance.anew
        )

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def gather(
        self, count: int, timeout: float | None = None, outcome: Outcome | None = None
    ) -> tuple[list[int], list[Note]]:
        """Waits for answers, has mended what is broken, and gives those that answered and what they say.

        If the core was waited for already, ``outcome`` is what it said.
        """
        answers = self._answers
        if self._crew.owing:
            for worker in self._mail.pay(timeout):
                self._mender.hung([env for env in self._crew.shares[worker] if self.core.is_out(env)], answers)
        while True:
            if answers:
                for env in [env for env in answers if answers.is_unread(env)]:
                    self._read(env)
                count = min(count, self.core.out() + len(answers))
                if len(answers) >= count:
                    break
            # With no answers yet the core waits for all that were asked, if those are fewer.
            try:
                if outcome is None:
                    outcome = self.core.wait(count - len(answers), self.allowance.limit(), timeout)
            except WaitTimeout:
                count = min(count, self.core.out() + len(answers))
                raise WaitTimeout(
                    f"not all of the {count} environments that are waited for have answered within {timeout} s. "
                    "Nothing is lost: call again to wait on, or reset()"
                ) from None
            (kind, ids, flags), outcome = outcome, None
            if kind == "answered":
                if self.allowance.absent:
                    self.allowance.absent.difference_update(self._crew.worker_of[env] for env in ids)
                if not answers and flags.count(0) == len(ids) and not (ids and self.losses.repeated):
                    return self._arrived(ids), []
                self._accept(ids, flags)
            elif kind == "died":
                self._take()
                for worker in ids:
                    self._mender.died(worker, answers)
            else:
                self._take()
                self._mender.hung(ids, answers)
        envs = sorted(answers) if count == self.num_envs else list(answers)[:count]
        notes = [(env, note) for env in envs for note in self._give(env)]
        return self._arrived(envs), notes

    def _take(self) -> None:
        """Takes what was answered before a worker is replaced: it is not lost with it."""
        with contextlib.suppress(WaitTimeout):
            while self.core.out():
                _, ids, flags = self.core.wait(1, None, 0.0)
                self._accept(ids, flags)

    def _accept(self, ids: list[int], flags: bytes) -> None:
        for env, flag in zip(ids, flags, strict=True):
            self._answers[env] = flag
            self.losses.accept(env, flag)

    def _read(self, env: int) -> None:
        """Opens the letter of one that has answered. If it says that it failed, or cannot be read, that is mended."""
        try:
            data = self._mail.said_by(env, self._answers[env])
        except WorkerGone:
            if self._patience.policy is None:
                self._mender.raise_death(self._crew.worker_of[env])
            data = None
        said: Any = None
        try:
            if data is not None:
                said = pickle.loads(data)
        except Exception as error:  # noqa: BLE001 - told to the user, as an error of the environment that said it
            said = Fault.of(TypeError(f"its info or observation cannot be unpickled here: {error!r}"))
        if isinstance(said, tuple):
            self._answers.said[env] = said
            self._mail.has_read(env)
            return
        del self._answers[env]
        self._mail.has_read(env)
        if isinstance(said, Fault):
            self._mender.raised(env, said)
        else:
            self._mender.restore(env, "its worker ended before it had said all", remake=False)

    def _give(self, env: int) -> list[dict[str, Any]]:
        """What an environment says beside its arrays, with an answer that the caller gets now."""
        flag, (infos, loose) = self._answers.give(env)
        if loose:
            self.results.keep_loose(env, loose)
        return [*self.losses.notes(env, flag), *infos]

    def _arrived(self, envs: list[int]) -> list[int]:
        self.losses.arrived(envs)
        if self.allowance.anew:
            self.allowance.anew.difference_update(envs)
        self.results.arrived(envs)
        return envs

    def forget(self) -> None:
        """Takes what is still under way after an exception of one, and drops what they say beside their arrays."""
        while self.is_busy():
            with contextlib.suppress(EnvRaised):
                self.gather(self.num_envs)

    def drain(self) -> None:
        """Takes all that was asked before, as after Ctrl-C, and drops it."""
        while self.is_busy():
            self.gather(self.num_envs)

    def leave(self) -> None:
        """The rows of a slot are somebody else's again: nobody writes there any more, whatever happened."""
        try:
            self.forget()
        except BaseException:  # hung, dead, or Ctrl-C again: what has ended does not write
            for worker in {self._crew.worker_of[env] for env in range(self.num_envs) if self.core.is_out(env)}:
                self._crew.kill(worker)
            raise
        finally:
            self.results.leave()

    # ── letters to all ────────────────────────────────────────────────────────────────────────────────────────────────

    def aim(self, target: Target) -> None:
        """Introduces a place in somebody else's shared memory to the workers."""
        self._tell_all("target", target)
        self._mender.targets.append(target)

    def forget_targets(self, clients: set[int]) -> None:
        """The slots of these are used no more: workers let go of their memory."""
        self._mender.targets = [target for target in self._mender.targets if target.client not in clients]
        self._tell_all("forget", clients)

    def _tell_all(self, *message: Any) -> None:
        """Something that successors of the dead have to know, too."""
        try:
            self.consult(lambda share: message)
        except EnvDied:
            if self._patience.policy is None:
                raise
            self.consult(lambda share: message)

    def consult(self, message: Callable[[range], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Sends a letter to every worker, by its share of the environments; the results of all environments."""
        me = threading.get_ident()
        if self._consulting.setdefault("thread", me) != me:
            raise RuntimeError("another thread is using this vector environment")
        try:
            self.core.out()  # or another thread waits
            return self._consult(message)
        finally:
            self._consulting.clear()

    def _consult(self, message: Callable[[range], tuple[Any, ...]]) -> tuple[Any, ...]:
        shares = self._crew.shares
        letters = self._mail.write([message(share) for share in shares])
        deadline, gone, replies = self.allowance.deadline(), [], []
        for worker, letter in enumerate(letters):
            try:
                self._mail.post(worker, letter, deadline)
            except WorkerGone:
                gone.append(worker)
            except WorkerSilent:
                self._mender.raise_hung(worker, list(shares[worker]))
        for worker, share in enumerate(shares):
            try:
                if worker not in gone:
                    replies.append(self._mail.reply(worker, deadline))
            except WorkerGone:
                gone.append(worker)
            except WorkerSilent:
                self._mender.raise_hung(worker, list(share))
        if gone:
            how = "; ".join(self._mender.died(worker, self._answers) for worker in gone)
            envs = [env for worker in gone for env in shares[worker]]
            raise EnvDied(f"{how}. Its environments are begun anew, in another process: call again", envs)
        for reply in replies:
            if not isinstance(reply, bytes):
                env, fault = reply
                raise_fault([env], fault, "raised")
        return tuple(result for reply in replies for result in pickle.loads(reply))


def _end(core: EnvCaller, crew: Crew, pid: int, timeout: float = _CLOSING_S) -> None:
    if os.getpid() == pid:
        core.close()
        crew.dismiss(timeout)


_open: weakref.WeakSet[Troupe] = weakref.WeakSet()


def _close_all() -> None:
    with contextlib.ExitStack() as stack:  # every one, also when another raises
        for troupe in list(_open):
            stack.callback(troupe.close, _CLOSING_S)


atexit.register(_close_all)  # After that of multiprocessing, hence run before it: that one waits for all children.
