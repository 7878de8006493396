"""The free metadata of a record: JSON as bytes, and back. Called by native code."""

from __future__ import annotations

import json
from typing import Any

from rollway.errors import InvalidArgument

_as_json = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False
).encode  # to make an encoder takes longer than to use it


def encode(metadata: Any) -> bytes:
    """The metadata as JSON, with NaN and infinities. Raises for types that JSON does not have."""
    try:
        return _as_json(metadata).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"metadata must be bytes, or of types that JSON has: {error}") from None


def decode(packed: bytes) -> Any:
    """The inverse of `encode`."""
    try:
        return json.loads(packed.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:  # sent by another program
        raise InvalidArgument(f"the metadata of a record is not JSON: {error}") from None
