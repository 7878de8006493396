"""Naming: the name of a segment for which the user chose none. Every kind of segment uses it."""

from __future__ import annotations

import os
import secrets


def auto_name() -> str:
    """A name that no other segment has. `rollway ls` shows which process made it."""
    return f"auto-{os.getpid()}-{secrets.token_hex(4)}"
