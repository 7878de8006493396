"""Python 3.11 and SkyRL: its pydantic models want the `TypedDict` of Python 3.12, which `typing_extensions` has.

`install` puts it in place. The package `rollway.integrations.skyrl` calls it when it is imported, before anything of it
imports skyrl; nobody else has to. On Python 3.12 and later it does nothing.
"""

from __future__ import annotations

import sys
import typing


def install() -> None:
    """Makes ``typing.TypedDict`` the one that pydantic accepts. Safe to call twice."""
    if sys.version_info < (3, 12):
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict
