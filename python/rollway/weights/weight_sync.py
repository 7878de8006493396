"""WeightSync: whole versions of a model's weights, from a learner to any number of workers on this machine.

It names, checks and finds the arrays (`WeightTree`), and leaves versions, buffers and copies to the core.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Self, TypedDict, Unpack

from rollway._core import Weights
from rollway.errors import ForeignSchema, InvalidArgument
from rollway.schema.pytree import explained
from rollway.segment.naming import auto_name
from rollway.transport.base import WeightOutlet
from rollway.transport.server_base import close_all
from rollway.transport.tcp import TcpEndpoint, TcpTransport
from rollway.weights.reading import WeightReading
from rollway.weights.tree import Places, WeightTree


class WeightOptions(TypedDict, total=False):
    """Options that every way to make weights has; `WeightSync` describes them."""

    max_buffers: int
    max_readers: int
    checksum: bool
    threads: int | None
    peer_timeout_s: float | None


class WeightSync(WeightReading):
    """Moves weights from a writer to any number of readers, through shared memory, version by version.

    A reader gets a whole version, never a mixture of two. The writer waits for no reader, and no reader waits for the
    writer: the writer fills a copy of the weights that no reader uses, and then publishes it with one store. If the
    writer dies in the middle, readers keep the last whole version. A process that creates the weights again under the
    same name, or attaches and writes, continues from it.

    Every handle may write, also one that was attached, unpickled or forked. One writes at a time; the others wait until
    its write is done, at most ``peer_timeout_s``. One process creates the weights: a second one is refused while the
    first lives.

    Takes torch state dicts, and any tree of numpy or JAX arrays. Each leaf keeps its dtype.

    Args:
        param_shapes: The shape of each parameter: a dict, or any tree of tuples. (`from_state_dict` finds them itself.)
        name: What others attach to; automatic when left out. Weights of that name are continued, if the process that
            created them is gone.
        dtypes: One dtype for all leaves, or a mapping from their names; float32 where it does not say.
        max_buffers: How many copies of the weights there may be at most. Three exist from the start; more are made only
            while slow readers keep those.
        max_readers: How many handles may be attached at once, besides the creator's. One that also writes counts twice.
        checksum: Keep a checksum of each leaf, and compare it at every read: for machines that you do not trust.
        threads: How many threads copy large weights. Left out: as many as this process may use, at most four.
        peer_timeout_s: How long `wait_for_version` waits while no writer lives, and a write for that of another
            process; ``None`` for ever.

    >>> import numpy as np
    >>> weights = {"w": np.ones((2, 2), np.float32), "b": np.zeros(2, np.float32)}
    >>> with WeightSync.from_state_dict(weights) as learner, WeightSync.attach(learner.name) as worker:
    ...     learner.write_weights({**weights, "b": np.full(2, 7, np.float32)})
    ...     mine = {"w": np.empty((2, 2), np.float32), "b": np.empty(2, np.float32)}
    ...     worker.read_weights_into(mine), mine["b"].tolist()
    (2, [7.0, 7.0])
    """

    _core: Weights

    def __init__(
        self,
        param_shapes: Any,
        *,
        name: str | None = None,
        dtypes: Any = None,
        max_buffers: int = 8,
        max_readers: int = 64,
        checksum: bool = False,
        threads: int | None = None,
        peer_timeout_s: float | None = 60.0,
    ) -> None:
        self._create(
            WeightTree.of_shapes(param_shapes, dtypes),
            name,
            max_buffers=max_buffers,
            max_readers=max_readers,
            checksum=checksum,
            threads=threads,
            peer_timeout_s=peer_timeout_s,
        )

    @classmethod
    def from_state_dict(cls, state_dict: Any, *, name: str | None = None, **options: Unpack[WeightOptions]) -> Self:
        """Makes weights like these, and writes them as the first version. The options are those of the class."""
        self = cls.__new__(cls)
        self._create(WeightTree.of(state_dict), name, **options)
        self._write_first(state_dict)
        return self

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        connect_timeout_s: float = 10.0,
        threads: int | None = None,
        peer_timeout_s: float | None = 60.0,
    ) -> Self:
        """Opens weights by their name; the segment has the paths, dtypes and shapes.

        ``connect_timeout_s``: how long to wait for the learner to appear.
        """
        self = cls.__new__(cls)
        self._attach(name, connect_timeout_s, threads, peer_timeout_s)
        return self

    @classmethod
    def _without_writer(cls, param_shapes: Any, dtypes: Any, name: str | None) -> Self:
        """Opens or makes small weights with room for many handles, none of which is the creator's."""
        self = cls.__new__(cls)
        tree = WeightTree.of_shapes(param_shapes, dtypes)
        self._create(tree, name, False, max_readers=1000, threads=1)
        return self

    def _create(
        self,
        tree: WeightTree,
        name: str | None,
        writes: bool = True,
        /,
        *,
        max_buffers: int = 8,
        max_readers: int = 64,
        checksum: bool = False,
        threads: int | None = None,
        peer_timeout_s: float | None = 60.0,
    ) -> None:
        check_threads(threads)
        if not 1 <= max_readers <= 1022:
            raise InvalidArgument(f"max_readers = {max_readers} is out of range: 1 to 1022")
        with explained(tree):
            core = Weights.create(
                auto_name() if name is None else name,
                auto_named=name is None,
                schema=tree.text,
                leaf_bytes=[leaf.nbytes for leaf in tree.leaves],
                max_buffers=max_buffers,
                max_peers=max_readers + 2,  # the creator and its successor
                checksum=checksum,
                writes=writes,
                threads=threads,
            )
        self._bind(core, tree, threads, peer_timeout_s)

    def _attach(self, name: str, connect_timeout_s: float, threads: int | None, peer_timeout_s: float | None) -> None:
        check_threads(threads)
        core = Weights.attach(name, connect_timeout_s=connect_timeout_s, threads=threads)
        self._bind(core, WeightTree.from_text(core.schema), threads, peer_timeout_s)

    def _check_leaves(self, param_shapes: Any, dtypes: Any) -> None:
        """Closes, and raises `SchemaMismatch`, if the segment has other leaves."""
        tree, there = WeightTree.of_shapes(param_shapes, dtypes), self._tree
        if dtypes is None:  # only shapes were given: accept any dtype
            kept = {leaf.path: leaf.dtype for leaf in there.leaves}
            tree = WeightTree.of_shapes(param_shapes, {leaf.path: kept.get(leaf.path) for leaf in tree.leaves})
        if tree.leaves != there.leaves:
            self.close()
            raise tree.explain(ForeignSchema(f"in segment '{self.name}'", there.text))

    def _write_first(self, state_dict: Any) -> None:
        """Writes; closes when that fails."""
        try:
            self.write_weights(state_dict)
        except BaseException:
            self.close()
            raise

    def _bind(self, core: Weights, tree: WeightTree, threads: int | None, peer_timeout_s: float | None) -> None:
        self._core = core
        self._tree = tree
        self._threads = threads
        self._peer_timeout_s = peer_timeout_s
        # Also at interpreter exit.
        self._closers: list[Callable[[], None]] = [core.close]
        self._end = weakref.finalize(self, close_all, self._closers)

    @property
    def name(self) -> str:
        """What readers attach to."""
        return self._core.name

    @property
    def closed(self) -> bool:
        """Whether this handle is closed, or any process called `cleanup`."""
        return self._core.closed

    @property
    def writer_pid(self) -> int | None:
        """The process that wrote last, alive or dead; ``None`` when there is no writer."""
        return self._core.writer_pid

    def write_weights(self, state_dict: Any) -> None:
        """Publishes all weights as the next version. Raises before anything is changed if a leaf does not fit.

        Waits while another process is in the middle of a write. `SegmentInUse` names that process when it is not done
        within ``peer_timeout_s``.
        """
        values = self._tree.values(state_dict)
        gpu = self._staging.gpu_of(values)
        if gpu is not None:
            with self._staging.on(gpu, self._core) as block:
                if block is not None:
                    block.gather(values)
                    return self._write(block.places)
        self._write(self._tree.sources(values))

    def update_weights(self, changed: Any) -> None:
        """Publishes a next version in which only these leaves differ: those of an adapter, for instance.

        The other leaves are copied, inside shared memory, only into buffers that do not have them yet: updates of the
        same few leaves soon copy nothing else.

        >>> import numpy as np
        >>> with WeightSync.from_state_dict({"base": np.zeros(3), "lora": np.zeros(1)}) as sync:
        ...     sync.update_weights({"lora": np.ones(1)})
        ...     sync.version, sync.read_weights()
        (2, {'base': array([0., 0., 0.]), 'lora': array([1.])})
        """
        self._write(self._tree.some_sources(changed))

    @property
    def _place(self) -> str:
        return f"in '{self.name}'"

    def _write(self, places: Places) -> None:
        self._core.write(places.leaves, places.addresses, self._peer_timeout_s, places.on_gpus)

    def serve(self, transport: TcpTransport) -> TcpEndpoint:
        """Gives these weights to workers on other hosts, on a port of their own: they read them with `TcpWeights`.

        Until the endpoint is stopped, or this handle closed. A learner that also takes samples offers both on one port:
        ``TcpTransport(port, weights=sync)``.

        >>> import numpy as np, rollway
        >>> with WeightSync.from_state_dict({"w": np.ones(2)}) as learner:
        ...     with learner.serve(rollway.TcpTransport()) as endpoint:
        ...         with rollway.TcpWeights("localhost", endpoint.port) as worker:
        ...             worker.wait_for_version(1), worker.read_weights()
        (1, {'w': array([1., 1.])})
        """
        endpoint = transport.start(self.outlet())
        self._closers.insert(0, endpoint.stop)
        return endpoint

    def outlet(self) -> WeightOutlet:
        """What a transport needs to give these weights to others."""
        return WeightOutlet(self._core, self._tree)

    def wait_for_version(self, version: int, timeout: float | None = None) -> int:
        """Sleeps until that version or a later one is published, and returns its number.

        Raises `WaitTimeout` after ``timeout`` seconds, `PeerDied` when no writer lives for ``peer_timeout_s``, and
        `ConnectionClosedError` when any process called `cleanup`, or another thread closed this handle.
        """
        return self._core.wait_for_version(version, timeout, self._peer_timeout_s)

    def stats(self) -> dict[str, int]:
        """Plain numbers: the version; ``buffers`` that exist; how often a reader copied again (``retries``) because the
        writer had no other buffer left (``overtaken``); pins of dead readers that were removed (``recovered``).
        """
        return self._core.stats()

    def close(self) -> None:
        """Closes this handle, and ends calls that wait with it in other threads. Safe to call twice.

        The last process to close removes the name. A name that a user chose stays if the last writer to go died without
        closing, so that a new learner can continue with the version. `cleanup` and ``rollway gc`` remove it.
        """
        self._end()

    def cleanup(self) -> None:
        """Closes, and removes the name at once. Attached readers can still read; their waits end."""
        self._core.unlink()
        self._end()

    def __getstate__(self) -> tuple[Any, ...]:
        return self.name, 0.0, self._threads, self._peer_timeout_s

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._attach(*state)  # in another process, by name

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"version {self.version}"
        return f"<{type(self).__name__} '{self.name}': {len(self._tree.leaves)} leaves, {state}>"


def check_threads(threads: int | None) -> None:
    """Refuses a number of copying threads that makes no sense."""
    if threads is not None and threads < 1:
        raise InvalidArgument(f"threads = {threads} is out of range: at least 1, or None")
