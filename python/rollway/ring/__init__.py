"""Ring: samples of one fixed shape, from many workers to a learner, which reads them as whole batches in place.

```text
server.py                   `Server`: the learner's end
shm_client.py               `ShmClient`: the end of a worker on this machine
tcp_client.py               `TcpClient`: the end of a worker on another machine
async_sends.py              the asyncio versions of the clients' sends
trajectory_accumulator.py   `TrajectoryAccumulator`: steps into one sample, before it is sent
rollout_ring.py             `RolloutRingBuffer`: whole rollouts from collectors to a learner
pinning.py                  page-locks the ring for CUDA
```
"""

from rollway._core import HistSnapshot, Sample, SampleInfo, Slot
from rollway.ring.rollout_ring import RolloutInfo, RolloutRingBuffer
from rollway.ring.server import Server
from rollway.ring.shm_client import ShmClient
from rollway.ring.tcp_client import TcpClient
from rollway.ring.trajectory_accumulator import TrajectoryAccumulator

__all__ = [
    "HistSnapshot",
    "RolloutInfo",
    "RolloutRingBuffer",
    "Sample",
    "SampleInfo",
    "Server",
    "ShmClient",
    "Slot",
    "TcpClient",
    "TrajectoryAccumulator",
]
