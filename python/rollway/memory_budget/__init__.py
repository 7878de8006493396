"""Memory budget: what a run will allocate, line by line, against what this machine has left.

```text
budget.py   `MemoryBudget`, and the checks that raise or warn when it does not fit
```
"""

from rollway.memory_budget.budget import (
    BudgetLine,
    MemoryBudget,
    Place,
    Room,
    get_available_memory_bytes,
    get_available_shared_memory_bytes,
    raise_if_over_budget,
    warn_if_over_budget,
)

__all__ = [
    "BudgetLine",
    "MemoryBudget",
    "Place",
    "Room",
    "get_available_memory_bytes",
    "get_available_shared_memory_bytes",
    "raise_if_over_budget",
    "warn_if_over_budget",
]
