"""The `rollway` command. Prints what the library returns; nothing in the library prints.

`main` is its entry point. This package and `demo.worker` import without typer and rich, so that a missing extra gets a
sentence in place of a traceback, and spawned workers start fast.

```text
app.py        the commands and their options
listing.py    `rollway ls`, `rollway gc`
doctor.py     `rollway doctor`
top.py        `rollway top`
why.py        `rollway why`
peek.py       `rollway peek`
dashboard.py  `rollway dashboard`
metrics.py    `rollway metrics`
demo/         `rollway demo`
train/        `rollway train`
play.py       `rollway play`
console.py    where the commands print, and how they show numbers
signals.py    when Ctrl-C, SIGTERM and SIGHUP take effect
```
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

__all__ = ["main"]

_EXTRA = ("rich", "typer")


def main() -> None:
    """Runs the command line, and exits with its status: 0, 1 (a problem), 2 (wrong usage), 130 (Ctrl-C)."""
    try:
        from rollway.cli import app
    except ModuleNotFoundError as missing:
        if missing.name not in _EXTRA:
            raise
        needed = " and ".join(_EXTRA)
        sys.exit(f"rollway: the command line needs {needed}: pip install '.[cli]' in the clone of Rollway")
    except KeyboardInterrupt:
        sys.exit(130)
    if sys.stdout is None:  # It was closed by who started us.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # as long as the process
    status = app.run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done: a late Ctrl-C changes nothing
    sys.exit(status)
