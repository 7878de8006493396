"""Atropos environments over shared memory or TCP: `with_transport` for an environment, `GroupReader` for a trainer.

```text
transport.py      `with_transport`: makes an environment send records in place of HTTP requests
config.py         the settings that the environment gets for it
identity.py       the names of an environment's items
encoding.py       groups as records, and back
group_sender.py   the environment's end
group_reader.py   the trainer's end
hub.py            feeds Atropos' own API server from records
__main__.py       runs an environment's file unedited
```

atroposlib is imported on use.
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
