"""Messages: what caller and workers exchange besides the arrays.

Parameters of requests, calls to all workers and their replies go by the pipes. The message of an environment (its
infos) is inline in shared memory, or overflows to the pipe when it does not fit there. Faults always go by the pipe.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container, Sequence
from typing import Any

from rollway._core import EnvCaller
from rollway.vector_env.errors import ResultsTimeout
from rollway.vector_env.layout import SharedArrays
from rollway.vector_env.pipe import WorkerGone, WorkerTimeout, packed, sent_word
from rollway.vector_env.protocol import FAULT, INLINE, OVERFLOW, Fault, describe_envs
from rollway.vector_env.worker_processes import WorkerProcesses

OverflowKey = tuple[int, int]
"""Identifies an overflow message: its environment, and a number that differs from answer to answer."""
WorkerEnd = tuple[int | None, Fault]
"""Why a worker ended: the environment that it could not make, or ``None``; and what was raised."""
Packed = tuple[list[int], dict[int, bytes]]
"""The environments of a request, and by worker the bytes of its parameters."""
MessageContent = tuple[list[dict[str, Any]], list[Any]]
"""Infos, and the parts of an observation that have no fixed size."""
_WITH_MESSAGE = INLINE | OVERFLOW | FAULT


_REMAKE_FACTOR = 5
"""To be made again, an environment may take this many times as long as at the start."""


class Deadlines:
    """How long environments may take before they count as hung. Longer while some are made again."""

    def __init__(self, making_s: float) -> None:
        self._making_s = making_s
        """How long it took to make all environments at the start."""
        self.timeout_s: float | None = None
        """For one step or reset; ``None``: for ever."""
        self.starting_workers: set[int] = set()
        """Replacement workers that have not reported yet that they are ready."""
        self.remaking_envs: set[int] = set()
        """Environments that are being made again."""

    def limit(self) -> float | None:
        """How long one environment may take now. While some are made again, all of them get the longer time."""
        if self.timeout_s is None or not (self.starting_workers or self.remaking_envs):
            return self.timeout_s
        return self.timeout_s + _REMAKE_FACTOR * self._making_s

    def deadline(self) -> float | None:
        """When a request that begins now counts as hung; ``None``: never."""
        limit = self.limit()
        return None if limit is None else time.monotonic() + limit


class PendingAnswers(dict[int, int]):
    """Answers that were taken from the core and not given to the caller yet: by environment, in order, their flags."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: dict[int, MessageContent] = {}
        """The messages that came with them, by environment."""

    def is_unread(self, env: int) -> bool:
        """Whether a message came with the answer, and was not read yet."""
        return bool(self.get(env, 0) & _WITH_MESSAGE) and env not in self.contents

    def take(self, env: int) -> tuple[int, MessageContent]:
        """Removes an answer: its flags and its message."""
        return self.pop(env), self.contents.pop(env, ([], []))


