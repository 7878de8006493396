"""Atropos environments over shared memory or TCP: `with_transport` for an environment, `GroupReader` for a trainer.

`encoding` (groups as records), `group_sender` and `group_reader` (the two ends), `transport` (what steps into an
environment), `config` (its flags), `identity` (names of items), `hub` (feeds Atropos' own API server), and
``python -m rollway.integrations.atropos``, which runs an environment's file unedited. Nothing here imports atroposlib
before it is used.
"""

from rollway.integrations.atropos.encoding import ATROPOS_SCHEMA, decode_group, decode_trajectory, encode_group
from rollway.integrations.atropos.group_reader import GroupReader
from rollway.integrations.atropos.transport import RollwayTransportMixin, with_transport

__all__ = [
    "ATROPOS_SCHEMA",
    "GroupReader",
    "RollwayTransportMixin",
    "decode_group",
    "decode_trajectory",
    "encode_group",
    "with_transport",
]
