"""Replay: transitions in a shared table of rows, which learners sample at random.

```text
buffer.py     `TransitionBuffer`: adds transitions, samples batches
batch.py      the memory of a sampled batch, and its copy to a device
device_source.py   `TransitionSource`: batches for a device
pipeline.py   `ReplayPipeline`: keeps the next batch ready
```
"""

from typing import TYPE_CHECKING

from rollway.deprecation import moved_names
from rollway.replay.buffer import TransitionBuffer
from rollway.replay.pipeline import ReplayPipeline

__all__ = ["ReplayPipeline", "TransitionBuffer"]

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__, {"rollway": "ReplayBuffer"})
