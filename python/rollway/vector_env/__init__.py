"""Vector environments: a `gymnasium.vector.VectorEnv` whose environments run in worker processes. Call `make_vec`.

```text
shm_vector_env.py     `ShmVectorEnv`: the caller's side, as Gymnasium knows it
env_pool.py           the environments as the caller sees them: makes requests, waits for answers
results.py            the newest results of each environment
messages.py           what is sent besides the arrays, in shared memory or by a pipe; deadlines
fault_recovery.py     restarts environments that failed; keeps what the learner is told about lost episodes
worker_processes.py   starts, stops and replaces the processes
pipe.py               the two ends of the pipe to a worker
worker.py             the main loop of a worker process
worker_env.py         one environment in a worker: its autoreset, its results, its actions
protocol.py           tasks, flags, settings, spaces and faults
layout.py             the arrays, in our segment and in a slot of a ring
errors.py             errors that are also Gymnasium's, and those of an environment's own type
```

Gymnasium is imported on use: ``pip install ".[gymnasium]"`` in the clone of Rollway.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollway.errors import InvalidArgument
from rollway.machine.cgroup import Cgroup
from rollway.runner.restart_policy import RestartPolicy

if TYPE_CHECKING:
    from gymnasium import Env, Space
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.vector import AutoresetMode

    from rollway.vector_env.shm_vector_env import ShmVectorEnv

__all__ = ["FaultPolicy", "make_vec"]


class FaultPolicy(RestartPolicy):
    """A `RestartPolicy` with the defaults ``max_restarts=3`` and ``within_s=60.0``. New code uses `RestartPolicy`.

    >>> FaultPolicy(max_restarts=2) == FaultPolicy(2, 60.0)
    True
    """

    def __init__(self, max_restarts: int = 3, within_s: float = 60.0) -> None:
        super().__init__(max_restarts, within_s=within_s)
        if max_restarts < 1:
            raise InvalidArgument(f"max_restarts = {max_restarts} is out of range: at least 1")

    def __repr__(self) -> str:
        return f"FaultPolicy(max_restarts={self.max_restarts}, within_s={self.within_s})"


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
    shared_memory: bool | None = None,
    max_concurrency: int | None = None,
    **env_kwargs: Any,
) -> ShmVectorEnv:
    """Makes environments that run in worker processes, with their arrays in shared memory.

    Args:
        env_fns: An environment's id (or spec), one function that makes an environment, or one function for each.
        num_envs: How many environments; by default 1 for an id or a single function.
        num_workers: How many processes; each steps its environments one after the other. By default one for each
            usable CPU. Environments that sleep or wait gain from more workers than CPUs.
        batch_size: How many results `recv` returns at a time; by default all.
        copy: Whether results are copies, or views that stay valid until the step after the next.
        observation_mode: As for Gymnasium's vector environments.
        autoreset_mode: ``"NextStep"``, ``"SameStep"`` or ``"Disabled"``, as for those.
        step_timeout_s: How long a worker may take for one step or reset of its environments before they count as hung;
            by default for ever. Re-creation after a fault gets an extra 5× the initial creation time.
        restart: How often an environment that raises, dies or hangs is restarted, while the others continue; by default
            never: the error is raised. The learner sees a truncated episode: the last observation again, reward 0,
            ``truncated``, and the infos have ``"fault"``. Then the environment is reset by its autoreset mode. A reset
            that fails is repeated with the same seed. With autoreset disabled, a step after the end of an episode is an
            error of the caller: it is raised, and is no restart.
        context: The start method of `multiprocessing`; by default its default.
        daemon: Whether workers may not have child processes, as in `multiprocessing`.
        wrappers: Applied to each environment made from an id.
        shared_memory: ``True``: refuse observation spaces that are none of Gymnasium's, as `AsyncVectorEnv` does. By
            default, and with ``False``, such observations travel as messages.
        max_concurrency: As for `AsyncVectorEnv`: how many environments may step at a time. At most so many workers are
            started, in place of ``num_workers``.
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
        # Looked up here, because a worker that was not forked may not know what was registered since the start.
        spec = _find_spec(env_fns) if isinstance(env_fns, str) else env_fns
        makers = [functools.partial(_make, spec, env_kwargs, wrappers)] * (1 if num_envs is None else num_envs)
    elif env_kwargs or wrappers:
        raise InvalidArgument("wrappers and arguments for environments need an id, not functions")
    elif callable(env_fns):
        makers = [env_fns] * (1 if num_envs is None else num_envs)
    else:
        makers = list(env_fns)
        if num_envs is not None and num_envs != len(makers):
            raise InvalidArgument(f"num_envs is {num_envs}, but there are {len(makers)} functions")
    if not makers:
        raise InvalidArgument(f"num_envs is {num_envs or 0}; it must be at least 1")
    if max_concurrency is not None:
        if num_workers is not None:
            raise InvalidArgument("max_concurrency is the number of workers at most: give it, or num_workers, not both")
        if not hasattr(max_concurrency, "__index__") or max_concurrency < 1:
            raise InvalidArgument(f"max_concurrency is {max_concurrency!r}; it must be a whole number, at least 1")
        num_workers = min(len(makers), max_concurrency)
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
        shared_memory=shared_memory,
    )
    envs.spec = spec
    return envs


def _find_spec(name: str) -> EnvSpec:
    """Looks up an id as `gymnasium.make` does: imports the module of ``module:id``, and takes the newest version."""
    import gymnasium
    from gymnasium.envs import registration

    module, _, name = name.rpartition(":")
    if module:
        importlib.import_module(module)
    namespace, bare, version = registration.parse_env_id(name)
    if version is None and (newest := registration.find_highest_version(namespace, bare)) is not None:
        name = registration.get_env_id(namespace, bare, newest)
    return gymnasium.spec(name)


def _make(spec: EnvSpec, kwargs: dict[str, Any], wrappers: Sequence[Callable[[Env[Any, Any]], Env[Any, Any]]]) -> Any:
    """Makes an environment of the registry."""
    import gymnasium

    env: Env[Any, Any] = gymnasium.make(spec, **kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def _cpus() -> int:
    """How many CPUs this process may use, by its affinity and the quota of its container."""
    allowed = len(os.sched_getaffinity(0))
    quota = Cgroup(Path("/")).cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))
