"""Cgroup: the limits of this process's control group, from the files of the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rollway._core import memory_limits


class Cgroup:
    """The limits of this process's control group, version 1 or 2. The tightest of its ancestors counts.

    Args:
        root: The directory of ``proc`` and ``sys``.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def cpu_quota(self) -> float | None:
        """How many CPUs the group may use; ``None`` without a limit."""
        quotas = [_quota(*(read_text(directory / "cpu.max") or "").split()) for directory in self._directories(None)]
        quotas += [
            _quota(read_text(directory / "cpu.cfs_quota_us") or "", read_text(directory / "cpu.cfs_period_us") or "")
            for directory in self._directories("cpu")
        ]
        return min((quota for quota in quotas if quota is not None), default=None)

    def memory_limit(self) -> int | None:
        """How many bytes may be used by the group that has the fewest left; ``None`` without a limit."""
        return self._tightest(1)

    def memory_used(self) -> int | None:
        """How many bytes of `memory_limit` are used, without file cache that the kernel can drop; ``None`` as there."""
        return self._tightest(2)

    def _tightest(self, number: Literal[1, 2]) -> int | None:
        """As the core reads it, which refuses a segment that does not fit."""
        limits = memory_limits(self._root)
        return limits[0][number] if limits else None

    def oom_kills(self) -> int | None:
        """How many processes of the group the kernel has killed for lack of memory; ``None`` if unknown."""
        texts = [read_text(directory / "memory.events") for directory in self._directories(None)]
        texts += [read_text(directory / "memory.oom_control") for directory in self._directories("memory")]
        lines = [line.split() for text in texts if text for line in text.splitlines()]
        return max((int(line[1]) for line in lines if line[0] == "oom_kill"), default=None)

    def _directories(self, controller: str | None) -> Iterator[Path]:
        """From the mounted root of the hierarchy down to our own group. ``None`` means version 2."""
        membership = self._membership(controller)
        for mounted_root, mount_point in self._mounts(controller):
            here = self._root / mount_point.lstrip("/")
            yield here
            # In a container the path may be the host's, and only its end is mounted here.
            below = membership.removeprefix(mounted_root) if mounted_root != "/" else membership
            for part in Path(below.lstrip("/")).parts:
                here = here / part
                yield here

    def _membership(self, controller: str | None) -> str:
        for line in (read_text(self._root / "proc/self/cgroup") or "").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controller in controllers.split(",") if controller else (number == "0" and not controllers):
                return path
        return "/"

    def _mounts(self, controller: str | None) -> Iterator[tuple[str, str]]:
        for line in (read_text(self._root / "proc/self/mountinfo") or "").splitlines():
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()
            if len(fields) < 5 or len(kind) < 3:
                continue
            wanted = kind[0] == "cgroup" and controller in kind[2].split(",") if controller else kind[0] == "cgroup2"
            if wanted:
                yield fields[3], fields[4]


def _quota(limit: str = "", period: str = "") -> float | None:
    """``max 100000``, ``-1`` and unreadable text mean no limit."""
    return int(limit) / int(period) if limit.isdigit() and period.isdigit() and int(period) else None


def read_text(path: Path) -> str | None:
    """The text of a small file of the kernel; ``None`` when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
