"""ReplayPipeline: keeps the next batch of a `TransitionBuffer` ready on the learner's device while it trains on this.

A thread draws and copies, with the GIL released: to a GPU through pinned memory and a copy stream, elsewhere by a plain
copy. There are two batches: the learner uses one, the thread makes the other.
"""

from __future__ import annotations

import importlib
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rollway.errors import ConnectionClosedError, InvalidArgument, NotInThisProcess, WaitTimeout
from rollway.replay.batch import Batch, Fill, RowLayout, device_name
from rollway.replay.buffer import TransitionBuffer
from rollway.segment.closes_on_exit import ClosesOnExit


class ReplayPipeline(ClosesOnExit):
    """Hands out one batch after the other, each made ready while the learner used the one before.

    Use it as an iterator, or call `next`: a batch does not change until the next call. UniLab's calls name each batch
    by its tick: `start_prepare` begins one, `batch_ready` asks for it, `sample_large_batch` gives it, and `after_tick`
    gives it back. An error of the thread is raised by the next call. One thread of the learner may use a pipeline.

    Args:
        replay_buffer: Where the transitions are. The pipeline does not close it.
        sample_count: Rows of a batch.
        device: Where the batches shall be, as torch tensors; as the buffer gives them when left out.
        base_seed: Seeds the buffer's draws.

    >>> import numpy as np
    >>> with TransitionBuffer(100, obs_dim=2, action_dim=1) as buffer:
    ...     ones = np.ones((4, 2), np.float32)
    ...     buffer.add(ones, ones[:, :1], ones[:, 0], ones, ones[:, 0], ones[:, 0])
    ...     with ReplayPipeline(buffer, sample_count=8) as pipeline:
    ...         batch = pipeline.next()
    ...         tuple(batch["obs"].shape), float(batch["rewards"].sum())
    ((8, 2), 8.0)
    """

    def __init__(
        self,
        replay_buffer: TransitionBuffer,
        *,
        sample_count: int,
        device: Any = None,
        base_seed: int | None = None,
    ) -> None:
        if sample_count < 1:
            raise InvalidArgument(f"sample_count = {sample_count} is out of range: at least 1")
        self._buffer = replay_buffer
        self._sample_count = sample_count
        self.device = replay_buffer.device if device is None else device_name(device)
        if base_seed is not None:
            replay_buffer.reseed(base_seed)
        slots = [_slot(replay_buffer.layout, sample_count, self.device) for _ in range(2)]
        self._thread = _BatchThread(replay_buffer.fill, sample_count, slots)
        self._tick: int | None = None
        self._in_use: tuple[int, _Slot, dict[str, Any]] | None = None
        self._ticks = 0
        self._pid = os.getpid()
        self._end = weakref.finalize(self, self._thread.close)

    # ── one batch after the other ──────────────────────────────────────────────────────────────────────────────────

    def next(self, timeout: float | None = None) -> dict[str, Any]:
        """The next batch; begins to make the one after it. `WaitTimeout` when it is not ready in time."""
        tick = self._ticks
        if self._tick != tick:
            self.start_prepare(tick, self._sample_count)
        self.after_tick()
        batch = self._take(tick, timeout)
        self._ticks = tick + 1
        self.start_prepare(self._ticks, self._sample_count)
        return batch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while not self._thread.closed:
            yield self.next()

    # ── tick by tick ───────────────────────────────────────────────────────────────────────────────────────────────

    def start_prepare(self, tick_id: int, sample_count: int, min_snapshot_ptr: int | None = None) -> bool:
        """Begins to make the batch of a tick. False when it was begun before. All that was added before can be drawn.

        ``min_snapshot_ptr``: refuse while `TransitionBuffer.rows_reserved` is less.
        """
        self._check(sample_count)
        if self._tick == tick_id:
            return False
        if self._tick is not None:
            raise InvalidArgument(f"the batch of tick {self._tick} is not used yet; tick {tick_id} comes after it")
        if min_snapshot_ptr is not None and min_snapshot_ptr > self._buffer.rows_reserved:
            raise InvalidArgument(f"only {self._buffer.rows_reserved} rows were added so far, not {min_snapshot_ptr}")
        self._thread.request()
        self._tick = tick_id
        return True

    def batch_ready(self, tick_id: int, sample_count: int) -> bool:
        """Whether `sample_large_batch` would give the batch of a tick at once."""
        self._check(sample_count)
        if self._in_use is not None:
            return self._in_use[0] == tick_id
        return self._tick == tick_id and self._thread.is_ready()

    def wait_until_ready(self, tick_id: int, sample_count: int, timeout: float | None = None) -> bool:
        """Waits for the batch of a tick, and begins it if it was not begun. `WaitTimeout` when the time is over."""
        self._check(sample_count)
        if self._in_use is None or self._in_use[0] != tick_id:
            self.start_prepare(tick_id, sample_count)
            self._wait(timeout)
        return True

    def sample_large_batch(self, tick_id: int, sample_count: int, timeout: float | None = None) -> dict[str, Any]:
        """The batch of a tick: the same one until `after_tick`."""
        self._check(sample_count)
        if self._in_use is not None:
            if self._in_use[0] != tick_id:
                raise InvalidArgument(
                    f"the batch of tick {self._in_use[0]} is in use: call after_tick() before tick {tick_id}"
                )
            return self._in_use[2]
        self.start_prepare(tick_id, sample_count)
        return self._take(tick_id, timeout)

    def after_tick(self) -> None:
        """Gives the batch back: the one after the next is written over it."""
        if self._in_use is not None:
            self._in_use[1].release()
            self._in_use = None

    def _take(self, tick_id: int, timeout: float | None) -> dict[str, Any]:
        slot = self._wait(timeout)
        self._thread.swap()
        batch = dict(slot.fields)  # The learner may replace fields in it; the slot keeps its own.
        self._tick, self._in_use = None, (tick_id, slot, batch)
        slot.arrive()
        return batch

    def _wait(self, timeout: float | None) -> _Slot:
        made = self._thread.wait(timeout)
        if isinstance(made, Exception):
            self._tick = None  # The next call tries again.
            raise made
        return made

    def _check(self, sample_count: int) -> None:
        if sample_count != self._sample_count:
            raise InvalidArgument(f"sample_count = {sample_count}; this pipeline makes batches of {self._sample_count}")
        if os.getpid() != self._pid:
            raise NotInThisProcess(f"this pipeline works in process {self._pid}: make one in the forked child")
        if self._thread.closed:
            raise ConnectionClosedError("this replay pipeline is closed")

    # ── life ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Ends the thread, after the batch that it is making. So does the end of the object."""
        self._end()

    def __repr__(self) -> str:
        state = "closed" if self._thread.closed else f"tick {self._tick}"
        return f"<ReplayPipeline of '{self._buffer.name}' {self._sample_count} rows on {self.device or 'cpu'}, {state}>"


