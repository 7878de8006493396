"""The names of unilab.ipc, with its signatures. Each is a few lines on a class of Rollway's own.

```text
here                   stands on                            what it adds
`SharedWeightSync`     `rollway.weights.WeightSync`         ``create``, ``shm_name``, ``lock``
`SharedObsNormStats`   `rollway.weights.ObsNormStats`       ``ctx``
`RolloutRingBuffer`    `rollway.ring.RolloutRing`           ``create``, ``shm_name_prefix``; `name` is a dict;
                                                            `signal_write_done` without `write_buffer` before it
`ReplayBuffer`         `rollway.replay.TransitionBuffer`    ``defer_gpu``, ``packed_cpu_storage``; `size`, `ptr`; torch
`AsyncRunner`          `rollway.runner.Runner`              the settings that a subclass reads
```

Options that are not described here, and all methods, are those of the class below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Self, TypedDict, Unpack

import numpy as np

from rollway.errors import InvalidArgument
from rollway.replay.buffer import TransitionBuffer
from rollway.ring.rollout_ring import OnFull, RolloutOptions, RolloutRing
from rollway.runner.restart_policy import RestartPolicy
from rollway.runner.runner import Progress, Runner
from rollway.runner.supervisor import Placement
from rollway.transport.policies import IfExists, Keep
from rollway.weights.obs_norm_stats import ObsNormStats
from rollway.weights.weight_sync import WeightOptions, WeightSync


class SharedWeightSync(WeightSync):
    """Moves weights from a writer to any number of readers on this machine: `WeightSync` with unilab's arguments.

    Args:
        param_shapes: The shape of each parameter: a dict, or any tree of tuples (`from_state_dict` reads it off).
        create: Make the weights. ``False``: attach to ``shm_name``, which must exist, and check that its leaves have
            these shapes. `attach` waits for it.
        shm_name: What readers attach to; automatic when left out. `WeightSync` calls it ``name``.
        lock: Accepted, and not used: nothing here needs a lock, and every handle may write.
        dtypes: As for `WeightSync`. With ``create=False`` and without dtypes, only shapes are compared.
        **options: As for `WeightSync`: ``max_buffers``, ``max_readers``, ``checksum``, ``threads``, ``peer_timeout_s``.

    >>> import numpy as np
    >>> weights = {"w": np.ones((2, 2), np.float32), "b": np.zeros(2, np.float32)}
    >>> with SharedWeightSync.from_state_dict(weights) as learner:
    ...     with SharedWeightSync({"w": (2, 2), "b": (2,)}, create=False, shm_name=learner.name) as worker:
    ...         mine = {"w": np.empty((2, 2), np.float32), "b": np.empty(2, np.float32)}
    ...         worker.read_weights_into(mine), mine["w"].tolist()
    (1, [[1.0, 1.0], [1.0, 1.0]])
    """

    def __init__(
        self,
        param_shapes: Any,
        *,
        create: bool = True,
        shm_name: str | None = None,
        lock: object = None,
        dtypes: Any = None,
        **options: Unpack[WeightOptions],
    ) -> None:
        if create:
            super().__init__(param_shapes, name=shm_name, dtypes=dtypes, **options)
        else:
            self._attach(*_attach_arguments(shm_name, options))
            self._check_leaves(param_shapes, dtypes)

    @classmethod
    def from_state_dict(  # type: ignore[override] # ``name`` is ``shm_name`` here
        cls,
        state_dict: Any,
        *,
        create: bool = True,
        shm_name: str | None = None,
        lock: object = None,
        **options: Unpack[WeightOptions],
    ) -> Self:
        """Makes weights like these, or attaches to ``shm_name``, and writes them as the next version."""
        if create:
            return super().from_state_dict(state_dict, name=shm_name, **options)
        self = cls.__new__(cls)
        self._attach(*_attach_arguments(shm_name, options))
        self._write_first(state_dict)
        return self


def _attach_arguments(shm_name: str | None, options: WeightOptions) -> tuple[str, float, int | None, float | None]:
    """The arguments of `WeightSync._attach`. The other options have meaning only for weights that are created."""
    if shm_name is None:
        raise InvalidArgument("create=False needs shm_name: the name of the writer's weights")
    if unknown := options.keys() - WeightOptions.__annotations__.keys():
        raise TypeError(f"SharedWeightSync got an unexpected keyword argument {min(unknown)!r}")
    return shm_name, 0.0, options.get("threads"), options.get("peer_timeout_s", 60.0)


class SharedObsNormStats(ObsNormStats):
    """Moves (mean, std) from the process that puts to any number that get: `ObsNormStats` with unilab's argument.

    Args:
        ctx: A multiprocessing context: accepted, and not used.
        max_obs_dim: As for `ObsNormStats`.
        name: As for `ObsNormStats`.
    """

    def __init__(self, ctx: object = None, *, max_obs_dim: int = 16_384, name: str | None = None) -> None:
        super().__init__(max_obs_dim=max_obs_dim, name=name)


class RolloutRingOptions(TypedDict, total=False):
    """The options of `RolloutRing` that unilab does not have."""

    fields: Mapping[str, Any] | None
    on_full: OnFull
    peer_timeout_s: float | None


class RolloutRingBuffer(RolloutRing):
    """Moves rollouts from any number of writing processes to a reader: a `RolloutRing` with unilab's arguments.

    Args:
        num_envs: Environments in a rollout.
        num_steps: Steps of each.
        obs_dim: Numbers in an observation.
        action_dim: Numbers in an action.
        critic_dim: Numbers in the critic's own observation; 0: it has none.
        num_slots: Rollouts that there is room for, at least 2: give two more than there are writers.
        create: Make the ring. ``False``: attach to the ring of ``shm_name_prefix``, which must exist. `attach` waits
            for it.
        shm_name_prefix: The segment: its name, or the dict that `name` gives; automatic when left out on creation.
            `RolloutRing` calls it ``name``.
        **options: As for `RolloutRing`: ``fields``, ``on_full``, ``peer_timeout_s``.
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
        **options: Unpack[RolloutRingOptions],
    ) -> None:
        name = None if shm_name_prefix is None else _one_name(shm_name_prefix)
        dims, sizes = (num_envs, num_steps, obs_dim, action_dim), {"critic_dim": critic_dim, "num_slots": num_slots}
        if create:
            super().__init__(*dims, name=name, **sizes, **options)
        elif name is None:
            raise InvalidArgument("create=False needs shm_name_prefix: the creator's `name`")
        else:
            self._attach(name, dims, 0.0, **sizes, **options)

    @classmethod
    def attach(
        cls,
        name: str | Mapping[str, str],
        num_envs: int,
        num_steps: int,
        obs_dim: int,
        action_dim: int,
        *,
        connect_timeout_s: float = 10.0,
        **options: Unpack[RolloutOptions],
    ) -> Self:
        """As `RolloutRing.attach`; takes also the dict that `name` gives."""
        dims = (num_envs, num_steps, obs_dim, action_dim)
        return super().attach(_one_name(name), *dims, connect_timeout_s=connect_timeout_s, **options)

    @property
    def name(self) -> dict[str, str]:  # type: ignore[override] # unilab has a segment for each field
        """The segment of each field. All fields are in one segment: any of the values is enough to attach."""
        return dict.fromkeys(self.slot_shapes, self._name)

    def signal_write_done(self, *, version: int = 0) -> None:
        """As `RolloutRing.signal_write_done`; without `write_buffer` before it, publishes the next slot as it lies.

        That slot has the values of an earlier rollout, or zeros. This waits for it as `write_buffer` does.

        >>> with RolloutRingBuffer(1, 1, 1, 1) as ring:
        ...     ring.signal_write_done()
        ...     ring.read_numpy_views()["rewards"].tolist()
        [[0.0]]
        """
        self._reserved(None)
        super().signal_write_done(version=version)

    def attach_sync_primitives(self, write_ptr: object, read_ptr: object) -> None:
        """Accepted, and not used: the positions are in the segment."""

    def cleanup(self) -> None:
        """As `close`: the segment stays until its last reader closes it."""
        self.close()


