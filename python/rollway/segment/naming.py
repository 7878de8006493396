"""Naming: the name of a segment for which the user chose none. Every kind of segment uses it."""

from __future__ import annotations

import os
import secrets

from rollway.errors import InvalidArgument


def auto_name() -> str:
    """A name that no other segment has. `rollway ls` shows which process made it."""
    return f"auto-{os.getpid()}-{secrets.token_hex(4)}"


def check_named(name: str) -> None:
    """Refuses the name of a server that no other process can find."""
    if name is None:
        raise InvalidArgument(
            "name is None: this server has no name. Give it a way in: Server(example, 64, ShmTransport())"
        )
