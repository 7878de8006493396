"""Schemas: which arrays a sample or a record consists of, with their names, dtypes and shapes.

```text
pytree.py   `Schema`: a sample, given as an example; conversion of values to arrays; the texts of the errors
record.py   `RecordSchema`: a record, given as ``{"tokens": "int32[*]"}``; replay buffers use it too
```

Both compile to a plan that native code walks. The schema of weights is `rollway.weights.tree`.
"""

from rollway.schema.pytree import Schema
from rollway.schema.record import RecordSchema

__all__ = ["RecordSchema", "Schema"]
