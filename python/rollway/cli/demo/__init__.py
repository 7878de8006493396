"""`rollway demo`: worker processes stream trajectories to a learner, which verifies every one.

```text
worker.py             makes samples and sends them; spawned, one per worker
worker_processes.py   starts workers, reads their reports, notices deaths
learner.py            the learner's thread, and its two sources of batches: a ring, a queue
trajectory.py         what a sample looks like, and the tally that checks it
stages.py             what is measured, in which order
screen.py             shows it
../signals.py         when Ctrl-C takes effect
```

Workers import this package too, so it imports nothing by itself.
"""
