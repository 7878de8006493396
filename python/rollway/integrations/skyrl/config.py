"""The configuration of external generation: ``generator.external.*`` in SkyRL's own, strict dataclasses.

`prepare` turns command-line overrides into a config that SkyRL's validation accepts. It removes ``backend=none``, which
SkyRL does not know, and switches off what needs an inference engine of SkyRL's own. It also switches off evaluation,
unless the user has set it: Atropos sends no records for it.
"""

# No `from __future__ import annotations` here: SkyRL needs the types of these fields as types, not as text.

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from skyrl.train.config import BaseConfig, GeneratorConfig, SkyRLTrainConfig
from skyrl.train.utils import validate_cfg

from rollway import InvalidArgument, RecordServer, ShmTransport, TcpTransport, Tls
from rollway.integrations.atropos import ATROPOS_SCHEMA
from rollway.integrations.token_file import read_token

_log = logging.getLogger(__name__)

_BACKEND = "generator.inference_engine.backend="
_OVERRIDE = "trainer.override_entrypoint="
_EVAL_INTERVAL = "trainer.eval_interval="
_EVAL_BEFORE_TRAIN = "trainer.eval_before_train="
_GROUP_TIMEOUT = "generator.external.group_timeout_s="
_OLD_GROUP_TIMEOUT = "generator.external.group_deadline_s="


