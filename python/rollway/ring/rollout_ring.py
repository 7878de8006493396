"""RolloutRing: whole rollouts from collectors to the learner, through one ring in shared memory.

A slot holds one rollout of all environments. Collectors write it in place, and the learner reads it in place. The
learner creates the ring; collectors get it by pickling, by forking or by name. `Runner` starts the collectors.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, Self, TypedDict, Unpack

import numpy as np

from rollway._core import Consumer, PageLock, Plan, Producer, Sample, Slot, ring_bytes
from rollway.device import Framework, device_batches
from rollway.errors import (
    ConnectionClosedError,
    GeometryMismatch,
    InvalidArgument,
    RingFull,
    SchemaMismatch,
    SegmentNotFound,
    WaitTimeout,
)
from rollway.ring.device_source import SampleSource
from rollway.schema.leaves import read_leaves
from rollway.schema.pytree import Schema, explained
from rollway.segment.closes_on_exit import ClosesOnExit
from rollway.segment.naming import auto_name
from rollway.transport.base import Endpoint, Intake, Transport

Array = np.ndarray[Any, Any]
OnFull = Literal["drop_oldest", "block"]
Layout = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
_Dims = tuple[int, int, int, int]  # num_envs, num_steps, obs_dim, action_dim

_MAX_PEERS = 1024
_RETRY_S = 0.032  # how often a writer looks for a slot to drop: another writer's commit does not wake it


class RolloutInfo(NamedTuple):
    """Which collector made a rollout, and with which weights."""

    version: int
    """The version of the weights, as given to `RolloutRing.signal_write_done`; 0 when left out."""
    producer_id: int
    """Which writer made it, counted from 0 over the life of the ring."""
    sequence: int
    """The number of the rollout, counted from 0 by its writer. A gap means that rollouts were dropped."""
    committed_ns: int
    """When it was committed, by ``time.monotonic_ns()`` of this machine."""


class RolloutOptions(TypedDict, total=False):
    """What the creator of a ring and a process that attaches to it say alike; `RolloutRing` describes it."""

    critic_dim: int
    num_slots: int
    fields: Mapping[str, Any] | None
    on_full: OnFull
    peer_timeout_s: float | None


class RolloutRing(ClosesOnExit):
    """Moves rollouts from any number of writing processes to a reader, in ``num_slots`` slots of shared memory.

    Readers see whole rollouts only. The slot of a writer that died in the middle, or called `abort_write`, is used
    again. When every slot is full, the oldest rollout is dropped and counted, or the writer waits. A slot that is being
    read is never overwritten. Each rollout goes to one reader.

    The creator's segment exists until `close` (or the end of the ``with`` block). Other processes open it with
    `attach`, or get a pickled handle; a forked process uses the handle that it has. One thread may read and another
    write, not more of either. Waits release the GIL, and Ctrl-C ends them.

    Args:
        num_envs: Environments in a rollout.
        num_steps: Steps of each.
        obs_dim: Numbers in an observation.
        action_dim: Numbers in an action.
        critic_dim: Numbers in an observation for the critic; 0 for none.
        num_slots: Rollouts that there is room for, at least 2. Each writer fills one and the reader keeps one, so give
            two more than there are writers.
        name: What others attach to; automatic when left out. A ring of that name and shape is resumed, with its
            rollouts.
        fields: More fields: ``{"values": ((num_envs, num_steps), np.float32)}``, each with its whole shape; or another
            dtype and shape for a usual one. A field may also be an example array, text like ``"float32[64,24]"`` or a
            Gymnasium space.
        on_full: ``"drop_oldest"`` or ``"block"``; the creator decides for all handles.
        peer_timeout_s: How long a blocked call waits while every process on the other side is dead, before it raises
            `PeerDied`. ``None``: for ever.

    >>> with RolloutRing(num_envs=2, num_steps=3, obs_dim=4, action_dim=1) as ring:
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
        name: str | None = None,
        fields: Mapping[str, Any] | None = None,
        on_full: OnFull = "drop_oldest",
        peer_timeout_s: float | None = 60.0,
    ) -> None:
        self._set_up(
            name,
            (num_envs, num_steps, obs_dim, action_dim),
            critic_dim=critic_dim,
            num_slots=num_slots,
            fields=fields,
            on_full=on_full,
            peer_timeout_s=peer_timeout_s,
        )
        self._ends.consumer = self._open_consumer()

    @classmethod
    def attach(
        cls,
        name: str,
        num_envs: int,
        num_steps: int,
        obs_dim: int,
        action_dim: int,
        *,
        connect_timeout_s: float = 10.0,
        **options: Unpack[RolloutOptions],
    ) -> Self:
        """Opens a ring that another process makes, with the sizes that it is made with.

        ``num_slots`` may be left out: the ring has it. ``connect_timeout_s``: how long to wait for the learner to
        appear.
        """
        self = cls.__new__(cls)
        self._attach(name, (num_envs, num_steps, obs_dim, action_dim), connect_timeout_s, **options)
        return self

    def _attach(self, name: str, dims: _Dims, connect_timeout_s: float, **options: Unpack[RolloutOptions]) -> None:
        self._set_up(name, dims, **options)
        producer = self._writer(connect_timeout_s)
        if "num_slots" not in options:
            self.num_slots = producer.stats()["num_buffers"]
        self._check_geometry(producer)

    def _set_up(
        self,
        name: str | None,
        dims: _Dims,
        *,
        critic_dim: int = 0,
        num_slots: int = 4,
        fields: Mapping[str, Any] | None = None,
        on_full: OnFull = "drop_oldest",
        peer_timeout_s: float | None = 60.0,
    ) -> None:
        """Everything but the native handles."""
        if on_full not in ("drop_oldest", "block"):
            raise InvalidArgument(f"on_full is {on_full!r}; it must be 'drop_oldest' or 'block'")
        if not 2 <= num_slots < 2**16:
            raise InvalidArgument(f"num_slots = {num_slots} is out of range: 2 to 65,535")
        self.num_envs, self.num_steps, self.obs_dim, self.action_dim = dims
        self.critic_dim = critic_dim
        self.num_slots = num_slots
        self._on_full: OnFull = on_full
        self._peer_timeout_s = peer_timeout_s
        self._layout = rollout_layout(dims, critic_dim, fields)
        self._schema = Schema.of(self._layout)
        self._plan: Plan = self._schema.plan()
        self._ends = _Ends()
        self._closed = False
        self._slot: Slot | None = None
        self._sample: Sample | None = None
        self._pid = os.getpid()
        self._name, self._auto_named = (auto_name(), True) if name is None else (name, False)
        # Also at interpreter exit, so that a handle that was not closed leaves nothing behind.
        self._finalizer = weakref.finalize(self, self._ends.close)

    # ── what it is ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def name(self) -> str:
        """What others attach to."""
        return self._name

    @property
    def schema(self) -> Schema:
        """The fields of a rollout."""
        return self._schema

    @property
    def on_full(self) -> OnFull:
        """What writers do when every slot is full."""
        return self._on_full

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
        """Plain numbers: rollouts ready, held and dropped, slots recovered from dead writers, bytes of the segment."""
        stats = (self._ends.consumer or self._writer()).stats()
        del stats["dropped_newest"]  # counts attempts of waiting writers; a new rollout is never dropped
        return stats

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def write_slot(self) -> int:
        """The index of the slot that `write_buffer` shows. Reserves one if necessary."""
        return self._reserved(None).buffer

    @property
    def write_buffer(self) -> dict[str, Array]:
        """Views of a slot of this writer, the same until `signal_write_done`; read-only after it.

        Waits for a slot: with ``on_full="block"`` while all are full, otherwise only while all are being read or
        written. The slot still has the values of an earlier rollout.
        """
        tree: dict[str, Array] = self._reserved(None).tree
        return tree

    @property
    def writer(self) -> Producer:
        """The native producer of `write_buffer`, for `ShmVectorEnv.collect_into`."""
        return self._writer()

    def wait_for_slot(self, timeout: float | None = None) -> bool:
        """Reserves the slot that `write_buffer` will show. False when there was none within ``timeout`` seconds."""
        try:
            self._reserved(timeout)
        except WaitTimeout:
            return False
        return True

    def signal_write_done(self, *, version: int = 0) -> None:
        """Publishes the rollout in `write_buffer`: it reaches the reader even if this process is killed now.

        ``version``: of the weights that made it, for `read_info`.
        """
        self._drop_slots_after_fork()
        if self._slot is None:
            raise InvalidArgument("there is no rollout to publish: write into write_buffer first")
        _check_version(version)
        self._slot.version = version
        slot, self._slot = self._slot, None
        slot.commit()

    def abort_write(self) -> None:
        """Gives the slot of `write_buffer` back, and publishes nothing. Does nothing when none is reserved."""
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
        """Whole rollouts that can be read now, with the one that this handle is reading."""
        self._drop_slots_after_fork()
        return self.stats()["ready_samples"] + (self._sample is not None)

    def wait_for_data(self, timeout: float = 60.0) -> bool:
        """Waits for a rollout and takes it, so that no writer can drop it. False after ``timeout`` seconds.

        `ConnectionClosedError` when the ring is shut down and empty.
        """
        self._drop_slots_after_fork()
        if self._sample is not None:
            return True
        reader = self._reader()
        try:
            # The rollout of any writer that has finished will do: there is no order to wait for.
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

        Copy what you want to keep. A view that you keep after `advance_read` stays whole, but occupies its slot: a slot
        is used again only when no view of it is left.
        """
        views = self._writable_views()
        for view in views.values():
            view.setflags(write=False)
        return views

    def copy_read_slot_to_torch(self, destination: Mapping[str, Any]) -> None:
        """Copies the fields that ``destination`` has into its tensors, on any device."""
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

    def read_torch_views(self) -> dict[str, Any]:
        """As `read_numpy_views`, as tensors in the same memory."""
        from rollway.torch import as_tensors

        views: dict[str, Any] = as_tensors(self._writable_views())
        return views

    def read_tensordict(self) -> Any:
        """As `read_numpy_views`, as a `TensorDict` in the same memory, of ``num_envs`` rows if all fields have them."""
        from rollway.torch import as_tensordict

        views = self._writable_views()
        of_envs = all(view.shape[:1] == (self.num_envs,) for view in views.values())
        return as_tensordict(views, *([self.num_envs] if of_envs else []))

    def read_jax(self, device: Any = None) -> dict[str, Any]:
        """The rollout as new arrays of JAX on a device, which never change."""
        from rollway.jax import as_arrays

        arrays: dict[str, Any] = as_arrays(self._writable_views(), device)
        return arrays

    def read_torch(self, device: Any) -> dict[str, Any]:
        """The rollout as new tensors on ``device``."""
        import torch

        return {field: torch.from_numpy(view).to(device, copy=True) for field, view in self._writable_views().items()}

    def device_iter(
        self, device: Any = "cuda", *, depth: int = 3, framework: Framework = "torch"
    ) -> Iterator[dict[str, Any]]:
        """Yields rollouts on ``device``, until the ring is shut down. You may keep them.

        As `Server.device_iter`: on a GPU each crosses in one asynchronous copy, after which its slot is used again. So
        give ``depth`` more slots. Do not call `wait_for_data` or the methods that read meanwhile.

        >>> with RolloutRing(num_envs=2, num_steps=3, obs_dim=4, action_dim=1) as ring:
        ...     with ring.writing() as rollout:
        ...         rollout["rewards"][:] = 1.0
        ...     next(ring.device_iter("cpu"))["rewards"].sum()
        tensor(6.)
        """
        self._reader()
        source = SampleSource(self._take, self._pin_once, 1, row=True)
        return device_batches(source, device, depth, framework)

    def _take(self, wait: bool) -> Sample | None:
        """The next rollout; ``None`` when there is none yet and ``wait`` is false."""
        self._drop_slots_after_fork()
        held, self._sample = self._sample, None
        reader = self._reader()
        # The rollout of any writer that has finished will do: there is no order to wait for.
        return held or reader.take(0.0) or (reader.take() if wait else None)

    def _pin_once(self) -> None:
        """Page-locks the ring, if it is not yet. `DeviceFailed` says why, when it cannot be done."""
        if self._ends.unpin is None:
            self._ends.unpin = PageLock(*self._reader()._memory()).close

    def advance_read(self) -> None:
        """Releases the rollout that is being read; without one, passes over the next, if there is one."""
        if self._sample is None:
            with suppress(ConnectionClosedError):
                self.wait_for_data(0.0)
        self._sample = None

    # ── other hosts ─────────────────────────────────────────────────────────────────────────────────────────────────

    def add_transport(self, transport: Transport) -> Endpoint:
        """Starts a way in for writers on other hosts, each of whose samples is a rollout. Only in a reader.

        It ends with its ``stop()``, or with this handle.

        >>> import rollway
        >>> with RolloutRing(num_envs=2, num_steps=3, obs_dim=4, action_dim=1) as ring:
        ...     way_in = ring.add_transport(rollway.TcpTransport())
        ...     rollout = {field: np.ones(shape, np.float32) for field, shape in ring.slot_shapes.items()}
        ...     with rollway.TcpClient("localhost", way_in.port, rollout) as client:
        ...         _ = client.send(rollout)
        ...     ring.wait_for_data(timeout=10.0), float(ring.read_numpy_views()["rewards"].sum())
        (True, 6.0)
        """
        endpoint = transport.start(Intake(self._reader(), self._schema, self._plan))
        self._ends.endpoints.append(endpoint)
        return endpoint

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Closes this handle; an unfinished rollout is given back. Safe to call twice.

        When the last reader closes (the creator is one), the ring is shut down and its name removed: writers get
        `ConnectionClosedError`. Views stay readable.
        """
        self._closed = True
        self._drop_slots_after_fork()
        self.abort_write()
        self._sample = None
        self._finalizer()

    def __getstate__(self) -> tuple[str, _Dims, RolloutOptions]:
        dims = (self.num_envs, self.num_steps, self.obs_dim, self.action_dim)
        usual = rollout_layout(dims, self.critic_dim, None)
        options: RolloutOptions = {
            "critic_dim": self.critic_dim,
            "num_slots": self.num_slots,
            "fields": {field: form for field, form in self._layout.items() if form != usual.get(field)},
            "on_full": self._on_full,
            "peer_timeout_s": self._peer_timeout_s,
        }
        return self._name, dims, options

    def __setstate__(self, state: tuple[str, _Dims, RolloutOptions]) -> None:
        name, dims, options = state
        self._attach(name, dims, 0.0, **options)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<rollway.{type(self).__name__} {self._name} num_slots={self.num_slots} {state}>"

    # ── the two ends ────────────────────────────────────────────────────────────────────────────────────────────────

    def _open_consumer(self) -> Consumer:
        with explained(self._schema):
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
                writable=True,  # for torch.from_numpy; users get read-only views
            )

    def _open_producer(self, connect_timeout_s: float) -> Producer:
        with explained(self._schema):
            return Producer(
                self._name, self._plan, connect_timeout_s=connect_timeout_s, peer_timeout_s=self._peer_timeout_s
            )

    def _check_geometry(self, producer: Producer) -> None:
        stats = producer.stats()
        there, slots = stats["batch_size"], stats["num_buffers"]
        if (there, slots) != (1, self.num_slots):
            producer.close()
            raise GeometryMismatch(
                f"num_slots is {self.num_slots} here but {slots} in ring '{self._name}'"
                + ("" if there == 1 else f", whose batches hold {there} samples: it is no ring of rollouts")
            )

    def _writer(self, connect_timeout_s: float = 0.0) -> Producer:
        self._check_open()
        if self._ends.producer is None:
            self._ends.producer = self._open_producer(connect_timeout_s)
        return self._ends.producer

    def _reader(self) -> Consumer:
        self._check_open()
        if self._ends.consumer is None:
            # Our producer keeps the segment alive, so a consumer that does not resume it has made another one.
            producer = self._writer()
            consumer = self._open_consumer()
            if not consumer.resumed:
                consumer.close()
                raise SegmentNotFound(f"ring '{self._name}' was closed by its creator")
            self._ends.consumer = consumer
            if self._slot is None and producer.stats()["sent"] == 0:
                producer.close()  # this process reads: it must not count as a living writer
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
                left = _RETRY_S if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise WaitTimeout(f"{full}. Every slot is being read or written: give more num_slots") from None
            writer._wait_writable(min(left, _RETRY_S))

    def _held(self) -> Sample:
        if self._sample is not None and self._pid == os.getpid():
            return self._sample
        if not self.wait_for_data(0.0) or self._sample is None:
            raise WaitTimeout(f"there is no whole rollout in ring '{self._name}': call wait_for_data first")
        return self._sample

    def _writable_views(self) -> dict[str, Array]:
        return {field: array[0, ...] for field, array in self._held().batch.items()}  # ...: also an array if it is 0-d

    def _drop_slots_after_fork(self) -> None:
        """In a forked child: forgets the slots that the parent has reserved or reads."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._slot, self._sample = None, None

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"this handle of ring '{self._name}' is closed")


class _Ends:
    """The native handles, in an object of their own, because a finaliser must not refer to the ring."""

    def __init__(self) -> None:
        self.consumer: Consumer | None = None
        self.producer: Producer | None = None
        self.unpin: Callable[[], None] | None = None
        self.endpoints: list[Endpoint] = []

    def close(self) -> None:
        for endpoint in self.endpoints:
            endpoint.stop()
        if self.producer is not None:
            self.producer.close()
        if self.consumer is not None:
            self.consumer.close()
        unpin, self.unpin = self.unpin, None
        if unpin is not None:
            unpin()


def _check_version(version: int) -> None:
    if not 0 <= version < 2**32:
        raise InvalidArgument(f"version = {version} is out of range: 0 to 2**32 - 1")


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


def rollout_layout(dims: _Dims, critic_dim: int, fields: Mapping[str, Any] | None) -> Layout:
    """The shape and dtype of each field of a rollout: the usual ones, unless ``fields`` has others, and ``fields``."""
    layout = {field: (shape, np.dtype(np.float32)) for field, shape in rollout_shapes(*dims, critic_dim).items()}
    for leaf in read_leaves(fields or {}).values():
        if leaf.ragged:
            raise SchemaMismatch(f"field '{leaf.name}' is {leaf}; the rollouts of a ring all have one size")
        usual, _ = layout.get(leaf.name, (leaf.shape, None))
        kept = usual[: 1 if leaf.name.startswith("last_") else 2]  # environments, and steps
        if leaf.shape[: len(kept)] != kept:
            raise InvalidArgument(f"fields has '{leaf.name}' as {list(leaf.shape)}; it must begin with {list(kept)}")
        layout[leaf.name] = (leaf.shape, leaf.dtype)
    return layout


def rollout_ring_bytes(layout: Layout, num_slots: int) -> int:
    """How large the segment of a `RolloutRing` with this layout is."""
    schema = Schema.of(layout)
    return ring_bytes([leaf.row_bytes for leaf in schema.leaves], 1, num_slots, len(schema.text), _MAX_PEERS)
