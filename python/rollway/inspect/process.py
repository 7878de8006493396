"""Processes, as /proc shows them: whether one runs, is stopped, or is a zombie."""

from __future__ import annotations

import os
from pathlib import Path

_STATES = {"T": "stopped", "t": "traced", "Z": "zombie", "X": "dead", "D": "in the kernel"}
_SLACK_S = 2.0  # the clocks of /proc count in hundredths of a second, from the boot


def process_state(pid: int, joined_unix_ns: int, root: Path = Path("/proc")) -> str | None:
    """``running``, ``stopped`` (SIGSTOP), ``traced`` (a debugger holds it), ``zombie``, ``dead``, ``in the kernel``.

    ``None`` when it is not known: the process is in another pid namespace, or another process has its id now.
    """
    try:
        fields = (root / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = next(line for line in (root / "stat").read_text().splitlines() if line.startswith("btime"))
        started = int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration, IndexError, ValueError):
        return None
    if started > joined_unix_ns / 1e9 + _SLACK_S:
        return None  # it is younger than the seat
    return _STATES.get(fields[0], "running")
