"""Segment: one named file of shared memory. Native code makes and opens them; this is what Python knows of their names.

```text
naming.py   automatic names
```
"""
