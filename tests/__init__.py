"""Tests by layer, then by noun. They import what they share from `tests.support`; so do the processes that they start."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The checkout: on `sys.path` of a process that imports something of ours."""
