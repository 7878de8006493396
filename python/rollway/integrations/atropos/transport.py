"""RollwayTransportMixin and `with_transport`: an Atropos environment that sends records in place of HTTP requests.

The mixin comes before the environment in the MRO. It overrides the methods in which Atropos' own loop talks to its API
server: to register, to ask for the status, to send a group. The environment's code is unchanged, and with
``transport="http"`` everything is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollway.errors import ConnectionClosedError, PeerDied
from rollway.integrations.atropos import identity
from rollway.integrations.atropos.encoding import ATROPOS_SCHEMA
from rollway.integrations.atropos.group_sender import GroupSender, TcpGroupSender

if TYPE_CHECKING:
    from rollway.records.key import GroupKey

_log = logging.getLogger(__name__)
_SILENT_S = 5.0  # after this time, the log says that there is no learner yet
_LEAVING_S = 10.0  # how long cancelled workers may take to send the rest of their groups
_FORGOTTEN = ("inference_logprobs", "distill_token_ids", "distill_logprobs")


@dataclass
class _GroupInProgress:
    """An item that the environment works on: its name, and the version of the weights at its start."""

    instance_id: str
    version: int
    settled: int = 0  # groups that were sent, or have a tombstone
    sent: list[int] = field(default_factory=list)  # the `id` of each group that was given to the sender
    owed: set[int] = field(default_factory=set)  # of those, the groups of which the learner has no record yet

    def settle(self, group: int) -> None:
        """A record or a tombstone of the group was sent. Safe to call twice."""
        if group in self.owed:
            self.owed.remove(group)
            self.settled += 1


_current_group: ContextVar[_GroupInProgress | None] = ContextVar("rollway_group", default=None)
_results: ContextVar[list[Any] | None] = ContextVar("rollway_results", default=None)


def with_transport(environment: type[Any], *, instance_id: Callable[[Any], str | int] | None = None) -> type[Any]:
    """The environment class, with ``transport``, ``shm_name`` and the like among its settings. Also a decorator.

    Args:
        environment: A subclass of Atropos' `BaseEnv`. It is not changed.
        instance_id: Returns the same text or whole number for the same item. By default the method ``instance_id`` of
            the environment; without one, the item's own id, or a hash of its content.
    """
    if issubclass(environment, RollwayTransportMixin):
        return environment
    body: dict[str, Any] = {"__module__": environment.__module__, "__doc__": environment.__doc__}
    if instance_id is not None:
        body["instance_id"] = lambda self, item: instance_id(item)
    bases = (RollwayTransportMixin, environment)
    return types.new_class(environment.__name__, bases, exec_body=lambda names: names.update(body))


class RollwayTransportMixin:
    """For a class statement, in place of `with_transport`: ``class Fast(RollwayTransportMixin, MyEnv)``."""

    if TYPE_CHECKING:  # attributes of the environment
        config: Any
        server: Any
        workers: set[asyncio.Task[Any]]
        backlog: list[Any]
        running_items: dict[str, dict[str, Any]]
        curr_step: int
        max_token_len: int
        env_id: int
        load_checkpoint: Callable[[], None]

    _rollway_sender: GroupSender | None = None
    _rollway_failure: Exception | None = None  # of a worker, for the loop

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        from rollway.integrations.atropos.config import extend

        super().__init__(extend(config), *args, **kwargs)  # type: ignore[call-arg]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Adds the settings to the environment's config class. Checks that the mixin comes before the environment."""
        from rollway.integrations.atropos.config import with_transport_fields

        behind = cls.__mro__[cls.__mro__.index(RollwayTransportMixin) + 1 :]
        if not any("env_config_cls" in vars(base) for base in behind):
            raise TypeError(
                f"{cls.__name__}: RollwayTransportMixin must come before an Atropos environment, as in "
                "class Fast(RollwayTransportMixin, MyEnv)"
            )
        super().__init_subclass__(**kwargs)
        cls.env_config_cls = with_transport_fields(cls.env_config_cls)  # type: ignore[attr-defined]

    @classmethod
    def config_init(cls) -> tuple[Any, Any]:
        """The environment's own defaults, from which Atropos makes the command line."""
        from rollway.integrations.atropos.config import extend

        config, servers = super().config_init()  # type: ignore[misc]
        return extend(config), servers

    # ── hooks ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def instance_id(self, item: Any) -> str | int:
        """The name of an item in the keys of its records."""
        own: Callable[[Any], str | int] = getattr(super(), "instance_id", identity.instance_id)
        return own(item)

    def weight_version(self) -> int:
        """The version for the records of an item, read when its collection begins: the trainer's step."""
        own: Callable[[], int] | None = getattr(super(), "weight_version", None)
        if own is not None:
            return own()
        if self._rollway_sender is not None and self._is_direct:
            return self._rollway_sender.published_version
        return self.curr_step

    # ── requests to the API server ───────────────────────────────────────────────────────────────────────────────

    async def env_manager(self) -> None:
        """Atropos' loop. It returns when the learner closes."""
        if self.config.transport == "http":
            return await super().env_manager()  # type: ignore[misc]
        from rollway.integrations.atropos.config import check

        check(self.config)
        try:
            await super().env_manager()  # type: ignore[misc]
        except ConnectionClosedError as closed:
            _log.info("the environment ends: %s", closed)
        finally:
            await self._shut_down()

    async def setup_wandb(self) -> None:
        """Without an API server, the project comes from the config."""
        if not self._is_direct:
            await super().setup_wandb()  # type: ignore[misc]
        elif self.config.use_wandb:
            import wandb

            self.wandb_project, self.wandb_group = self.config.wandb_project, self._name
            wandb.init(
                name=self.config.wandb_name,
                project=self.config.wandb_project,
                group=self._name,
                config=self.config.model_dump(),
            )

    async def register_env(self) -> None:
        """Joins the learner; with a hub, registers with the API server first."""
        if not self._is_direct:
            await super().register_env()  # type: ignore[misc]
        if self.config.transport == "http":
            return
        self._rollway_sender = await _connected(self.config, self._name)
        if self._is_direct:
            self.wandb_prepend = self._name
            self.curr_step = self._rollway_sender.published_version
            self.checkpoint_dir = self.config.checkpoint_dir
            self.checkpoint_interval = self.config.checkpoint_interval
            if self.curr_step > 0:
                self.load_checkpoint()

    async def get_server_info(self) -> None:
        """Without an API server, the config has the length that a sequence may have."""
        if not self._is_direct:
            await super().get_server_info()  # type: ignore[misc]
        else:
            self.max_token_len = self.config.trainer_max_token_len

    async def get_status(self) -> None:
        """Sets the step and the queue size, by which Atropos' loop decides whether to generate, evaluate or stop.

        Records in the lanes count as queued. Records that a trainer has taken do not, as in Atropos' own queue: it may
        take many batches for a step, and hold them until the step is done.
        """
        if self._rollway_failure is not None:
            raise self._rollway_failure
        sender = self._rollway_sender
        if sender is None:
            return await super().get_status()  # type: ignore[misc]
        step, records = sender.status()
        waiting = -(-records // self.config.group_size)
        if self._is_direct:
            self.status_dict = {
                "current_step": step,
                "queue_size": waiting,
                "self_queue_size": waiting,
                "max_group_size": self.config.group_size,
                "unallocated_fraction": 1.0 - (self.config.min_batch_allocation or 0.0),
                "env_weight": 1.0,
            }
            per_node = self.config.max_num_workers_per_node * len(self.server.servers)
            self.max_num_workers = per_node if self.config.max_num_workers == -1 else self.config.max_num_workers
            await self.server.update_weight(1.0)
        else:
            # While the API server answers, groups move into its queue and new ones are sent. The sum has all of them;
            # some may count twice until the next time.
            before = sender.groups_sent
            try:
                await super().get_status()  # type: ignore[misc]
            except Exception:
                sender.status()  # raises ConnectionClosedError if the hub has closed, and its API server with it
                raise
            waiting += sender.groups_sent - before
            self.status_dict["queue_size"] += waiting
            self.status_dict["self_queue_size"] += waiting

    # ── sending groups ────────────────────────────────────────────────────────────────────────────────────────────

    async def handle_env(self, item_uuid: str) -> Any:
        """Collects and sends one item. An item without any group gets a tombstone."""
        if self._rollway_sender is None:
            return await super().handle_env(item_uuid)  # type: ignore[misc]
        item = self.running_items[item_uuid]["item"]
        with self._collecting(item) as in_progress:
            try:
                collected = await super().handle_env(item_uuid)  # type: ignore[misc]
            except asyncio.CancelledError:
                if not self._is_tried_again(item, item_uuid):
                    for _ in range(len(in_progress.owed) or not in_progress.settled):
                        await self._send_tombstone(in_progress, "its worker was cancelled, or took too long")
                raise
            if not in_progress.settled:
                await self._send_tombstone(in_progress, "the environment collected nothing")
            return collected

    async def handle_send_to_api(
        self,
        scored_data: Any,
        item: Any = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Atropos filters and sends; each group that it drops gets a tombstone with the reason."""
        arguments = (scored_data, item, do_send_to_api, abort_on_any_max_length_exceeded)
        if self._rollway_sender is None or not do_send_to_api:
            return await super().handle_send_to_api(*arguments)  # type: ignore[misc]
        groups = scored_data if isinstance(scored_data, list) else [scored_data]
        with self._collecting(item) as in_progress:
            before, failure = len(in_progress.sent), None
            try:
                await super().handle_send_to_api(*arguments)  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001 (raised below, after the tombstones)
                failure = error
            sent = in_progress.sent[before:]
            dropped = [group for group in groups if id(group) not in sent]
            rewritten = len(sent) - (len(groups) - len(dropped))  # the environment sent other objects for these
            for group in dropped[rewritten:]:
                if failure is None:
                    why = self._why_dropped(group, abort_on_any_max_length_exceeded)
                else:
                    why = f"Atropos could not send it: {failure}"
                await self._send_tombstone(in_progress, why)
        if failure is not None:
            raise failure

    async def _send_scored_data_to_api(self, scored_data: Any) -> None:
        if self._rollway_sender is None:
            return await super()._send_scored_data_to_api(scored_data)  # type: ignore[misc]
        failures: list[Exception] = []
        groups = scored_data if isinstance(scored_data, list) else [scored_data]
        with self._collecting(None) as in_progress:
            in_progress.sent += map(id, groups)
            in_progress.owed |= set(map(id, groups))
            for group in groups:
                if not self._is_direct:
                    group["env_id"] = self.env_id
                begun = functools.partial(in_progress.settle, id(group))
                try:
                    await self._rollway_sender.send(group, in_progress.instance_id, in_progress.version, begun)
                except PeerDied as error:
                    self._rollway_failure = error
                    raise
                except Exception as error:  # noqa: BLE001 (the sender sent a tombstone; the caller logs the error)
                    begun()
                    failures.append(error)
        if failures:
            raise failures[0]

    async def collect_trajectories(self, item: Any) -> Any:
        """Puts back the logprobs, which Atropos' own implementation drops."""
        if self._rollway_sender is None or not self._gathers_by_default():
            return await super().collect_trajectories(item)  # type: ignore[misc]
        results: list[Any] = []
        before = _results.set(results)
        try:
            group, backlog = await super().collect_trajectories(item)  # type: ignore[misc]
        finally:
            _results.reset(before)
        by_tokens = {id(result["tokens"]): result for result in results}
        rows = [by_tokens[id(tokens)] for tokens in group["tokens"]]
        for name in _FORGOTTEN:
            if name not in group and rows and all(row.get(name) is not None for row in rows):
                group[name] = [row[name] for row in rows]
        return group, backlog

    async def collect_trajectory(self, item: Any) -> Any:
        """The environment's own; also keeps the result for `collect_trajectories`."""
        result = await super().collect_trajectory(item)  # type: ignore[misc]
        gathered = _results.get()
        if gathered is not None:
            gathered.append(result[0])
        return result

    # ── private ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _is_direct(self) -> bool:
        return bool(self.config.transport != "http" and self.config.delivery == "direct")

    @property
    def _name(self) -> str:
        return str(self.config.run_name or self.config.wandb_name or getattr(self, "name", None) or type(self).__name__)

    def _gathers_by_default(self) -> bool:
        from atroposlib.envs.base import BaseEnv

        return getattr(super().collect_trajectories, "__func__", None) is BaseEnv.collect_trajectories  # type: ignore[misc]

    def _is_tried_again(self, item: Any, item_uuid: str) -> bool:
        """Whether Atropos has put a cancelled item back into its backlog, or started it again."""
        others = (entry["item"] for uuid, entry in self.running_items.items() if uuid != item_uuid)
        return any(kept is item for kept in (*self.backlog, *others))

    @contextlib.contextmanager
    def _collecting(self, item: Any) -> Iterator[_GroupInProgress]:
        """The item of this task; in the block, `_current_group` has it."""
        in_progress = _current_group.get()
        if in_progress is not None:
            yield in_progress
            return
        try:
            in_progress = _GroupInProgress(identity.as_text(self.instance_id(item)), self.weight_version())
        except Exception as error:  # every item would raise it: the loop has to end, not only this worker
            self._rollway_failure = error
            raise
        before = _current_group.set(in_progress)
        try:
            yield in_progress
        finally:
            _current_group.reset(before)

    async def _send_tombstone(self, in_progress: _GroupInProgress, reason: str) -> None:
        in_progress.settled += 1
        if self._rollway_sender is None or self._rollway_sender.closed:
            return
        key: GroupKey = await self._rollway_sender.tombstone(in_progress.instance_id, in_progress.version, reason)
        _log.debug("no group %s: %s", key, reason)

    def _why_dropped(self, group: Any, no_overlong: bool) -> str:
        """The first of Atropos' own checks that the group fails."""
        if group is None:
            return "the environment returned no group"
        tokens, scores = group.get("tokens"), group.get("scores")  # lists, arrays or nothing
        lengths = [] if tokens is None else [len(one) for one in tokens]
        wanted = (group.get("group_overrides") or {}).get("group_size", self.config.group_size)
        if len(lengths) != wanted:
            return f"{len(lengths)} trajectories in a group of {wanted}"
        if self.config.ensure_scores_are_not_same and scores is not None and len(set(scores)) == 1:
            return "all scores are equal"
        if no_overlong and 0 < self.max_token_len <= max(lengths, default=0):
            return f"a sequence of {max(lengths)} tokens, where fewer than {self.max_token_len} are allowed"
        return "the environment did not send it"

    async def _shut_down(self) -> None:
        """Lets the workers send the rest of their groups, and closes the client."""
        for worker in self.workers:
            worker.cancel()
        if self.workers:
            await asyncio.wait(self.workers, timeout=_LEAVING_S)
        if self._rollway_sender is not None:
            try:
                await asyncio.to_thread(self._rollway_sender.close)
            except ConnectionClosedError as lost:  # over TCP: says how many records were not acknowledged
                _log.warning("the environment has left: %s", lost)


async def _connected(config: Any, name: str) -> GroupSender:
    """Runs `connect` in a daemon thread, so that Ctrl-C can end an environment that waits for its learner."""
    found: Future[GroupSender] = Future()

    def work() -> None:
        found.set_running_or_notify_cancel()
        try:
            found.set_result(connect(config, name))
        except BaseException as error:  # noqa: BLE001 (it is handed on)
            found.set_exception(error)

    threading.Thread(target=work, name="rollway-atropos-connect", daemon=True).start()
    where = f"--env.shm_name {config.shm_name}" if config.transport == "shm" else f"--env.address {config.address}"
    wondering = asyncio.get_running_loop().call_later(
        _SILENT_S,
        _log.warning,
        "no learner yet (%s): the environment waits for it, up to %g s in all (--env.connect_timeout_s)",
        where,
        config.connect_timeout_s,
    )
    try:
        return await asyncio.wrap_future(found)
    finally:
        wondering.cancel()


def connect(config: Any, name: str) -> GroupSender:
    """Makes the sender of a config. Waits for the learner, so do not call it in the event loop's thread."""
    import rollway
    from rollway.integrations.atropos.config import host_and_port, token

    timeout_s = config.connect_timeout_s
    if config.transport == "shm":
        client = rollway.ShmRecordClient(config.shm_name, ATROPOS_SCHEMA, on_full="block", connect_timeout_s=timeout_s)
        return GroupSender(client, name)
    host, port = host_and_port(config.address)
    options = {"token": token(config), "ca": config.tls_ca, "connect_timeout_s": timeout_s}
    return TcpGroupSender(rollway.TcpRecordClient(host, port, ATROPOS_SCHEMA, **options), name)
