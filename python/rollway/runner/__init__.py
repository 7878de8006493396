"""Runner: a learner, its collector processes, and what supervises them.

```text
runner.py                 `Runner`: the learner of an asynchronous algorithm, to be subclassed
supervisor.py             `CollectorSupervisor`: starts collectors, notices deaths, restarts, stops
supervised_collector.py   one collector, as the supervisor sees it
collector_process.py      one that is a process of this machine
collector.py              `Collector`, `StopFlag`: what runs in a collector process
collector_error.py        why a collector died, in words
restart_policy.py         `RestartPolicy`: which deaths are followed by a restart
parent_watch.py           ends a collector when its learner is gone
training_log.py           the numbers of a run, in a file and in TensorBoard
```
"""

from typing import TYPE_CHECKING

from rollway.deprecation import moved_names
from rollway.runner.collector import Collector, StopFlag
from rollway.runner.restart_policy import RestartPolicy
from rollway.runner.runner import Runner
from rollway.runner.supervisor import CollectorSupervisor

__all__ = ["Collector", "CollectorSupervisor", "RestartPolicy", "Runner", "StopFlag"]

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__, {"rollway": "AsyncRunner"})
