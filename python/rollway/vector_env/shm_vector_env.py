"""ShmVectorEnv: environments in worker processes, as one `gymnasium.vector.VectorEnv`. Made by `rollway.make_vec`.

This is the caller's side: it writes actions, asks, waits, reads results, and mends what broke. How an environment is
stepped is `worker`'s and `member`'s business, what lies where is `layout`'s, and processes are `crew`'s.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from gymnasium import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space, iterate

from rollway._core import EnvCaller
from rollway.errors import ConnectionClosedError, EnvDied, EnvHung, EnvRaised, InvalidArgument
from rollway.vector_env.crew import Crew, Maker, WorkerGone, WorkerSilent
from rollway.vector_env.layout import Array, Blueprint, Buffer, SpaceLayout
from rollway.vector_env.restart_policy import Patience, RestartPolicy
from rollway.vector_env.rollout import Memory, Place, Target, check_rollout
from rollway.vector_env.task import FAULT, LETTER, PARCEL, RESET, RESTORE, RESTORED, SEND, STEP, Fault
from rollway.vector_env.worker import Introduction, Orders

Result = tuple[Any, Array, Array, Array, dict[str, Any]]
_RESERVED = ("reset", "step", "close")
_LETTER_BYTES = 4096


class ShmVectorEnv(VectorEnv[Any, Any, Array]):
    """Steps many environments in a few worker processes; observations, rewards and actions lie in shared memory.

    `step` sleeps until all have answered, with the GIL released; Ctrl-C ends it. `send` and `recv` work on part of them
    at a time. `close` (or the end of a ``with`` block) ends the workers; they also end at once when this process does,
    however it ends. One thread at a time may use it.

    With ``copy=False`` what `step` returns are views: those of one step stay as they are until the step after the next
    one, and are overwritten then.

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
        observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        step_timeout_s: float | None = None,
        restart: RestartPolicy | None = None,
        context: str | None = None,
        daemon: bool = True,
    ) -> None:
        """See `rollway.make_vec`, which fills in what is left out."""
        self.num_envs, self.num_workers = len(env_fns), num_workers
        self.batch_size = self.num_envs if batch_size is None else batch_size
        _check("num_envs", self.num_envs, 1, None)
        _check("num_workers", num_workers, 1, self.num_envs)
        _check("batch_size", self.batch_size, 1, self.num_envs)
        self.copy, self.step_timeout_s = copy, step_timeout_s
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self._pid = os.getpid()
        self._patience = Patience(restart)
        self._shares = [
            range(w * self.num_envs // num_workers, (w + 1) * self.num_envs // num_workers) for w in range(num_workers)
        ]
        self._worker_of = [worker for worker, share in enumerate(self._shares) for _ in share]
        self._makers = list(env_fns)
        self._crew = Crew(self._makers, self._shares, context, daemon)
        try:
            self._open(observation_mode)
        except BaseException:
            self._crew.dismiss(0.0)
            raise

    def _open(self, observation_mode: str | tuple[Space[Any], Space[Any]]) -> None:
        for worker in range(self.num_workers):
            self._crew.start(Orders(worker, self._shares[worker], self.autoreset_mode, None, None))
        told = [self._hear(worker, "hello") for worker in range(self.num_workers)]
        if None in told:  # spaces that cannot be pickled: ask an environment of our own, and believe that all are alike
            example = self._makers[0]()
            hellos = [Introduction.of([example] * self.num_envs)]
            example.close()
        else:
            hellos = [pickle.loads(one) for one in told]
        self._agree(hellos, observation_mode)
        self._layout = SpaceLayout(self.single_observation_space)
        action = SpaceLayout(self.single_action_space)
        room = max(_LETTER_BYTES, -(-(self._layout.bytes(1) + 2048) // 4096) * 4096)
        self._blueprint = Blueprint(self._layout, action, self.num_envs, self.num_workers, room)
        name = f"auto-{os.getpid()}-{secrets.token_hex(4)}"
        self._core = EnvCaller(name, self.num_workers, self.num_envs, self._blueprint.bytes)
        # Also when nobody closes us: at the end of the interpreter, or when we are forgotten.
        self._end = weakref.finalize(self, _end, self._core, self._crew, os.getpid())
        self._floor = self._blueprint.floor(self._core.memory)
        for worker in range(self.num_workers):
            self._core.expect(worker, self._crew.pid(worker) or 0)
            self._crew.send(worker, (self._blueprint, name))
        for worker in range(self.num_workers):
            self._hear(worker, "ready")
        self._action = action
        self._buffer = 0
        self._at = [0] * self.num_envs
        """In which buffer the newest observation of each environment lies."""
        self._loose: dict[int, list[Any]] = {part: [None] * self.num_envs for part in self._layout.loose}
        self._faults: dict[int, str] = {}
        self._lost: dict[int, Any] = {}
        self._seeds: list[int | None] = [None] * self.num_envs
        self._restarts = [0] * self.num_envs
        self._parcels: dict[int, bytes] = {}
        self._received: list[int] = []
        self._flags: dict[int, int] = {}
        self._waiting: str | None = None
        self._rollout: list[Buffer] | None = None
        self._targets: dict[Any, Target] = {}
        self._clients: list[Memory] = []
        self._first = self._blueprint.BUFFERS

    def _hear(self, worker: int, expected: str) -> Any:
        """A worker's word while it is being started."""
        try:
            kind, content = self._crew.receive(worker)
        except WorkerGone:
            envs = list(self._shares[worker])
            how = self._crew.bury(worker)
            raise EnvDied(f"{_named(envs)} could not be made: {_process(None)} ended, {how}", envs) from None
        if kind == "fault":
            self._raise_fault(list(self._shares[worker]), content, "could not be made")
        assert kind == expected
        return content

    def _agree(self, hellos: Sequence[Introduction], mode: str | tuple[Space[Any], Space[Any]]) -> None:
        """The spaces of the whole, from those of each."""
        observations = [space for hello in hellos for space in hello.observation_spaces]
        actions = [space for hello in hellos for space in hello.action_spaces]
        self.metadata = {**hellos[0].metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = hellos[0].render_mode
        self.single_action_space, self.single_observation_space = actions[0], observations[0]
        if isinstance(mode, tuple):
            self.observation_space, self.single_observation_space = mode
        elif mode not in ("same", "different"):
            raise InvalidArgument(f"observation_mode is {mode!r}; it must be 'same', 'different' or a pair of spaces")
        for env, (observation, action) in enumerate(zip(observations, actions, strict=True)):
            if mode == "same":
                if observation != self.single_observation_space:
                    raise InvalidArgument(
                        f"environment {env} has the observation space {observation}, environment 0 has "
                        f"{self.single_observation_space}. If that is meant, use observation_mode='different'"
                    )
            elif not is_space_dtype_shape_equiv(observation, self.single_observation_space):
                raise InvalidArgument(
                    f"the observations of environment {env}, {observation}, do not have the shape and dtype of "
                    f"{self.single_observation_space}"
                )
            if action != self.single_action_space:
                raise InvalidArgument(
                    f"environment {env} has the action space {action}, environment 0 has {self.single_action_space}"
                )
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        if mode == "same":
            self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        elif mode == "different":
            self.observation_space = batch_differing_spaces(observations)

    # ── all environments at once ──────────────────────────────────────────────────────────────────────────────────────

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments, or those in ``options["reset_mask"]``.

        Args:
            seed: One for all (environment ``i`` gets ``seed + i``), or one for each.
            options: Handed to every environment, without ``reset_mask``.
        """
        self._must_be_open()
        self._drain()
        seeds, mask, options = self._plan_reset(seed, options)
        if self._rollout is not None:
            raise InvalidArgument("reset() in the middle of collect_into(): its rows are steps")
        self._buffer = 1 - self._buffer
        if mask is None:
            envs: list[int] = list(range(self.num_envs))
        else:
            envs = np.flatnonzero(mask).tolist()
            for env in np.flatnonzero(~mask).tolist():
                self._carry(env, self._buffer)
        self._ask(RESET, envs, {env: (seeds[env], options) for env in envs})
        infos = self._gather(len(envs))[1]
        return self._observations(), infos

    def _plan_reset(
        self, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None
    ) -> tuple[list[int | None], npt.NDArray[np.bool_] | None, dict[str, Any] | None]:
        if seed is None:
            seeds: list[int | None] = [None] * self.num_envs
        elif isinstance(seed, int | np.integer):
            seeds = [int(seed) + env for env in range(self.num_envs)]
        else:
            seeds = list(seed)
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
                self._seeds[env] = one
        return seeds, mask, options

    def step(self, actions: Any) -> Result:
        """Steps all environments, and waits for them."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Asks all environments for a step. `step_wait` gets the results."""
        self._must_be_open()
        if self._waiting is not None or self._core.out():
            raise InvalidArgument("a step is under way: take its results with step_wait() or recv() first")
        if self._action.loose:
            whole = list(iterate(self.action_space, actions))
            self._turn_over()
            self._ask(STEP, range(self.num_envs), dict(enumerate(whole)))
        else:
            self._write_actions(actions, None)
            self._turn_over()
            self._core.ask(STEP, self._buffer, None)
        self._waiting = "step"

    def step_wait(self, timeout: float | None = None) -> Result:
        """The results of `step_async`.

        Raises:
            WaitTimeout: They are not there within ``timeout`` seconds. Nothing is lost: call again.
        """
        self._must_be_open()
        if self._waiting is None:
            raise InvalidArgument("there is no step to wait for: call step_async() first")
        try:
            _, infos = self._gather(self.num_envs, timeout)
        except EnvRaised:  # the others have done their step; what they said beside their arrays is dropped
            self._forget()
            self._waiting = None
            raise
        self._waiting = None
        now = self._view(self._buffer)
        if self.copy and self._rollout is None:
            return self._observations(), now.rewards.copy(), now.terminations.copy(), now.truncations.copy(), infos
        return self._observations(), now.rewards, now.terminations, now.truncations, infos

    # ── part of them at a time ────────────────────────────────────────────────────────────────────────────────────────

    def async_reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Resets all environments; `recv` gives their first observations, as they come."""
        self._must_be_open()
        self._drain()
        seeds, _, options = self._plan_reset(seed, options)
        self._buffer = 0
        self._ask(RESET, range(self.num_envs), {env: (seeds[env], options) for env in range(self.num_envs)})

    def send(self, actions: Any, env_id: Sequence[int] | Array | None = None) -> None:
        """Steps some environments, and does not wait.

        Args:
            actions: One for each of them, in their order.
            env_id: Which ones; those of the last `recv` when left out. An environment whose results have not been
                received cannot be sent another action.
        """
        self._must_be_open()
        envs = self._received if env_id is None else [int(env) for env in env_id]
        for env in envs:
            if not 0 <= env < self.num_envs:
                raise InvalidArgument(f"env_id has {env}; there are {self.num_envs} environments, numbered from 0")
            if self._core.is_out(env):
                raise InvalidArgument(f"environment {env} is still busy with its last action: recv() its results first")
        if len(set(envs)) != len(envs):
            raise InvalidArgument(f"env_id names an environment twice: {envs}")
        if self._rollout is not None:
            raise InvalidArgument("send() in the middle of collect_into(): its rows are steps of all environments")
        if self._buffer != 0:
            self._settle()
        if self._action.loose:
            batched = batch_space(self.single_action_space, len(envs))
            self._ask(SEND, envs, dict(zip(envs, iterate(batched, actions), strict=True)))
        else:
            self._write_actions(actions, envs)
            self._core.ask(SEND, 0, envs)

    def recv(self, timeout: float | None = None) -> Result:
        """Waits for ``batch_size`` environments, and gives their results; which they are is in ``infos["env_id"]``.

        Whoever is done comes, in turn; a slow one does not hold the others. The arrays have a row for each of them, and
        are copies. ``infos`` has a row for each environment there is, as everywhere.

        Raises:
            WaitTimeout: They are not there within ``timeout`` seconds. Nothing is lost: call again.
        """
        self._must_be_open()
        if not self._core.out():
            raise InvalidArgument("nothing was sent: call async_reset() or send() first")
        envs, infos = self._gather(self.batch_size, timeout)
        self._received = envs
        now = self._floor.buffers[0]
        parts = [
            tuple(self._loose[index][env] for env in envs) if array is None else array[envs]
            for index, array in enumerate(now.observations)
        ]
        infos["env_id"] = np.array(envs)
        return self._layout.build(parts), now.rewards[envs], now.terminations[envs], now.truncations[envs], infos

    def _settle(self) -> None:
        """Brings every result into the first buffer: before partial steps, and when a slot is done."""
        if self._at == self._at[:1] * self.num_envs:
            source, target = self._view(self._at[0]), self._floor.buffers[0]
            if source is not target:
                for old, new in zip(source.observations, target.observations, strict=True):
                    if old is not None and new is not None and old is not new:
                        np.copyto(new, old, casting="same_kind")
                np.copyto(target.rewards, source.rewards, casting="unsafe")
                np.copyto(target.terminations, source.terminations, casting="unsafe")
                np.copyto(target.truncations, source.truncations, casting="unsafe")
            self._at = [0] * self.num_envs
        for env in range(self.num_envs):
            self._carry(env, 0)
        self._buffer = 0

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
        if self._rollout is not None or self._waiting is not None or self._core.out():
            raise InvalidArgument("a step or another collect_into() is under way: finish it first")
        parts = self._layout.split(observations)
        others = {"rewards": rewards, "terminations": terminations, "truncations": truncations}
        steps = check_rollout(self._layout, self.num_envs, parts, others)
        target = self._target(client, steps, parts, others)
        spare = self._floor.buffers[0]
        self._settle()
        for array, newest in zip(parts, spare.observations, strict=True):
            array[0] = newest
        rows = [
            [array[step + 1] for array in parts] if step + 1 < parts[0].shape[0] else spare.observations
            for step in range(steps)
        ]
        self._rollout = [
            Buffer(row, rewards[step], terminations[step], truncations[step]) for step, row in enumerate(rows)
        ]
        self._first, self._buffer = target.first, target.first - 1
        try:
            yield self._layout.build([array[0] for array in parts])
        finally:
            self._recall()
            if self._buffer < target.first:
                self._buffer = 0  # no step was made
            else:
                self._settle()
            self._rollout = None

    def _recall(self) -> None:
        """Sees to it that no worker writes into a slot any more. After an error, or Ctrl-C, one may be at it."""
        try:
            while self._core.out():
                with contextlib.suppress(EnvRaised):
                    self._gather(self._core.out())
        except BaseException:  # hung, dead, or Ctrl-C again: what has ended does not write
            for worker in {self._worker_of[env] for env in range(self.num_envs) if self._core.is_out(env)}:
                self._crew.kill(worker)
            raise
        finally:
            self._flags.clear()
            self._waiting = None

    def _target(self, client: Memory, steps: int, parts: list[Array], others: dict[str, Array]) -> Target:
        """The slot as the workers know it. Each slot of a ring is introduced to them once."""
        memory = client.memory()
        places = [Place.of(array, memory, "observations") for array in parts]
        more = [Place.of(array, memory, what) for what, array in others.items()]
        if client not in self._clients:
            self._clients.append(client)  # kept, so that no other can have its number
        number = self._clients.index(client)
        key = (number, *places, *more)
        if key not in self._targets:
            used = [target.first + target.steps for target in self._targets.values()]
            first = max(used, default=self._blueprint.BUFFERS)
            target = Target(client.name, number, first, steps, tuple(places), *more)
            self._consult(lambda worker: ("target", target))
            self._targets[key] = target
        return self._targets[key]

    def _turn_over(self) -> None:
        """The next buffer: the other one, or the next row of a slot."""
        if self._rollout is None:
            self._buffer = 1 - self._buffer
        elif self._buffer + 1 - self._first < len(self._rollout):
            self._buffer += 1
        else:
            raise InvalidArgument(f"the slot has room for {len(self._rollout)} steps, and they are made: commit it")

    def _view(self, buffer: int) -> Buffer:
        """The arrays of a buffer."""
        if buffer < self._blueprint.BUFFERS or self._rollout is None:
            return self._floor.buffers[buffer]
        return self._rollout[buffer - self._first]

    # ── the environments themselves ───────────────────────────────────────────────────────────────────────────────────

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every environment, or reads an attribute: one result for each."""
        if name in _RESERVED:
            raise InvalidArgument(f"call({name!r}) would go behind our back: use {name}()")
        return self._consult(lambda worker: ("call", name, args, kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every environment: from a list or tuple one value each, otherwise the same."""
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise InvalidArgument(f"there are {len(each)} values for {self.num_envs} environments")
        shares = self._shares
        self._consult(lambda worker: ("set_attr", name, each[shares[worker].start : shares[worker].stop]))

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

    def _consult(self, message: Any) -> tuple[Any, ...]:
        self._must_be_open()
        for worker in range(self.num_workers):
            try:
                self._crew.send(worker, message(worker))
            except WorkerGone:
                self._raise_death(worker)
            self._core.post(worker)
        results: list[Any] = []
        failed = None
        deadline = None if self.step_timeout_s is None else time.monotonic() + self.step_timeout_s
        for worker in range(self.num_workers):
            reply = self._listen(worker, None, deadline)
            if isinstance(reply, bytes):
                results.extend(pickle.loads(reply))
            else:
                failed = failed or reply
        if failed is not None:
            self._raise_fault([failed[0]], failed[1], "raised")
        return tuple(results)

    def close_extras(self, timeout: float | None = 5.0, terminate: bool = False) -> None:
        """Ends the workers: those that have not closed their environments within ``timeout`` seconds are killed."""
        if os.getpid() == self._pid and self._end.detach() is not None:
            _end(self._core, self._crew, self._pid, 0.0 if terminate else 1e9 if timeout is None else timeout)

    def __enter__(self) -> ShmVectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── asking and waiting ────────────────────────────────────────────────────────────────────────────────────────────

    def _must_be_open(self) -> None:
        if self.closed:
            raise ConnectionClosedError("this vector environment is closed")

    def _ask(self, what: int, envs: Iterable[int], parameters: dict[int, Any]) -> None:
        """Asks for something that has parameters. They go by the pipe, after the request: then its reader is awake."""
        envs = list(envs)
        self._core.ask(what, self._buffer, envs)
        for worker in dict.fromkeys(self._worker_of[env] for env in envs):
            share = self._shares[worker]
            with contextlib.suppress(WorkerGone):  # `_gather` will find out, and knows what to do
                self._crew.send(worker, {env: parameters[env] for env in envs if env in share})

    def _drain(self) -> None:
        """Before a reset: takes what was asked before it, as after Ctrl-C."""
        while self._core.out():
            self._gather(self._core.out())
        self._waiting = None

    def _write_actions(self, actions: Any, envs: list[int] | None) -> None:
        for part, array, value in zip(
            self._action.parts, self._floor.actions, self._action.split(actions), strict=True
        ):
            assert array is not None  # no loose parts
            given = np.asarray(value)
            rows = self.num_envs if envs is None else len(envs)
            if given.shape != (rows, *part.shape):
                raise InvalidArgument(
                    f"actions{part.path} have shape {given.shape}; {rows} environments of {self.single_action_space} "
                    f"need {(rows, *part.shape)}"
                )
            if not np.can_cast(given.dtype, array.dtype, "same_kind"):
                raise InvalidArgument(f"actions{part.path} are {given.dtype}; the action space has {array.dtype}")
            if envs is None:
                np.copyto(array, given, casting="same_kind")
            else:
                array[envs] = given

    def _gather(self, count: int, timeout: float | None = None) -> tuple[list[int], dict[str, Any]]:
        """Waits for answers, mends what is broken, and gives the environments that answered and their infos."""
        done, core = self._flags, self._core
        count = min(count, core.out() + len(done))
        while len(done) < count:
            kind, ids, flags = core.wait(count - len(done), self.step_timeout_s, timeout)
            if kind == "answered":
                if not done and not any(flags):
                    return self._arrived(ids), {}
                broken = [env for env, flag in zip(ids, flags, strict=True) if flag & FAULT]
                done.update((env, flag) for env, flag in zip(ids, flags, strict=True) if not flag & FAULT)
                faults = [(env, pickle.loads(self._listen(self._worker_of[env], env, None))) for env in broken]
                for env, fault in faults:
                    self._mend_raised(env, fault)
            elif kind == "died":
                for worker in ids:
                    self._mend_dead(worker)
            else:
                self._mend_hung(ids)
        infos: dict[str, Any] = {}
        envs = sorted(done) if count == self.num_envs else list(done)
        for env in envs:
            flag = done[env]
            if flag & (LETTER | PARCEL | RESTORED):
                infos = self._read(env, flag, infos)
        done.clear()
        return self._arrived(envs), infos

    def _forget(self) -> None:
        """Drops what environments that have answered said beside their arrays."""
        for env, flag in self._flags.items():
            if flag & PARCEL:
                self._listen(self._worker_of[env], env, None)
        self._arrived(list(self._flags))
        self._flags.clear()

    def _arrived(self, envs: list[int]) -> list[int]:
        if len(envs) == self.num_envs:
            self._at = [self._buffer] * self.num_envs
        else:
            for env in envs:
                self._at[env] = self._buffer
        return envs

    def _read(self, env: int, flag: int, infos: dict[str, Any]) -> dict[str, Any]:
        """What an environment says beside its arrays."""
        notes: list[dict[str, Any]] = []
        if flag & RESTORED:
            fault = {"fault": self._faults.pop(env, "its worker was started anew")}
            same = self.autoreset_mode is AutoresetMode.SAME_STEP
            notes.append({"final_obs": self._lost.pop(env, None), "final_info": fault} if same else fault)
        if flag & (LETTER | PARCEL):
            if flag & LETTER:
                start = env * self._blueprint.letter_bytes
                data = bytes(self._floor.letters[start : start + int(self._floor.lengths[env])])
            else:
                data = self._listen(self._worker_of[env], env, None)
            more, loose = pickle.loads(data)
            notes.extend(more)
            for part, value in zip(self._layout.loose, loose, strict=True):
                self._loose[part][env] = value
        for note in notes:
            infos = self._add_info(infos, note, env)
        return infos

    def _listen(self, worker: int, env: int | None, deadline: float | None) -> Any:
        """The parcel of an environment, or (``None``) the reply to a letter; other parcels are kept for later."""
        if env is not None and env in self._parcels:
            return self._parcels.pop(env)
        while True:
            try:
                kind, content = self._crew.receive(worker, deadline)
            except WorkerGone:
                self._raise_death(worker)
            except WorkerSilent:
                self._raise_hung(list(self._shares[worker]))
            if kind == "reply":
                return content
            sender, data = content
            if sender == env:
                return data
            self._parcels[sender] = data

    def _observations(self) -> Any:
        parts: list[Any] = []
        copy = self.copy and self._rollout is None
        for index, array in enumerate(self._view(self._buffer).observations):
            if array is None:
                parts.append(tuple(self._loose[index]))
            else:
                parts.append(array.copy() if copy else array)
        return self._layout.build(parts)

    def _carry(self, env: int, buffer: int) -> None:
        """Brings an environment's newest results from one buffer to the other."""
        source, target = self._view(self._at[env]), self._view(buffer)
        if source is target:
            return
        for old, new in zip(source.observations, target.observations, strict=True):
            if old is not None and new is not None:
                new[env] = old[env]
        target.rewards[env] = source.rewards[env]
        target.terminations[env], target.truncations[env] = source.terminations[env], source.truncations[env]
        self._at[env] = buffer

    # ── mending ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _mend_raised(self, env: int, fault: Fault) -> None:
        if not self._patience.bears(env):
            self._raise_fault([env], fault, "raised")
        self._restore(env, f"{fault.summary}\n{fault.traceback}", remake=True)

    def _mend_dead(self, worker: int) -> None:
        share = list(self._shares[worker])
        pid, hand = self._crew.pid(worker), int(self._floor.in_hand[worker]) - 1
        self._parcels.update(content for kind, content in self._crew.estate(worker) if kind == "parcel")
        how = self._crew.bury(worker)
        what = f"{_process(pid)} of {_named(share)} ended: {how}"
        if hand >= 0:
            what += f", while it was busy with environment {hand}"
        blamed = [hand] if hand in share else share
        if not all([self._patience.bears(env) for env in blamed]):
            raise EnvDied(f"{what}. {_ADVICE}", blamed)
        self._revive(worker, what)

    def _mend_hung(self, overdue: list[int]) -> None:
        for worker in dict.fromkeys(self._worker_of[env] for env in overdue):
            envs = [env for env in overdue if self._worker_of[env] == worker]
            hand = int(self._floor.in_hand[worker]) - 1
            blamed = [hand] if hand in envs else envs
            if not all([self._patience.bears(env) for env in blamed]):
                self._raise_hung(envs)
            process = _process(self._crew.pid(worker))
            what = f"{_named(blamed)} did not answer within {self.step_timeout_s} s; {process} was killed"
            self._crew.kill(worker)
            self._crew.bury(worker)
            self._revive(worker, what)

    def _revive(self, worker: int, what: str) -> None:
        """Another process takes the place of one that has ended. Its environments are made anew."""
        self._core.vacate(worker)
        self._floor.in_hand[worker] = 0
        targets = tuple(self._targets.values())
        orders = Orders(worker, self._shares[worker], self.autoreset_mode, self._blueprint, self._core.name, targets)
        self._core.expect(worker, self._crew.start(orders))
        for env in self._shares[worker]:
            if self._core.is_out(env):
                self._parcels.pop(env, None)
                self._restore(env, what, remake=False)
            else:  # idle, or its last answer is taken already: begun anew with its next action
                self._faults[env] = what
                if self._flags.get(env, 0) & PARCEL and env not in self._parcels:
                    self._flags[env] &= ~PARCEL

    def _restore(self, env: int, what: str, remake: bool) -> None:
        """Ends a lost episode: the last observation again, and a new seed that follows from the old one."""
        self._faults[env] = what
        seed = self._seeds[env]
        self._restarts[env] += 1
        if seed is not None:
            seed = int(np.random.SeedSequence([seed, self._restarts[env]]).generate_state(1)[0])
        self._carry(env, self._buffer)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            parts = [
                self._loose[index][env] if array is None else array[env].copy()
                for index, array in enumerate(self._view(self._buffer).observations)
            ]
            self._lost[env] = self._layout.build(parts)
        self._ask(RESTORE, [env], {env: (seed, remake)})

    def _raise_fault(self, envs: list[int], fault: Fault, what: str) -> NoReturn:
        told = f"{_named(envs)} {what}: {fault.summary}\n\nIn the worker:\n{fault.traceback}"
        raise EnvRaised(told, envs) from fault.cause()

    def _raise_death(self, worker: int) -> NoReturn:
        share, pid = list(self._shares[worker]), self._crew.pid(worker)
        raise EnvDied(f"{_process(pid)} of {_named(share)} ended: {self._crew.bury(worker)}. {_ADVICE}", share)

    def _raise_hung(self, envs: list[int]) -> NoReturn:
        worker = self._worker_of[envs[0]]
        hand = int(self._floor.in_hand[worker]) - 1
        blamed = [hand] if hand in envs else envs
        raise EnvHung(
            f"{_named(blamed)} has not answered for {self.step_timeout_s} s (in {_process(self._crew.pid(worker))}, "
            f"with {_named(list(self._shares[worker]))}). Wait for it with step_wait() or recv(), close() to end "
            "it, or use restart=RestartPolicy() to have it begun anew",
            blamed,
        )


_ADVICE = "Use restart=RestartPolicy() to have its environments begun anew while the others go on"


def _end(core: EnvCaller, crew: Crew, pid: int, timeout: float = 5.0) -> None:
    if os.getpid() == pid:
        core.close()
        crew.dismiss(timeout)


def _check(what: str, value: int, least: int, most: int | None) -> None:
    if value < least or (most is not None and value > most):
        limit = f"{least} to {most}" if most is not None else f"at least {least}"
        raise InvalidArgument(f"{what} is {value}; it must be {limit}")


def _named(envs: Sequence[int]) -> str:
    if len(envs) == 1:
        return f"environment {envs[0]}"
    if list(envs) == list(range(envs[0], envs[-1] + 1)):
        return f"environments {envs[0]} to {envs[-1]}"
    return f"environments {', '.join(map(str, envs))}"


def _process(pid: int | None) -> str:
    return "worker process" if pid is None else f"worker process {pid}"
