"""Ray: a learner publishes its server under a name, and workers on any node of the cluster connect to it.

```text
 worker ─▶ learner's ring                                       the learner's own node
 worker ─▶ node's ring ─▶ forwarder ── one connection ─▶ learner's ring      every other node
 worker ◀─ node's weights ◀───────── one connection ── learner's weights
```

Ray decides which process runs where, and restarts it; Rollway moves the data. ray is imported on use.

```text
publication.py       `publish`: a learner, under a name
plane.py             `connect`: the run, as a worker sees it
registry.py          the actor that keeps a run's name, address and token
lease.py             how the registry knows that a learner lives
learner_entry.py     what a learner says of itself
node_forwarder.py    the actor of a node
node_link.py         its connections
run_weights.py       `RunWeights`: the weights, as a worker reads them
weight_tree.py       `FetchTree`: from which node each node fetches its weights
placement.py         `RayPlacement`: the collectors of a runner on any node
collector_actor.py   one of them
collector_call.py    what it calls, with the rings and weights of its node
collector_line.py    its connection to the learner: reports, and the order to stop
cluster.py           what is asked of Ray
```
"""

from rollway.integrations.ray.placement import RayPlacement
from rollway.integrations.ray.plane import Plane, connect
from rollway.integrations.ray.publication import Publication, publish

__all__ = ["Plane", "Publication", "RayPlacement", "connect", "publish"]
