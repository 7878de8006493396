"""Metrics: the numbers of servers and of segments, for Prometheus, TensorBoard and Weights & Biases.

```text
prometheus.py   of the servers of this process; needs the extra ``metrics``, as the next three do
segments.py     of all segments of this machine, read from outside
exporter.py     the segments over HTTP (`rollway metrics`)
families.py     samples gathered into metric families; the text
writer_log.py   `log_to`: the numbers of a server for TensorBoard or Weights & Biases
numbers.py      what each number means
```
"""

from rollway.metrics.exporter import Exporter
from rollway.metrics.families import CONTENT_TYPE
from rollway.metrics.prometheus import Collector, openmetrics
from rollway.metrics.segments import SegmentCollector, segments_openmetrics
from rollway.metrics.writer_log import WriterLog, log_to

__all__ = [
    "CONTENT_TYPE",
    "Collector",
    "Exporter",
    "SegmentCollector",
    "WriterLog",
    "log_to",
    "openmetrics",
    "segments_openmetrics",
]
