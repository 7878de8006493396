"""What a record says about itself in free form: JSON as bytes, and back. Called by native code."""

from __future__ import annotations

import json
from typing import Any

from rollway.errors import InvalidArgument

_as_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode  # making it costs more than using it


def encode(metadata: Any) -> bytes:
    """The metadata as JSON. NaN and infinities go through; what JSON cannot say is an error, not a guess."""
    try:
        return _as_json(metadata).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"metadata must be what JSON can say, or bytes: {error}") from None


def decode(packed: bytes) -> Any:
    """The metadata that `encode` made these bytes of."""
    try:
        return json.loads(packed.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:  # the sender does not use this module
        raise InvalidArgument(f"the metadata of a record is no JSON: {error}") from None
