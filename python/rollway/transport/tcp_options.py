"""TcpOptions: how a worker's end of a TCP connection behaves, the same for samples, records and weights."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from rollway.errors import InvalidArgument


@dataclass(frozen=True)
class TcpOptions:
    """The keyword arguments that `TcpClient`, `TcpRecordClient` and `TcpWeights` share, as one value.

    The clients make it of their arguments and hand it to native code, which reads its fields. Native code also checks
    that the times are numbers of seconds.
    """

    token: str | bytes | None = field(default=None, repr=False)
    ca: str | os.PathLike[str] | None = None
    server_name: str | None = None
    connect_timeout_s: float = 10.0
    reconnect_timeout_s: float = 60.0
    keepalive_s: float = 5.0

    def __post_init__(self) -> None:
        if self.ca is None and self.server_name is not None:
            raise InvalidArgument(
                f"server_name = {self.server_name!r} without ca: there is no TLS, so nobody would look at it"
            )

    @property
    def token_bytes(self) -> bytes | None:
        """The bytes of the token."""
        return token_bytes(self.token)

    @property
    def tls(self) -> tuple[str, str | None] | None:
        """Authority and server name; ``None`` without TLS."""
        return None if self.ca is None else (os.fspath(self.ca), self.server_name)


def token_bytes(token: str | bytes | None) -> bytes | None:
    """The bytes of a token."""
    return token.encode() if isinstance(token, str) else token
