"""Schemas: which arrays a sample or a record consists of, with their names, dtypes and shapes.

```text
leaves.py   what one array is: an example, ``"uint8[84,84]"``, a shape and a dtype, or a Gymnasium space
pytree.py   `Schema`: a sample, given as a tree of leaves; the texts of the errors
record.py   `RecordSchema`: a record, given as a dict of leaves; replay buffers use it too
arrays.py   conversion of values to arrays
```

Both compile to a plan that native code walks. The schema of weights is `rollway.weights.tree`.
"""

from rollway.schema.pytree import Schema
from rollway.schema.record import RecordSchema

__all__ = ["RecordSchema", "Schema"]
