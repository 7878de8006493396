"""The token for TCP, from a file, because other users can read command lines and logs."""

from __future__ import annotations

import os
from pathlib import Path

from rollway.errors import InvalidArgument


def read_token(path: str | os.PathLike[str] | None, setting: str) -> str | None:
    """The content of the file; ``None`` without a path. `InvalidArgument` names the setting if it cannot be read."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"cannot read a token from {os.fspath(path)!r} ({error}): {setting} must name a text file with the token"
        ) from None
