"""Metrics: the numbers of servers as OpenMetrics text, or as a collector for prometheus-client.

```text
prometheus.py   both of them; needs the extra ``metrics``
numbers.py      what each number means
```
"""

from rollway.metrics.prometheus import CONTENT_TYPE, Collector, openmetrics

__all__ = ["CONTENT_TYPE", "Collector", "openmetrics"]
