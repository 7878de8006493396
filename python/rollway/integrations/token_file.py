"""The token for TCP, from a file: command lines and logs are read by too many for the token itself to stand there."""

from __future__ import annotations

import os
from pathlib import Path

from rollway.errors import InvalidArgument


def read_token(path: str | os.PathLike[str] | None, setting: str) -> str | None:
    """What the file holds; ``None`` without one. `InvalidArgument` names the setting if it cannot be read."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"there is no token to be read in {os.fspath(path)!r} ({error}): {setting} must name a file of text with "
            "the token that the other side has"
        ) from None
