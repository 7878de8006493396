"""Mail: what caller and workers tell one another beside their arrays, and by which way.

Requests with parameters, letters to all workers and their replies go by the pipes. What an environment says lies in its
page of shared memory, or comes as a parcel by the pipe when it does not fit. What is in a letter is not looked at here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container, Sequence
from typing import Any

from rollway._core import EnvCaller
from rollway.errors import WaitTimeout
from rollway.vector_env.fault_policy import Allowance
from rollway.vector_env.layout import Floor
from rollway.vector_env.pipe import WorkerGone, WorkerSilent, packed, posted_word
from rollway.vector_env.protocol import FAULT, LETTER, PARCEL, Fault, named
from rollway.vector_env.worker_processes import Crew

Label = tuple[int, int]
"""Of a parcel: its environment, and the number by which it is known from those of other answers."""
LastWords = tuple[int | None, Fault]
"""Why a worker ended: the environment that it could not make, or ``None``; and what was raised."""
Packed = tuple[list[int], dict[int, bytes]]
"""Environments, and by worker what it has to know about the request."""


Said = tuple[list[dict[str, Any]], list[Any]]
"""Infos, and the parts of an observation that have no fixed size."""
_WRITTEN = LETTER | PARCEL | FAULT


class Answers(dict[int, int]):
    """By environment, in their order: the flags of answers that are taken. Beside them the letters that came along."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[int, Said] = {}

    def is_unread(self, env: int) -> bool:
        """Whether something came along with an answer, and nobody has read it."""
        return bool(self.get(env, 0) & _WRITTEN) and env not in self.said

    def give(self, env: int) -> tuple[int, Said]:
        """The caller gets it."""
        return self.pop(env), self.said.pop(env, ([], []))


class Mail:
    """The caller's post office."""

    def __init__(self, core: EnvCaller, crew: Crew, floor: Floor, allowance: Allowance) -> None:
        self._core, self._crew, self._floor, self._allowance = core, crew, floor, allowance
        self._letter_bytes = len(floor.letters) // len(floor.lengths)
        self._parcels: dict[Label, bytes | None] = {}  # `None`: will not come any more
        self._last_words: dict[int, LastWords] = {}  # by worker
        self._number = 0
        floor.posted[:] = posted_word(0)

    # ── to workers ────────────────────────────────────────────────────────────────────────────────────────────────────

    def pack(self, parameters: dict[int, Any]) -> Packed:
        """The parameters of a request, by environment, ready to travel. What cannot travel raises here."""
        shares: dict[int, dict[int, Any]] = {}
        for env, parameter in parameters.items():
            shares.setdefault(self._crew.worker_of[env], {})[env] = parameter
        # Twice: what cannot be unpickled is an error of the environments that it was for.
        letters = {
            worker: packed(("parameters", (list(share), packed(list(share.values())))))
            for worker, share in shares.items()
        }
        return list(parameters), letters

    def ask(self, what: int, buffer: int, request: Packed) -> None:
        """Asks for something that has parameters. They go by the pipe, after the request: then its reader is awake.

        They are put there before it: whatever is asked, its parameters will be sent, also if Ctrl-C comes in between.
        """
        envs, letters = request
        for worker, letter in letters.items():
            with contextlib.suppress(WorkerGone):  # whoever waits will find out, and knows what to do
                self._put(worker, letter)
        self._core.ask(what, buffer, envs)
        deadline = self._allowance.deadline()
        for worker in letters:
            with contextlib.suppress(WorkerGone, WorkerSilent):  # likewise
                self._crew.flush(worker, deadline)

    def _put(self, worker: int, letter: bytes) -> None:
        """On the pipe of a worker, which will hear all up to this number when it is asked or called."""
        self._floor.posted[worker] = posted_word(self._crew.put(worker, letter))

    def pay(self, timeout: float | None) -> list[int]:
        """Sends what workers had no time to read. Gives those that still do not read."""
        until = None if timeout is None else time.monotonic() + timeout
        silent = []
        for worker in list(self._crew.owing):
            deadline = self._allowance.deadline()
            is_ours = until is not None and (deadline is None or until < deadline)
            try:
                self._crew.flush(worker, until if is_ours else deadline)
            except WorkerGone:
                self._crew.owing.discard(worker)  # the core will find out
            except WorkerSilent:
                if is_ours:
                    whose = named(self._crew.shares[worker])
                    raise WaitTimeout(f"{whose} did not read what was sent in time") from None
                silent.append(worker)
        return silent

    def write(self, messages: Sequence[tuple[Any, ...]]) -> list[bytes]:
        """Letters, by worker, to which all `reply`. What cannot travel raises here."""
        self._number += 1
        return [packed(("letter", (self._number, packed(message)))) for message in messages]

    def post(self, worker: int, letter: bytes, deadline: float | None) -> None:
        """Sends a letter to a worker, once it is there."""
        while worker in self._allowance.absent:
            self._receive(worker, deadline)
        self._put(worker, letter)
        self._core.post(worker)  # before it is sent: then its reader is awake
        self._crew.flush(worker, deadline)

    # ── from workers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def reply(self, worker: int, deadline: float | None) -> Any:
        """The answer to the last letter."""
        while True:
            kind, content = self._receive(worker, deadline)
            if kind == "reply" and content[0] == self._number:  # and not to one that nobody waited for
                return content[1]

    def said_by(self, env: int, flag: int) -> bytes | None:
        """What an environment says with its answer; ``None``: its worker died first. A parcel is kept until `has_read`.

        Raises:
            WorkerGone: Nobody has noticed yet that it did.
        """
        if flag & LETTER:
            start = env * self._letter_bytes
            return bytes(self._floor.letters[start : start + int(self._floor.lengths[env])])
        label = self._label(env)
        while label not in self._parcels:
            self._receive(self._crew.worker_of[env])
        return self._parcels[label]

    def has_read(self, env: int) -> None:
        """What it said is known, and need not be kept."""
        self._parcels.pop(self._label(env), None)

    def _label(self, env: int) -> Label:
        return env, int(self._floor.lengths[env])

    def _receive(self, worker: int, deadline: float | None = None) -> tuple[str, Any]:
        """What a worker says next, and its kind."""
        kind, content = self._crew.receive(worker, deadline)
        self._keep(worker, kind, content)
        self._crew.done(worker)
        return kind, content

    def _keep(self, worker: int, kind: str, content: Any) -> None:
        if kind == "ready":
            self._allowance.absent.discard(worker)
        elif kind == "parcel":
            self._parcels.update([content])
        elif kind == "fault":
            self._last_words[worker] = content

    def inherit(self, worker: int) -> LastWords | None:
        """Keeps what a worker had said before it ended. Gives what it said about its end, if it did."""
        for kind, content in self._crew.estate(worker):
            self._keep(worker, kind, content)
        return self._last_words.pop(worker, None)

    def forget(self, envs: Container[int]) -> None:
        """Nobody wants their parcels any more."""
        self._parcels = {label: parcel for label, parcel in self._parcels.items() if label[0] not in envs}

    def has_come(self, env: int) -> bool:
        """Whether the parcel of one whose worker has ended came before. If not, it will not."""
        return self._parcels.setdefault(self._label(env), None) is not None

    def begin(self, worker: int) -> None:
        """Another process is this worker from now on, and has another pipe."""
        self._floor.posted[worker] = posted_word(0)
