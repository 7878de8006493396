"""Compatibility: names with the signatures of other projects, on Rollway's own structures.

```text
zero_copy_shm_buffer.py   `ZeroCopySHMBuffer`: the buffer proposed for Atropos, on records
rl_pipeline.py            `shared_memory_rl_pipeline`: the exercise, on named blocks of bytes
```
"""

from rollway.compat.rl_pipeline import shared_memory_rl_pipeline
from rollway.compat.zero_copy_shm_buffer import ZeroCopySHMBuffer

__all__ = ["ZeroCopySHMBuffer", "shared_memory_rl_pipeline"]