class _BatchThread:
    """The thread that makes batches, one for each request. It has no reference to the pipeline."""

    def __init__(self, fill: Fill, rows: int, slots: list[_Slot]) -> None:
        self._fill = fill
        self._rows = rows
        self._slots = slots
        self._next = 0
        self._state = "idle"
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._pid = os.getpid()
        self.closed = False
        self._thread = threading.Thread(target=self._work, name="rollway-replay", daemon=True)
        self._thread.start()

    def request(self) -> None:
        with self._changed:
            self._state = "requested"
            self._changed.notify_all()

    def is_ready(self) -> bool:
        """Whether `wait` would return at once, with a batch or an error."""
        return self._state in ("ready", "failed")

    def wait(self, timeout: float | None) -> _Slot | Exception:
        """The slot that was requested, filled; or the error that prevented it, which ends the request."""
        patience = None if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        with self._changed:
            if not self._changed.wait_for(lambda: self._state != "requested" or self.closed, patience):
                raise WaitTimeout(f"the next batch was not ready after {timeout} s")
            if self.closed:
                raise ConnectionClosedError("this replay pipeline is closed")
            if self._error is not None:
                error, self._error, self._state = self._error, None, "idle"
                return error
            return self._slots[self._next]

    def swap(self) -> None:
        with self._changed:
            self._next = 1 - self._next
            self._state = "idle"

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # In a forked child there is no thread.
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._state == "requested" or self.closed)
                if self.closed:
                    return
                slot = self._slots[self._next]
            error = None
            try:
                slot.make(self._fill, self._rows)
            except Exception as failed:  # noqa: BLE001  (raised by the next call)
                error = failed
            with self._changed:
                self._error = error
                self._state = "failed" if error else "ready"
                self._changed.notify_all()


@dataclass
class _Slot:
    """A batch on the host."""

    fields: dict[str, Any]
    host: Batch

    def make(self, fill: Fill, rows: int) -> None:
        """Fills it. Called by the thread."""
        fill(rows, self.host.block)

    def arrive(self) -> None:
        """The learner takes it."""

    def release(self) -> None:
        """The learner gives it back."""


@dataclass
class _DeviceSlot(_Slot):
    """A batch on a GPU, with pinned memory before it. Its copies run on a stream of their own.

    ``copied`` is recorded after the copy: the learner's stream waits for it, and so does the next fill of the pinned
    memory. ``used`` is recorded after the learner's work on the batch: the next copy waits for it.
    """

    block: Any
    stream: Any
    copied: Any
    used: Any

    def make(self, fill: Fill, rows: int) -> None:
        import torch

        self.copied.synchronize()
        fill(rows, self.host.block)
        with torch.cuda.device(self.block.device), torch.cuda.stream(self.stream):
            self.stream.wait_event(self.used)
            self.block.copy_(torch.from_numpy(self.host.block), non_blocking=True)
            self.copied.record(self.stream)

    def arrive(self) -> None:
        import torch

        torch.cuda.current_stream(self.block.device).wait_event(self.copied)

    def release(self) -> None:
        import torch

        self.used.record(torch.cuda.current_stream(self.block.device))


def _slot(layout: RowLayout, rows: int, device: str | None) -> _Slot:
    if device is None or device == "cpu":
        host = Batch.empty(layout, rows, device)
        return _Slot(host, host)
    torch: Any = importlib.import_module("torch")  # Its streams and events are untyped.
    place = torch.device(device)
    if place.type != "cuda":
        raise InvalidArgument(f"device is {device!r}; a pipeline makes batches on 'cpu' or on a CUDA device")
    host = Batch.empty(layout, rows, device)
    block = torch.empty(len(host.block), dtype=torch.uint8, device=place)
    with torch.cuda.device(block.device):
        stream, copied, used = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
        # The block may be recycled memory that this stream still uses: the first copy waits for it.
        used.record(torch.cuda.current_stream())
    return _DeviceSlot(layout.tensors(block), host, block, stream, copied, used)
