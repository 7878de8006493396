"""ShmVectorEnv: environments in worker processes, as one `gymnasium.vector.VectorEnv`. Made by `rollway.make_vec`.

It has the interface of Gymnasium, and checks arguments. `env_pool` makes the requests, waits and recovers from faults;
`worker` and `worker_env` step the environments.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt
from gymnasium.error import CustomSpaceError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from rollway.errors import EnvRaised, InvalidArgument, NotInThisProcess
from rollway.runner.restart_policy import RestartPolicy
from rollway.schema.arrays import convert
from rollway.vector_env.env_pool import EnvInfo, EnvPool, Outcome
from rollway.vector_env.errors import CallPending, CustomSpace, NoCallPending, VectorEnvClosed
from rollway.vector_env.layout import (
    Array,
    ArrayPlace,
    RolloutTarget,
    SlotClient,
    check_rollout,
    custom_space,
    rollout_buffers,
)
from rollway.vector_env.messages import Packed
from rollway.vector_env.pipe import FOREVER_S
from rollway.vector_env.protocol import RESET, SEND, STEP, ObservationMode
from rollway.vector_env.worker_processes import Maker

Result = tuple[Any, Array, Array, Array, dict[str, Any]]
_RESERVED = ("reset", "step", "close")
_MISSHAPEN = (KeyError, IndexError, TypeError, ValueError)
_process: int


class ShmVectorEnv(VectorEnv[Any, Any, Array]):
    """Steps many environments in a few worker processes; observations, rewards and actions are in shared memory.

    `step` sleeps until all environments have answered, with the GIL released; Ctrl-C ends it. `send` and `recv` work on
    part of them at a time. `close` (or the end of a ``with`` block) ends the workers. The workers also end at once when
    this process ends, in whatever way. One thread at a time may use it.

    With ``copy=False``, `step` returns views. The views of one step are overwritten in the step after the next one. To
    enter `collect_into`, or to `send` after a step, counts as a step here.

    >>> import gymnasium as gym, rollway
    >>> with rollway.make_vec("CartPole-v1", num_envs=4, num_workers=2) as envs:
    ...     observations, infos = envs.reset(seed=1)
    ...     observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
    ...     observations.shape, rewards.tolist()
    ((4, 4), [1.0, 1.0, 1.0, 1.0])
    """

    def __init__(
        self,
        env_fns: Sequence[Maker],
        *,
        num_workers: int,
        batch_size: int | None = None,
        copy: bool = True,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        step_timeout_s: float | None = None,
        restart: RestartPolicy | None = None,
        context: str | None = None,
        daemon: bool = True,
        shared_memory: bool | None = None,
    ) -> None:
        """See `rollway.make_vec`."""
        self.num_envs, self.num_workers = len(env_fns), num_workers
        self.batch_size = self.num_envs if batch_size is None else batch_size
        _check("num_envs", self.num_envs, 1, None)
        _check("num_workers", num_workers, 1, self.num_envs)
        _check("batch_size", self.batch_size, 1, self.num_envs)
        if step_timeout_s is not None and not step_timeout_s > 0:
            raise InvalidArgument(f"step_timeout_s is {step_timeout_s}; it must be more than 0, or None for ever")
        self.copy, self.autoreset_mode = copy, AutoresetMode(autoreset_mode)
        self._pool = EnvPool(
            list(env_fns), num_workers, self.autoreset_mode, observation_mode, restart, context, daemon
        )
        self._pool.deadlines.timeout_s = step_timeout_s
        spaces = self._pool.spaces
        if shared_memory and (custom := custom_space(spaces.single_observation_space)) is not None:
            self._pool.close(0.0)
            raise CustomSpace(
                f"{custom!r} is none of Gymnasium's spaces, and cannot lie in shared memory: leave out "
                "shared_memory=True, and its observations travel as messages"
            )
        self.single_observation_space = spaces.single_observation_space
        self.single_action_space = spaces.single_action_space
        self.observation_space, self.action_space = spaces.observation_space, spaces.action_space
        self.metadata = {**spaces.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = spaces.render_mode
        self._actions = self._pool.arrays.actions[0] if self._pool.action.single else None
        """The shared array for actions, if actions are one array."""
        self._actions_spec = None if self._actions is None else (self._actions.shape, self._actions.dtype)
        self._pid = _process
        self._all = list(range(self.num_envs))
        self._received: list[int] = []
        """The environments whose results were returned last."""
        self._pending: Literal["step", "reset"] | None = None
        """What was asked of all environments, and not returned yet."""
        self._num_resetting = 0
        """How many environments the pending reset is for."""
        self._unawaited: Literal["step", "reset"] | None = None
        """What the user has begun with `step_async` or `reset_async`, and not waited for at all."""
        self._can_step_fast = False
        """Whether the last operation was a step of all environments, after which nothing is left to do."""
        self._clients: dict[int, SlotClient] = {}
        """By number. Kept, so that no other client can be mistaken for one of them."""
        self._targets: dict[Any, RolloutTarget] = {}

    # ── all environments at once ──────────────────────────────────────────────────────────────────────────────────────

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments, or those in ``options["reset_mask"]``.

        Args:
            seed: One for all (environment ``i`` gets ``seed + i``), or one for each.
            options: Handed to every environment, without ``reset_mask``.
        """
        self._ask_reset(seed, options)
        return self._reset_wait(None)

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Requests a `reset`. `reset_wait` gets the results. (After `async_reset`, `recv` does, as they come.)"""
        self._must_be_open()
        self._must_be_idle()
        self._ask_reset(seed, options)
        self._unawaited = "reset"

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """The results of `reset_async`.

        Raises:
            WaitTimeout: They are not there within ``timeout`` seconds. Nothing is lost: call again.
        """
        self._must_be_open()
        if self._pending != "reset":
            raise NoCallPending("there is no reset to wait for: call reset_async() first", "reset")
        return self._reset_wait(timeout)

    def _ask_reset(self, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None) -> None:
        seeds, mask, options = self._plan_reset(seed, options)
        pool = self._pool
        envs: list[int] = list(range(self.num_envs)) if mask is None else np.flatnonzero(mask).tolist()
        request = pool.pack_resets({env: (seeds[env], options) for env in envs})
        pool.results.next_buffer()
        if mask is not None:
            for env in np.flatnonzero(~mask).tolist():
                pool.results.copy_to_current(env)
        self._pending, self._num_resetting = "reset", len(envs)
        pool.ask(RESET, request)

    def _reset_wait(self, timeout: float | None) -> tuple[Any, dict[str, Any]]:
        pool, self._unawaited = self._pool, None
        try:
            _, env_infos = pool.gather(self._num_resetting, timeout)
        except EnvRaised:
            pool.drain_after_error()
            self._pending = None
            raise
        self._pending, self._received = None, self._all
        return pool.results.observations(self.copy), self._infos(env_infos)

    def _plan_reset(
        self, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None
    ) -> tuple[list[int | None], npt.NDArray[np.bool_] | None, dict[str, Any] | None]:
        """Checks the arguments of a reset, and waits for what was under way."""
        self._must_be_open()
        if self._pool.results.rollout is not None:
            raise InvalidArgument("a reset in the middle of collect_into(): its rows are steps")
        if seed is None:
            seeds: list[int | None] = [None] * self.num_envs
        elif isinstance(seed, int | np.integer):
            seeds = [int(seed) + env for env in range(self.num_envs)]
        elif not isinstance(seed, Iterable):
            raise InvalidArgument(f"seed is {seed!r}; it must be a whole number, or one for each environment")
        else:
            seeds = [int(one) if isinstance(one, np.integer) else one for one in seed]
        if len(seeds) != self.num_envs:
            raise InvalidArgument(f"there are {len(seeds)} seeds for {self.num_envs} environments")
        mask = None
        if options is not None and "reset_mask" in options:
            options = dict(options)
            mask = options.pop("reset_mask")
            if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
                raise InvalidArgument(f"options['reset_mask'] must be a bool array of {self.num_envs}, not {mask!r}")
            if not mask.any():
                raise InvalidArgument("options['reset_mask'] is all False: there is nothing to reset")
        for env, one in enumerate(seeds):
            if one is not None and (mask is None or mask[env]):
                self._pool.lost_episodes.seeds[env] = one
        self._pool.drain()
        self._pending = self._unawaited = None
        return seeds, mask, options

    def step(self, actions: Any) -> Result:
        """Steps all environments, and waits for them."""
        if not self._can_step_fast or self._pid != _process:
            self.step_async(actions)
            return self.step_wait()
        pool = self._pool
        self._write_actions(actions, None)
        pool.results.next_buffer()
        self._pending, self._can_step_fast = "step", False
        outcome = pool.core.step(STEP, pool.results.buffer, pool.deadlines.timeout_s)
        if outcome is not None:
            return self._step_wait(None, outcome)
        self._pending, self._can_step_fast = None, True
        pool.results.all_arrived()
        return (*pool.results.newest(self.copy), {})

    def step_async(self, actions: Any) -> None:
        """Requests a step of all environments. `step_wait` gets the results."""
        self._must_be_open()
        self._must_be_idle()
        pool = self._pool
        if pool.action.variable_parts:
            request = self._pack_actions(actions, range(self.num_envs))
            pool.next_buffer()
            pool.ask(STEP, request)
        else:
            self._write_actions(actions, None)
            pool.next_buffer()
            pool.core.ask(STEP, pool.results.buffer, None)
        self._pending = self._unawaited = "step"

    def step_wait(self, timeout: float | None = None) -> Result:
        """The results of `step_async`.

        Raises:
            WaitTimeout: They are not there within ``timeout`` seconds. Nothing is lost: call again.
        """
        self._must_be_open()
        if self._pending != "step":
            raise NoCallPending("there is no step to wait for: call step_async() first", "step")
        return self._step_wait(timeout, None)

    def _step_wait(self, timeout: float | None, outcome: Outcome | None) -> Result:
        pool, self._unawaited = self._pool, None
        try:
            _, env_infos = pool.gather(self.num_envs, timeout, outcome)
        except EnvRaised:  # the others have done their step; their infos are dropped
            pool.drain_after_error()
            self._pending = None
            raise
        self._pending, self._can_step_fast, self._received = None, pool.can_step_fast(), self._all
        infos = self._infos(env_infos) if env_infos else {}
        return (*pool.results.newest(self.copy), infos)

    def _infos(self, env_infos: list[EnvInfo]) -> dict[str, Any]:
        """Merges the infos of environments as Gymnasium does."""
        infos: dict[str, Any] = {}
        for env, info in env_infos:
            infos = self._add_info(infos, info, env)
        return infos

    # ── part of them at a time ────────────────────────────────────────────────────────────────────────────────────────

    def async_reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Resets all environments; `recv` returns their first observations, as they come."""
        seeds, mask, options = self._plan_reset(seed, options)
        if mask is not None:
            raise InvalidArgument("async_reset() resets all environments: reset_mask is for reset()")
        request = self._pool.pack_resets({env: (seeds[env], options) for env in range(self.num_envs)})
        self._pool.results.collect_in_first_buffer()
        self._pool.ask(RESET, request)

    def send(self, actions: Any, env_id: Sequence[int] | Array | None = None) -> None:
        """Steps some environments, and does not wait.

        Args:
            actions: One for each of them, in their order.
            env_id: Which environments; those of the last `recv` when left out, or all after a `reset` or `step`. An
                environment whose results were not received yet cannot get another action.
        """
        self._must_be_open()
        envs = self._received if env_id is None else _numbers(env_id)
        if env_id is None and not envs:
            raise InvalidArgument("nothing was received yet: recv() first, or say which environments with env_id")
        for env in envs:
            if not 0 <= env < self.num_envs:
                raise InvalidArgument(f"env_id has {env}; there are {self.num_envs} environments, numbered from 0")
            if self._pool.is_busy(env):
                raise CallPending(
                    f"environment {env} is still busy with its last action: recv() its results first", "send"
                )
        if len(set(envs)) != len(envs):
            raise InvalidArgument(f"env_id names an environment twice: {envs}")
        pool = self._pool
        if pool.results.rollout is not None:
            raise InvalidArgument("send() in the middle of collect_into(): its rows are steps of all environments")
        if pool.results.buffer != 0:
            pool.results.collect_in_first_buffer()
        if pool.action.variable_parts:
            request = self._pack_actions(actions, envs)
            pool.back_up(envs)
            pool.ask(SEND, request)
        else:
            self._write_actions(actions, envs)
            pool.back_up(envs)
            pool.core.ask(SEND, 0, envs)

    def recv(self, timeout: float | None = None) -> Result:
        """Waits for ``batch_size`` environments, and returns their results; ``infos["env_id"]`` names the environments.

        Environments come in the order in which they finish, so a slow one does not delay the others. The arrays are
        copies, with a row for each of these environments. ``infos`` has a row for every environment, as everywhere.

        Raises:
            WaitTimeout: They are not there within ``timeout`` seconds. Nothing is lost: call again.
        """
        self._must_be_open()
        pool = self._pool
        if self._pending == "step" or not pool.is_busy():
            raise NoCallPending("nothing was sent: call async_reset() or send() first", "recv")
        self._unawaited = None
        envs, env_infos = pool.gather(self.batch_size, timeout)
        if not pool.is_busy():
            self._pending = None  # it was a reset
        self._received = envs
        infos = self._infos(env_infos)
        infos["env_id"] = np.array(envs)
        results = pool.results
        now = results.view(results.buffer)  # not the first buffer after a reset() that was interrupted
        return results.observations_of(envs), now.rewards[envs], now.terminations[envs], now.truncations[envs], infos

    # ── straight into a slot ──────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def collect_into(
        self, client: SlotClient, *, observations: Any, rewards: Array, terminations: Array, truncations: Array
    ) -> Iterator[Any]:
        """Makes the workers write the results of the next steps straight into a slot of a ring, without a copy.

        In the block, every `step` fills the next row and returns views of it: rewards and endings of step ``t`` go to
        row ``t``, the observations after it to row ``t + 1``. The block starts with the newest observations, which it
        puts into row 0. If there is no row for the last observations, they go to the vector environment's own memory.
        Arrays of another order can be given transposed.

        Args:
            client: The `ShmClient` that owns the slot.
            observations: The slot's arrays ``[steps or steps + 1, num_envs, …]``, in the structure of the observation
                space.
            rewards: ``[steps, num_envs]``, of any number type.
            terminations: Likewise.
            truncations: Likewise.

        >>> import numpy as np, rollway
        >>> shapes = {"observations": (4, 2, 4), "rewards": (3, 2), "terminations": (3, 2), "truncations": (3, 2)}
        >>> example = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        >>> with (
        ...     rollway.Server(example, 1, rollway.ShmTransport()) as server,
        ...     rollway.ShmClient(server.name, example) as client,
        ...     rollway.make_vec("CartPole-v1", 2) as envs,
        ... ):
        ...     _ = envs.reset(seed=0)
        ...     with client.reserve() as slot, envs.collect_into(client, **slot.tree) as obs:
        ...         for _ in range(3):
        ...             obs = envs.step([0, 1])[0]
        ...     server.sample().batch["rewards"].tolist()
        [[[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]]
        """
        self._must_be_open()
        pool, results, layout = self._pool, self._pool.results, self._pool.shared_layout.observation
        if results.rollout is not None:
            raise InvalidArgument("another collect_into() is under way: finish it first")
        self._must_be_idle()
        parts = layout.split(observations)
        others = {"rewards": rewards, "terminations": terminations, "truncations": truncations}
        steps = check_rollout(layout, self.num_envs, parts, others)
        target = self._target(client, steps, parts, others)
        results.collect_in_first_buffer()
        for array, newest in zip(parts, results.view(0).observations, strict=True):
            array[0] = newest
        spare = results.view(RolloutTarget.SPARE)
        results.begin_rollout(rollout_buffers(parts, list(others.values()), spare), target.first)
        try:
            yield layout.build([array[0] for array in parts])
        finally:
            self._pending = self._unawaited = None
            pool.end_rollout()

    def _target(self, client: SlotClient, steps: int, parts: list[Array], others: dict[str, Array]) -> RolloutTarget:
        """Describes the slot to the workers. They get each slot of a ring once."""
        memory = client._memory()
        places = tuple(ArrayPlace.of(array, memory, "observations") for array in parts)
        numbers = tuple(ArrayPlace.of(array, memory, what) for what, array in others.items())
        number = next((number for number, known in self._clients.items() if known is client), None)
        if number is None:
            self._forget_closed()
            number = 1 + max(self._clients, default=-1)
            self._clients[number] = client
        key = (number, places, numbers)
        if key not in self._targets:
            used = [target.first + target.steps for target in self._targets.values()]
            first = max(used, default=self._pool.shared_layout.BUFFERS)
            target = RolloutTarget(client.name, number, client._owner, first, steps, places, numbers)
            self._pool.add_target(target)
            self._targets[key] = target
        return self._targets[key]

    def _forget_closed(self) -> None:
        """Makes the workers unmap the memory of closed clients."""
        closed = {number for number, client in self._clients.items() if client.closed}
        if closed:
            self._pool.remove_targets(closed)
            self._targets = {key: target for key, target in self._targets.items() if target.client not in closed}
            for number in closed:
                del self._clients[number]

    # ── the environments themselves ───────────────────────────────────────────────────────────────────────────────────

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every environment, or reads an attribute. Returns one result for each."""
        if name in _RESERVED:
            raise InvalidArgument(f"call({name!r}) is not allowed: use {name}()")
        self._must_be_open()
        return self._pool.call_workers(lambda envs: ("call", name, args, kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every environment: from a list or tuple one value each, otherwise the same."""
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise InvalidArgument(f"there are {len(each)} values for {self.num_envs} environments")
        self._must_be_open()
        self._pool.call_workers(lambda envs: ("set_attr", name, each[envs.start : envs.stop]))

    def render(self) -> tuple[Any, ...]:
        """The frames of all environments."""
        return self.call("render")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # as in Gymnasium's own
        """The seeds of the environments."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # in Gymnasium's own, too, it cannot be set
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Copies of the environments' random number generators."""
        return self.get_attr("np_random")

    def close_extras(self, timeout: float | None = 5.0, terminate: bool = False) -> None:
        """Ends the workers: those that have not closed their environments within ``timeout`` seconds are killed."""
        self._can_step_fast = False
        if self._unawaited is not None:
            warnings.warn(
                f"close() while a {self._unawaited} is under way: its results are lost. Call {self._unawaited}_wait() "
                "before",
                stacklevel=3,
            )
            self._unawaited = None
        self._pool.close(0.0 if terminate else FOREVER_S if timeout is None else timeout)

    @property
    def step_timeout_s(self) -> float | None:
        """How long a worker may take for one step or reset of its environments."""
        return self._pool.deadlines.timeout_s

    def __enter__(self) -> ShmVectorEnv:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._unawaited = None
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a vector environment cannot be pickled or copied: make another")

    def _must_be_open(self) -> None:
        """Raises if this cannot be used. Also ends the fast path of `step`."""
        self._can_step_fast = False
        if self.closed:
            raise VectorEnvClosed("this vector environment is closed")
        if self._pid != _process:
            raise NotInThisProcess(f"this vector environment is process {self._pid}'s: make one in the forked child")

    def _must_be_idle(self) -> None:
        """Raises if results are still to come, or will never come."""
        if self._pending is not None or self._pool.is_busy():
            self._pool.check_alive()
            raise CallPending(
                "a step or a reset is under way: take its results with step_wait(), reset_wait() or recv() first, or "
                "reset()",
                self._pending or "send",
            )

    def _pack_actions(self, actions: Any, envs: Sequence[int]) -> Packed:
        """Packs actions that have parts of variable size; they go by the pipe as a whole."""
        every = len(envs) == self.num_envs
        space = self.action_space if every else batch_space(self.single_action_space, len(envs))
        try:
            whole = list(iterate(space, actions))
        except (*_MISSHAPEN, CustomSpaceError) as error:
            raise self._misshapen(error) from None
        if len(whole) != len(envs):
            raise InvalidArgument(f"there are {len(whole)} actions for {len(envs)} environments")
        return self._pool.pack(dict(zip(envs, whole, strict=True)))

    def _write_actions(self, actions: Any, envs: list[int] | None) -> None:
        if (
            self._actions is not None
            and envs is None
            and type(actions) is np.ndarray
            and (actions.shape, actions.dtype) == self._actions_spec
        ):
            self._actions[:] = actions
            return
        pool, rows = self._pool, self.num_envs if envs is None else len(envs)
        try:
            arrays, values = pool.arrays.actions, pool.action.split(actions)
        except _MISSHAPEN as error:
            raise self._misshapen(error) from None
        for part, array, value in zip(pool.action.parts, arrays, values, strict=True):
            assert array is not None  # no part of variable size
            given = np.asarray(value)
            if given.shape != (rows, *part.shape):
                raise InvalidArgument(
                    f"actions{part.path} have shape {given.shape}; {rows} environments of {self.single_action_space} "
                    f"need {(rows, *part.shape)}"
                )
            if not np.can_cast(given.dtype, array.dtype, "safe"):
                given = _cast(given, array.dtype, part.path)
            array[slice(None) if envs is None else envs] = given

    def _misshapen(self, error: Exception) -> InvalidArgument:
        kind = CustomSpace if isinstance(error, CustomSpaceError) else InvalidArgument
        return kind(f"actions do not have the structure of {self.action_space}: {error!r}")


