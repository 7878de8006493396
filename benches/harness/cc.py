"""Compile the C files of `native/` into a temporary folder, once per run, with the system's `cc`.

The Python package ships no C; these files exist for the limits that the tables are read against. Without a
compiler the contenders that need one are reported as not available and everything else runs.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_SOURCES = Path(__file__).parents[1] / "native"
NO_COMPILER = "no C compiler: install one so that `cc` is found"


def available() -> bool:
    return shutil.which("cc") is not None


@cache
def shared_object(name: str) -> str:
    """The path of native/<name>.c, compiled. For the parent: the folder goes when the caller exits."""
    built = Path(_folder()) / f"{name}.so"
    command = ["cc", "-O3", "-std=gnu11", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", str(built)]
    subprocess.run([*command, str(_SOURCES / f"{name}.c")], check=True)
    return str(built)


@cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="ring-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def version() -> str:
    if not available():
        return "none"
    return subprocess.run(["cc", "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
