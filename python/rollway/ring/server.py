"""Server: the learner's end of a ring. Creates the ring (or resumes it), and takes batches out of it.

The training loop calls it. Workers use `ShmClient` or `TcpClient`; code in the learner's process may use `submit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import optree

from rollway._core import Consumer, PageLock, Producer, Sample
from rollway.device import Framework, device_batches
from rollway.errors import BatchesHeld, ConnectionClosedError, InvalidArgument, WaitTimeout
from rollway.ring.device_source import SampleSource
from rollway.schema.pytree import Schema, explained
from rollway.transport.base import Intake, Transport
from rollway.transport.earlier_run import warn_of_earlier_run
from rollway.transport.policies import REPLACE, OnFull
from rollway.transport.server_base import ServerBase, describe_refusals, describe_waits, split_transports
from rollway.transport.shm import ShmTransport
from rollway.waiting.peer_watch import PeerWatch, StallCheck, producers_died


class Server(ServerBase):
    """Moves samples from any number of workers to this learner, as whole batches that are views into shared memory.

    Workers on this machine come in through a `ShmTransport`, workers on others through a `TcpTransport`, or both at
    once. The ring exists from here until `close`, or the end of the ``with`` block. After an exception, and after the
    end of the process without `close`, it stays for the next learner (``keep`` of `ShmTransport`). `sample` and
    `submit` block with the GIL released, and Ctrl-C ends them. Threads may share a server.

    Args:
        example: One sample: a pytree of arrays. Its values do not matter. In place of an array there may be text like
            ``"uint8[84,84]"``, a pair like ``((84, 84), np.uint8)`` or a Gymnasium space.
        batch_size: Samples per batch.
        transport: One or several ways in: `ShmTransport` for workers on this machine, `TcpTransport` for others, or a
            `Transport` of your own. Without any, only `submit` feeds the ring.
        num_buffers: Batches that the ring has room for, at least 2: one to fill, one to read, more for slack.
        on_full: What producers do when there is no room: ``"block"``, ``"drop_oldest"`` batch, ``"drop_newest"``
            sample, or ``"error"``. Drops are counted in `stats`.
        pin_host_memory: Page-lock the ring for CUDA, so that a batch goes to the GPU by one asynchronous copy.
            RuntimeError when that cannot be done.
        writable: Hand out arrays that may be written to.
        peer_timeout_s: How long `sample` waits when every worker is gone and at least one of them died, before it
            raises `PeerDied`. ``None``: for ever. Remote workers may come back at any time: with a `TcpTransport`, give
            `sample` a timeout.

    >>> import numpy as np
    >>> with Server({"obs": np.zeros(2, np.float32)}, batch_size=2) as server:
    ...     for i in range(2):
    ...         _ = server.submit({"obs": np.full(2, i, np.float32)})
    ...     server.sample().batch["obs"].tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(
        self,
        example: Any,
        batch_size: int,
        transport: ShmTransport | Transport | Sequence[ShmTransport | Transport] | None = None,
        num_buffers: int = 3,
        *,
        on_full: OnFull = "block",
        pin_host_memory: bool = False,
        writable: bool = False,
        peer_timeout_s: float | None = 60.0,
    ) -> None:
        self._schema = Schema.of(example)
        self._plan = self._schema.plan()
        self._batch_size = batch_size
        self._on_full = on_full
        self._peer_timeout_s = peer_timeout_s
        self._producer: Producer | None = None
        shm, transports = split_transports(transport)
        options = shm or ShmTransport("in-process")
        with explained(self._schema, REPLACE):
            self._consumer = Consumer(
                self._plan,
                batch_size,
                num_buffers,
                shm.name if shm else None,
                auto_named=options.auto_named,
                if_exists=options.if_exists or "resume",
                max_peers=options.max_peers,
                on_full=on_full,
                huge_pages=options.huge_pages,
                peer_timeout_s=peer_timeout_s,
                writable=writable,
            )
        super().__init__(self._consumer, transports, Intake(self._consumer, self._schema, self._plan), options.keep)
        if shm is not None and shm.if_exists is None:
            warn_of_earlier_run(shm.name, "samples", self._consumer.found())
        self._pinned = False
        if pin_host_memory:
            try:
                self._pin_once()
            except RuntimeError:
                self._finish(failed=True)
                raise

    @property
    def batch_size(self) -> int:
        """Samples per batch."""
        return self._batch_size

    @property
    def schema(self) -> Schema:
        """The leaves of one sample."""
        return self._schema

    def sample(self, timeout: float | None = None, at_least: int | None = None) -> Sample | None:
        """Waits for a whole batch. ``None`` once the ring is shut down.

        Args:
            timeout: Seconds to wait; ``None`` for ever. `WaitTimeout` says what had come until then.
            at_least: At the end of ``timeout``, accept a short batch of at least this many samples: the oldest
                unfinished batch that has them is closed early.
        """
        self._check_at_least(at_least, timeout)
        try:
            sample = self._consumer.take(timeout, at_least)
        except ConnectionClosedError:
            return None
        except WaitTimeout:
            sample = None
        except BatchesHeld as held:
            raise _batches_held(str(held)) from None
        if sample is None:
            self._none_in_time(timeout)
        return sample

    def try_sample(self) -> Sample | None:
        """A whole batch, or ``None`` when there is none yet; never waits.

        Raises `ConnectionClosedError` once the ring is shut down and every batch was taken.
        """
        return self._consumer.take(0.0, None)

    async def sample_async(self, timeout: float | None = None, at_least: int | None = None) -> Sample | None:
        """As `sample`, for asyncio. A cancelled wait takes nothing."""
        self._check_at_least(at_least, timeout)
        peer_watch = PeerWatch(self._notifier, timeout, self._stall_checks)
        try:
            while (sample := self._consumer.try_take_in_order()) is None and not self.closed:
                if not await peer_watch.notified():
                    break
            if sample is None:
                sample = self._consumer.take(0.0, at_least)
        except ConnectionClosedError:  # also from a check, when another thread has closed the server meanwhile
            return None
        if sample is None:
            self._none_in_time(timeout)
        return sample

    def dataset_iter(self, *, copy: bool = False) -> Iterator[Sample]:
        """Yields batches until the ring is shut down.

        Each sample is released when you drop it. A ``for`` loop keeps its sample until it has the next one. So several
        loops, in threads, need more ``num_buffers`` than there are loops, or have to ``release()`` each sample when
        they are done with it. With ``copy=True`` you get copies, which you may keep.
        """
        while True:
            sample = self.sample()
            if sample is None:
                return
            if copy:
                with sample:
                    sample = Sample(optree.tree_map(np.copy, sample.batch, namespace="rollway"), sample.info)
            yield sample
            del sample

    def device_iter(self, device: Any = "cuda", *, depth: int = 3, framework: Framework = "torch") -> Iterator[Any]:
        """Yields batches as torch tensors on ``device``, until the ring is shut down. You may keep them.

        On a GPU a batch crosses in one asynchronous copy while you compute on the last one. Its tensors are ordered
        with your current stream. Its room in the ring goes back to the producers as soon as the copy is done. The ring
        is page-locked for that; where this cannot be done, a warning says why. Batches that the iterator has taken
        ahead go with it: go on with the same one.

        Args:
            device: As torch or JAX names it. ``"cuda"`` means the CPU where there is no GPU.
            depth: Batches that are under way or ready at a time.
            framework: ``"torch"``, or ``"jax"`` for arrays of JAX. These are copied on the host first, because they
                must never change, and then by JAX.

        >>> import numpy as np
        >>> with Server({"obs": np.zeros(2, np.float32)}, batch_size=2) as server:
        ...     for i in range(2):
        ...         _ = server.submit({"obs": [i, i]})
        ...     next(server.device_iter("cpu"))["obs"].tolist()
        [[0.0, 0.0], [1.0, 1.0]]
        """
        source = SampleSource(self._take, self._pin_once, self._batch_size, consumer=self._consumer)
        return device_batches(source, device, depth, framework)

    def _take(self, wait: bool) -> Sample | None:
        """The next batch; ``None`` when there is none yet and ``wait`` is false."""
        if not wait:
            return self.try_sample()
        sample = self.sample()
        if sample is None:
            raise ConnectionClosedError("the ring is shut down")
        return sample

    def _pin_once(self) -> None:
        """Page-locks the ring, if it is not yet. `DeviceFailed` says why, when it cannot be done."""
        if not self._pinned:
            self._closers.append(PageLock(*self._consumer._memory()).close)
            self._pinned = True

    def submit(self, data: Any, *, version: int = 0, timeout: float | None = None) -> bool:
        """Copies one sample into the ring from this process. False when the policy dropped it."""
        return self._submitter().send(data, version=version, timeout=timeout)

    def submit_many(self, data: Any, *, version: int = 0, timeout: float | None = None) -> int:
        """Copies stacked samples into the ring from this process. Returns how many were committed."""
        return self._submitter().send_many(data, version=version, timeout=timeout)

    def flush(self) -> None:
        """Closes the unfinished batch early. `sample` returns it as a short batch as soon as its writers are done."""
        self._consumer.flush()

    def reset_histograms(self) -> None:
        """Clears the histograms. Counters stay."""
        self._consumer.reset_histograms()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<rollway.Server {self.name or '(in process)'} batch_size={self._batch_size} {state}>"

    def _check_at_least(self, at_least: int | None, timeout: float | None) -> None:
        if at_least is None:
            return
        if not 1 <= at_least <= self._batch_size:
            raise InvalidArgument(f"at_least = {at_least} is out of range: 1 to {self._batch_size}, the batch_size")
        if timeout is None:
            raise InvalidArgument("at_least accepts a short batch at the end of a timeout: give a timeout, too")

    def _submitter(self) -> Producer:
        """The producer of this process, one for all threads, so that they share one producer id."""
        if self._producer is None:
            with self._starting:
                if self._producer is None:
                    self._producer = Producer._of_server(self._consumer, self._plan)
                    self._closers.insert(0, self._producer.close)
        return self._producer

    def _stall_checks(self) -> list[StallCheck]:
        """Reasons why no batch may ever come. With transports, remote workers may always come back."""
        consumer = self._consumer
        held = StallCheck(
            lambda: consumer.stats()["batches_released"] if consumer.holds_all() else None,
            1.0,
            lambda: _batches_held(f"all {consumer.stats()['num_buffers']} batches are held by this learner"),
        )
        return [held] if self._endpoints else [held, producers_died(consumer.producers, self._peer_timeout_s, "batch")]

    def _none_in_time(self, timeout: float | None) -> None:
        """Raises that no batch came. Does nothing when another thread has closed the server meanwhile."""
        try:
            alive, died = self._consumer.producers()
            holds_all = self._consumer.holds_all()
        except ConnectionClosedError:
            return
        stats = self._consumer.stats()
        ready = stats["ready_samples"]
        if holds_all:
            advice = "This learner holds all of the ring's batches: release() one"
        elif ready:
            advice = "Wait longer, or take what is there with sample(timeout, at_least=1)"
        else:
            advice = "Wait longer, or look at the workers' logs"
        writers = ", ".join(f"pid {pid} ({slots})" for pid, slots in self._consumer.writers()) or "no process"
        raise WaitTimeout(
            f"no whole batch of {self._batch_size} within {timeout} s: {ready} samples are committed, "
            f"slots are being written by {writers}; {alive} producers attached, {len(died)} died"
            f"{describe_waits(self._consumer)}.{describe_refusals(self.refusals)} {advice}"
        )


def _batches_held(what: str) -> BatchesHeld:
    return BatchesHeld(
        f"{what}: no other can be filled. Drop or release() the samples you keep, use dataset_iter(copy=True), or give "
        "the server more num_buffers"
    )
