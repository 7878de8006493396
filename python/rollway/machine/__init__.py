"""The machine: its segments, and whether its shared memory, limits and kernel suit Rollway.

```text
catalog.py   `segments`, `gc`: lists segments, removes stale ones (`rollway ls`, `rollway gc`)
doctor.py    `examine` and its checks (`rollway doctor`)
cgroup.py    `Cgroup`: the limits of this process's control group
```
"""

from rollway.machine.catalog import SegmentInfo, gc, segments
from rollway.machine.cgroup import Cgroup
from rollway.machine.doctor import (
    Finding,
    Status,
    check_cpus,
    check_huge_pages,
    check_kernel,
    check_locked_memory,
    check_memory,
    check_open_files,
    check_proc,
    check_round_trip,
    check_segments,
    check_shared_memory,
    check_watches,
    examine,
    judge_shared_memory,
)

__all__ = [
    "Cgroup",
    "Finding",
    "SegmentInfo",
    "Status",
    "check_cpus",
    "check_huge_pages",
    "check_kernel",
    "check_locked_memory",
    "check_memory",
    "check_open_files",
    "check_proc",
    "check_round_trip",
    "check_segments",
    "check_shared_memory",
    "check_watches",
    "examine",
    "gc",
    "judge_shared_memory",
    "segments",
]
