"""The algorithm of the buffer that was proposed for Atropos, written anew after its public source, with its flaws.

One segment of `multiprocessing.shared_memory`: a control block of 24 bytes (magic, version, read index, write index,
slots, tokens per slot), then fixed slots (score, length, instance id, repetition, JSON, tokens). No lock and no atomic
step: writer and reader each read both indices and write both back, so even one of each may undo what the other did, and
several writers take the same slot. The reader moves on before it has copied. Over-long values are cut in silence. Both
ends poll. Unlike there, the head of a slot is packed by one call and not by five. A peer to measure, no model to copy.

`arrays` is handed numpy arrays, `lists` is handed lists, as environments have them. A slot has 512 tokens, so nothing
is padded. The rate counts each trajectory once, when it comes for the first time.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
import time
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Literal

import numpy as np

from contenders.base import Contender
from contenders.records import RecordConsumer, RecordProducer
from harness.trajectories import BUFFER, Trajectories

SLOTS = 1000  # the proposal's default
_CONTROL = struct.Struct("4sIIIII")
_INDICES = struct.Struct("II")
_INDICES_AT = 8
_GIVE_UP_S = 0.5  # nothing came for so long: it will not come
Form = Literal["arrays", "lists"]


class ProposedBuffer:
    """The buffer itself."""

    def __init__(self, name: str, slots: int, tokens: int, ids: int = 64, metadata: int = 256, create: bool = False):
        self._slots, self._tokens = slots, tokens
        self._head = struct.Struct(f"=di{ids}si{metadata}s")
        self._slot_bytes = self._head.size + 4 * tokens
        size = _CONTROL.size + slots * self._slot_bytes
        self.memory = SharedMemory(name, create=create, size=size if create else 0)
        self._bytes = self.memory.buf
        if create:
            _CONTROL.pack_into(self._bytes, 0, b"ATRP", 1, 0, 0, slots, tokens)

    def write_trajectory(
        self, tokens: Any, score: float, instance_id: str = "", repetition_id: int = 0, metadata: Any = None
    ) -> bool:
        """False when it is full."""
        read, write, slots, room = self._control()
        following = (write + 1) % slots
        if following == read:
            return False
        at = _CONTROL.size + write * self._slot_bytes
        count = min(len(tokens), room)
        text = json.dumps(metadata or {}).encode()
        self._head.pack_into(self._bytes, at, score, count, instance_id.encode(), repetition_id, text)
        place = np.ndarray(room, np.int32, self._bytes, at + self._head.size)
        place[:count] = np.array(tokens, np.int32)[:count]
        place[count:] = 0
        _INDICES.pack_into(self._bytes, _INDICES_AT, read, following)
        return True

    def read_next(self) -> dict[str, Any] | None:
        """None when it is empty."""
        read, write, slots, room = self._control()
        if read == write:
            return None
        at = _CONTROL.size + read * self._slot_bytes
        score, count, identity, repetition_id, text = self._head.unpack_from(self._bytes, at)
        try:
            metadata = json.loads(text.rstrip(b"\0"))
        except ValueError:
            metadata = {}
        tokens = np.ndarray(min(count, room), np.int32, self._bytes, at + self._head.size)
        _INDICES.pack_into(self._bytes, _INDICES_AT, (read + 1) % slots, write)
        return {
            "tokens": tokens.tolist(),
            "score": score,
            "instance_id": identity.rstrip(b"\0").decode(errors="ignore"),
            "repetition_id": repetition_id,
            "metadata": metadata,
        }

    def close(self, unlink: bool = False) -> None:
        self._bytes = memoryview(b"")
        self.memory.close()
        if unlink:
            self.memory.unlink()

    def _control(self) -> tuple[int, int, int, int]:
        magic, _, *numbers = _CONTROL.unpack_from(self._bytes, 0)
        if magic != b"ATRP":
            raise ValueError("this is not such a buffer")
        read, write, slots, room = numbers
        return read, write, slots, room


class BufferWriter(RecordProducer):
    """Writes into a buffer of that interface; tries again for as long as it is full."""

    def __init__(self, buffer: Any, workload: Trajectories, index: int, form: Form) -> None:
        super().__init__(workload, index)
        self._buffer = buffer
        tokens = [item["tokens"].tolist() if form == "lists" else item["tokens"] for item in self.items]
        self._whole = [
            (each, item["score"], note) for each, item, note in zip(tokens, self.items, self.notes, strict=True)
        ]

    def burst(self) -> None:
        self.renumber()
        write = self._buffer.write_trajectory
        for tokens, score, note in self._whole:
            number = score.item()
            while not write(tokens, number, note.instance_id, note.repetition_id, note.metadata):
                os.sched_yield()

    def close(self) -> None:
        self._buffer.close()


class BufferReader(RecordConsumer):
    """Reads from a buffer of that interface, polling."""

    def __init__(self, buffer: Any, workload: Trajectories, lossy: bool) -> None:
        super().__init__(workload)
        self._buffer = buffer
        self._seen: set[float] = set()
        self.lossy = lossy

    def receive(self) -> int:
        """One that did not come before, or none: those that are repeated take their time and do not count."""
        while (got := self._next()) is not None:
            number, tokens = got["score"], got["tokens"]
            self._number(number)
            self._first(tokens[0] if len(tokens) else -1)
            self._last(tokens[-1] if len(tokens) else -1)
            if self.careful:
                self.arrivals.compare(number, {"tokens": tokens}, (got["instance_id"], got["metadata"]))
            if number not in self._seen:
                self._seen.add(number)
                return 1
        return 0

    def _next(self) -> dict[str, Any] | None:
        got: dict[str, Any] | None = self._buffer.read_next()
        if got is None:
            deadline = time.monotonic() + _GIVE_UP_S
            while (got := self._buffer.read_next()) is None and time.monotonic() < deadline:
                os.sched_yield()
        return got

    def close(self) -> None:
        self._buffer.close(unlink=True)


class Proposal(Contender):
    key = "proposal"

    def __init__(self, form: Form) -> None:
        self.form = form
        self.label = f"the proposal's buffer, {form}"

    def suits(self, workload: Trajectories) -> bool:
        return workload is BUFFER

    def link(self, workload: Trajectories, producers: int) -> str:
        return f"proposal-{os.getpid()}-{secrets.token_hex(4)}"

    def producer(self, link: str, workload: Trajectories, index: int) -> RecordProducer:
        return BufferWriter(ProposedBuffer(link, SLOTS, workload.length), workload, index, self.form)

    def consumer(self, link: str, workload: Trajectories, producers: int) -> RecordConsumer:
        return BufferReader(ProposedBuffer(link, SLOTS, workload.length, create=True), workload, lossy=True)

    def discard(self, link: str) -> None:
        try:
            left = SharedMemory(link)  # only a killed cell leaves one
        except FileNotFoundError:
            return
        left.close()
        left.unlink()
