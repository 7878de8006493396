"""Runner: a learner, its collector processes, and what supervises them.

```text
runner.py            `AsyncRunner`: the learner of an asynchronous algorithm, to be subclassed
supervisor.py        `CollectorSupervisor`: starts collectors, notices deaths, restarts, stops
collector.py         `Collector`, `StopFlag`: what runs in a collector process
collector_error.py   why a collector died, in words
restart_policy.py    `RestartPolicy`: which deaths are followed by a restart
parent_watch.py      ends a collector when its learner is gone
training_log.py      the numbers of a run, in a file and in TensorBoard
```
"""

from rollway.runner.collector import Collector, StopFlag
from rollway.runner.restart_policy import RestartPolicy
from rollway.runner.runner import AsyncRunner
from rollway.runner.supervisor import CollectorSupervisor

__all__ = ["AsyncRunner", "Collector", "CollectorSupervisor", "RestartPolicy", "StopFlag"]
