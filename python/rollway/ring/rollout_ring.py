"""RolloutRingBuffer: whole rollouts from collectors to the learner, through one ring in shared memory.

A slot holds one rollout of all environments. Collectors write it in place, the learner reads it in place. It does not
start processes (`AsyncRunner` does) and moves no weights. The learner creates it; collectors get it by pickling, by
forking or by name.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from rollway._core import Consumer, Plan, Producer, Sample, Slot, ring_bytes
from rollway.errors import (
    ConnectionClosedError,
    ForeignSchema,
    GeometryMismatch,
    InvalidArgument,
    RingFull,
    SchemaMismatch,
    SegmentNotFound,
    WaitTimeout,
)
from rollway.schema.leaves import RaggedLeaf, read_leaves
from rollway.schema.pytree import Schema
from rollway.transport.shm import ShmTransport

Array = np.ndarray[Any, Any]
OnFull = Literal["drop_oldest", "block"]

_MAX_PEERS = 1024
_PATROL_S = 0.032  # A commit elsewhere makes a slot that can be dropped, and rings no bell for writers.


class RolloutInfo(NamedTuple):
    """Which collector made a rollout, and with which weights."""

    version: int
    """The number of the weights, as given to `RolloutRingBuffer.signal_write_done`; 0 when none was."""
    producer_id: int
    """Which writer made it, counted from 0 over the life of the ring."""
    sequence: int
    """The number of the rollout, counted from 0 by its writer. A gap: rollouts were dropped."""
    committed_ns: int
    """When it was committed, by ``time.monotonic_ns()`` of this machine."""


class RolloutRingBuffer:
    """Moves rollouts from any number of writing processes to a reader, in ``num_slots`` slots of shared memory.

    A rollout is shown whole or not at all: what a writer had only begun when it died or called `abort_write` is never
    seen, and its slot goes back. When every slot is full the oldest whole rollout is dropped (and counted), or the
    writer waits. A slot that is being read is never overwritten. Each rollout goes to one reader.

    The creator's segment exists until `close` (or `cleanup`, or the end of the ``with`` block). A handle may be pickled
    into a spawned process and used in a forked one. One thread may read and another write, not more of either. Waits
    release the GIL, and Ctrl-C ends them.

    Args:
        num_envs: Environments in a rollout.
        num_steps: Steps of each.
        obs_dim: Numbers in an observation.
        action_dim: Numbers in an action.
        critic_dim: Numbers in the critic's own observation; 0: it has none.
        num_slots: Rollouts that there is room for, at least 2. Each writer fills one and the reader keeps one, so give
            two more than there are writers.
        create: Make it. Otherwise attach to what ``shm_name_prefix`` names.
        shm_name_prefix: The segment: its name, or the dict that `name` gives. Left out on creation, one is made up. A
            name that is there already with the same shape is resumed, with the rollouts in it.
        fields: More fields: ``{"values": ((num_envs, num_steps), np.float32)}``, each with its whole shape. A field may
            also be an example array, text like ``"float32[64,24]"`` or a Gymnasium space.
        on_full: ``"drop_oldest"`` or ``"block"``; an attached handle does as the creator says.
        peer_timeout_s: How long a blocked call bears that everybody on the other side is dead before it raises
            `PeerDied`. ``None``: for ever.

    >>> with RolloutRingBuffer(num_envs=2, num_steps=3, obs_dim=4, action_dim=1) as ring:
    ...     with ring.writing(version=7) as rollout:
    ...         rollout["rewards"][:] = 1.0
    ...     _ = ring.wait_for_data(timeout=1.0)
    ...     total, version = float(ring.read_numpy_views()["rewards"].sum()), ring.read_info().version
    ...     ring.advance_read()
    >>> total, version
    (6.0, 7)
    """

    def __init__(
        self,
        num_envs: int,
        num_steps: int,
        obs_dim: int,
        action_dim: int,
        *,
        critic_dim: int = 0,
        num_slots: int = 4,
        create: bool = True,
        shm_name_prefix: str | Mapping[str, str] | None = None,
        fields: Mapping[str, Any] | None = None,
        on_full: OnFull = "drop_oldest",
        peer_timeout_s: float | None = 60.0,
    ) -> None:
        if on_full not in ("drop_oldest", "block"):
            raise InvalidArgument(f"on_full is {on_full!r}; it must be 'drop_oldest' or 'block'")
        if not 2 <= num_slots < 2**16:
            raise InvalidArgument(f"num_slots = {num_slots} is out of range: 2 to 65,535")
        self.num_envs, self.num_steps = num_envs, num_steps
        self.obs_dim, self.action_dim, self.critic_dim = obs_dim, action_dim, critic_dim
        self.num_slots = num_slots
        self._fields = {name: (leaf.shape, leaf.dtype) for name, leaf in more_fields(fields or {}).items()}
        self._on_full: OnFull = on_full
        self._peer_timeout_s = peer_timeout_s
        self._layout = _layout(num_envs, num_steps, obs_dim, action_dim, critic_dim, self._fields)
        self._schema = Schema.of(self._layout)
        self._plan: Plan = self._schema.plan()
        self._ends = _Ends()
        self._closed = False
        self._slot: Slot | None = None
        self._sample: Sample | None = None
        self._pid = os.getpid()
        transport = ShmTransport(_one_name(shm_name_prefix)) if shm_name_prefix is not None else ShmTransport()
        self._name, self._auto_named = transport.name, transport.auto_named
        if create:
            self._ends.consumer = self._open_consumer()
        elif shm_name_prefix is None:
            raise InvalidArgument("create=False needs shm_name_prefix: the creator's `name`")
        else:
            self._ends.producer = self._open_producer()
            self._check_geometry(self._ends.producer)
        # Also at interpreter exit, so that a handle that was not closed leaves nothing behind.
        self._finalizer = weakref.finalize(self, self._ends.close)

    # ── what it is ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def name(self) -> dict[str, str]:
        """For each field the segment that it lies in. All lie in one: any of the values is enough to attach."""
        return dict.fromkeys(self._layout, self._name)

    @property
    def slot_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each field of a rollout."""
        return {field: shape for field, (shape, _) in self._layout.items()}

    @property
    def closed(self) -> bool:
        """Whether this handle was closed, or the ring shut down by its creator."""
        end = self._ends.consumer or self._ends.producer
        return self._closed or end is None or end.closed

    def stats(self) -> dict[str, int]:
        """Plain numbers: rollouts ready, held and dropped, slots given back by the dead, bytes of the segment."""
        stats = (self._ends.consumer or self._writer()).stats()
        del stats["dropped_newest"]  # Counts the attempts of waiting writers: nothing new is ever dropped here.
        return stats

    def attach_sync_primitives(self, write_ptr: object, read_ptr: object) -> None:
        """Accepted, and not needed: the positions lie in the segment."""

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def write_slot(self) -> int:
        """The index of the slot that `write_buffer` shows. Reserves one when none is."""
        return self._reserved(None).buffer

    @property
    def write_buffer(self) -> dict[str, Array]:
        """Views of a slot that is this writer's alone, the same until `signal_write_done`; read-only after it.

        Waits for a slot when there is none to have: with ``on_full="block"`` while all are full, otherwise only while
        all are in the hands of readers and other writers. What lay in the slot before is still in it.
        """
        tree: dict[str, Array] = self._reserved(None).tree
        return tree

    @property
    def writer(self) -> Producer:
        """Whose slot `write_buffer` is: what `ShmVectorEnv.collect_into` asks for."""
        return self._writer()

    def wait_for_slot(self, timeout: float | None = None) -> bool:
        """Reserves the slot that `write_buffer` will show, in at most so many seconds. False when there was none."""
        try:
            self._reserved(timeout)
        except WaitTimeout:
            return False
        return True

    def signal_write_done(self, *, version: int = 0) -> None:
        """Publishes the rollout in `write_buffer`: it reaches the reader even if this process is killed now.

        ``version`` is the number of the weights that made it, for `read_info`.
        """
        self._drop_slots_after_fork()
        if self._slot is None:
            raise InvalidArgument("there is no rollout to publish: write into write_buffer first")
        _check_version(version)
        self._slot.version = version
        slot, self._slot = self._slot, None
        slot.commit()

    def abort_write(self) -> None:
        """Gives the slot in `write_buffer` back, without what was written. Does nothing when there is none."""
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.abort()

    @contextmanager
    def writing(self, *, version: int = 0, timeout: float | None = None) -> Iterator[dict[str, Array]]:
        """`write_buffer` for a block: published at its end, given back when an exception leaves it.

        `WaitTimeout` when there is no slot within ``timeout`` seconds.
        """
        _check_version(version)
        tree: dict[str, Array] = self._reserved(timeout).tree
        try:
            yield tree
        except BaseException:
            self.abort_write()
            raise
        self.signal_write_done(version=version)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def available(self) -> int:
        """Whole rollouts that can be read now, with the one in this reader's hands."""
        self._drop_slots_after_fork()
        return self.stats()["ready_samples"] + (self._sample is not None)

    def wait_for_data(self, timeout: float = 60.0) -> bool:
        """Waits until a rollout is in this reader's hands, where no writer can drop it. False when time was over.

        `ConnectionClosedError` when the ring was shut down and is empty.
        """
        self._drop_slots_after_fork()
        if self._sample is not None:
            return True
        reader = self._reader()
        try:
            # Of several writers any may finish first: there is no order to wait for.
            self._sample = reader.take(0.0) or (reader.take(timeout) if timeout > 0 else None)
        except WaitTimeout:
            return False
        return self._sample is not None

    @property
    def read_slot(self) -> int:
        """The index of the slot that is being read."""
        return self._held().info.buffer

    def read_info(self) -> RolloutInfo:
        """Which collector made the rollout that is being read, and with which weights."""
        info = self._held().info
        return RolloutInfo(
            int(info.versions[0]), int(info.producer_ids[0]), int(info.sequences[0]), int(info.committed_ns[0])
        )

    def read_numpy_views(self) -> dict[str, Array]:
        """Read-only views of the oldest whole rollout, the same one until `advance_read`.

        Borrowed: copy what you want to keep, for a slot is reused only when `advance_read` was called *and* its views
        are garbage. A view kept too long is therefore never torn; it costs its slot.
        """
        views = self._writable_views()
        for view in views.values():
            view.setflags(write=False)
        return views

    def copy_read_slot_to_torch(self, destination: Mapping[str, Any]) -> None:
        """Copies the rollout into tensors that you have, on any device. Fields that you left out are not copied."""
        import torch

        views = self._writable_views()
        if unknown := destination.keys() - views.keys():
            raise InvalidArgument(f"no field {sorted(unknown)} in this ring; it has {sorted(views)}")
        for field, tensor in destination.items():
            if tuple(tensor.shape) != views[field].shape:
                raise InvalidArgument(
                    f"field '{field}' is {list(views[field].shape)} in the ring, the tensor {list(tensor.shape)}"
                )
        with torch.no_grad():
            for field, tensor in destination.items():
                tensor.copy_(torch.from_numpy(views[field]))

    def read_torch(self, device: Any) -> dict[str, Any]:
        """The rollout as tensors of your own on ``device``."""
        import torch

        return {field: torch.from_numpy(view).to(device, copy=True) for field, view in self._writable_views().items()}

    def advance_read(self) -> None:
        """Lets go of the rollout that was read; the next call reads the next one. Without one it does nothing."""
        self._sample = None

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Leaves: an unfinished rollout is given back. Safe to call twice.

        When the last reader leaves (the creator is one), the ring is shut down and its name removed: writers get
        `ConnectionClosedError`. Views stay readable.
        """
        self._closed = True
        self._drop_slots_after_fork()
        self.abort_write()
        self.advance_read()
        self._finalizer()

    def cleanup(self) -> None:
        """As `close`: a segment that others still read is not theirs to lose."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        given = {
            "critic_dim": self.critic_dim,
            "num_slots": self.num_slots,
            "fields": self._fields,
            "on_full": self._on_full,
            "peer_timeout_s": self._peer_timeout_s,
        }
        dims = (self.num_envs, self.num_steps, self.obs_dim, self.action_dim)
        return _attached, (dims, self._name, given)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<rollway.RolloutRingBuffer {self._name} num_slots={self.num_slots} {state}>"

    # ── the two ends ────────────────────────────────────────────────────────────────────────────────────────────────

    def _open_consumer(self) -> Consumer:
        try:
            return Consumer(
                self._plan,
                1,
                self.num_slots,
                self._name,
                auto_named=self._auto_named,
                if_exists="resume",
                max_peers=_MAX_PEERS,
                on_full=self._on_full,
                huge_pages=None,
                peer_timeout_s=self._peer_timeout_s,
                writable=True,  # torch.from_numpy wants it so; users get read-only views.
            )
        except ForeignSchema as foreign:
            raise self._schema.explain(foreign) from None

    def _open_producer(self) -> Producer:
        try:
            return Producer(self._name, self._plan, peer_timeout_s=self._peer_timeout_s)
        except ForeignSchema as foreign:
            raise self._schema.explain(foreign) from None

    def _check_geometry(self, producer: Producer) -> None:
        stats = producer.stats()
        there, slots = stats["batch_size"], stats["num_buffers"]
        if (there, slots) != (1, self.num_slots):
            producer.close()
            raise GeometryMismatch(
                f"num_slots is {self.num_slots} here but {slots} in ring '{self._name}'"
                + ("" if there == 1 else f", whose batches hold {there} samples: it is no ring of rollouts")
            )

    def _writer(self) -> Producer:
        self._check_open()
        if self._ends.producer is None:
            self._ends.producer = self._open_producer()
        return self._ends.producer

    def _reader(self) -> Consumer:
        self._check_open()
        if self._ends.consumer is None:
            # The segment is there while our producer sits in it; a new one would be nobody's.
            producer = self._writer()
            consumer = self._open_consumer()
            if not consumer.resumed:
                consumer.close()
                raise SegmentNotFound(f"ring '{self._name}' was closed by its creator")
            self._ends.consumer = consumer
            if self._slot is None and producer.stats()["sent"] == 0:
                producer.close()  # This process reads: it must not count as a living writer.
                self._ends.producer = None
        return self._ends.consumer

    def _reserved(self, timeout: float | None) -> Slot:
        self._drop_slots_after_fork()
        if self._slot is None:
            writer = self._writer()
            self._slot = writer.reserve(timeout) if writer.blocks else self._reserve_by_dropping(writer, timeout)
        return self._slot

    def _reserve_by_dropping(self, writer: Producer, timeout: float | None) -> Slot:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return writer.reserve()
            except RingFull as full:
                left = _PATROL_S if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise WaitTimeout(f"{full}. Every slot is being read or written: give more num_slots") from None
            writer._wait_writable(min(left, _PATROL_S))

    def _held(self) -> Sample:
        if self._sample is not None and self._pid == os.getpid():
            return self._sample
        if not self.wait_for_data(0.0) or self._sample is None:
            raise WaitTimeout(f"there is no whole rollout in ring '{self._name}': call wait_for_data first")
        return self._sample

    def _writable_views(self) -> dict[str, Array]:
        return {field: array[0, ...] for field, array in self._held().batch.items()}  # An array also of no dimensions.

    def _drop_slots_after_fork(self) -> None:
        """In a forked child: what the parent reserved or reads stays the parent's."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._slot, self._sample = None, None

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"this handle of ring '{self._name}' is closed")


class _Ends:
    """The native handles, apart from the object that the finaliser waits for."""

    def __init__(self) -> None:
        self.consumer: Consumer | None = None
        self.producer: Producer | None = None

    def close(self) -> None:
        if self.producer is not None:
            self.producer.close()
        if self.consumer is not None:
            self.consumer.close()


def _attached(dims: tuple[int, int, int, int], name: str, given: dict[str, Any]) -> RolloutRingBuffer:
    """What a pickled handle becomes in the other process."""
    return RolloutRingBuffer(*dims, create=False, shm_name_prefix=name, **given)


def _check_version(version: int) -> None:
    if not 0 <= version < 2**32:
        raise InvalidArgument(f"version = {version} is out of range: 0 to 2**32 - 1")


def _one_name(given: str | Mapping[str, str]) -> str:
    names = {given} if isinstance(given, str) else set(given.values())
    if len(names) != 1:
        raise InvalidArgument(f"all fields of a ring lie in one segment, not in {sorted(names) or 'none'}")
    return names.pop()


def rollout_shapes(
    num_envs: int, num_steps: int, obs_dim: int, action_dim: int, critic_dim: int = 0
) -> dict[str, tuple[int, ...]]:
    """The float32 fields that every rollout has.

    >>> rollout_shapes(2, 3, 4, 1)["last_obs"]
    (2, 4)
    """
    dims = {"num_envs": num_envs, "num_steps": num_steps, "obs_dim": obs_dim, "action_dim": action_dim}
    for what, value in dims.items():
        if not 1 <= value < 2**32:
            raise InvalidArgument(f"{what} = {value} is out of range: 1 to 2**32 - 1")
    if not 0 <= critic_dim < 2**32:
        raise InvalidArgument(f"critic_dim = {critic_dim} is out of range: 0 to 2**32 - 1")
    steps = (num_envs, num_steps)
    shapes: dict[str, tuple[int, ...]] = {"obs": (*steps, obs_dim), "actions": (*steps, action_dim)}
    shapes |= dict.fromkeys(("log_probs", "rewards", "dones", "truncated"), steps)
    shapes["last_obs"] = (num_envs, obs_dim)
    if critic_dim:
        shapes |= {"critic": (*steps, critic_dim), "last_critic": (num_envs, critic_dim)}
    return shapes


def rollout_ring_bytes(
    num_envs: int,
    num_steps: int,
    obs_dim: int,
    action_dim: int,
    *,
    critic_dim: int = 0,
    num_slots: int = 4,
    fields: Mapping[str, Any] | None = None,
) -> int:
    """How large the segment of a `RolloutRingBuffer` with these arguments is."""
    schema = Schema.of(_layout(num_envs, num_steps, obs_dim, action_dim, critic_dim, fields or {}))
    return ring_bytes([leaf.nbytes for leaf in schema.leaves], 1, num_slots, len(schema.text), _MAX_PEERS)


def _layout(
    num_envs: int,
    num_steps: int,
    obs_dim: int,
    action_dim: int,
    critic_dim: int,
    fields: Mapping[str, Any],
) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    shapes = rollout_shapes(num_envs, num_steps, obs_dim, action_dim, critic_dim)
    layout = {field: (shape, np.dtype(np.float32)) for field, shape in shapes.items()}
    for field, leaf in more_fields(fields).items():
        if field in layout:
            raise InvalidArgument(f"fields has '{field}', which every rollout has already")
        layout[field] = (leaf.shape, leaf.dtype)
    return layout


def more_fields(fields: Mapping[str, Any]) -> dict[str, RaggedLeaf]:
    """The fields that a ring has besides the usual ones."""
    leaves = read_leaves(fields)
    for leaf in leaves.values():
        if leaf.ragged:
            raise SchemaMismatch(f"field '{leaf.name}' is {leaf}; the rollouts of a ring all have one size")
    return leaves
