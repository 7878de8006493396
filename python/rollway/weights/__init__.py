"""Weights: versions of a pytree of arrays, from a learner to its workers, never half-written.

```text
weight_sync.py          `WeightSync`: publishes, and reads on the same machine
tcp_weights.py          `TcpWeights`: reads on another machine
reading.py              what all readers have in common
gpu_staging.py          small weights in one block on a GPU
tree.py                 `WeightTree`: the leaves of the weights, and where their bytes are
obs_norm_stats.py       `ObsNormStats`: the latest statistics of observations, to collectors
running_obs_stats.py    `RunningObsStats`: the statistics of all collectors, merged
```
"""

from typing import TYPE_CHECKING

from rollway.deprecation import moved_names
from rollway.weights.obs_norm_stats import ObsNormStats
from rollway.weights.running_obs_stats import RunningObsStats
from rollway.weights.tcp_weights import TcpWeights
from rollway.weights.weight_sync import WeightSync

__all__ = ["ObsNormStats", "RunningObsStats", "TcpWeights", "WeightSync"]

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__, {"rollway": "SharedObsNormStats SharedWeightSync"})
