"""`rollway demo`: worker processes stream trajectories to a learner, which verifies every one.

```text
worker.py      makes samples and sends them         (spawned, one per worker)
crew.py        starts workers, hears them, notices deaths
intake.py      the learner's thread, and the two ways into it: a ring, a queue
trajectory.py  what a sample looks like, and the tally that checks it
stages.py      what is measured, in which order
screen.py      shows it
../signals.py  Ctrl-C, at the right moment
```

Workers import this package too, so it imports nothing by itself.
"""
