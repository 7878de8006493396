"""Compatibility: names with the signatures of other projects, on Rollway's own structures.

```text
unilab.py                 `SharedWeightSync`, `RolloutRingBuffer`, `AsyncRunner`, `ReplayBuffer`, `SharedObsNormStats`
zero_copy_shm_buffer.py   `ZeroCopySHMBuffer`: the buffer proposed for Atropos, on records
rl_pipeline.py            `shared_memory_rl_pipeline`: the exercise, on named blocks of bytes
```
"""

from rollway.compat.rl_pipeline import shared_memory_rl_pipeline
from rollway.compat.unilab import AsyncRunner, ReplayBuffer, RolloutRingBuffer, SharedObsNormStats, SharedWeightSync
from rollway.compat.zero_copy_shm_buffer import ZeroCopySHMBuffer

__all__ = [
    "AsyncRunner",
    "ReplayBuffer",
    "RolloutRingBuffer",
    "SharedObsNormStats",
    "SharedWeightSync",
    "ZeroCopySHMBuffer",
    "shared_memory_rl_pipeline",
]