def _one_name(given: str | Mapping[str, str]) -> str:
    names = {given} if isinstance(given, str) else set(given.values())
    if len(names) != 1:
        raise InvalidArgument(f"all fields of a ring are in one segment, not in {sorted(names) or 'none'}")
    return names.pop()


class ReplayOptions(TypedDict, total=False):
    """The options of `TransitionBuffer` that unilab does not have."""

    name: str | None
    fields: Mapping[str, Any] | None
    seed: int | None
    if_exists: IfExists | None
    keep: Keep
    huge_pages: bool | None
    max_peers: int


class ReplayBuffer(TransitionBuffer):
    """Moves transitions from adding processes to those that sample: a `TransitionBuffer` with unilab's arguments.

    Args:
        capacity: Transitions.
        obs_dim: Numbers in an observation.
        action_dim: Numbers in an action.
        device: Where `sample` puts its batches, as torch tensors (numpy arrays where torch is not installed): a name,
            or a `torch.device`.
        defer_gpu: Accepted, and not used: the device is never touched before the first `sample`.
        critic_dim: Numbers in an observation for the critic; 0 for none.
        packed_cpu_storage: Accepted, and not used: rows are always packed.
        **options: As for `TransitionBuffer`: ``name``, ``fields``, ``seed``, ``if_exists``, ``keep``,
            ``huge_pages``, ``max_peers``.
    """

    def __init__(
        self,
        capacity: int,
        obs_dim: int,
        action_dim: int,
        device: Any = "cpu",
        defer_gpu: bool = False,
        critic_dim: int = 0,
        packed_cpu_storage: bool = False,
        **options: Unpack[ReplayOptions],
    ) -> None:
        super().__init__(capacity, obs_dim, action_dim, device, critic_dim=critic_dim, **options)

    @classmethod
    def attach(
        cls, name: str, device: Any = "cpu", *, seed: int | None = None, connect_timeout_s: float = 10.0
    ) -> Self:
        """As `TransitionBuffer.attach`; gives torch tensors, too."""
        return super().attach(name, device, seed=seed, connect_timeout_s=connect_timeout_s)

    @property
    def size(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """``[len(self)]``: an array with one number, as unilab's learners read it."""
        return np.array([len(self)], np.int64)

    @property
    def ptr(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """``[rows_reserved]``: an array with one number."""
        return np.array([self.rows_reserved], np.int64)


class RunnerOptions(TypedDict, total=False):
    """The options of `Runner` that unilab does not have."""

    num_collectors: int
    restart: RestartPolicy | None
    stop_timeout_s: float
    on_progress: Callable[[Progress], None] | None
    placement: Placement | None


class AsyncRunner(Runner):
    """The learner of an asynchronous algorithm, and the processes that collect for it: a `Runner` that keeps settings.

    Args:
        env_name: Kept for the subclass, as are the next two and ``sim_backend``.
        env_cfg_overrides: Changes to the environment's settings.
        rl_cfg: The algorithm's settings.
        device: Where the learner computes. When left out: ``"cuda"`` if there is one, else ``"cpu"``.
        collector_device: Where collectors compute; as ``device`` when left out.
        sim_backend: The simulator.
        num_envs: Environments of all collectors together; see `envs_of`.
        **options: As for `Runner`: ``num_collectors``, ``restart``, ``stop_timeout_s``, ``on_progress``,
            ``placement``.
    """

    def __init__(
        self,
        env_name: str,
        env_cfg_overrides: dict[str, Any] | None,
        rl_cfg: dict[str, Any],
        *,
        device: str | None = None,
        collector_device: str | None = None,
        sim_backend: str = "mujoco",
        num_envs: int = 4096,
        **options: Unpack[RunnerOptions],
    ) -> None:
        super().__init__(num_envs=num_envs, **options)
        self.env_name, self.rl_cfg, self.sim_backend = env_name, rl_cfg, sim_backend
        self.env_cfg_overrides = dict(env_cfg_overrides or {})
        self.device = device or _default_device()
        self.collector_device = collector_device or self.device


def _default_device() -> str:
    """``"cuda"`` where torch is installed and finds one, else ``"cpu"``."""
    if find_spec("torch") is None:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
