"""Replay: transitions in a shared table of rows, which learners sample at random.

```text
buffer.py     `TransitionBuffer`: adds transitions, samples batches
batch.py      the memory of a sampled batch, and its copy to a device
pipeline.py   `ReplayPipeline`: keeps the next batch ready
```
"""

from rollway.replay.buffer import TransitionBuffer
from rollway.replay.pipeline import ReplayPipeline

__all__ = ["ReplayPipeline", "TransitionBuffer"]