class Messages:
    """The caller's side: sends requests and calls to workers, receives replies and messages."""

    def __init__(self, core: EnvCaller, workers: WorkerProcesses, arrays: SharedArrays, deadlines: Deadlines) -> None:
        self.core, self.workers, self.arrays, self.deadlines = core, workers, arrays, deadlines
        self._inline_bytes = len(arrays.inline) // len(arrays.lengths)
        self._overflow: dict[OverflowKey, bytes | None] = {}  # `None`: it will not come any more
        self._ends: dict[int, WorkerEnd] = {}  # by worker
        self._number = 0
        arrays.last_sent[:] = sent_word(0)

    # ── to workers ────────────────────────────────────────────────────────────────────────────────────────────────────

    def pack(self, parameters: dict[int, Any]) -> Packed:
        """Pickles the parameters of a request, by environment. Raises when one of them cannot be pickled."""
        by_worker: dict[int, dict[int, Any]] = {}
        for env, parameter in parameters.items():
            by_worker.setdefault(self.workers.worker_of[env], {})[env] = parameter
        # Pickled twice: parameters that cannot be unpickled are an error of their environments only.
        payloads = {
            worker: packed(("parameters", (list(given), packed(list(given.values())))))
            for worker, given in by_worker.items()
        }
        return list(parameters), payloads

    def ask(self, what: int, buffer: int, request: Packed) -> None:
        """Makes a request that has parameters. They are sent by the pipe after the request, when the worker is awake.

        They are queued before the request, so that they will be sent even if Ctrl-C comes in between.
        """
        envs, payloads = request
        for worker, payload in payloads.items():
            with contextlib.suppress(WorkerGone):  # the wait for the answer notices it, and recovers
                self._put(worker, payload)
        self.core.ask(what, buffer, envs)
        deadline = self.deadlines.deadline()
        for worker in payloads:
            with contextlib.suppress(WorkerGone, WorkerTimeout):  # likewise
                self.workers.flush(worker, deadline)

    def _put(self, worker: int, payload: bytes) -> None:
        """Queues bytes for a worker, which receives everything up to this number at its next request or call."""
        self.arrays.last_sent[worker] = sent_word(self.workers.put(worker, payload))

    def flush_pending(self, timeout: float | None) -> list[int]:
        """Sends what did not fit into the pipes before. Returns the workers that still do not read."""
        until = None if timeout is None else time.monotonic() + timeout
        silent = []
        for worker in list(self.workers.unflushed):
            deadline = self.deadlines.deadline()
            is_ours = until is not None and (deadline is None or until < deadline)
            try:
                self.workers.flush(worker, until if is_ours else deadline)
            except WorkerGone:
                self.workers.unflushed.discard(worker)  # the core will find out
            except WorkerTimeout:
                if is_ours:
                    whose = describe_envs(self.workers.envs_of[worker])
                    raise ResultsTimeout(f"{whose} did not read what was sent in time") from None
                silent.append(worker)
        return silent

    def pack_calls(self, messages: Sequence[tuple[Any, ...]]) -> list[bytes]:
        """Pickles one call for each worker; `receive_reply` gets the results. Raises when it cannot be pickled."""
        self._number += 1
        return [packed(("call", (self._number, packed(message)))) for message in messages]

    def send_call(self, worker: int, payload: bytes, deadline: float | None) -> None:
        """Sends a packed call to a worker, once it has started."""
        while worker in self.deadlines.starting_workers:
            self._receive(worker, deadline)
        self._put(worker, payload)
        self.core.announce_message(worker)  # before it is sent: then the worker is awake to read it
        self.workers.flush(worker, deadline)

    # ── from workers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def receive_reply(self, worker: int, deadline: float | None) -> Any:
        """The reply to the last call."""
        while True:
            kind, content = self._receive(worker, deadline)
            if kind == "reply" and content[0] == self._number:  # not to an earlier call that was abandoned
                return content[1]

    def read_message(self, env: int, flag: int) -> bytes | None:
        """The message that came with an answer; ``None`` when the worker died before it was sent.

        An overflow message is kept until `discard_message`.

        Raises:
            WorkerGone: The worker died, and recovery has not handled that yet.
        """
        if flag & INLINE:
            start = env * self._inline_bytes
            return bytes(self.arrays.inline[start : start + int(self.arrays.lengths[env])])
        key = self._overflow_key(env)
        while key not in self._overflow:
            self._receive(self.workers.worker_of[env])
        return self._overflow[key]

    def discard_message(self, env: int) -> None:
        """Drops the message of an environment, which was read."""
        self._overflow.pop(self._overflow_key(env), None)

    def _overflow_key(self, env: int) -> OverflowKey:
        return env, int(self.arrays.lengths[env])

    def _receive(self, worker: int, deadline: float | None = None) -> tuple[str, Any]:
        """The next message of a worker, and its kind."""
        pipe = self.workers.pipe(worker)
        kind, content = pipe.receive(deadline)
        self._keep(worker, kind, content)
        pipe.pop_received()
        return kind, content

    def _keep(self, worker: int, kind: str, content: Any) -> None:
        if kind == "ready":
            self.deadlines.starting_workers.discard(worker)
        elif kind == "overflow":
            self._overflow.update([content])
        elif kind == "fault":
            self._ends[worker] = content

    def collect_from_dead(self, worker: int) -> WorkerEnd | None:
        """Keeps what a worker had sent before it died. Returns why it ended, if it said so."""
        for kind, content in self.workers.unread_messages(worker):
            self._keep(worker, kind, content)
        return self._ends.pop(worker, None)

    def discard_overflow(self, envs: Container[int]) -> None:
        """Drops the overflow messages of these environments."""
        self._overflow = {key: message for key, message in self._overflow.items() if key[0] not in envs}

    def overflow_arrived(self, env: int) -> bool:
        """Whether the overflow message of an environment arrived before its worker ended. If not, it never will."""
        return self._overflow.setdefault(self._overflow_key(env), None) is not None

    def on_worker_started(self, worker: int) -> None:
        """A new process takes the place of this worker, with a new pipe."""
        self.arrays.last_sent[worker] = sent_word(0)
