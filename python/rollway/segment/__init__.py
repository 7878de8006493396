"""Segment: one named file of shared memory. Native code makes and opens them; this is what Python adds to the handles.

```text
naming.py           automatic names
closes_on_exit.py   the end of a ``with`` block closes a handle
```
"""
