"""RollwayTransportMixin and `with_transport`: an Atropos environment that sends records in place of HTTP requests.

The mixin stands before the environment in the MRO and steps in where Atropos' own loop talks to its API server: when it
registers, asks for the status, and sends a group. Everything else, the environment's code included, stays as it is; and
with ``transport="http"`` all of it does.
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
_SILENT_S = 5.0  # how long a learner may take to appear before somebody wonders
_LEAVING_S = 10.0  # how long cancelled workers have for what they had begun to send
_FORGOTTEN = ("inference_logprobs", "distill_token_ids", "distill_logprobs")


@dataclass
class _GroupInProgress:
    """One item on its way through the environment: what it is, and which weights it began with."""

    instance_id: str
    version: int
    settled: int = 0  # groups that were sent or buried
    sent: list[int] = field(default_factory=list)  # identities of the groups that were given to the sender
    owed: set[int] = field(default_factory=set)  # of those, the ones of which the learner knows nothing yet

    def settle(self, group: int) -> None:
        """The learner knows of it, or will. Safe to call twice."""
        if group in self.owed:
            self.owed.remove(group)
            self.settled += 1


_current_group: ContextVar[_GroupInProgress | None] = ContextVar("rollway_group", default=None)
_results: ContextVar[list[Any] | None] = ContextVar("rollway_results", default=None)


def with_transport(environment: type[Any], *, instance_id: Callable[[Any], str | int] | None = None) -> type[Any]:
    """The environment class, with ``transport``, ``shm_name`` and the like among its settings. Also a decorator.

    Args:
        environment: A subclass of Atropos' `BaseEnv`. It is not changed.
        instance_id: Names an item; must give the same text, or whole number, for the same item. By default the item's
            own id, or a hash of its content; a method ``instance_id`` of the environment comes first.
    """
    if issubclass(environment, RollwayTransportMixin):
        return environment
    body: dict[str, Any] = {"__module__": environment.__module__, "__doc__": environment.__doc__}
    if instance_id is not None:
        body["instance_id"] = lambda self, item: instance_id(item)
    bases = (RollwayTransportMixin, environment)
    return types.new_class(environment.__name__, bases, exec_body=lambda names: names.update(body))


class RollwayTransportMixin:
    """Put before an environment: ``class Fast(RollwayTransportMixin, MyEnv)``. `with_transport` does just that."""

    if TYPE_CHECKING:  # what the environment brings
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
        """Adds the settings to the environment's config class. Behind the environment, the mixin would do nothing."""
        from rollway.integrations.atropos.config import with_transport_fields

        behind = cls.__mro__[cls.__mro__.index(RollwayTransportMixin) + 1 :]
        if not any("env_config_cls" in vars(base) for base in behind):
            raise TypeError(
                f"{cls.__name__}: RollwayTransportMixin must stand before an Atropos environment, as in "
                "class Fast(RollwayTransportMixin, MyEnv)"
            )
        super().__init_subclass__(**kwargs)
        cls.env_config_cls = with_transport_fields(cls.env_config_cls)  # type: ignore[attr-defined]

    @classmethod
    def config_init(cls) -> tuple[Any, Any]:
        """The environment's own defaults; the command line is made from them."""
        from rollway.integrations.atropos.config import extend

        config, servers = super().config_init()  # type: ignore[misc]
        return extend(config), servers

    # ── hooks ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def instance_id(self, item: Any) -> str | int:
        """Names an item in the keys of its records."""
        own: Callable[[Any], str | int] = getattr(super(), "instance_id", identity.instance_id)
        return own(item)

    def weight_version(self) -> int:
        """The version that the records of an item carry, asked when its collection begins: the trainer's step."""
        own: Callable[[], int] | None = getattr(super(), "weight_version", None)
        if own is not None:
            return own()
        if self._rollway_sender is not None and self._is_direct:
            return self._rollway_sender.published_version
        return self.curr_step

    # ── where Atropos asks its API server ─────────────────────────────────────────────────────────────────────────

    async def env_manager(self) -> None:
        """Atropos' loop. The learner's end is the environment's: the loop returns when the learner closes."""
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
        """Without an API server, the config says how large a batch is and how long a sequence may be."""
        if not self._is_direct:
            await super().get_server_info()  # type: ignore[misc]
        else:
            self.max_token_len = self.config.trainer_max_token_len

    async def get_status(self) -> None:
        """The step and the queue, by which Atropos' loop decides whether to generate, evaluate or stop.

        Records that nobody has taken from the lanes are in the queue as well. What a trainer has taken is not, as in
        Atropos' own queue: it may need many batches for a step, and keep them until it is done.
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
            # While the API server answers, groups move into its queue and new ones are sent. None is left out of the
            # sum; some may be in it twice, until the next time.
            before = sender.groups_sent
            try:
                await super().get_status()  # type: ignore[misc]
            except Exception:
                sender.status()  # a hub that has closed takes its API server along: then this says so
                raise
            waiting += sender.groups_sent - before
            self.status_dict["queue_size"] += waiting
            self.status_dict["self_queue_size"] += waiting

    # ── where groups leave ────────────────────────────────────────────────────────────────────────────────────────

    async def handle_env(self, item_uuid: str) -> Any:
        """One item, from collection to sending. An item of which nothing came gets a tombstone."""
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
        """Atropos filters and sends; each group that it dropped gets a tombstone, with the reason."""
        arguments = (scored_data, item, do_send_to_api, abort_on_any_max_length_exceeded)
        if self._rollway_sender is None or not do_send_to_api:
            return await super().handle_send_to_api(*arguments)  # type: ignore[misc]
        groups = scored_data if isinstance(scored_data, list) else [scored_data]
        with self._collecting(item) as in_progress:
            before, failure = len(in_progress.sent), None
            try:
                await super().handle_send_to_api(*arguments)  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001 (raised below, once the learner knows)
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
                except Exception as error:  # noqa: BLE001 (the sender has told the learner; the caller logs it)
                    begun()
                    failures.append(error)
        if failures:
            raise failures[0]

    async def collect_trajectories(self, item: Any) -> Any:
        """Atropos' own way of gathering trajectories forgets their logprobs; they are put back."""
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
        """As the environment does it."""
        result = await super().collect_trajectory(item)  # type: ignore[misc]
        gathered = _results.get()
        if gathered is not None:
            gathered.append(result[0])
        return result

    # ── within ────────────────────────────────────────────────────────────────────────────────────────────────────

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
        """Whether Atropos has put a cancelled item back, and perhaps begun with it anew."""
        others = (entry["item"] for uuid, entry in self.running_items.items() if uuid != item_uuid)
        return any(kept is item for kept in (*self.backlog, *others))

    @contextlib.contextmanager
    def _collecting(self, item: Any) -> Iterator[_GroupInProgress]:
        """The item that this task is about: known already, or from here on."""
        in_progress = _current_group.get()
        if in_progress is not None:
            yield in_progress
            return
        try:
            in_progress = _GroupInProgress(identity.as_text(self.instance_id(item)), self.weight_version())
        except Exception as error:  # no item will have a name: the loop has to end, and not only this worker
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
        """The first of Atropos' own tests that the group does not pass."""
        if group is None:
            return "the environment gave no group"
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
        """Lets the workers finish what they had begun to send, and closes the client: at the end, and only there."""
        for worker in self.workers:
            worker.cancel()
        if self.workers:
            await asyncio.wait(self.workers, timeout=_LEAVING_S)
        if self._rollway_sender is not None:
            try:
                await asyncio.to_thread(self._rollway_sender.close)
            except ConnectionClosedError as lost:  # over TCP: it says how much nobody has acknowledged
                _log.warning("the environment has left: %s", lost)


async def _connected(config: Any, name: str) -> GroupSender:
    """As `connect`, on a thread that nobody waits for at the end: Ctrl-C ends an environment without a learner.

    If that takes long, the log says once what is waited for, and for how long.
    """
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
        "no learner is there yet (%s): the environment waits for it, up to %g s in all (--env.connect_timeout_s)",
        where,
        config.connect_timeout_s,
    )
    try:
        return await asyncio.wrap_future(found)
    finally:
        wondering.cancel()


def connect(config: Any, name: str) -> GroupSender:
    """The sender that a config asks for. Waits for the learner, so not for the event loop's thread."""
    import rollway
    from rollway.integrations.atropos.config import host_and_port, token

    patience = config.connect_timeout_s
    if config.transport == "shm":
        client = rollway.ShmRecordClient(config.shm_name, ATROPOS_SCHEMA, on_full="block", connect_timeout_s=patience)
        return GroupSender(client, name)
    remote = rollway.TcpRecordClient(
        *host_and_port(config.address),
        ATROPOS_SCHEMA,
        token=token(config),
        ca=config.tls_ca,
        connect_timeout_s=patience,
    )
    return TcpGroupSender(remote, name)
