"""Ring: samples of one fixed shape, from many workers to a learner, which reads them as whole batches in place.

```text
server.py                   `Server`: the learner's end
shm_client.py               `ShmClient`: the end of a worker on this machine
tcp_client.py               `TcpClient`: the end of a worker on another machine
async_sends.py              the asyncio versions of the clients' sends
trajectory_accumulator.py   `TrajectoryAccumulator`: steps into one sample, before it is sent
rollout_ring.py             `RolloutRing`: whole rollouts from collectors to a learner
device_source.py            `SampleSource`: batches of the ring for a device
```
"""

from typing import TYPE_CHECKING

from rollway._core import HistSnapshot, Sample, SampleInfo, Slot
from rollway.deprecation import moved_names
from rollway.ring.rollout_ring import RolloutInfo, RolloutRing
from rollway.ring.server import Server
from rollway.ring.shm_client import ShmClient
from rollway.ring.tcp_client import TcpClient
from rollway.ring.trajectory_accumulator import TrajectoryAccumulator

__all__ = [
    "HistSnapshot",
    "RolloutInfo",
    "RolloutRing",
    "Sample",
    "SampleInfo",
    "Server",
    "ShmClient",
    "Slot",
    "TcpClient",
    "TrajectoryAccumulator",
]

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__, {"rollway": "RolloutRingBuffer"})
