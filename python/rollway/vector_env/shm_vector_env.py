"""ShmVectorEnv: environments in worker processes, as one `gymnasium.vector.VectorEnv`. Made by `rollway.make_vec`.

It has the shape that Gymnasium's users know, and checks what they give. Asking, waiting and mending is `troupe`'s
business; how an environment is stepped is `worker`'s and `member`'s.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from gymnasium.error import CustomSpaceError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from rollway.errors import ConnectionClosedError, EnvRaised, InvalidArgument, NotInThisProcess
from rollway.schema.record import convert
from rollway.vector_env.common_spaces import ObservationMode
from rollway.vector_env.env_pool import Note, Outcome, Troupe
from rollway.vector_env.fault_policy import FaultPolicy
from rollway.vector_env.layout import Array, Buffer, Memory, Place, Target, check_rollout
from rollway.vector_env.messages import Packed
from rollway.vector_env.pipe import FOREVER_S
from rollway.vector_env.protocol import RESET, SEND, STEP
from rollway.vector_env.worker_processes import Maker

Result = tuple[Any, Array, Array, Array, dict[str, Any]]
_RESERVED = ("reset", "step", "close")
_MISSHAPEN = (KeyError, IndexError, TypeError, ValueError)
_process: int


class ShmVectorEnv(VectorEnv[Any, Any, Array]):
    """Steps many environments in a few worker processes; observations, rewards and actions lie in shared memory.

    `step` sleeps until all have answered, with the GIL released; Ctrl-C ends it. `send` and `recv` work on part of them
    at a time. `close` (or the end of a ``with`` block) ends the workers; they also end at once when this process does,
    however it ends. One thread at a time may use it.

    With ``copy=False`` what `step` returns are views: those of one step stay as they are until the step after the next
    one, and are overwritten then. To enter `collect_into`, or to `send` after a step, counts as a step there.

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
        restart: FaultPolicy | None = None,
        context: str | None = None,
        daemon: bool = True,
    ) -> None:
        """See `rollway.make_vec`, which fills in what is left out."""
        self.num_envs, self.num_workers = len(env_fns), num_workers
        self.batch_size = self.num_envs if batch_size is None else batch_size
        _check("num_envs", self.num_envs, 1, None)
        _check("num_workers", num_workers, 1, self.num_envs)
        _check("batch_size", self.batch_size, 1, self.num_envs)
        if step_timeout_s is not None and not step_timeout_s > 0:
            raise InvalidArgument(f"step_timeout_s is {step_timeout_s}; it must be more than 0, or None for ever")
        self.copy, self.autoreset_mode = copy, AutoresetMode(autoreset_mode)
        self._troupe = Troupe(
            list(env_fns), num_workers, self.autoreset_mode, observation_mode, restart, context, daemon
        )
        self._troupe.allowance.timeout_s = step_timeout_s
        spaces = self._troupe.spaces
        self.single_observation_space = spaces.single_observation_space
        self.single_action_space = spaces.single_action_space
        self.observation_space, self.action_space = spaces.observation_space, spaces.action_space
        self.metadata = {**spaces.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = spaces.render_mode
        self._actions = self._troupe.floor.actions[0] if self._troupe.action.single else None
        """Where actions that are one array go, if it has this shape and dtype."""
        self._actions_look = None if self._actions is None else (self._actions.shape, self._actions.dtype)
        self._pid = _process
        self._all = list(range(self.num_envs))
        self._received: list[int] = []
        """Those whose results were given last."""
        self._stepping = False
        """Whether `step_async` was called, and `step_wait` was not."""
        self._calm = False
        """Whether the last thing that happened was a step of all, and nothing is left to be done or told of it."""
        self._clients: dict[int, Memory] = {}
        """By number; kept, so that no other can be taken for it."""
        self._targets: dict[Any, Target] = {}

    # ── all environments at once ──────────────────────────────────────────────────────────────────────────────────────

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments, or those in ``options["reset_mask"]``.

        Args:
            seed: One for all (environment ``i`` gets ``seed + i``), or one for each.
            options: Handed to every environment, without ``reset_mask``.
        """
        seeds, mask, options = self._plan_reset(seed, options)
        troupe = self._troupe
        envs: list[int] = list(range(self.num_envs)) if mask is None else np.flatnonzero(mask).tolist()
        request = troupe.pack_resets({env: (seeds[env], options) for env in envs})
        troupe.results.turn_over()
        if mask is not None:
            for env in np.flatnonzero(~mask).tolist():
                troupe.results.carry(env)
        troupe.ask(RESET, request)
        try:
            _, notes = troupe.gather(len(envs))
        except EnvRaised:
            troupe.forget()
            raise
        self._received = self._all
        return troupe.results.observations(self.copy), self._infos(notes)

    def _plan_reset(
        self, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None
    ) -> tuple[list[int | None], npt.NDArray[np.bool_] | None, dict[str, Any] | None]:
        """Checks the arguments of a reset, and ends what was under way."""
        self._must_be_open()
        if self._troupe.results.rollout is not None:
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
                self._troupe.losses.seeds[env] = one
        self._troupe.drain()
        self._stepping = False
        return seeds, mask, options

    def step(self, actions: Any) -> Result:
        """Steps all environments, and waits for them."""
        if not self._calm or self._pid != _process:
            self.step_async(actions)
            return self.step_wait()
        troupe = self._troupe
        self._write_actions(actions, None)
        troupe.results.turn_over()
        self._stepping, self._calm = True, False
        outcome = troupe.core.step(STEP, troupe.results.buffer, troupe.allowance.timeout_s)
        if outcome is not None:
            return self._step_wait(None, outcome)
        self._stepping, self._calm = False, True
        troupe.results.all_arrived()
        return (*troupe.results.given(self.copy), {})

    def step_async(self, actions: Any) -> None:
        """Asks all environments for a step. `step_wait` gets the results."""
        self._must_be_open()
        troupe = self._troupe
        if self._stepping or troupe.is_busy():
            raise InvalidArgument(
                "a step or a reset is under way: take its results with step_wait() or recv() first, or reset()"
            )
        if troupe.action.loose:
            request = self._pack_actions(actions, range(self.num_envs))
            troupe.turn_over()
            troupe.ask(STEP, request)
        else:
            self._write_actions(actions, None)
            troupe.turn_over()
            troupe.core.ask(STEP, troupe.results.buffer, None)
        self._stepping = True

    def step_wait(self, timeout: float | None = None) -> Result:
        """The results of `step_async`.

        Raises:
            WaitTimeout: They are not there within ``timeout`` seconds. Nothing is lost: call again.
        """
        self._must_be_open()
        if not self._stepping:
            raise InvalidArgument("there is no step to wait for: call step_async() first")
        return self._step_wait(timeout, None)

    def _step_wait(self, timeout: float | None, outcome: Outcome | None) -> Result:
        troupe = self._troupe
        try:
            _, notes = troupe.gather(self.num_envs, timeout, outcome)
        except EnvRaised:  # the others have done their step; what they said beside their arrays is dropped
            troupe.forget()
            self._stepping = False
            raise
        self._stepping, self._calm, self._received = False, troupe.is_calm(), self._all
        infos = self._infos(notes) if notes else {}
        return (*troupe.results.given(self.copy), infos)

    def _infos(self, notes: list[Note]) -> dict[str, Any]:
        """What the environments say, as Gymnasium puts it together."""
        infos: dict[str, Any] = {}
        for env, note in notes:
            infos = self._add_info(infos, note, env)
        return infos

    # ── part of them at a time ────────────────────────────────────────────────────────────────────────────────────────

    def async_reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Resets all environments; `recv` gives their first observations, as they come."""
        seeds, mask, options = self._plan_reset(seed, options)
        if mask is not None:
            raise InvalidArgument("async_reset() resets all environments: reset_mask is for reset()")
        request = self._troupe.pack_resets({env: (seeds[env], options) for env in range(self.num_envs)})
        self._troupe.results.settle()
        self._troupe.ask(RESET, request)

    def send(self, actions: Any, env_id: Sequence[int] | Array | None = None) -> None:
        """Steps some environments, and does not wait.

        Args:
            actions: One for each of them, in their order.
            env_id: Which ones; those of the last `recv` when left out, or all after a `reset` or `step`. An environment
                whose results have not been received cannot be sent another action.
        """
        self._must_be_open()
        envs = self._received if env_id is None else _numbers(env_id)
        if env_id is None and not envs:
            raise InvalidArgument("nothing was received yet: recv() first, or say which environments with env_id")
        for env in envs:
            if not 0 <= env < self.num_envs:
                raise InvalidArgument(f"env_id has {env}; there are {self.num_envs} environments, numbered from 0")
            if self._troupe.is_busy(env):
                raise InvalidArgument(f"environment {env} is still busy with its last action: recv() its results first")
        if len(set(envs)) != len(envs):
            raise InvalidArgument(f"env_id names an environment twice: {envs}")
        troupe = self._troupe
        if troupe.results.rollout is not None:
            raise InvalidArgument("send() in the middle of collect_into(): its rows are steps of all environments")
        if troupe.results.buffer != 0:
            troupe.results.settle()
        if troupe.action.loose:
            request = self._pack_actions(actions, envs)
            troupe.keep(envs)
            troupe.ask(SEND, request)
        else:
            self._write_actions(actions, envs)
            troupe.keep(envs)
            troupe.core.ask(SEND, 0, envs)

    def recv(self, timeout: float | None = None) -> Result:
        """Waits for ``batch_size`` environments, and gives their results; which they are is in ``infos["env_id"]``.

        Whoever is done comes, in turn; a slow one does not hold the others. The arrays have a row for each of them, and
        are copies. ``infos`` has a row for each environment there is, as everywhere.

        Raises:
            WaitTimeout: They are not there within ``timeout`` seconds. Nothing is lost: call again.
        """
        self._must_be_open()
        troupe = self._troupe
        if self._stepping or not troupe.is_busy():
            raise InvalidArgument("nothing was sent: call async_reset() or send() first")
        envs, notes = troupe.gather(self.batch_size, timeout)
        self._received = envs
        infos = self._infos(notes)
        infos["env_id"] = np.array(envs)
        results = troupe.results
        now = results.view(results.buffer)  # not the first after a reset() that was broken off
        return results.observations_of(envs), now.rewards[envs], now.terminations[envs], now.truncations[envs], infos

    # ── straight into a slot ──────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def collect_into(
        self, client: Memory, *, observations: Any, rewards: Array, terminations: Array, truncations: Array
    ) -> Iterator[Any]:
        """Lets the workers write the results of the next steps straight into a slot of a ring: nothing is copied.

        In the block, every `step` fills the next row and returns views of it: rewards and endings of step ``t`` go to
        row ``t``, the observations after it to row ``t + 1``. The block starts with the newest observations, which are
        put into row 0. Where observations have no row for the last ones, those go to the vector environment's own
        memory. Arrays of another order can be given transposed.

        Args:
            client: Whose slot it is: a `ShmClient`.
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
        troupe, results, layout = self._troupe, self._troupe.results, self._troupe.blueprint.observation
        if results.rollout is not None or self._stepping or troupe.is_busy():
            raise InvalidArgument("a step or another collect_into() is under way: finish it first")
        parts = layout.split(observations)
        others = {"rewards": rewards, "terminations": terminations, "truncations": truncations}
        steps = check_rollout(layout, self.num_envs, parts, others)
        target = self._target(client, steps, parts, others)
        results.settle()
        for array, newest in zip(parts, results.view(0).observations, strict=True):
            array[0] = newest
        spare = results.view(Target.SPARE)
        rows = [
            [array[step + 1] for array in parts] if step + 1 < parts[0].shape[0] else spare.observations
            for step in range(steps)
        ]
        buffers = [Buffer(row, rewards[step], terminations[step], truncations[step]) for step, row in enumerate(rows)]
        results.enter(buffers, target.first)
        try:
            yield layout.build([array[0] for array in parts])
        finally:
            self._stepping = False
            troupe.leave()

    def _target(self, client: Memory, steps: int, parts: list[Array], others: dict[str, Array]) -> Target:
        """The slot as the workers know it. Each slot of a ring is introduced to them once."""
        memory = client.memory()
        places = [Place.of(array, memory, "observations") for array in parts]
        more = [Place.of(array, memory, what) for what, array in others.items()]
        number = next((number for number, known in self._clients.items() if known is client), None)
        if number is None:
            self._forget_closed()
            number = 1 + max(self._clients, default=-1)
            self._clients[number] = client
        key = (number, *places, *more)
        if key not in self._targets:
            used = [target.first + target.steps for target in self._targets.values()]
            first = max(used, default=self._troupe.blueprint.BUFFERS)
            target = Target(client.name, number, client.owner, first, steps, tuple(places), *more)
            self._troupe.aim(target)
            self._targets[key] = target
        return self._targets[key]

    def _forget_closed(self) -> None:
        """Clients come and go with their learner, and the workers keep the memory of those that they know."""
        closed = {number for number, client in self._clients.items() if client.closed}
        if closed:
            self._troupe.forget_targets(closed)
            self._targets = {key: target for key, target in self._targets.items() if target.client not in closed}
            for number in closed:
                del self._clients[number]

    # ── the environments themselves ───────────────────────────────────────────────────────────────────────────────────

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every environment, or reads an attribute: one result for each."""
        if name in _RESERVED:
            raise InvalidArgument(f"call({name!r}) would go behind our back: use {name}()")
        self._must_be_open()
        return self._troupe.consult(lambda share: ("call", name, args, kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every environment: from a list or tuple one value each, otherwise the same."""
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise InvalidArgument(f"there are {len(each)} values for {self.num_envs} environments")
        self._must_be_open()
        self._troupe.consult(lambda share: ("set_attr", name, each[share.start : share.stop]))

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
        self._calm = False
        self._troupe.close(0.0 if terminate else FOREVER_S if timeout is None else timeout)

    @property
    def step_timeout_s(self) -> float | None:
        """How long a worker may take for one step or reset of its environments."""
        return self._troupe.allowance.timeout_s

    def __enter__(self) -> ShmVectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a vector environment cannot be pickled or copied: make another, its workers are its own")

    def _must_be_open(self) -> None:
        """For all that is not the next of many steps."""
        self._calm = False
        if self.closed:
            raise ConnectionClosedError("this vector environment is closed")
        if self._pid != _process:
            raise NotInThisProcess(f"this vector environment is process {self._pid}'s: make one in the forked child")

    def _pack_actions(self, actions: Any, envs: Sequence[int]) -> Packed:
        """Actions with loose parts: they travel whole."""
        every = len(envs) == self.num_envs
        space = self.action_space if every else batch_space(self.single_action_space, len(envs))
        try:
            whole = list(iterate(space, actions))
        except (*_MISSHAPEN, CustomSpaceError) as error:
            raise self._misshapen(error) from None
        if len(whole) != len(envs):
            raise InvalidArgument(f"there are {len(whole)} actions for {len(envs)} environments")
        return self._troupe.pack(dict(zip(envs, whole, strict=True)))

    def _write_actions(self, actions: Any, envs: list[int] | None) -> None:
        if (
            self._actions is not None
            and envs is None
            and type(actions) is np.ndarray
            and (actions.shape, actions.dtype) == self._actions_look
        ):
            self._actions[:] = actions
            return
        troupe, rows = self._troupe, self.num_envs if envs is None else len(envs)
        try:
            arrays, values = troupe.floor.actions, troupe.action.split(actions)
        except _MISSHAPEN as error:
            raise self._misshapen(error) from None
        for part, array, value in zip(troupe.action.parts, arrays, values, strict=True):
            assert array is not None  # no loose parts
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
        return InvalidArgument(f"actions do not have the structure of {self.action_space}: {error!r}")


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
    global _process  # asked at every step, and a system call would take longer
    _process = os.getpid()


_note_process()
os.register_at_fork(after_in_child=_note_process)
