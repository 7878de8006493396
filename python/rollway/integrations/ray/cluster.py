"""Cluster: what this folder asks of Ray: named actors, calls with a deadline, the node of this process."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from rollway.errors import ClusterUnavailable, InvalidArgument, WaitTimeout, need_packages

_LOOK_S = (0.02, 1.0)  # Ray announces no names: from the first to the longest pause between two looks
_REACH_WAIT_S = 10.0
_MARGIN_S = 1.0  # for the way of an answer, beside the time that the other side may take


class ActorGone(Exception):
    """Raised and caught in this folder: the actor has ended, or its node."""


def initialised() -> Any:
    """The module ray, in a process that is a part of a cluster."""
    need_packages("rollway.integrations.ray", "ray", "ray")
    ray: Any = import_module("ray")
    if not ray.is_initialized():
        raise ClusterUnavailable(
            "Ray is not initialised in this process: call ray.init() before publish() or connect()"
        )
    if ray.util.client.ray.is_connected():
        raise ClusterUnavailable(
            "this process uses Ray through ray://, and runs on no node of the cluster. Call publish() and connect() in "
            "an actor or a task, or run this program on a node: ray.init(address='auto')"
        )
    return ray


@contextlib.contextmanager
def joined(address: str) -> Iterator[None]:
    """In the block, this process is a driver of the cluster there, in a namespace of its own."""
    need_packages("rollway.integrations.ray", "ray", "ray")
    host, _, port = address.rpartition(":")
    if "://" in address or (address != "auto" and not (host and port.isdecimal())):
        raise InvalidArgument(
            f"the address of a cluster of Ray is 'auto' or host:port, not {address!r}: run this on one of its nodes"
        )
    ray: Any = import_module("ray")
    try:
        if address != "auto":  # for minutes, Ray tries again what is refused
            socket.create_connection((host, int(port)), _REACH_WAIT_S).close()
        ray.init(
            address=address,
            namespace=f"rollway-{secrets.token_hex(6)}",
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterUnavailable(
            f"no cluster of Ray answers at {address!r}: {error}. Start one with `ray start --head` here, and "
            "`ray start --address=…` on the other nodes"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def is_initialised() -> bool:
    """Whether this process is a part of a cluster now."""
    ray: Any = import_module("ray")
    return bool(ray.is_initialized())


def node_id() -> str:
    """The node of this process."""
    return initialised().get_runtime_context().get_node_id()


def living_nodes() -> set[str] | None:
    """The nodes of the cluster that are alive; ``None`` when Ray does not say."""
    ray = initialised()
    try:
        return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    except (ray.exceptions.RayError, ConnectionError, RuntimeError):
        return None


def node_address() -> str:
    """The address of the node of this process, as Ray knows it."""
    return initialised().util.get_node_ip_address()


def namespace() -> str:
    """Where this process finds and makes named actors: beside the namespace of its job.

    Ray warns of detached actors in the namespace of a job that was given none.
    """
    return f"rollway:{initialised().get_runtime_context().namespace}"


def described(space: str) -> str:
    """A namespace that `namespace` returned, for messages."""
    name = space.partition(":")[2]
    try:
        uuid.UUID(name)
    except ValueError:
        return f"the Ray namespace {name!r}"
    return (
        f"the Ray namespace {name!r}. It is anonymous, of this driver alone: give the programs that belong together "
        "one by ray.init(namespace=…)"
    )


def find_actor(name: str, space: str) -> Any:
    """The handle of a named actor; ``None`` when there is none."""
    try:
        return initialised().get_actor(name, namespace=space)
    except ValueError:
        return None


def start_actor(cls: type, name: str, space: str, node: str, arguments: tuple[Any, ...], max_restarts: int) -> Any:
    """The actor of that name, started on that node if there is none. It takes no CPUs, and ends itself."""
    ray = initialised()
    options = {
        "name": name,
        "namespace": space,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": max_restarts,
        "max_concurrency": 10_000,  # calls that wait
        "scheduling_strategy": ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False),
    }
    try:
        return ray.remote(cls).options(**options).remote(*arguments)
    except ray.exceptions.RayError as error:
        raise ClusterUnavailable(f"Ray did not start the actor {name!r}: {error}") from error


def end_this_actor() -> None:
    """Ends the actor of this process for good."""
    ray = initialised()
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def pickled(value: Any) -> bytes:
    """A value of classes that may be defined in a script."""
    dumped: bytes = initialised().cloudpickle.dumps(value)
    return dumped


def answer(call: Any, timeout: float, margin: float = _MARGIN_S) -> Any:
    """The result of a call of an actor, which itself takes at most ``timeout`` seconds."""
    ray = initialised()
    most = min(timeout + margin, threading.TIMEOUT_MAX)
    try:
        return call.future().result(most)  # Ray warns of `ray.get` in all threads of an async actor
    except TimeoutError:
        raise WaitTimeout(f"an actor of Ray has not answered within {most:.0f} s") from None
    except ray.exceptions.RayActorError as gone:
        raise ActorGone(str(gone)) from None


def check_asked(run: object, **seconds: object) -> None:
    """Refuses what is no name of a run, and times that are no number of seconds."""
    if not isinstance(run, str):
        raise InvalidArgument(f"the name of a run is a {type(run).__name__}: it must be a str")
    if not run:
        raise InvalidArgument("the name of a run is empty: give publish() a name that workers can connect to")
    for name, value in seconds.items():
        if not (isinstance(value, int | float) and value >= 0):
            raise InvalidArgument(f"{name} = {value} is out of range: seconds from 0 on")


class Looks:
    """Pauses between looks for something that no event announces, until a deadline.

    >>> looks = Looks(0.05)
    >>> while looks.again():
    ...     pass
    >>> looks.left
    0.0
    """

    def __init__(self, timeout: float) -> None:
        self._deadline = time.monotonic() + timeout
        self._pause = _LOOK_S[0]
        self._first = True

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(self._deadline - time.monotonic(), 0.0)

    def again(self) -> bool:
        """Whether to look (again). Waits before all looks but the first."""
        if self._first:
            self._first = False
            return True
        if self.left == 0.0:
            return False
        time.sleep(min(self._pause, self.left))
        self._pause = min(self._pause * 2, _LOOK_S[1])
        return True
