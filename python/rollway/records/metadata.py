"""The free metadata of a record: JSON as bytes, and back. Called by native code."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from rollway.errors import InvalidArgument


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
        return value.item()
    if isinstance(value, np.ndarray):
        raise TypeError("an array is none. Send it as a field of the record, or as a list with .tolist()")
    raise TypeError(f"{type(value).__name__} is none")


_as_json = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, default=_plain
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
