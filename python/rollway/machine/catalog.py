"""The shared-memory segments of this user: lists them, and removes those to which no process is attached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollway._core import collect_all, list_segments


@dataclass(frozen=True)
class SegmentInfo:
    """One segment in shared memory."""

    name: str
    bytes: int
    """The size to which it may grow."""
    used_bytes: int
    """The memory that it uses now."""
    kind: str
    """``ring``, ``records``, ``weights``, ``replay``, ``tables``, ``vector env``, ``block``; ``unknown`` when it cannot
    be read."""
    alive: int
    """How many handles are attached, by the locks that the kernel knows."""
    creator_pid: int
    created_unix_ns: int
    pids: tuple[int, ...]
    """The attached processes, each once, by the process ids that they see themselves."""
    problem: str | None
    """Why it cannot be read, if it cannot: another user's, another version's, or damaged."""

    @property
    def state(self) -> str:
        """``live``, ``stale`` (no process is attached: `gc` removes it), or ``unreadable``."""
        if self.problem is not None:
            return "unreadable"
        return "live" if self.alive else "stale"


def segments() -> list[SegmentInfo]:
    """Every Rollway segment on this machine."""
    return [_info(row) for row in list_segments()]


def gc() -> list[SegmentInfo]:
    """Removes the segments to which no process is attached, and returns them. A live one is never touched."""
    return [_info(row) for row in collect_all()]


def _info(row: dict[str, Any]) -> SegmentInfo:
    return SegmentInfo(**{**row, "pids": tuple(dict.fromkeys(row["pids"]))})
