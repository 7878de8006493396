"""Batches on a device: what every ``device_iter`` gives. Each source says how its batches lie in host memory.

```text
block.py     a batch in one block of host memory: `BlockLayout`, `HostBatch`, `BatchSource`
batches.py   `device_batches`: the batches of a source on a device, some of them ahead of their use
```

The sources are `rollway.ring.device_source`, `rollway.records.device_source` and `rollway.replay.device_source`. The
copies are in `rollway.torch.device_batches` and `rollway.jax.device_batches`, which are imported when they are asked
for.
"""

from rollway.device.batches import Framework, device_batches
from rollway.device.block import BatchSource, BlockLayout, HostBatch

__all__ = ["BatchSource", "BlockLayout", "Framework", "HostBatch", "device_batches"]
