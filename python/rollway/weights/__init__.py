"""Weights: versions of a pytree of arrays, from a learner to its workers, never half-written.

```text
weight_sync.py          `SharedWeightSync`: publishes, and reads on the same machine
tcp_weights.py          `TcpWeights`: reads on another machine
reading.py              what all readers have in common
tree.py                 `WeightTree`: the leaves of the weights, and where their bytes are
obs_norm_stats.py       `SharedObsNormStats`: the latest statistics of observations, to collectors
running_obs_stats.py    `RunningObsStats`: the statistics of all collectors, merged
```
"""

from rollway.weights.obs_norm_stats import SharedObsNormStats
from rollway.weights.running_obs_stats import RunningObsStats
from rollway.weights.tcp_weights import TcpWeights
from rollway.weights.weight_sync import SharedWeightSync

__all__ = ["RunningObsStats", "SharedObsNormStats", "SharedWeightSync", "TcpWeights"]
