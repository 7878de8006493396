"""The settings that are added to an environment's own: `TransportConfig`, a base class for its config class.

Atropos makes its command line and its YAML from the config class, so each field is a flag as well:
``--env.transport shm``. Needs pydantic, which comes with Atropos.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Literal

from pydantic import BaseModel, Field

from rollway.errors import InvalidArgument
from rollway.integrations.token_file import read_token


class TransportConfig(BaseModel):
    """How an environment delivers its groups. With ``transport="http"`` nothing else here is read.

    >>> TransportConfig(transport="shm", shm_name="run1").delivery
    'direct'
    """

    transport: Literal["http", "shm", "tcp"] = Field(
        default="http",
        description="How groups travel: to the Atropos API server by HTTP, or as Rollway records through shared memory "
        "or TCP",
    )
    shm_name: str | None = Field(default=None, description="Name of the learner's shared memory, for transport shm")
    address: str | None = Field(default=None, description="host:port of the learner, for transport tcp")
    token_file: str | None = Field(default=None, description="File that holds the learner's token, for transport tcp")
    tls_ca: str | None = Field(
        default=None, description="Certificate of the learner's authority (PEM); turns TLS on, for transport tcp"
    )
    delivery: Literal["direct", "hub"] = Field(
        default="direct",
        description="direct: the trainer reads the records, there is no API server. hub: the records feed the API "
        "server at rollout_server_url, which has to be the one of `python -m rollway.integrations.atropos api`",
    )
    run_name: str | None = Field(
        default=None, description="First part of the run in the keys of records; the environment's name when left out"
    )
    connect_timeout_s: float = Field(default=600.0, description="How long to wait for the learner to appear")
    trainer_max_token_len: int = Field(
        default=-1, description="Groups with a sequence this long are dropped (direct delivery; -1: none is too long)"
    )
    checkpoint_dir: str = Field(default="", description="Where the environment saves its state (direct delivery)")
    checkpoint_interval: int = Field(
        default=-1, description="Steps between saves of the environment's state (direct delivery; -1: never)"
    )
    wandb_project: str | None = Field(default=None, description="Project for wandb (direct delivery)")


@functools.cache
def with_transport_fields(config_class: Any) -> Any:
    """The config class of an environment, with the fields of `TransportConfig`.

    `TypeError` if it has fields of the same names.
    """
    if issubclass(config_class, TransportConfig):
        return config_class
    taken = sorted(TransportConfig.model_fields.keys() & config_class.model_fields.keys())
    if taken:
        raise TypeError(
            f"{config_class.__name__} has fields with names of Rollway's settings: {', '.join(taken)}. Rename them"
        )
    body = {"__module__": config_class.__module__, "__doc__": config_class.__doc__}
    bases = (config_class, TransportConfig)
    return types.new_class(config_class.__name__, bases, exec_body=lambda names: names.update(body))


def extend(config: Any) -> Any:
    """The config with the added fields at their defaults; the same object if it has them already."""
    if isinstance(config, TransportConfig):
        return config
    values = {name: getattr(config, name) for name in type(config).model_fields}
    config_class: Any = type(config)
    return with_transport_fields(config_class)(**values, **(config.model_extra or {}))


def check(config: Any) -> None:
    """Raises `InvalidArgument` that names the flag if a setting of the chosen transport is missing or unreadable."""
    if config.transport == "shm" and not config.shm_name:
        raise InvalidArgument("transport shm needs the name of the learner's shared memory: --env.shm_name run1")
    if config.transport == "tcp":
        host_and_port(config.address)
        token(config)
    if config.delivery == "direct":
        if config.batch_size <= 0:
            raise InvalidArgument(
                "without an API server, the environment needs the size of a batch: --env.batch_size 64"
            )
        if config.total_steps < 0:
            raise InvalidArgument(
                "without an API server, the environment needs the number of steps: --env.total_steps 1000"
            )
        if config.group_size > config.batch_size:
            raise InvalidArgument(
                f"a group of {config.group_size} does not fit into a batch of {config.batch_size}: "
                "--env.group_size, --env.batch_size"
            )


def host_and_port(address: str | None) -> tuple[str, int]:
    """Reads ``host:port``.

    >>> host_and_port("learner:50051")
    ('learner', 50051)
    """
    host, colon, port = (address or "").rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise InvalidArgument(f"transport tcp needs the learner's address as host:port, not {address!r}: --env.address")
    return host.strip("[]"), int(port)


def token(config: Any) -> str | None:
    """The learner's token, from its file."""
    return read_token(config.token_file, "--env.token_file")