@dataclass
class ExternalConfig(BaseConfig):
    """Where the trajectories come from, and what to do when one does not come."""

    enabled: bool = True
    """False: SkyRL runs its own inference engines, as if this package were not there."""
    transport: str = "shm"
    """``shm``: environments on this machine. ``tcp``: on any. ``both``."""
    shm_name: str = "skyrl"
    """The segment that environments attach to (``--env.shm_name``)."""
    if_exists: str = "resume"
    """When the segment exists: ``resume`` continues with its records, ``replace`` makes a new one, ``error`` raises."""
    address: str = "127.0.0.1:50061"
    """``host:port`` to listen on, with ``tcp``."""
    token_file: str | None = None
    """A file that holds the token for TCP. Not the token itself: SkyRL logs its configuration."""
    tls_cert: str | None = None
    tls_key: str | None = None
    """Certificate and private key (PEM files) for TCP; both, or neither."""
    match: str = "stream"
    """``stream``: a request gets the next complete group. ``id``: it gets the next group of the same instance."""
    on_missing: str | None = None
    """When a group was dropped, is too old, or has nothing to train on: ``substitute`` takes the next one in its place
    (the default with ``stream``), ``raise`` ends training (always so with ``id``: no other group has that instance)."""
    timeout_s: float | None = 600.0
    """How long one call of ``generate`` waits."""
    max_staleness: int | None = None
    """Versions that a trajectory may be behind the trainer. None: any."""
    max_stash: int = 4096
    """How many trajectories to hold that no call has requested yet."""
    group_timeout_s: float | None = 300.0
    """An incomplete group counts as missing after this time: its environment may have died."""
    lanes: int = 64
    """How many environment workers at once."""
    lane_bytes: int = 1 << 30
    """Room for the trajectories of one worker, one for each 16 KiB.

    Memory is used as data comes, except for a table of 64 bytes per trajectory: 4 MiB per worker. All that one call of
    ``generate`` requests has to fit, because it may come from one worker and is held until it is complete.
    """
    peer_timeout_s: float | None = 60.0
    """How long to wait for a new environment when all have died."""

    def __post_init__(self) -> None:
        """Checks the values."""
        _one_of("transport", self.transport, ("shm", "tcp", "both"))
        _one_of("match", self.match, ("stream", "id"))
        _one_of("if_exists", self.if_exists, ("resume", "replace", "error"))
        _one_of("on_missing", self.on_missing, (None, "substitute", "raise"))
        for name in ("timeout_s", "max_staleness", "group_timeout_s", "peer_timeout_s"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise InvalidArgument(f"generator.external.{name} = {value} is out of range: from 0 on, or null")
        for name, least in (("max_stash", 0), ("lanes", 1), ("lane_bytes", 1)):
            if not (value := getattr(self, name)) >= least:
                raise InvalidArgument(f"generator.external.{name} = {value} is out of range: at least {least}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgument("TLS needs generator.external.tls_cert and tls_key, both")
        if self.match == "id" and self.on_missing == "substitute":
            raise InvalidArgument(
                "generator.external.on_missing=substitute does not work with match=id: no other group has the "
                "instance. Use match=stream, or on_missing=raise and an environment that drops no groups "
                "(Atropos: ensure_scores_are_not_same=false)"
            )

    @property
    def substitutes(self) -> bool:
        """Whether the next group takes the place of one that is missing."""
        return self.match == "stream" and self.on_missing != "raise"

    def open(self) -> RecordServer:
        """Makes the records that environments attach to, or attaches to them after a restart."""
        transports: list[ShmTransport | TcpTransport] = []
        if self.transport in ("shm", "both"):
            transports.append(ShmTransport(self.shm_name, if_exists=self.if_exists))  # type: ignore[arg-type]
        if self.transport in ("tcp", "both"):
            host, _, port = self.address.rpartition(":")
            if not host or not port.isdecimal():
                raise InvalidArgument(f"generator.external.address is {self.address!r}; write it like 127.0.0.1:50061")
            token = read_token(self.token_file, "generator.external.token_file")
            tls = None if self.tls_cert is None or self.tls_key is None else Tls(self.tls_cert, self.tls_key)
            transports.append(TcpTransport(int(port), host.strip("[]"), token=token, tls=tls))
        server = RecordServer(ATROPOS_SCHEMA, transports, lanes=self.lanes, lane_bytes=self.lane_bytes)
        server.start()
        return server


@dataclass
class ExternalGeneratorConfig(GeneratorConfig):
    """SkyRL's generator configuration, with ``external``."""

    external: ExternalConfig = field(default_factory=ExternalConfig)


@dataclass
class ExternalTrainConfig(SkyRLTrainConfig):
    """SkyRL's whole configuration, with ``generator.external``.

    If you have configuration classes of your own too, give `ExternalGeneratorConfig` to SkyRL's ``make_config``.
    """

    generator: ExternalGeneratorConfig = field(default_factory=ExternalGeneratorConfig)


def prepare(arguments: Sequence[str]) -> ExternalTrainConfig:
    """The configuration that ``key.path=value`` arguments describe, validated by SkyRL, fit for external generation."""
    engineless = f"{_BACKEND}none" in arguments
    kept = [argument for argument in arguments if not argument.startswith(_OVERRIDE) and argument != f"{_BACKEND}none"]
    cfg = ExternalTrainConfig.from_cli_overrides([_by_its_new_name(argument) for argument in kept])
    external: ExternalConfig = cfg.generator.external
    if not external.enabled:
        if engineless:
            raise InvalidArgument("generator.inference_engine.backend=none needs generator.external.enabled=true")
        validate_cfg(cfg)
        return cfg
    for wanted, what in (
        (cfg.generator.step_wise_trajectories, "generator.step_wise_trajectories"),
        (cfg.generator.vision_language_generator, "generator.vision_language_generator"),
    ):
        if wanted:
            raise InvalidArgument(f"{what}=true is not supported with generator.external.enabled=true: set it to false")
    # There is no engine that shares the GPUs or has statistics.
    cfg.trainer.placement.colocate_all = False
    cfg.generator.inference_engine.enable_ray_prometheus_stats = False
    if cfg.trainer.eval_interval > 0 and not _asks_for_evaluation(kept, cfg.trainer.eval_before_train):
        cfg.trainer.eval_interval, cfg.trainer.eval_before_train = -1, False
        _log.warning(
            "SkyRL's evaluation is off (trainer.eval_interval=-1 trainer.eval_before_train=false): an Atropos "
            "environment sends nothing of phase 'eval'. If one of yours does, set trainer.eval_interval"
        )
    validate_cfg(cfg)
    return cfg


def _by_its_new_name(argument: str) -> str:
    """Replaces the old name of a setting in an argument."""
    if not argument.startswith(_OLD_GROUP_TIMEOUT):
        return argument
    warnings.warn(
        f"{_OLD_GROUP_TIMEOUT[:-1]} is deprecated: use {_GROUP_TIMEOUT[:-1]}", DeprecationWarning, stacklevel=3
    )
    return argument.replace(_OLD_GROUP_TIMEOUT, _GROUP_TIMEOUT, 1)


def _asks_for_evaluation(arguments: Sequence[str], before_train: bool) -> bool:
    """Whether the user has set the interval, or the evaluation before training."""
    names = (_EVAL_INTERVAL, _EVAL_BEFORE_TRAIN) if before_train else (_EVAL_INTERVAL,)
    return any(argument.startswith(names) for argument in arguments)


def _one_of(name: str, value: str | None, allowed: Sequence[str | None]) -> None:
    if value not in allowed:
        choice = ", ".join(str(one) for one in allowed)
        raise InvalidArgument(f"generator.external.{name} is {value!r}; it must be one of {choice}")
