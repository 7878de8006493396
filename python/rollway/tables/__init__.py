"""Replay tables: steps, stored once; items, which are windows of steps; tables, which choose items.

```text
replay_tables.py  `ReplayTables`: steps and tables in shared memory; `TableView`: samples one of them
table.py          `Table`: what a table is made as
selectors.py      how a table chooses an item, to sample or to remove it
limiters.py       when a table admits an insert, and when a sample
writer.py         `Writer`: appends steps, and makes items of them
windows.py        which steps of an item each column of a batch has
batch.py          `TableBatch`: what a sample gives
```
"""

from rollway.tables.batch import TableBatch
from rollway.tables.limiters import Limiter, MinSize, Queue, SamplesPerInsert, Versions
from rollway.tables.replay_tables import ReplayTables, TableView
from rollway.tables.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritised, Selector, Uniform
from rollway.tables.table import Table
from rollway.tables.writer import Writer

__all__ = [
    "Fifo",
    "Lifo",
    "Limiter",
    "MaxHeap",
    "MinHeap",
    "MinSize",
    "Prioritised",
    "Queue",
    "ReplayTables",
    "SamplesPerInsert",
    "Selector",
    "Table",
    "TableBatch",
    "TableView",
    "Uniform",
    "Versions",
    "Writer",
]
