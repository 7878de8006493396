"""A look at a run from outside: segments mapped read-only, who waits for whom, and what was committed last.

It takes no seat and no lock and writes nothing, so it works also when the processes of the run hang or are stopped.

```text
look.py      `Inspection`, `Look`, `Participant`: what is in a segment, who takes part, and where their time goes
process.py   whether a process runs, is stopped or is a zombie, from /proc
interval.py  `Interval`: what happened between two looks: rates, and shares of time
monitor.py   `Monitor`: several segments, looked at again and again (`rollway top`)
verdict.py   `why`: who is the bottleneck, in three lines (`rollway why`)
peek.py      `peek`: the newest samples, records, rows or weights, and a summary of each leaf (`rollway peek`)
summary.py   short texts for people: rates, durations, the rows of participants
```
"""

from rollway.inspect.interval import Interval, Shares, watch
from rollway.inspect.look import Inspection, Look, Participant
from rollway.inspect.monitor import Monitor, Unreadable
from rollway.inspect.peek import Item, LeafSummary, Peek, peek
from rollway.inspect.verdict import Verdict, judge, why

__all__ = [
    "Inspection",
    "Interval",
    "Item",
    "LeafSummary",
    "Look",
    "Monitor",
    "Participant",
    "Peek",
    "Shares",
    "Unreadable",
    "Verdict",
    "judge",
    "peek",
    "watch",
    "why",
]
