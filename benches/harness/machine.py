"""Describe where a figure comes from: processor, kernel, Python, package versions, commit, command.

Reads only; names no host, user or path.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import cc

ROOT = Path(__file__).resolve().parents[2]


def describe(packages: tuple[str, ...]) -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "load_average_before": os.getloadavg(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "compiler": cc.version(),
        "packages": {name: _version(name) for name in ("numpy", *packages)},
    }


def command() -> str:
    """The command line, with the script relative to the repository."""
    script = Path(sys.argv[0]).resolve()
    shown = script.relative_to(ROOT) if script.is_relative_to(ROOT) else Path(script.name)
    return shlex.join(["python", str(shown), *sys.argv[1:]])


def commit() -> dict[str, Any]:
    """The commit that was measured, and whether the working tree differed from it."""
    head = _git("rev-parse", "HEAD")
    return {"id": head, "dirty": bool(_git("status", "--porcelain")) if head else None}


def _git(*args: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *args], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
