"""For torch: batches as tensors, without a copy, and as a dataset that a `DataLoader` takes.

```text
tensors.py   `as_tensors`, `as_tensordict`: arrays of a batch as tensors
batches.py   `Batches`: the batches of a server as an `IterableDataset`
device_batches.py   what ``device_iter`` gives: batches on a GPU
```

Importing this module imports torch; nothing else in Rollway does, before it is asked for tensors.
"""

from rollway.torch.batches import Batches
from rollway.torch.tensors import as_tensordict, as_tensors

__all__ = ["Batches", "as_tensordict", "as_tensors"]
