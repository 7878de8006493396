"""Records: trajectories of any length, from many workers to a learner, each producer in a lane of its own.

```text
server.py       `RecordServer`: the learner's end
shm_client.py   `ShmRecordClient`: the end of a worker on this machine
tcp_client.py   `TcpRecordClient`: the end of a worker on another machine
async_sends.py  the asyncio versions of the clients' sends
key.py          `RecordKey`, `GroupKey`: which trajectory a record is
metadata.py     what a record says besides its arrays, as bytes
batches.py      many records as one padded or packed batch
device_source.py   batches of records and of groups for a device
groups.py       `GroupAssembler`: records that belong together
```

What a record looks like is `rollway.schema.record`.
"""

from rollway._core import Group, Record, RecordSlot
from rollway.records.batches import PackedBatch, PaddedBatch, pack, pad, token_batches
from rollway.records.groups import GroupAssembler
from rollway.records.key import GroupKey, RecordKey
from rollway.records.server import RecordServer
from rollway.records.shm_client import ShmRecordClient
from rollway.records.tcp_client import TcpRecordClient
from rollway.schema.record import RecordSchema

__all__ = [
    "Group",
    "GroupAssembler",
    "GroupKey",
    "PackedBatch",
    "PaddedBatch",
    "Record",
    "RecordKey",
    "RecordSchema",
    "RecordServer",
    "RecordSlot",
    "ShmRecordClient",
    "TcpRecordClient",
    "pack",
    "pad",
    "token_batches",
]
