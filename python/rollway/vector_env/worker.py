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

from gymnasium import Env
from gymnasium.vector import AutoresetMode

from rollway._core import EnvSink, EnvWorker, end_with, map_for
from rollway.errors import PeerDied, SegmentDamaged, SegmentNotFound, SystemCallFailed
from rollway.vector_env.layout import Array, Blueprint, Buffer, Target
from rollway.vector_env.pipe import Inlet, Outlet, number_posted
from rollway.vector_env.protocol import (
    FAULT,
    LETTER,
    PARCEL,
    RESET,
    RESTORED,
    CallersMistake,
    Fault,
    Introduction,
    Orders,
)
from rollway.vector_env.worker_env import Member, Notes, Outcome, Sink, Source, Step


@dataclass(frozen=True)
class Unread:
    """In place of a parameter that could not be unpickled."""

    why: Exception


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
            member.remake()
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
            member.remake()
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