def _cast(given: Array, dtype: np.dtype[Any], path: str) -> Array:
    """Actions in the dtype of their space, if that can hold them: 200 fits uint8, but 300 and 0.5 do not."""
    if not np.can_cast(given.dtype, dtype, "same_kind") and (given.dtype.kind, dtype.kind) != ("i", "u"):
        raise InvalidArgument(f"actions{path} are {given.dtype}; the action space has {dtype}")
    fitting = convert(given, dtype)
    if fitting is None:
        raise InvalidArgument(f"actions{path} have numbers that {dtype}, the dtype of the action space, cannot hold")
    return fitting


def _numbers(env_id: Sequence[int] | Array) -> list[int]:
    given = np.asarray(env_id)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise InvalidArgument(f"env_id must be the numbers of environments, not {env_id!r}")
    return [int(env) for env in given]


def _check(what: str, value: int, least: int, most: int | None) -> None:
    if not hasattr(value, "__index__") or value < least or (most is not None and value > most):
        limit = f"{least} to {most}" if most is not None else f"at least {least}"
        raise InvalidArgument(f"{what} is {value!r}; it must be a whole number, {limit}")


def _note_process() -> None:
    global _process  # compared at every step, where a system call would take longer
    _process = os.getpid()


_note_process()
os.register_at_fork(after_in_child=_note_process)
