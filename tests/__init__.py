"""Tests by layer, then by noun. They import what they share from `tests.support`; so do the processes that they start."""

import os
from pathlib import Path

# Before numpy and torch are imported, here and in the processes of the tests. Runs and their processes share the cores, and
# threads that wait for each other spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parents[1]
"""The checkout: on `sys.path` of a process that imports something of ours."""
