"""Environments in shared memory: a `gymnasium.vector.VectorEnv` whose environments run in worker processes.

Users call `make_vec`.

```text
shm_vector_env.py     `ShmVectorEnv`: the caller's side, as Gymnasium knows it
env_pool.py           the environments as the caller sees them: requests, and waits for answers
results.py            where the newest results of each environment lie
messages.py           what is sent beside the arrays: in shared memory, or by a pipe
fault_recovery.py     restarts what failed; which episodes were lost, and what the learner is told
fault_policy.py       how often an environment may fail (`RestartPolicy`), and how long it may take
common_spaces.py      the spaces of the whole, from those of each environment
worker_processes.py   starts, stops and replaces the processes
pipe.py               the two ends of the pipe to a worker
worker.py             what runs in a worker process
worker_env.py         one environment in it: its autoreset, its results, its actions
protocol.py           what caller and workers tell each other: tasks, flags, faults
layout.py             where the arrays lie, in our segment and in a slot of a ring
```

Gymnasium is imported on use: ``pip install ".[gymnasium]"`` in the clone of Rollway.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollway.errors import InvalidArgument
from rollway.machine.cgroup import Cgroup
from rollway.runner.restart_policy import RestartPolicy
from rollway.vector_env.fault_policy import FaultPolicy

if TYPE_CHECKING:
    from gymnasium import Env, Space
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.vector import AutoresetMode

    from rollway.vector_env.shm_vector_env import ShmVectorEnv

__all__ = ["FaultPolicy", "make_vec"]


def make_vec(
    env_fns: str | EnvSpec | Callable[[], Env[Any, Any]] | Iterable[Callable[[], Env[Any, Any]]],
    num_envs: int | None = None,
    *,
    num_workers: int | None = None,
    batch_size: int | None = None,
    copy: bool = True,
    observation_mode: Literal["same", "different"] | tuple[Space[Any], Space[Any]] = "same",
    autoreset_mode: str | AutoresetMode = "NextStep",
    step_timeout_s: float | None = None,
    restart: RestartPolicy | None = None,
    context: Literal["fork", "spawn", "forkserver"] | None = None,
    daemon: bool = True,
    wrappers: Sequence[Callable[[Env[Any, Any]], Env[Any, Any]]] = (),
    **env_kwargs: Any,
) -> ShmVectorEnv:
    """Makes environments that run in worker processes and speak through shared memory.

    Args:
        env_fns: An environment's id (or spec), one function that makes an environment, or one function for each.
        num_envs: How many; 1 for an id or a single function when left out.
        num_workers: Processes to share them out to; each steps its own one after the other. As many as there are CPUs
            to use when left out. Environments that sleep or wait for something gain from more workers than CPUs.
        batch_size: How many results `recv` gives at a time; all when left out.
        copy: Whether results are copies, or views that stay valid until the step after the next.
        observation_mode: As for Gymnasium's vector environments.
        autoreset_mode: ``"NextStep"``, ``"SameStep"`` or ``"Disabled"``, as for those.
        step_timeout_s: How long a worker may take for one step or reset of its environments before they count as hung;
            for ever when left out. To be made again after a fault they may take five times as long as they took at the
            start, besides.
        restart: How often an environment that raises, dies or hangs is begun anew, while the others go on; left out,
            the caller gets the error. The learner sees a truncated episode: the last observation again, reward 0,
            ``truncated``, and in the infos ``"fault"`` with what happened. Then the environment is reset as its
            autoreset mode says. A reset that fails is done again, with the same seed. With autoreset disabled, a step
            of an environment whose episode is over is an error of the caller: it is raised, and uses up no restart.
        context: How processes are started: as `multiprocessing` does by default when left out.
        daemon: Whether workers may not have child processes of their own, as in `multiprocessing`.
        wrappers: Put around each environment made from an id.
        **env_kwargs: Arguments for each environment made from an id.

    >>> envs = make_vec("CartPole-v1", num_envs=2)
    >>> envs
    ShmVectorEnv(CartPole-v1, num_envs=2)
    >>> envs.close()
    """
    import gymnasium

    from rollway.vector_env.shm_vector_env import ShmVectorEnv

    if num_envs is not None and not hasattr(num_envs, "__index__"):
        raise InvalidArgument(f"num_envs is {num_envs!r}; it must be a whole number")
    spec = None
    makers: list[Callable[[], Env[Any, Any]]]
    if isinstance(env_fns, str | gymnasium.envs.registration.EnvSpec):
        # Found here: a worker that does not come from a fork may not know what was registered since the start.
        spec = _found(env_fns) if isinstance(env_fns, str) else env_fns
        makers = [_MadeBySpec(spec, env_kwargs, tuple(wrappers))] * (1 if num_envs is None else num_envs)
    elif env_kwargs or wrappers:
        raise InvalidArgument("wrappers and arguments for environments go with an id, not with functions")
    elif callable(env_fns):
        makers = [env_fns] * (1 if num_envs is None else num_envs)
    else:
        makers = list(env_fns)
        if num_envs is not None and num_envs != len(makers):
            raise InvalidArgument(f"num_envs is {num_envs}, but there are {len(makers)} functions")
    if not makers:
        raise InvalidArgument(f"num_envs is {num_envs or 0}; it must be at least 1")
    envs = ShmVectorEnv(
        makers,
        num_workers=min(len(makers), _cpus()) if num_workers is None else num_workers,
        batch_size=batch_size,
        copy=copy,
        observation_mode=observation_mode,
        autoreset_mode=autoreset_mode,
        step_timeout_s=step_timeout_s,
        restart=restart,
        context=context,
        daemon=daemon,
    )
    envs.spec = spec
    return envs


def _found(name: str) -> EnvSpec:
    """As Gymnasium finds it: ``module:id`` imports the module first, and an id without a version is the newest."""
    import gymnasium
    from gymnasium.envs import registration

    module, _, name = name.rpartition(":")
    if module:
        importlib.import_module(module)
    namespace, bare, version = registration.parse_env_id(name)
    if version is None and (newest := registration.find_highest_version(namespace, bare)) is not None:
        name = registration.get_env_id(namespace, bare, newest)
    return gymnasium.spec(name)


class _MadeBySpec:
    """Makes an environment of the registry. A class, so that it can be pickled."""

    def __init__(
        self,
        spec: EnvSpec,
        kwargs: dict[str, Any],
        wrappers: tuple[Callable[[Env[Any, Any]], Env[Any, Any]], ...],
    ) -> None:
        self._spec, self._kwargs, self._wrappers = spec, kwargs, wrappers

    def __call__(self) -> Env[Any, Any]:
        import gymnasium

        env: Env[Any, Any] = gymnasium.make(self._spec, **self._kwargs)
        for wrapper in self._wrappers:
            env = wrapper(env)
        return env


def _cpus() -> int:
    """Those that we may use: neither taken away by affinity, nor by the container's quota."""
    allowed = len(os.sched_getaffinity(0))
    quota = Cgroup(Path("/")).cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))
