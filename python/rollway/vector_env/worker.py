"""The worker process: makes its environments, steps them when asked, and writes what they say into shared memory.

Started by `Crew`, and by nobody else. It ends when it is told to, or with its caller, whichever comes first. Exceptions
of an environment are told to the caller and end nothing.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import pickle
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from gymnasium import Env, Space
from gymnasium.vector import AutoresetMode

from rollway._core import EnvSink, EnvWorker, end_with, map_for
from rollway.collector_error import signal_of
from rollway.errors import PeerDied, SegmentDamaged, SegmentNotFound, SystemCallFailed
from rollway.vector_env.layout import Array, Blueprint, Buffer, SpaceLayout
from rollway.vector_env.member import Member, Notes, Outcome, Step
from rollway.vector_env.rollout import Target
from rollway.vector_env.task import FAULT, LETTER, PARCEL, RESET, RESTORED, CallersMistake, Fault
from rollway.vector_env.wire import Inlet, Outlet, number_posted


@dataclass(frozen=True)
class Orders:
    """What a worker is told when it is started."""

    worker: int
    caller: int
    """Its process id."""
    envs: range
    mode: AutoresetMode
    blueprint: Blueprint | None
    """``None``: tell the spaces first; the blueprint comes by the pipe."""
    name: str | None
    """The segment; comes with the blueprint."""
    targets: tuple[Target, ...] = ()
    """Other places to write to, known before this worker was."""


@dataclass(frozen=True)
class Unread:
    """In place of a parameter that could not be unpickled."""

    why: Exception


@dataclass(frozen=True)
class Introduction:
    """What a worker tells about its environments, so that the blueprint can be drawn."""

    observation_spaces: list[Space[Any]]
    action_spaces: list[Space[Any]]
    metadata: dict[str, Any]
    render_mode: str | None

    @classmethod
    def of(cls, envs: Sequence[Env[Any, Any]]) -> Introduction:
        """Of these environments."""
        observations, actions = [env.observation_space for env in envs], [env.action_space for env in envs]
        return cls(observations, actions, dict(envs[0].metadata), envs[0].render_mode)


def _pickled(introduction: Introduction) -> bytes | None:
    """``None`` when a space cannot travel: its class may be local to a function."""
    try:
        return pickle.dumps(introduction)
    except (AttributeError, TypeError, pickle.PicklingError):
        return None


def work(orders: Orders, makers: Sequence[Callable[[], Env[Any, Any]]], pipe: Connection) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's: it closes us.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # held until now by `Crew`
    try:
        end_with(orders.caller)
    except SystemCallFailed:
        return  # It has ended already.
    members: list[Member] = []
    try:
        _work(orders, makers, members, pipe)
    finally:
        with contextlib.ExitStack() as stack:  # every one, also when another raises
            for member in reversed(members):
                stack.callback(member.env.close)


def _work(
    orders: Orders, makers: Sequence[Callable[[], Env[Any, Any]]], members: list[Member], pipe: Connection
) -> None:
    try:
        for make in makers:
            members.append(Member(make, orders.mode, fresh=orders.blueprint is not None))
    except BaseException as error:  # noqa: BLE001 - told to the caller, which raises it
        pipe.send(("fault", (orders.envs[len(members)], Fault.of(error))))
        return
    blueprint, name = orders.blueprint, orders.name
    if blueprint is None or name is None:
        pipe.send(("hello", _pickled(Introduction.of([member.env for member in members]))))
        try:
            _, plan = Inlet(pipe).hear()
        except EOFError:
            return
        if plan is None:
            return  # The caller has found something wrong with another worker.
        blueprint, name = plan
    try:
        core = EnvWorker(name, orders.worker)
    except SegmentNotFound:
        return  # The caller has closed meanwhile.
    if not core.caller_lives():
        return
    desk = Desk(core, orders, blueprint, members, pipe)
    pipe.send(("ready", None))
    try:
        desk.serve()
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass  # The caller has closed while we had something to say or to hear.
    except SegmentDamaged as error:
        desk.give_up(error)
    finally:
        desk.close()


class Desk:
    """One worker's environments, its share of the arrays, and the ways to the caller."""

    def __init__(
        self, core: EnvWorker, orders: Orders, blueprint: Blueprint, members: list[Member], pipe: Connection
    ) -> None:
        self._core, self._members = core, members
        self._inlet, self._outlet = Inlet(pipe), Outlet(pipe)
        self._blueprint, self._first = blueprint, orders.envs.start
        self._same_step = orders.mode is AutoresetMode.SAME_STEP
        floor = blueprint.floor(core.memory)
        self._layout = blueprint.observation
        self._buffers = floor.buffers
        self._maps: dict[int, memoryview] = {}
        self._sinks: dict[int, Sink] = {}
        self._plain_sinks: dict[int, EnvSink] = {}
        for number, buffer in enumerate(floor.buffers):
            self._open_sink(number, buffer)
        self._targets: list[Target] = []
        for target in orders.targets:
            with contextlib.suppress(PeerDied, SegmentNotFound):  # its client is closed: nobody will ask for it
                self._aim(target)
        self._source = Source(blueprint.action, floor.actions, orders.envs)
        self._steps: list[Step | None] = []
        """By environment: its `Member.next_step`."""
        self._in_hand = floor.in_hand[orders.worker : orders.worker + 1]
        self._lengths, self._letters = floor.lengths.data, floor.letters
        self._posted, self._heard = floor.posted.data[orders.worker : orders.worker + 1], 0
        self._mail: deque[tuple[int, bytes]] = deque()
        self._parameters: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._parcels: list[tuple[tuple[int, int], bytes]] = []

    def serve(self) -> None:
        """Does what is asked, until the end. Steps are made natively; what is special about one is asked of us."""
        core, members, steps, sinks = self._core, self._members, self._steps, self._sinks
        # All that lives by now lives as long as this process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        while True:
            steps[:] = [member.next_step for member in members]
            call, what, buffer, envs = core.serve(self, steps, self._plain_sinks, self._in_hand)
            if call == "closed":
                return
            if call == "mail":
                self._listen()
                while self._mail:
                    number, letter = self._mail.popleft()
                    self._outlet.say(("reply", (number, self._reply(letter))))
            else:
                core.answer((self._reset if what == RESET else self._restore)(envs, sinks[buffer]))
                self.ship()

    # ── for the core, while it steps ──────────────────────────────────────────────────────────────────────────────────

    def actions(self, envs: list[int] | None) -> Sequence[Any] | Array | None:
        """An action for each of these, or of all; ``None``: ask for each `action`."""
        return None if self._source.loose else self._source.take(envs)

    def action(self, env: int) -> Any:
        """One that came by the pipe. Raises, if it did not."""
        return self._parameter(env)

    def settle(self, env: int, buffer: int, outcome: Any) -> int:
        """Takes what a step returned, if there is more to it than arrays of the right kind."""
        member = self._members[env - self._first]
        notes: Any
        try:
            observation, reward, terminated, truncated, notes = outcome
            if terminated or truncated:
                observation, notes = member.finish(observation, notes)
                self._steps[env - self._first] = member.next_step
            elif notes:
                notes = [notes]
            return self._write(env, self._sinks[buffer], (observation, reward, terminated, truncated, notes))
        except BaseException as error:  # noqa: BLE001 - told to the caller
            return self.fail(env, error)

    def begin(self, env: int, buffer: int) -> int:
        """In place of a step: the next episode."""
        member = self._members[env - self._first]
        try:
            if member.fresh:
                return self._begin_anew(env, self._sinks[buffer])
            return self._write(env, self._sinks[buffer], member.special())
        except BaseException as error:  # noqa: BLE001 - told to the caller
            return self.fail(env, error)
        finally:
            self._steps[env - self._first] = member.next_step

    def fail(self, env: int, error: BaseException) -> int:
        """An exception of an environment, to be told to the caller."""
        return self._wrap(env, pickle.dumps(Fault.of(error)), FAULT)

    def ship(self) -> None:
        """Sends what was too long. After the answer: the caller reads the pipe once it knows that something comes."""
        parcels, self._parcels = self._parcels, []
        for parcel in parcels:
            self._outlet.say(("parcel", parcel))

    def give_up(self, error: SegmentDamaged) -> None:
        """Tells the caller why this process ends."""
        self._outlet.say(("fault", (None, Fault.of(error))))

    def close(self) -> None:
        """There is nobody to speak to any more."""
        self._outlet.close()

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _reset(self, envs: list[int], sink: Sink) -> bytes:
        return self._each(envs, lambda env: self._reset_one(env, sink))

    def _reset_one(self, env: int, sink: Sink) -> int:
        member = self._members[env - self._first]
        seed, options, remake = self._parameter(env)
        if remake:
            _remake(member)
        observation, notes = member.reset(seed, options)
        sink.write(env, observation)
        sink.rewards[env], sink.terminations[env], sink.truncations[env] = 0.0, False, False
        return self._write_letter(env, notes, observation) if notes or self._layout.loose else 0

    def _restore(self, envs: list[int], sink: Sink) -> bytes:
        return self._each(envs, lambda env: self._restore_one(env, sink))

    def _restore_one(self, env: int, sink: Sink) -> int:
        member = self._members[env - self._first]
        member.seed, remake = self._parameter(env)
        if remake:
            _remake(member)
        return self._begin_anew(env, sink)

    def _begin_anew(self, env: int, sink: Sink) -> int:
        """A lost episode ends here: truncated. Its last observation is in place already."""
        member = self._members[env - self._first]
        sink.rewards[env], sink.terminations[env], sink.truncations[env] = 0.0, False, True
        if not self._same_step:
            member.due, member.fresh = True, False
            return RESTORED
        observation, notes = member.begin()
        sink.write(env, observation)
        return RESTORED | (self._write_letter(env, notes, observation) if notes or self._layout.loose else 0)

    def _each(self, envs: list[int], do: Callable[[int], int]) -> bytes:
        flags = bytearray(len(envs))
        for position, env in enumerate(envs):
            self._in_hand[0] = env + 1
            try:
                flags[position] = do(env)
            except BaseException as error:  # noqa: BLE001 - told to the caller
                flags[position] = self.fail(env, error)
        self._in_hand[0] = 0
        return bytes(flags)

    def _write(self, env: int, sink: Sink, outcome: Outcome) -> int:
        observation, reward, terminated, truncated, notes = outcome
        sink.write(env, observation)
        try:
            sink.rewards[env] = reward
            is_held = sink.whole is None or sink.rewards[env] == reward
        except OverflowError:
            is_held = False
        except (TypeError, ValueError):
            raise TypeError(f"the reward is {reward!r}; it must be one number") from None
        if not is_held:
            raise TypeError(f"the reward is {reward!r}, which {sink.whole or 'a float'} of its array cannot hold")
        sink.terminations[env] = terminated
        sink.truncations[env] = truncated
        return self._write_letter(env, notes or [], observation) if notes or self._layout.loose else 0

    def _parameter(self, env: int) -> Any:
        """What belongs to a task and came by the pipe."""
        self._listen()
        if env not in self._parameters:
            raise RuntimeError("the caller was interrupted before it had said how: reset() it")
        parameter = self._parameters.pop(env)
        if isinstance(parameter, Unread):
            raise CallersMistake(f"what was sent to it cannot be unpickled there: {parameter.why}") from parameter.why
        return parameter

    def _listen(self) -> None:
        """Hears all that the caller has posted. What it then did not ask for is replaced by what it posts next."""
        while self._heard < number_posted(self._posted[0], self._heard):
            self._heard, (kind, content) = self._inlet.hear()
            if kind == "letter":
                self._mail.append(content)
                continue
            envs, letter = content
            try:
                self._parameters.update(zip(envs, pickle.loads(letter), strict=True))
            except Exception as error:  # noqa: BLE001 - told to the caller, once for each
                self._parameters.update(dict.fromkeys(envs, Unread(error)))

    # ── what does not fit into arrays ─────────────────────────────────────────────────────────────────────────────────

    def _write_letter(self, env: int, notes: Notes, observation: Any) -> int:
        parts = self._layout.split(observation) if self._layout.loose else ()
        for note in notes:
            if not isinstance(note, dict):
                raise TypeError(f"its info is {note!r}; it must be a dict")
        try:
            data = pickle.dumps((notes, [parts[index] for index in self._layout.loose]), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise TypeError(f"its info or observation cannot be pickled: {error}") from error
        room = self._blueprint.letter_bytes
        if len(data) > room:
            return self._wrap(env, data, PARCEL)
        self._letters[env * room : env * room + len(data)] = data
        self._lengths[env] = len(data)
        return LETTER

    def _wrap(self, env: int, data: bytes, flag: int) -> int:
        self._lengths[env] = number = next(self._numbers) % (1 << 32)
        self._parcels.append(((env, number), data))
        return flag

    def _aim(self, target: Target) -> None:
        """Learns other places to write to."""
        if target.client not in self._maps:
            self._maps[target.client] = map_for(target.segment, target.owner)
        for step, buffer in enumerate(target.buffers(self._maps[target.client], self._buffers[Target.SPARE])):
            self._open_sink(target.first + step, buffer)
        self._targets.append(target)

    def _open_sink(self, number: int, buffer: Buffer) -> None:
        self._sinks[number] = sink = Sink(self._layout, buffer)
        if sink.plain is not None:
            self._plain_sinks[number] = sink.plain

    def _forget(self, clients: set[int]) -> None:
        """Lets go of places that nobody will ask for."""
        for target in self._targets:
            if target.client in clients:
                for step in range(target.steps):
                    del self._sinks[target.first + step]
                    self._plain_sinks.pop(target.first + step, None)
        self._targets = [target for target in self._targets if target.client not in clients]
        for client in clients:
            self._maps.pop(client, None)
        gc.collect()  # sinks of several parts refer to themselves, and through their arrays to the memory

    # ── letters from the caller ───────────────────────────────────────────────────────────────────────────────────────

    def _reply(self, letter: bytes) -> Any:
        """The results, one for each environment; or the number of the one that failed, and its fault."""
        results: list[Any] = []
        try:
            what, *arguments = pickle.loads(letter)
            if what in ("target", "forget"):
                (self._aim if what == "target" else self._forget)(*arguments)
                return pickle.dumps(results)
        except BaseException as error:  # noqa: BLE001 - told to the caller
            return self._first, Fault.of(error)
        for env, member in enumerate(self._members, self._first):
            self._in_hand[0] = env + 1
            try:
                if what == "call":
                    name, args, kwargs = arguments
                    attribute = member.env.get_wrapper_attr(name)
                    results.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
                else:
                    name, values = arguments
                    results.append(member.env.set_wrapper_attr(name, values[env - self._first]))
            except BaseException as error:  # noqa: BLE001 - told to the caller
                return env, Fault.of(error)
            finally:
                self._in_hand[0] = 0
        try:
            return pickle.dumps(results, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - what cannot travel is told as a fault
            return self._first, Fault.of(error)


def _remake(member: Member) -> None:
    with contextlib.suppress(Exception):  # it is broken: that it cannot be closed either is no news
        member.env.close()
    member.open()


class Sink:
    """Writes the results of environments into one buffer."""

    def __init__(self, layout: SpaceLayout, buffer: Buffer) -> None:
        self._layout, self._arrays = layout, buffer.observations
        self.rewards = _numbers(buffer.rewards)
        self.whole = buffer.rewards.dtype if buffer.rewards.dtype.kind in "biu" else None
        """The dtype of rewards, where it is one of whole numbers, as in a slot: it does not hold every reward."""
        self.terminations, self.truncations = _numbers(buffer.terminations), _numbers(buffer.truncations)
        rows = buffer.observations[0] if layout.single else None
        numbers = (buffer.rewards, buffer.terminations, buffer.truncations)
        self.plain = None if rows is None else EnvSink.over(rows, *numbers)
        """The same, natively: it takes what needs no conversion. ``None``: every result is for Python."""
        self.write: Callable[[int, Any], None] = self._write_parts if rows is None else _row_writer(rows, "")
        self._writers = [
            None if array is None else _row_writer(array, part.path)
            for array, part in zip(self._arrays, layout.parts, strict=True)
        ]

    def _write_parts(self, env: int, observation: Any) -> None:
        for writer, value in zip(self._writers, self._layout.split(observation), strict=True):
            if writer is not None:
                writer(env, value)


def _numbers(array: Array) -> Any:
    """A memoryview is faster than its array for single numbers. Most kinds of them it does not take from NumPy."""
    return array.data if array.dtype in (np.float64, np.float32, np.bool_) else array


def _row_writer(array: Array, path: str) -> Callable[[int, Any], None]:
    """Writes one row of an array. A value of another shape is an error, not broadcast; of another kind, too."""
    shape, dtype = array.shape[1:], array.dtype
    known = {dtype}

    def write(env: int, value: Any) -> None:
        if not (type(value) is np.ndarray and value.shape == shape):
            value = np.asarray(value)
            if value.shape != shape:
                raise ValueError(
                    f"the observation{path} has shape {value.shape}, but its space says {shape} of {dtype}"
                )
        if value.dtype not in known:
            if not np.can_cast(value.dtype, dtype, "same_kind"):
                raise TypeError(f"the observation{path} is {value.dtype}, which {dtype} of its space cannot hold")
            known.add(value.dtype)
        array[env] = value

    return write


class Source:
    """Reads the actions of this worker's environments."""

    def __init__(self, layout: SpaceLayout, arrays: list[Array | None], envs: range) -> None:
        self._layout, self._first = layout, envs.start
        self._arrays = [None if array is None else array[envs.start : envs.stop] for array in arrays]
        self.loose = bool(layout.loose)
        """Whether actions come by the pipe, whole."""

    def take(self, envs: list[int] | None) -> Sequence[Any] | Array:
        """One action for each. Copies: an environment may keep its action for longer than the shared memory does."""
        parts: list[Array] = []
        for array in self._arrays:
            assert array is not None  # no loose parts
            parts.append(array.copy() if envs is None else array[[env - self._first for env in envs]])
        if self._layout.single:
            return parts[0]
        return [self._layout.build(row) for row in zip(*parts, strict=True)]


def describe_end(exitcode: int | None) -> str:
    """How a process ended, for people."""
    if exitcode is None:
        return "it is still there, but has left its work"
    if exitcode < 0:
        known = signal_of(exitcode)
        name = f"signal {-exitcode}" if known is None else known.name  # those of real time have none
        hints = {"SIGKILL": " (out of memory, or somebody's kill -9?)", "SIGBUS": " (is /dev/shm full?)"}
        return f"killed by {name}{hints.get(name, '')}"
    return f"it called exit with code {exitcode}" if exitcode else "it exited in the middle of its work, with code 0"
