"""The names of unilab.ipc, with its signatures. Each is a few lines on a class of Rollway's own.

```text
here                   stands on                            what is added
`SharedWeightSync`     `rollway.weights.WeightSync`         ``create``, ``shm_name``, ``lock``
`SharedObsNormStats`   `rollway.weights.ObsNormStats`       ``ctx``
`RolloutRingBuffer`    `rollway.ring.RolloutRing`           ``create``, ``shm_name_prefix``; a name for each field
`ReplayBuffer`         `rollway.replay.TransitionBuffer`    ``defer_gpu``, ``packed_cpu_storage``; `size` and `ptr`
`AsyncRunner`          `rollway.runner.Runner`              what a subclass wants to know of its environments
```

All other arguments, and all methods, are those of the class that it stands on.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Self

import numpy as np

from rollway.errors import InvalidArgument
from rollway.replay.buffer import TransitionBuffer
from rollway.ring.rollout_ring import RolloutRing
from rollway.runner.runner import Runner
from rollway.weights.obs_norm_stats import ObsNormStats
from rollway.weights.weight_sync import WeightSync


class SharedWeightSync(WeightSync):
    """Moves weights from one writer to any number of readers on this machine: a `WeightSync` with unilab's arguments.

    Args:
        param_shapes: The shape of each parameter: a dict, or any tree of tuples (`from_state_dict` reads it off).
        create: Make the weights, and be their writer. ``False``: attach to ``shm_name`` (as `attach` does), and check
            that the leaves are these.
        shm_name: What readers attach to; automatic when left out. `WeightSync` calls it ``name``.
        lock: Accepted, and not used: nothing here needs a lock.
        **options: As for `WeightSync`: ``dtypes``, ``max_buffers``, ``max_readers``, ``checksum``, ``threads``,
            ``peer_timeout_s``.

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
        **options: Any,
    ) -> None:
        if create:
            super().__init__(param_shapes, **_named(shm_name, options))
        else:
            self._attach(connect_timeout_s=0.0, **_attach_options(shm_name, options))
            self._check_leaves(param_shapes, options.get("dtypes"))

    @classmethod
    def from_state_dict(
        cls,
        state_dict: Any,
        *,
        create: bool = True,
        shm_name: str | None = None,
        lock: object = None,
        **options: Any,
    ) -> Self:
        """Makes weights like these, or attaches to them, and writes them as the next version."""
        if create:
            return super().from_state_dict(state_dict, **_named(shm_name, options))
        self = cls.attach(**_attach_options(shm_name, options))
        self._write_first(state_dict)
        return self


def _named(shm_name: str | None, options: dict[str, Any]) -> dict[str, Any]:
    return options if shm_name is None else {**options, "name": shm_name}


def _attach_options(shm_name: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """What of the options of `SharedWeightSync` matters for weights that are there."""
    name = _named(shm_name, options).get("name")
    if name is None:
        raise InvalidArgument("create=False needs shm_name: the name of the writer's weights")
    if unknown := options.keys() - {"name", "dtypes", "max_buffers", "max_readers", "checksum", *_OPEN_OPTIONS}:
        raise TypeError(f"SharedWeightSync has no argument {sorted(unknown)[0]!r}")
    return {"name": name, **{key: options.get(key, default) for key, default in _OPEN_OPTIONS.items()}}


_OPEN_OPTIONS = {"threads": None, "peer_timeout_s": 60.0}


class SharedObsNormStats(ObsNormStats):
    """Moves (mean, std) from the process that puts to any number that get: `ObsNormStats` with unilab's argument.

    Args:
        ctx: A multiprocessing context: accepted, and not needed.
        **options: As for `ObsNormStats`: ``max_obs_dim`` and ``name``.
    """

    def __init__(self, ctx: object = None, **options: Any) -> None:
        super().__init__(**options)


class RolloutRingBuffer(RolloutRing):
    """Moves rollouts from any number of writing processes to a reader: a `RolloutRing` with unilab's arguments.

    Args:
        num_envs: Environments in a rollout.
        num_steps: Steps of each.
        obs_dim: Numbers in an observation.
        action_dim: Numbers in an action.
        critic_dim: Numbers in the critic's own observation; 0: it has none.
        num_slots: Rollouts that there is room for, at least 2: two more than there are writers.
        create: Make it. Otherwise attach to what ``shm_name_prefix`` names.
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
        **options: Any,
    ) -> None:
        given = _named(None if shm_name_prefix is None else _one_name(shm_name_prefix), options)
        if not create and given.get("name") is None:
            raise InvalidArgument("create=False needs shm_name_prefix: the creator's `name`")
        open_ring = super().__init__ if create else self._attach
        open_ring(num_envs, num_steps, obs_dim, action_dim, critic_dim=critic_dim, num_slots=num_slots, **given)

    @property
    def name(self) -> dict[str, str]:  # type: ignore[override]
        """For each field the segment that it lies in. All lie in one: any of the values is enough to attach."""
        return dict.fromkeys(self.slot_shapes, self._name)

    def attach_sync_primitives(self, write_ptr: object, read_ptr: object) -> None:
        """Accepted, and not needed: the positions lie in the segment."""

    def cleanup(self) -> None:
        """As `close`: a segment that others still read is not theirs to lose."""
        self.close()


def _one_name(given: str | Mapping[str, str]) -> str:
    names = {given} if isinstance(given, str) else set(given.values())
    if len(names) != 1:
        raise InvalidArgument(f"all fields of a ring lie in one segment, not in {sorted(names) or 'none'}")
    return names.pop()


class ReplayBuffer(TransitionBuffer):
    """Moves transitions from adding processes to those that sample: a `TransitionBuffer` with unilab's arguments.

    Args:
        capacity: Transitions.
        obs_dim: Numbers in an observation.
        action_dim: Numbers in an action.
        device: Where `sample` puts its batches: a name, or a `torch.device`.
        defer_gpu: Accepted, and not used: the device is never touched before the first `sample`.
        critic_dim: Numbers in an observation for the critic; 0 for none.
        packed_cpu_storage: Accepted, and not used: rows are always packed.
        **options: As for `TransitionBuffer`: ``name``, ``fields``, ``seed``, ``if_exists``, ``huge_pages``,
            ``max_peers``.
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
        **options: Any,
    ) -> None:
        super().__init__(capacity, obs_dim, action_dim, device, critic_dim=critic_dim, **options)

    @property
    def size(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """``[len(self)]``: an array with one number, as unilab's learners read it."""
        return np.array([len(self)], np.int64)

    @property
    def ptr(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """``[rows_given]``: an array with one number."""
        return np.array([self.rows_given], np.int64)


class AsyncRunner(Runner):
    """The learner of an asynchronous algorithm, and the processes that collect for it: a `Runner` that keeps settings.

    Args:
        env_name: Kept for the subclass, as are the next two and ``sim_backend``.
        env_cfg_overrides: Changes to the environment's settings.
        rl_cfg: The algorithm's settings.
        device: Where the learner computes: ``"cuda"`` if there is one, else ``"cpu"``, when left out.
        collector_device: Where collectors compute; as ``device`` when left out.
        sim_backend: The simulator.
        num_envs: Environments of all collectors together; see `envs_of`.
        **options: As for `Runner`: ``num_collectors``, ``restart``, ``stop_timeout_s``, ``on_progress``.
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
        **options: Any,
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
