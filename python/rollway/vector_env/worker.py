"""The worker process: makes its environments, steps them on request, and writes their results into shared memory.

Only `WorkerProcesses` starts it. It ends when the caller closes, or when the caller's process ends. It reports an
exception of an environment to the caller, and goes on.
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
from rollway.vector_env.layout import Array, Buffer, RolloutTarget, SharedLayout
from rollway.vector_env.pipe import WorkerSender, last_sent_number, receive_from_caller
from rollway.vector_env.protocol import (
    FAULT,
    INLINE,
    OVERFLOW,
    RESET,
    RESTORED,
    CallerError,
    EnvDescriptions,
    Fault,
    WorkerSettings,
)
from rollway.vector_env.worker_env import ActionReader, Infos, Outcome, ResultWriter, Step, WorkerEnv


@dataclass(frozen=True)
class UnreadableParameter:
    """In place of a parameter that could not be unpickled."""

    why: Exception


def _pickled_or_none(descriptions: EnvDescriptions) -> bytes | None:
    """``None`` when a space cannot be pickled: its class may be local to a function."""
    try:
        return pickle.dumps(descriptions)
    except (AttributeError, TypeError, pickle.PicklingError):
        return None


def work(settings: WorkerSettings, makers: Sequence[Callable[[], Env[Any, Any]]], pipe: Connection) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C, and closes the workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked until now by `WorkerProcesses`
    try:
        end_with(settings.caller)  # `rollway.runner.parent_watch` says why collectors do it in another way
    except SystemCallFailed:
        return  # the caller has ended already
    worker_envs: list[WorkerEnv] = []
    try:
        _work(settings, makers, worker_envs, pipe)
    finally:
        with contextlib.ExitStack() as stack:  # closes every environment, also after one that raises
            for worker_env in reversed(worker_envs):
                stack.callback(worker_env.env.close)


def _work(
    settings: WorkerSettings,
    makers: Sequence[Callable[[], Env[Any, Any]]],
    worker_envs: list[WorkerEnv],
    pipe: Connection,
) -> None:
    try:
        for make in makers:
            worker_envs.append(WorkerEnv(make, settings.mode, is_replacement=settings.shared_layout is not None))
    except BaseException as error:  # noqa: BLE001 - reported to the caller, which raises it
        pipe.send(("fault", (settings.envs[len(worker_envs)], Fault.of(error))))
        return
    shared_layout, name = settings.shared_layout, settings.name
    if shared_layout is None or name is None:
        pipe.send(("spaces", _pickled_or_none(EnvDescriptions.of([worker_env.env for worker_env in worker_envs]))))
        try:
            _, plan = receive_from_caller(pipe)
        except EOFError:
            return
        if plan is None:
            return  # the caller has found something wrong with another worker
        shared_layout, name = plan
    try:
        core = EnvWorker(name, settings.worker)
    except SegmentNotFound:
        return  # the caller has closed meanwhile
    if not core.caller_lives():
        return
    loop = WorkerLoop(core, settings, shared_layout, worker_envs, pipe)
    pipe.send(("ready", None))
    try:
        loop.serve()
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass  # the caller has closed while this worker sent or received
    except SegmentDamaged as error:
        loop.report_end(error)
    finally:
        loop.close()


class WorkerLoop:
    """Serves the caller's requests: one worker's environments, their arrays, and the pipe to the caller.

    Native code makes plain steps, and calls `actions`, `action`, `settle`, `begin`, `fail` and `ship` for the rest.
    """

    def __init__(
        self,
        core: EnvWorker,
        settings: WorkerSettings,
        shared_layout: SharedLayout,
        worker_envs: list[WorkerEnv],
        pipe: Connection,
    ) -> None:
        self._core, self._worker_envs = core, worker_envs
        self._pipe, self._sender = pipe, WorkerSender(pipe)
        self._shared_layout, self._first = shared_layout, settings.envs.start
        self._same_step = settings.mode is AutoresetMode.SAME_STEP
        arrays = shared_layout.arrays(core.memory)
        self._layout = shared_layout.observation
        self._buffers = arrays.buffers
        self._maps: dict[int, memoryview] = {}
        self._writers: dict[int, ResultWriter] = {}
        self._native_writers: dict[int, EnvSink] = {}
        for number, buffer in enumerate(arrays.buffers):
            self._add_writer(number, buffer)
        self._targets: list[RolloutTarget] = []
        for target in settings.targets:
            with contextlib.suppress(PeerDied, SegmentNotFound):  # its client is closed: no request will name it
                self._add_target(target)
        self._action_reader = ActionReader(shared_layout.action, arrays.actions, settings.envs)
        self._steps: list[Step | None] = []
        """By environment: its `WorkerEnv.next_step`."""
        self._busy_env = arrays.busy_env[settings.worker : settings.worker + 1]
        self._lengths, self._inline = arrays.lengths.data, arrays.inline
        self._last_sent, self._last_received = arrays.last_sent.data[settings.worker : settings.worker + 1], 0
        self._calls: deque[tuple[int, bytes]] = deque()
        self._parameters: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._overflow: list[tuple[tuple[int, int], bytes]] = []

    def serve(self) -> None:
        """Serves requests until the caller closes."""
        core, worker_envs, steps, writers = self._core, self._worker_envs, self._steps, self._writers
        # Objects that exist by now live as long as this process: the garbage collector can skip them.
        gc.collect()
        gc.freeze()
        while True:
            steps[:] = [worker_env.next_step for worker_env in worker_envs]
            call, what, buffer, envs = core.serve(self, steps, self._native_writers, self._busy_env)
            if call == "closed":
                return
            if call == "message":
                self._receive_all()
                while self._calls:
                    number, payload = self._calls.popleft()
                    self._sender.send(("reply", (number, self._reply(payload))))
            else:
                core.answer(self._for_each(self._reset if what == RESET else self._restore, envs, writers[buffer]))
                self.ship()

    # ── called by native code while it steps ──────────────────────────────────────────────────────────────────────────

    def actions(self, envs: list[int] | None) -> Sequence[Any] | Array | None:
        """An action for each of these environments, or for all; ``None``: call `action` for each."""
        return None if self._action_reader.is_by_pipe else self._action_reader.read(envs)

    def action(self, env: int) -> Any:
        """The action of an environment that came by the pipe. Raises if none came."""
        return self._parameter(env)

    def settle(self, env: int, buffer: int, outcome: Any) -> int:
        """Writes what a step returned, if it has infos, ends an episode, or needs a conversion."""
        worker_env = self._worker_envs[env - self._first]
        infos: Any
        try:
            observation, reward, terminated, truncated, infos = outcome
            if terminated or truncated:
                observation, infos = worker_env.end_episode(observation, infos)
                self._steps[env - self._first] = worker_env.next_step
            elif infos:
                infos = [infos]
            return self._write(env, self._writers[buffer], (observation, reward, terminated, truncated, infos))
        except BaseException as error:  # noqa: BLE001 - reported to the caller
            return self.fail(env, error)

    def begin(self, env: int, buffer: int) -> int:
        """Starts the next episode, in place of a step."""
        worker_env = self._worker_envs[env - self._first]
        try:
            if worker_env.is_replacement:
                return self._end_lost_episode(env, self._writers[buffer])
            return self._write(env, self._writers[buffer], worker_env.step_after_end())
        except BaseException as error:  # noqa: BLE001 - reported to the caller
            return self.fail(env, error)
        finally:
            self._steps[env - self._first] = worker_env.next_step

    def fail(self, env: int, error: BaseException) -> int:
        """Reports an exception of an environment to the caller."""
        return self._add_overflow(env, pickle.dumps(Fault.of(error)), FAULT)

    def ship(self) -> None:
        """Sends overflow messages. Called after the answer, because only then does the caller read the pipe."""
        overflow, self._overflow = self._overflow, []
        for message in overflow:
            self._sender.send(("overflow", message))

    def report_end(self, error: SegmentDamaged) -> None:
        """Tells the caller why this process ends."""
        self._sender.send(("fault", (None, Fault.of(error))))

    def close(self) -> None:
        """Closes the pipe to the caller."""
        self._sender.close()

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _reset(self, env: int, writer: ResultWriter) -> int:
        worker_env = self._worker_envs[env - self._first]
        seed, options, remake = self._parameter(env)
        if remake:
            worker_env.remake()
        observation, infos = worker_env.reset(seed, options)
        writer.write(env, observation)
        writer.rewards[env], writer.terminations[env], writer.truncations[env] = 0.0, False, False
        return self._write_message(env, infos, observation)

    def _restore(self, env: int, writer: ResultWriter) -> int:
        worker_env = self._worker_envs[env - self._first]
        worker_env.seed, remake = self._parameter(env)
        if remake:
            worker_env.remake()
        return self._end_lost_episode(env, writer)

    def _end_lost_episode(self, env: int, writer: ResultWriter) -> int:
        """Ends a lost episode as truncated. Its last observation is in place already."""
        worker_env = self._worker_envs[env - self._first]
        writer.rewards[env], writer.terminations[env], writer.truncations[env] = 0.0, False, True
        if not self._same_step:
            worker_env.needs_reset, worker_env.is_replacement = True, False
            return RESTORED
        observation, infos = worker_env.start_episode()
        writer.write(env, observation)
        return RESTORED | self._write_message(env, infos, observation)

    def _for_each(self, task: Callable[[int, ResultWriter], int], envs: list[int], writer: ResultWriter) -> bytes:
        flags = bytearray(len(envs))
        for position, env in enumerate(envs):
            self._busy_env[0] = env + 1
            try:
                flags[position] = task(env, writer)
            except BaseException as error:  # noqa: BLE001 - reported to the caller
                flags[position] = self.fail(env, error)
        self._busy_env[0] = 0
        return bytes(flags)

    def _write(self, env: int, writer: ResultWriter, outcome: Outcome) -> int:
        observation, reward, terminated, truncated, infos = outcome
        writer.write(env, observation)
        try:
            writer.rewards[env] = reward
            is_held = writer.whole is None or writer.rewards[env] == reward
        except OverflowError:
            is_held = False
        except (TypeError, ValueError):
            raise TypeError(f"the reward is {reward!r}; it must be one number") from None
        if not is_held:
            raise TypeError(f"the reward is {reward!r}, which {writer.whole or 'a float'} of its array cannot hold")
        writer.terminations[env] = terminated
        writer.truncations[env] = truncated
        return self._write_message(env, infos, observation)

    def _parameter(self, env: int) -> Any:
        """The parameter of a request, which came by the pipe."""
        self._receive_all()
        if env not in self._parameters:
            raise RuntimeError("the caller was interrupted before it sent the parameters: reset() it")
        parameter = self._parameters.pop(env)
        if isinstance(parameter, UnreadableParameter):
            raise CallerError(f"what was sent to it cannot be unpickled there: {parameter.why}") from parameter.why
        return parameter

    def _receive_all(self) -> None:
        """Receives all that the caller has sent. Parameters without a request are replaced by the next ones."""
        while self._last_received < last_sent_number(self._last_sent[0], self._last_received):
            self._last_received, (kind, content) = receive_from_caller(self._pipe)
            if kind == "call":
                self._calls.append(content)
                continue
            envs, payload = content
            try:
                self._parameters.update(zip(envs, pickle.loads(payload), strict=True))
            except Exception as error:  # noqa: BLE001 - reported to the caller, once for each environment
                self._parameters.update(dict.fromkeys(envs, UnreadableParameter(error)))

    # ── messages and slots ────────────────────────────────────────────────────────────────────────────────────────────

    def _write_message(self, env: int, infos: Infos, observation: Any) -> int:
        """Writes infos and parts of variable size, if there are any. Returns the flags of the answer."""
        variable_parts = self._layout.variable_parts
        if not infos and not variable_parts:
            return 0
        infos = infos or []
        for info in infos:
            if not isinstance(info, dict):
                raise TypeError(f"its info is {info!r}; it must be a dict")
        parts = self._layout.split(observation) if variable_parts else ()
        try:
            data = pickle.dumps((infos, [parts[index] for index in variable_parts]), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise TypeError(f"its info or observation cannot be pickled: {error}") from error
        room = self._shared_layout.inline_bytes
        if len(data) > room:
            return self._add_overflow(env, data, OVERFLOW)
        self._inline[env * room : env * room + len(data)] = data
        self._lengths[env] = len(data)
        return INLINE

    def _add_overflow(self, env: int, data: bytes, flag: int) -> int:
        self._lengths[env] = number = next(self._numbers) % (1 << 32)
        self._overflow.append(((env, number), data))
        return flag

    def _add_target(self, target: RolloutTarget) -> None:
        """Maps a slot of a ring, to write results to."""
        if target.client not in self._maps:
            self._maps[target.client] = map_for(target.segment, target.owner)
        for step, buffer in enumerate(target.buffers(self._maps[target.client], self._buffers[RolloutTarget.SPARE])):
            self._add_writer(target.first + step, buffer)
        self._targets.append(target)

    def _add_writer(self, number: int, buffer: Buffer) -> None:
        self._writers[number] = writer = ResultWriter(self._layout, buffer)
        if writer.native is not None:
            self._native_writers[number] = writer.native

    def _remove_targets(self, clients: set[int]) -> None:
        """Unmaps the slots of clients that are closed."""
        for target in self._targets:
            if target.client in clients:
                for step in range(target.steps):
                    del self._writers[target.first + step]
                    self._native_writers.pop(target.first + step, None)
        self._targets = [target for target in self._targets if target.client not in clients]
        for client in clients:
            self._maps.pop(client, None)
        gc.collect()  # writers of several parts refer to themselves, and through their arrays to the memory

    # ── calls from the caller ─────────────────────────────────────────────────────────────────────────────────────────

    def _reply(self, payload: bytes) -> Any:
        """The pickled results, one for each environment; or the environment that failed, and its fault."""
        results: list[Any] = []
        try:
            what, *arguments = pickle.loads(payload)
            if what in ("add_target", "remove_targets"):
                (self._add_target if what == "add_target" else self._remove_targets)(*arguments)
                return pickle.dumps(results)
        except BaseException as error:  # noqa: BLE001 - reported to the caller
            return self._first, Fault.of(error)
        for env, worker_env in enumerate(self._worker_envs, self._first):
            self._busy_env[0] = env + 1
            try:
                if what == "call":
                    name, args, kwargs = arguments
                    attribute = worker_env.env.get_wrapper_attr(name)
                    results.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
                else:
                    name, values = arguments
                    results.append(worker_env.env.set_wrapper_attr(name, values[env - self._first]))
            except BaseException as error:  # noqa: BLE001 - reported to the caller
                return env, Fault.of(error)
            finally:
                self._busy_env[0] = 0
        try:
            return pickle.dumps(results, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - results that cannot be pickled are reported as a fault
            return self._first, Fault.of(error)
