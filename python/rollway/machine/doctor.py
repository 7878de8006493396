"""Doctor: checks whether this machine suits Rollway. `rollway doctor` prints what `examine` returns.

Every check is a function of the facts, or of the directory where it finds them, so that tests can examine any machine.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from rollway._core import shm_directory
from rollway.errors import RollwayError
from rollway.machine.catalog import SegmentInfo, segments
from rollway.machine.cgroup import Cgroup, read_text
from rollway.ring.server import Server
from rollway.ring.shm_client import ShmClient
from rollway.transport.shm import ShmTransport

Status = Literal["ok", "warn", "problem"]

_MB = 1 << 20
_DOCKER_DEFAULT = 64 * _MB
_SMALL_SHM = 1 << 30
_FEW_FILES = 1024
_FEW_WATCHES = 128


@dataclass(frozen=True)
class Finding:
    """The result of one check: what was found, and what to do about it."""

    name: str
    status: Status
    found: str
    advice: str = ""


def examine(root: Path = Path("/")) -> list[Finding]:
    """Checks everything. ``root`` is the directory of ``proc`` and ``sys``."""
    cgroup = Cgroup(root)
    directory = Path(shm_directory())
    return [
        check_shared_memory(directory),
        check_memory(cgroup.memory_limit(), _free_bytes(directory), cgroup.memory_used()),
        check_cpus(os.cpu_count() or 1, len(os.sched_getaffinity(0)), cgroup.cpu_quota()),
        check_kernel(os.uname().release),
        check_proc(root / "proc"),
        check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)),
        check_locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)),
        check_watches(root / "proc/sys/fs/inotify/max_user_instances"),
        check_huge_pages(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        check_segments(),
        check_round_trip(),
    ]


def check_shared_memory(directory: Path) -> Finding:
    """Size and free bytes of the directory of the segments."""
    try:
        stat = os.statvfs(directory)
    except OSError as error:
        advice = "Mount a tmpfs there, or let ROLLWAY_SHM_DIR name one that you may write to."
        return Finding("shared memory", "problem", f"{directory}: {error.strerror}", advice)
    writable = os.access(directory, os.W_OK | os.X_OK)
    return judge_shared_memory(directory, stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize, writable)


def judge_shared_memory(directory: Path, total: int, free: int, writable: bool = True) -> Finding:
    """Whether a shared-memory directory of this size suffices."""
    name, found = "shared memory", f"{directory}: {_mb(total)}, {_mb(free)} free"
    enlarge = (
        f"docker: --shm-size=8g; kubernetes: an emptyDir with medium Memory; root: mount -o remount,size=8G {directory}"
    )
    if not writable:
        return Finding(name, "problem", f"{found}, not writable", f"Let this user write to {directory} (chmod 1777).")
    if free < 16 * _MB:
        return Finding(name, "problem", found, f"Hardly any ring fits. `rollway gc` frees stale segments. {enlarge}")
    if total == _DOCKER_DEFAULT:
        return Finding(name, "warn", f"{found}: docker's default", f"Too small for most rings. {enlarge}")
    if total < _SMALL_SHM or free < _DOCKER_DEFAULT:
        return Finding(name, "warn", found, f"Large rings will not fit. {enlarge}")
    return Finding(name, "ok", found)


def check_memory(limit: int | None, shm_free: int | None, used: int | None = None) -> Finding:
    """The memory limit of the control group that has the least left: segments count against it."""
    name = "memory limit"
    if limit is None:
        return Finding(name, "ok", "no cgroup limit")
    found = f"the cgroup may use {_mb(limit)}"
    if used is not None:
        found += f", {_mb(used)} are used"
    left = max(0, limit - (used or 0))
    if shm_free is not None and shm_free > left:
        return Finding(
            name,
            "warn",
            f"{found}: {_mb(left)} are left, less than the {_mb(shm_free)} free in shared memory",
            "Segments count against this limit: a ring that fits into shared memory may still be refused "
            "(NotEnoughMemory). Keep rings well below the limit, or raise it.",
        )
    return Finding(name, "ok", f"{found}; segments count against it")


def check_cpus(installed: int, allowed: int, quota: float | None) -> Finding:
    """How many CPUs can be used: ``os.cpu_count`` ignores affinity and quota."""
    name = "cpus"
    usable = min(float(allowed), quota) if quota is not None else float(allowed)
    parts = [f"{installed} installed"]
    if allowed < installed:
        parts.append(f"{allowed} allowed by affinity")
    parts.append(f"{quota:g} by cgroup quota" if quota is not None else "no cgroup quota")
    found = ", ".join(parts)
    if usable < 2:
        return Finding(
            name, "warn", found, "Workers and learner take turns on one core. Give the container at least 2 CPUs."
        )
    if usable < installed:
        return Finding(
            name,
            "warn",
            found,
            f"os.cpu_count() is {installed}, but {usable:g} can be used: choose the number of workers and "
            f"OMP_NUM_THREADS by hand, or a quota will stall them.",
        )
    return Finding(name, "ok", found)


def check_kernel(release: str) -> Finding:
    """The version of the kernel."""
    version = _version(release)
    if version is None:
        return Finding("kernel", "warn", f"{release}: not a known version", "Rollway needs Linux 5.14 or later.")
    if version < (3, 15):
        return Finding("kernel", "problem", release, "Liveness needs open-file locks: Linux 3.15 or later.")
    if version < (5, 14):
        advice = "Linux 5.14 or later fills a ring's pages at creation; here the first lap is slow."
        return Finding("kernel", "warn", release, advice)
    return Finding("kernel", "ok", release)


def check_proc(proc: Path) -> Finding:
    """Whether /proc is mounted: segments are named through it."""
    if (proc / "self" / "fd").is_dir():
        return Finding("/proc", "ok", "mounted")
    return Finding(
        "/proc", "problem", "not mounted", "Mount it (mount -t proc proc /proc): rings cannot be made without."
    )


def check_open_files(limits: tuple[int, int]) -> Finding:
    """RLIMIT_NOFILE."""
    soft, hard = limits
    found = f"{_limit(soft)} per process (at most {_limit(hard)})"
    if _at_least(soft, _FEW_FILES):
        return Finding("open files", "ok", found)
    return Finding("open files", "warn", found, f"Every handle needs a few. Raise it: ulimit -n {_FEW_FILES} or more.")


def check_locked_memory(limits: tuple[int, int]) -> Finding:
    """RLIMIT_MEMLOCK. Rings lock no memory themselves."""
    soft, _ = limits
    found = "unlimited" if soft == resource.RLIM_INFINITY else _mb(soft)
    if _at_least(soft, 8 * _MB):
        return Finding("locked memory", "ok", found)
    return Finding(
        "locked memory", "ok", found, "Only matters if you pin segments yourself (mlock, RDMA): ulimit -l unlimited."
    )


def check_watches(path: Path) -> Finding:
    """Inotify instances: a client that waits for its learner watches the directory."""
    text = read_text(path)
    if text is None or not text.isdigit():
        return Finding("inotify", "warn", "unknown", "Clients that wait for their learner will poll 20 times a second.")
    found = f"{text} instances per user"
    if int(text) >= _FEW_WATCHES:
        return Finding("inotify", "ok", found)
    return Finding(
        "inotify",
        "warn",
        found,
        "With many clients that wait for one learner, some poll 20 times a second instead. "
        f"root: sysctl fs.inotify.max_user_instances={8 * _FEW_WATCHES}",
    )


def check_huge_pages(path: Path) -> Finding:
    """Transparent huge pages for shared memory."""
    text = read_text(path)
    chosen = text[text.index("[") + 1 : text.index("]")] if text and "[" in text and "]" in text else None
    if chosen is None:
        return Finding("huge pages", "ok", "not offered by this kernel", "Leave ShmTransport(huge_pages=...) off.")
    found = f"shmem_enabled is '{chosen}'"
    if chosen == "deny":  # any other setting allows explicit requests
        return Finding("huge pages", "ok", found, f"For ShmTransport(huge_pages=True), root: echo never > {path}")
    return Finding("huge pages", "ok", found)


def check_segments(found: Sequence[SegmentInfo] | None = None) -> Finding:
    """The segments: live, stale, unreadable."""
    try:
        found = segments() if found is None else found
    except (RollwayError, OSError) as error:
        return Finding("segments", "problem", str(error), "See `shared memory` above.")
    by_state = {state: [s for s in found if s.state == state] for state in ("live", "stale", "unreadable")}
    if not found:
        return Finding("segments", "ok", "none")
    text = ", ".join(f"{len(group)} {state}" for state, group in by_state.items() if group)
    if by_state["stale"]:
        bytes_held = sum(segment.used_bytes for segment in by_state["stale"])
        return Finding(
            "segments", "warn", f"{text} ({_mb(bytes_held)} held by the stale)", "`rollway gc` removes them."
        )
    if by_state["unreadable"]:
        return Finding("segments", "warn", text, "`rollway ls` says why they cannot be read.")
    return Finding("segments", "ok", text)


def check_round_trip() -> Finding:
    """Sends one sample through a small ring."""
    name, sample = "round trip", {"probe": np.arange(256, dtype=np.int32)}
    try:
        with (
            Server(sample, batch_size=1, transport=ShmTransport(), num_buffers=2) as server,
            ShmClient(str(server.name), sample, connect_timeout_s=1.0) as client,
        ):
            client.send(sample, timeout=1.0)
            taken = server.sample(timeout=1.0)
            if taken is None or not np.array_equal(taken.batch["probe"][0], sample["probe"]):
                return Finding(name, "problem", "the sample arrived changed", "Please report this, with `uname -a`.")
            taken.release()
    except (RollwayError, OSError) as error:
        return Finding(
            name, "problem", f"{type(error).__name__}: {error}", "Fix what is reported above, then run it again."
        )
    return Finding(name, "ok", "a sample went through a ring unchanged")


def _free_bytes(directory: Path) -> int | None:
    try:
        stat = os.statvfs(directory)
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize


def _version(release: str) -> tuple[int, int] | None:
    major, _, rest = release.partition(".")
    minor = "".join(c if c.isdigit() else " " for c in rest).split(" ")[0]
    return (int(major), int(minor)) if major.isdigit() and minor else None


def _at_least(limit: int, wanted: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= wanted


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _mb(count: int) -> str:
    return f"{count / _MB:,.0f} MiB" if count >= _MB else f"{count / 1024:,.0f} KiB"
