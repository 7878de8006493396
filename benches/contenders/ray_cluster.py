"""A Ray cluster on this machine, started once for the cells that follow one another and stopped before others run.

For the contenders that stand on Ray. Its daemons are processes that run beside whatever is measured, so they must not
outlive those cells.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from typing import Any

SHARED_SERVICE = "ray"
_CPUS = 16  # slots for actors, not cores
_STORE_BYTES = 1 << 30
_folders: list[str] = []


def start() -> str:
    """In the parent: the address of the cluster, which is started if there is none."""
    import ray

    _quieten()
    if not ray.is_initialized():
        ray.init(num_cpus=_CPUS, object_store_memory=_STORE_BYTES, _temp_dir=_folder(), **_settings())
    address: str = ray.get_runtime_context().gcs_address
    return address


def join(address: str) -> None:
    """In a process of a cell."""
    import ray

    _quieten()
    ray.init(address=address, namespace="bench", **_settings())


def stop() -> None:
    """In the parent."""
    import ray

    ray.shutdown()
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)


def _quieten() -> None:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def _settings() -> dict[str, Any]:
    return {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}


def _folder() -> str:
    _folders.append(tempfile.mkdtemp(prefix="ray-bench-"))
    return _folders[-1]
