"""Troupe: the environments as their caller sees them. Asks them, waits for their answers, and mends what broke.

`ShmVectorEnv` is its only user, and gives it the shape that Gymnasium's users know. Here are requests and answers,
letters, and the successors of those who died. Processes are `crew`'s business, and where the arrays lie is `layout`'s.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode

from rollway._core import EnvCaller
from rollway.errors import EnvDied, EnvHung, EnvRaised, WaitTimeout
from rollway.vector_env.agreement import Agreement, ObservationMode
from rollway.vector_env.crew import Crew, Maker
from rollway.vector_env.fault_policy import FaultPolicy, Patience
from rollway.vector_env.layout import Array, Blueprint, Buffer, SpaceLayout
from rollway.vector_env.rollout import Target
from rollway.vector_env.task import FAULT, LETTER, PARCEL, RESET, RESTORE, RESTORED, Fault
from rollway.vector_env.wire import WorkerGone, WorkerSilent, packed
from rollway.vector_env.worker import Introduction, Orders

Note = tuple[int, dict[str, Any]]
"""An environment, and something that it says beside its arrays."""
Reset = tuple[int | None, dict[str, Any] | None]
"""Seed and options."""
Packed = tuple[list[int], dict[int, bytes]]
"""Environments, and by worker what it has to know about the request."""
_LETTER_BYTES = 4096
_SLOWER = 5
"""How many times as long as at the start an environment may take to be made again."""
_ADVICE = "Use restart=FaultPolicy() to have its environments begun anew while the others go on"


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
        self.num_envs, self._mode = len(makers), mode
        self.timeout_s: float | None = None
        """How long one may take before it counts as hung."""
        self.shares = [
            range(w * self.num_envs // num_workers, (w + 1) * self.num_envs // num_workers) for w in range(num_workers)
        ]
        self._worker_of = [worker for worker, share in enumerate(self.shares) for _ in share]
        self._policy, self._patience = restart, Patience(restart)
        self._crew = Crew(makers, self.shares, context, daemon)
        try:
            self.spaces = self._introduce(makers[0], observation_mode)
            self._open()
        except BaseException:
            self._crew.dismiss(0.0)
            raise
        self.buffer = 0
        """Where results are written now."""
        self.rollout: list[Buffer] | None = None
        """The rows of somebody else's slot, while they are filled; their buffer numbers start at `first`."""
        self.first = self.blueprint.BUFFERS
        self.targets: list[Target] = []
        self._at = [0] * self.num_envs  # the buffer of the newest results of each
        self._loose: dict[int, list[Any]] = {part: [None] * self.num_envs for part in self.layout.loose}
        self.seeds: list[int | None] = [None] * self.num_envs
        self._restarts = [0] * self.num_envs
        self._faults: dict[int, str] = {}
        self._resets: dict[int, Reset] = {}  # those under way
        self._repeated: dict[int, str] = {}  # resets that were lost, and why
        self._lost: dict[int, Any] = {}
        self._ends: dict[int, dict[str, Any]] = {}  # what to tell of episodes that were lost
        self._parcels: dict[int, bytes | None] = {}  # `None`: will not come any more
        self._flags: dict[int, int] = {}  # answers that are taken, and not given to the caller yet
        self._said: dict[int, tuple[list[dict[str, Any]], list[Any]]] = {}  # infos and loose parts that came with them
        self._letters = 0
        self._absent: set[int] = set()  # successors that have not said yet that they are there
        self._anew: set[int] = set()  # environments that are being made again

    def _introduce(self, make: Maker, mode: ObservationMode) -> Agreement:
        started = time.monotonic()
        for worker, share in enumerate(self.shares):
            self._crew.start(Orders(worker, os.getpid(), share, self._mode, None, None))
        told = [self._hear(worker, "hello") for worker in range(len(self.shares))]
        self._making_s = time.monotonic() - started
        if None not in told:
            return Agreement.among([pickle.loads(one) for one in told], mode)
        # Spaces that cannot be pickled: ask an environment of our own, and believe that all are alike.
        example = make()
        hello = Introduction.of([example] * self.num_envs)
        example.close()
        return Agreement.among([hello], mode)

    def _open(self) -> None:
        self.layout, self.action = (
            SpaceLayout(self.spaces.single_observation_space),
            SpaceLayout(self.spaces.single_action_space),
        )
        room = max(_LETTER_BYTES, -(-(self.layout.bytes(1) + 2048) // 4096) * 4096)
        workers = len(self.shares)
        self.blueprint = Blueprint(self.layout, self.action, self.num_envs, workers, room)
        name = f"auto-{os.getpid()}-{secrets.token_hex(4)}"
        self.core = EnvCaller(name, workers, self.num_envs, self.blueprint.bytes)
        # Also when we are forgotten; see `_close_all` for the end of the interpreter.
        self._end = weakref.finalize(self, _end, self.core, self._crew, os.getpid())
        self._end.atexit = False
        _open.add(self)
        self.floor = self.blueprint.floor(self.core.memory)
        for worker in range(workers):
            self.core.expect(worker, self._crew.pid(worker) or 0)
            self._crew.send(worker, packed((self.blueprint, name)))
        for worker in range(workers):
            self._hear(worker, "ready")

    def _hear(self, worker: int, expected: str) -> Any:
        """A worker's word while it is being started."""
        envs = list(self.shares[worker])
        try:
            kind, content = self._crew.receive(worker)
        except WorkerGone:
            how = self._crew.bury(worker)
            raise EnvDied(f"{_named(envs)} could not be made: the worker process ended, {how}", envs) from None
        if kind == "fault":
            _raise_fault(envs, content, "could not be made")
        assert kind == expected
        return content

    def close(self, timeout: float) -> None:
        """Ends the workers; kills those that have not ended in time. In a forked child: nothing."""
        still = self._end.peek()
        if still is not None:
            _, _, (core, crew, pid), _ = still
            _end(core, crew, pid, timeout)  # or raises, and can be called again
            self._end.detach()

    # ── asking and waiting ────────────────────────────────────────────────────────────────────────────────────────────

    def pack(self, parameters: dict[int, Any]) -> Packed:
        """The parameters of a request, by environment, ready to travel. What cannot travel raises here."""
        shares: dict[int, dict[int, Any]] = {}
        for env, parameter in parameters.items():
            shares.setdefault(self._worker_of[env], {})[env] = parameter
        # Twice: what cannot be unpickled is an error of the environments that it was for.
        letters = {worker: packed((list(share), packed(list(share.values())))) for worker, share in shares.items()}
        return list(parameters), letters

    def ask(self, what: int, request: Packed) -> None:
        """Asks for something that has parameters. They go by the pipe, after the request: then its reader is awake."""
        envs, letters = request
        self.core.ask(what, self.buffer, envs)
        deadline = self._deadline()
        for worker, letter in letters.items():
            with contextlib.suppress(WorkerGone, WorkerSilent):  # `gather` will find out, and knows what to do
                self._crew.send(worker, letter, deadline)

    def _limit(self) -> float | None:
        """How long one may take now. Those that are being made anew are not hung yet, and nobody else is until then."""
        if self.timeout_s is None or not (self._absent or self._anew):
            return self.timeout_s
        return self.timeout_s + _SLOWER * self._making_s

    def _deadline(self) -> float | None:
        limit = self._limit()
        return None if limit is None else time.monotonic() + limit

    def _pay(self, timeout: float | None) -> None:
        """Sends what workers had no time to read. One that still does not read hangs."""
        until = None if timeout is None else time.monotonic() + timeout
        for worker in list(self._crew.owing):
            deadline = self._deadline()
            is_ours = until is not None and (deadline is None or until < deadline)
            try:
                self._crew.flush(worker, until if is_ours else deadline)
            except WorkerGone:
                self._crew.owing.discard(worker)  # the core will find out
            except WorkerSilent:
                if is_ours:
                    raise WaitTimeout(f"{_named(self.shares[worker])} did not read what was sent in time") from None
                self._mend_hung([env for env in self.shares[worker] if self.core.is_out(env)])

    def pack_resets(self, resets: dict[int, Reset]) -> Packed:
        """The request for resets, when nothing else is under way."""
        request = self.pack({env: (*reset, False) for env, reset in resets.items()})
        self._resets, self._repeated = resets, {}
        for env in resets:
            self._faults.pop(env, None)
        return request

    def is_busy(self, env: int | None = None) -> bool:
        """Whether an environment (or any) was asked, and its answer not given to the caller."""
        if env is None:
            return self.core.out() > 0 or bool(self._flags)
        return self.core.is_out(env) or env in self._flags

    def gather(self, count: int, timeout: float | None = None) -> tuple[list[int], list[Note]]:
        """Waits for answers, mends what is broken, and gives the environments that answered and what they say."""
        done = self._flags
        if self._crew.owing:
            self._pay(timeout)
        count = min(count, self.core.out() + len(done))
        while True:
            for env in [env for env, flag in done.items() if flag & _WRITTEN and env not in self._said]:
                self._read(env)
            if len(done) >= count:
                break
            kind, ids, flags = self.core.wait(count - len(done), self._limit(), timeout)
            if kind == "answered":
                if self._absent:
                    self._absent.difference_update(self._worker_of[env] for env in ids)
                if not done and flags.count(0) == len(ids) and not self._repeated:
                    return self._arrived(ids), []
                self._accept(ids, flags)
            elif kind == "died":
                self._take()
                for worker in ids:
                    self._mend_dead(worker)
            else:
                self._take()
                self._mend_hung(ids)
        envs = sorted(done) if count == self.num_envs else list(done)[:count]
        notes = [(env, note) for env in envs for note in self._notes(env, done[env])]
        for env in envs:
            del done[env]
            self._said.pop(env, None)
        return self._arrived(envs), notes

    def _take(self) -> None:
        """Takes what was answered before a worker is replaced: it is not lost with it."""
        with contextlib.suppress(WaitTimeout):
            while self.core.out():
                _, ids, flags = self.core.wait(1, None, 0.0)
                self._accept(ids, flags)

    def _accept(self, ids: list[int], flags: bytes) -> None:
        """Answers are taken. How an episode was lost is noted at once: another may be lost before they are given."""
        for env, flag in zip(ids, flags, strict=True):
            self._flags[env] = flag
            if flag & RESTORED:
                fault = {"fault": self._faults.pop(env, "its worker was started anew")}
                same = self._mode is AutoresetMode.SAME_STEP
                self._ends[env] = {"final_obs": self._lost.pop(env, None), "final_info": fault} if same else fault

    def keep(self, envs: list[int]) -> None:
        """Before workers write over results in their place: copies, to begin anew from after a fault."""
        if self._policy is not None:
            newest = [env for env in envs if self._at[env] == 0]
            _copy_results(self.floor.buffers[0], self.floor.buffers[1], newest)
            for env in newest:
                self._at[env] = 1

    def forget(self) -> None:
        """Takes what is still under way after an exception of one, and drops what they say beside their arrays."""
        while self.is_busy():
            with contextlib.suppress(EnvRaised):
                self.gather(self.num_envs)

    def drain(self) -> None:
        """Takes all that was asked before, as after Ctrl-C, and drops it."""
        while self.is_busy():
            self.gather(self.num_envs)

    def recall(self) -> None:
        """Sees to it that no worker writes any more what was asked. After an error, or Ctrl-C, one may be at it."""
        try:
            self.forget()
        except BaseException:  # hung, dead, or Ctrl-C again: what has ended does not write
            for worker in {self._worker_of[env] for env in range(self.num_envs) if self.core.is_out(env)}:
                self._crew.kill(worker)
            raise

    def enter(self, rows: list[Buffer], first: int) -> None:
        """From now on the results of each step go to the next of these rows."""
        self.rollout, self.first, self.buffer = rows, first, first - 1

    def leave(self) -> None:
        """The rows are somebody else's again: nobody writes there any more, whatever happened."""
        try:
            self.recall()
            if self.buffer >= self.first:
                self.settle()
        finally:
            self.rollout, self.buffer, self._at = None, 0, [0] * self.num_envs

    def aim(self, target: Target) -> None:
        """Introduces a place in somebody else's shared memory to the workers."""
        self._tell_all("target", target)
        self.targets.append(target)

    def forget_targets(self, clients: set[int]) -> None:
        """The slots of these are used no more: workers let go of their memory."""
        self.targets = [target for target in self.targets if target.client not in clients]
        self._tell_all("forget", clients)

    def _tell_all(self, *message: Any) -> None:
        """Something that successors of the dead have to know, too."""
        try:
            self.consult(lambda worker: message)
        except EnvDied:
            if self._policy is None:
                raise
            self.consult(lambda worker: message)

    def consult(self, message: Callable[[int], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Sends a letter to every worker; the results of all environments."""
        self._letters += 1
        letters = [packed((self._letters, packed(message(worker)))) for worker in range(len(self.shares))]
        deadline, gone, replies = self._deadline(), [], []
        for worker, letter in enumerate(letters):
            try:
                while worker in self._absent:
                    self._receive(worker, deadline)
                self.core.post(worker)  # first: then its reader is awake
                self._crew.send(worker, letter, deadline)
            except WorkerGone:
                gone.append(worker)
            except WorkerSilent:
                self._raise_hung(list(self.shares[worker]))
        for worker in range(len(letters)):
            try:
                if worker not in gone:
                    replies.append(self._reply(worker, deadline))
            except WorkerGone:
                gone.append(worker)
        if gone:
            how = "; ".join(self._mend_dead(worker) for worker in gone)
            envs = [env for worker in gone for env in self.shares[worker]]
            raise EnvDied(f"{how}. Its environments are begun anew, in another process: call again", envs)
        for reply in replies:
            if not isinstance(reply, bytes):
                env, fault = reply
                _raise_fault([env], fault, "raised")
        return tuple(result for reply in replies for result in pickle.loads(reply))

    # ── what does not lie in arrays ───────────────────────────────────────────────────────────────────────────────────

    def _read(self, env: int) -> None:
        """Opens the letter of one that has answered. If it says that it failed, or cannot be read, that is mended."""
        data: bytes | None
        if self._flags[env] & LETTER:
            start = env * self.blueprint.letter_bytes
            data = bytes(self.floor.letters[start : start + int(self.floor.lengths[env])])
        else:
            data = self._parcel(env)
        said: Any = None
        try:
            if data is not None:
                said = pickle.loads(data)
        except Exception as error:  # noqa: BLE001 - told to the user, as an error of the environment that said it
            said = Fault.of(TypeError(f"its info or observation cannot be unpickled here: {error!r}"))
        if isinstance(said, Fault):
            del self._flags[env]
            self._mend_raised(env, said)
        elif said is None:
            del self._flags[env]
            self._restore(env, "its worker ended before it had said all", remake=False)
        else:
            self._said[env] = said

    def _notes(self, env: int, flag: int) -> list[dict[str, Any]]:
        """What an environment says beside its arrays."""
        notes: list[dict[str, Any]] = []
        if env in self._repeated:
            notes.append({"fault": self._repeated.pop(env)})
        if flag & RESTORED:
            notes.append(self._ends.pop(env))
        if env in self._said:
            more, loose = self._said[env]
            notes.extend(more)
            for part, value in zip(self.layout.loose, loose, strict=True):
                self._loose[part][env] = value
        return notes

    def _parcel(self, env: int) -> bytes | None:
        """What an environment has sent by the pipe; others' parcels are kept for later. ``None``: it died first."""
        worker = self._worker_of[env]
        while env not in self._parcels:
            try:
                self._receive(worker)
            except WorkerGone:
                if self._policy is None:
                    self._raise_death(worker)
                return None
        return self._parcels.pop(env)

    def _receive(self, worker: int, deadline: float | None = None) -> tuple[str, Any]:
        """What a worker says next, and its kind; parcels are kept."""
        kind, content = self._crew.receive(worker, deadline)
        if kind == "ready":
            self._absent.discard(worker)
        elif kind == "parcel":
            self._parcels.update([content])
        return kind, content

    def _reply(self, worker: int, deadline: float | None) -> Any:
        """The answer to the last letter."""
        while True:
            try:
                kind, content = self._receive(worker, deadline)
            except WorkerSilent:
                self._raise_hung(list(self.shares[worker]))
            if kind == "reply" and content[0] == self._letters:  # and not to one that nobody waited for
                return content[1]

    # ── results ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def view(self, buffer: int) -> Buffer:
        """The arrays of a buffer."""
        if buffer < self.blueprint.BUFFERS or self.rollout is None:
            return self.floor.buffers[buffer]
        return self.rollout[buffer - self.first]

    def observations(self, copy: bool) -> Any:
        """The newest ones of all environments."""
        arrays = self.view(self.buffer).observations
        if self.layout.single and (only := arrays[0]) is not None:
            return only.copy() if copy else only
        parts: list[Any] = []
        for index, array in enumerate(arrays):
            if array is None:
                parts.append(tuple(self._loose[index]))
            else:
                parts.append(array.copy() if copy else array)
        return self.layout.build(parts)

    def observations_of(self, envs: list[int]) -> Any:
        """The newest ones of some, copied."""
        parts = [
            tuple(self._loose[index][env] for env in envs) if array is None else array[envs]
            for index, array in enumerate(self.view(self.buffer).observations)
        ]
        return self.layout.build(parts)

    def _arrived(self, envs: list[int]) -> list[int]:
        if self._resets:
            for env in envs:
                self._resets.pop(env, None)
        if self._anew:
            self._anew.difference_update(envs)
        if len(envs) == self.num_envs:
            self._at = [self.buffer] * self.num_envs
        else:
            for env in envs:
                self._at[env] = self.buffer
        return envs

    def carry(self, env: int) -> None:
        """Brings an environment's newest results into the buffer of now."""
        source, target = self.view(self._at[env]), self.view(self.buffer)
        if source is not target:
            _copy_results(source, target, env)
            self._at[env] = self.buffer

    def show_lost(self) -> None:
        """Those that are begun anew with the next step show their last observation: it goes where that is written."""
        for env in self._faults:
            _copy_results(self.view(self._at[env]), self.view(self.buffer), env)

    def settle(self) -> None:
        """Brings everything into the first buffer: before partial steps, and when a slot is done."""
        self.buffer = 0
        if self._at == self._at[:1] * self.num_envs:
            source, target = self.view(self._at[0]), self.floor.buffers[0]
            if source is not target:
                _copy_results(source, target, slice(None))
            self._at = [0] * self.num_envs
        for env in range(self.num_envs):
            self.carry(env)

    # ── mending ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _mend_raised(self, env: int, fault: Fault) -> None:
        if not self._patience.bears(env):
            self._resets.pop(env, None)
            self._anew.discard(env)
            _raise_fault([env], fault, "raised")
        self._restore(env, f"{fault.summary}\n{fault.traceback}", remake=True)

    def _mend_dead(self, worker: int) -> str:
        """Gives a dead worker a successor; says how it ended."""
        share = list(self.shares[worker])
        pid, hand = self._crew.pid(worker), int(self.floor.in_hand[worker]) - 1
        self._parcels.update(content for kind, content in self._crew.estate(worker) if kind == "parcel")
        what = f"worker process {pid} of {_named(share)} ended: {self._crew.bury(worker)}"
        if hand >= 0:
            what += f", while it was busy with environment {hand}"
        blamed = [hand] if hand in share else share
        if not all([self._patience.bears(env) for env in blamed]):
            advice = _ADVICE if self._policy is None else f"That is one fault too many for {self._policy}"
            raise EnvDied(f"{what}. {advice}", blamed)
        self._revive(worker, what)
        return what

    def _mend_hung(self, overdue: list[int]) -> None:
        for worker in dict.fromkeys(self._worker_of[env] for env in overdue):
            envs = [env for env in overdue if self._worker_of[env] == worker]
            hand = int(self.floor.in_hand[worker]) - 1
            blamed = [hand] if hand in envs else envs
            if not all([self._patience.bears(env) for env in blamed]):
                self._raise_hung(envs)
            what = f"{_named(blamed)} did not answer within {self.timeout_s} s; worker process "
            what += f"{self._crew.pid(worker)} was killed"
            self._crew.kill(worker)
            self._parcels.update(content for kind, content in self._crew.estate(worker) if kind == "parcel")
            self._crew.bury(worker)
            self._revive(worker, what)

    def _revive(self, worker: int, what: str) -> None:
        """Another process takes the place of one that has ended. Its environments are made anew."""
        self.core.vacate(worker)
        self.floor.in_hand[worker] = 0
        share = self.shares[worker]
        targets = tuple(self.targets)
        orders = Orders(worker, os.getpid(), share, self._mode, self.blueprint, self.core.name, targets)
        self.core.expect(worker, self._crew.start(orders))
        self._absent.add(worker)
        for env in share:
            if self.core.is_out(env):
                self._parcels.pop(env, None)
                self._restore(env, what, remake=False)
            else:  # idle, or its last answer is taken already: begun anew with its next action
                flag = self._flags.get(env, FAULT)
                if flag & (PARCEL | FAULT) and env in self._flags and env not in self._said:
                    self._parcels.setdefault(env, None)
                if not flag & FAULT and self._parcels.get(env, b"") is not None:
                    self._at[env] = self.buffer
                self._mourn(env, what)

    def _restore(self, env: int, what: str, remake: bool) -> None:
        """Ends a lost episode: the last observation again, and a new seed that follows from the old one.

        A lost reset is done again: whoever asked for it is owed a first observation.
        """
        self._anew.add(env)
        if env in self._resets:
            self._repeated[env] = what
            self.ask(RESET, self.pack({env: (*self._resets[env], remake)}))
            return
        self.carry(env)
        self._mourn(env, what)
        seed = self.seeds[env]
        self._restarts[env] += 1
        if isinstance(seed, int) and seed >= 0:  # an environment may take others, which no sequence follows from
            seed = int(np.random.SeedSequence([seed, self._restarts[env]]).generate_state(1)[0])
        self.ask(RESTORE, self.pack({env: (seed, remake)}))

    def _mourn(self, env: int, what: str) -> None:
        """Notes how an episode ended, and with which observation."""
        self._faults[env] = what
        if self._mode is AutoresetMode.SAME_STEP:
            arrays = self.view(self._at[env]).observations
            parts = [
                self._loose[index][env] if array is None else array[env].copy() for index, array in enumerate(arrays)
            ]
            self._lost[env] = self.layout.build(parts)

    def _raise_death(self, worker: int) -> NoReturn:
        share, pid = list(self.shares[worker]), self._crew.pid(worker)
        raise EnvDied(f"worker process {pid} of {_named(share)} ended: {self._crew.bury(worker)}. {_ADVICE}", share)

    def _raise_hung(self, envs: list[int]) -> NoReturn:
        worker = self._worker_of[envs[0]]
        hand = int(self.floor.in_hand[worker]) - 1
        blamed = [hand] if hand in envs else envs
        raise EnvHung(
            f"{_named(blamed)} has not answered for {self.timeout_s} s (in worker process {self._crew.pid(worker)}, "
            f"with {_named(list(self.shares[worker]))}). Wait on with the same call (after step() it is step_wait()), "
            "or close() to end it"
            + (", or use restart=FaultPolicy() to have it begun anew" if self._policy is None else ""),
            blamed,
        )


_WRITTEN = LETTER | PARCEL | FAULT


def _copy_results(source: Buffer, target: Buffer, rows: Any) -> None:
    def copy(old: Array | None, new: Array | None) -> None:
        if old is not None and new is not None and old is not new:
            new[rows] = old[rows]

    for old, new in zip(source.observations, target.observations, strict=True):
        copy(old, new)
    copy(source.rewards, target.rewards)
    copy(source.terminations, target.terminations)
    copy(source.truncations, target.truncations)


def _raise_fault(envs: list[int], fault: Fault, what: str) -> NoReturn:
    told = f"{_named(envs)} {what}: {fault.summary}\n\nIn the worker:\n{fault.traceback}"
    raise EnvRaised(told, envs) from fault.cause()


def _named(envs: Sequence[int]) -> str:
    if len(envs) == 1:
        return f"environment {envs[0]}"
    if list(envs) == list(range(envs[0], envs[-1] + 1)):
        return f"environments {envs[0]} to {envs[-1]}"
    return f"environments {', '.join(map(str, envs))}"


def _end(core: EnvCaller, crew: Crew, pid: int, timeout: float = 5.0) -> None:
    if os.getpid() == pid:
        core.close()
        crew.dismiss(timeout)


_open: weakref.WeakSet[Troupe] = weakref.WeakSet()


def _close_all() -> None:
    with contextlib.ExitStack() as stack:  # every one, also when another raises
        for troupe in list(_open):
            stack.callback(troupe.close, 5.0)


atexit.register(_close_all)  # After that of multiprocessing, hence run before it: that one waits for all children.
